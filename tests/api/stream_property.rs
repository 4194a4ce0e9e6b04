//! Whatever is written, announced or not, and however often clients are cut off: every reader gets every event of its
//! filter once and in order (http-api 3.3, DESIGN promise 4).

use std::time::Duration;

use fountain_actors::domain::event::{NewStage, Stage, StageState, Stream};
use proptest::prelude::*;
use tokio::time::timeout;

use crate::stream::Reader;
use crate::world::*;

#[derive(Clone, Debug)]
enum Step {
    /// Into the followed conversation or another one of the account; announced or found by the poll.
    Append { kind: u8, other: bool, announced: bool },
    /// Lets a reader read for a while.
    Read { reader: usize, millis: u64 },
    /// Cuts a reader off. What it got of a frame that was not whole is lost, as on a real socket.
    Cut { reader: usize },
    /// The store answers nothing until the next step of this kind.
    Outage,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..4, any::<bool>(), any::<bool>())
            .prop_map(|(kind, other, announced)| Step::Append { kind, other, announced }),
        4 => (0usize..3, 0u64..2500).prop_map(|(reader, millis)| Step::Read { reader, millis }),
        2 => (0usize..3).prop_map(|reader| Step::Cut { reader }),
        1 => Just(Step::Outage),
    ]
}

/// One client: reconnects with the last id that it saw.
struct Client {
    path: String,
    /// Which of the written events it is to see.
    wants: fn(&Written) -> bool,
    reader: Option<Reader>,
    seen: Vec<i64>,
}

struct Written {
    id: i64,
    kind: u8,
    other: bool,
}

impl Client {
    async fn read<S>(&mut self, app: &S, world: &World, time: Duration)
    where
        S: actix_web::dev::Service<
                actix_http::Request,
                Response = actix_web::dev::ServiceResponse<actix_web::body::BoxBody>,
                Error = actix_web::Error,
            >,
    {
        if self.reader.is_none() {
            if world.rows.down.load(std::sync::atomic::Ordering::SeqCst) {
                return;
            }
            let mut request = signed("GET", &self.path, &world.ann.full);
            if let Some(last) = self.seen.last() {
                request = request.insert_header(("last-event-id", last.to_string()));
            }
            self.reader = Some(Reader::open(app, request).await);
        }
        let reader = self.reader.as_mut().unwrap();
        let until = tokio::time::Instant::now() + time;
        while let Ok(frame) = tokio::time::timeout_at(until, reader.frame()).await {
            let frame = frame.expect("the stream does not end by itself");
            self.seen.extend(frame.id());
        }
    }
}

fn clients(world: &World) -> Vec<Client> {
    let stream = format!("/api/conversations/{}/stream", world.ann.conversation);
    let client = |path: String, wants| Client {
        path,
        wants,
        reader: None,
        seen: Vec::new(),
    };
    vec![
        client(stream.clone(), |written| !written.other),
        client(format!("{stream}?streams=acp,stage&blocks=true"), |written| {
            !written.other && written.kind >= 2
        }),
        client("/api/events/stream?streams=stdout,stderr,acp,stage".into(), |_| true),
    ]
}

async fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    tokio::time::pause();
    let world = World::default();
    let app = world.app().await;
    let mut clients = clients(&world);
    let mut written = Vec::new();
    // The account stream has no history for a first connection, so everybody starts at once.
    for client in &mut clients {
        client.read(&app, &world, Duration::from_millis(1)).await;
    }
    // A cut before its first event would move the account stream's beginning; it resumes from 0 as "from now" otherwise.
    let first = world.append(&world.ann, world.ann.conversation, output(Stream::Acp, "first"), true);
    written.push(Written {
        id: first.0,
        kind: 2,
        other: false,
    });
    for client in &mut clients {
        client.read(&app, &world, Duration::from_millis(1)).await;
    }
    for step in steps {
        match step {
            Step::Append { kind, other, announced } => {
                let target = if other { world.ann.other } else { world.ann.conversation };
                let event = match kind {
                    0 => output(Stream::Stdout, "out"),
                    1 => output(Stream::Stderr, "err"),
                    2 => output(Stream::Acp, "{}"),
                    _ => NewStage::new(Stage::Turn, StageState::Failed).into(),
                };
                let id = world.append(&world.ann, target, event, announced);
                written.push(Written { id: id.0, kind, other });
            }
            Step::Read { reader, millis } => clients[reader].read(&app, &world, Duration::from_millis(millis)).await,
            Step::Cut { reader } => clients[reader].reader = None,
            Step::Outage => {
                world.rows.down.fetch_xor(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
    }
    world.rows.down.store(false, std::sync::atomic::Ordering::SeqCst);
    for client in &mut clients {
        client.read(&app, &world, Duration::from_secs(5)).await;
        let expected: Vec<i64> = written.iter().filter(|w| (client.wants)(w)).map(|w| w.id).collect();
        prop_assert_eq!(&client.seen, &expected, "{}", client.path);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_event_reaches_every_reader_once_and_in_order(steps in proptest::collection::vec(step(), 0..60)) {
        actix_web::rt::System::new().block_on(async {
            timeout(Duration::from_secs(3600), run(steps)).await.expect("a run ends")
        })?;
    }
}
