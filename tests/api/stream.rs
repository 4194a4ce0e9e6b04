//! Event streams and the REST feed (http-api 3; RUL-15, RUL-19c, RUL-42a; P60, P61, P63 to P65), under virtual time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix_http::Request;
use actix_web::Error;
use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::header::HeaderMap;
use actix_web::test::{TestRequest, call_service};
use fountain_actors::domain::TurnId;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::event::*;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::world::*;

/// One frame as a client reads it.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Comment(String),
    Event {
        id: Option<i64>,
        event: String,
        data: Value,
    },
}

impl Frame {
    pub fn id(&self) -> Option<i64> {
        match self {
            Self::Event { id, .. } => *id,
            Self::Comment(_) => None,
        }
    }

    fn data(&self) -> &Value {
        match self {
            Self::Event { data, .. } => data,
            Self::Comment(text) => panic!("a comment: {text}"),
        }
    }
}

fn parse(frame: &str) -> Frame {
    if let Some(comment) = frame.strip_prefix(": ") {
        return Frame::Comment(comment.into());
    }
    let field = |name: &str| {
        frame
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::to_owned)
    };
    Frame::Event {
        id: field("id: ").map(|id| id.parse().unwrap()),
        event: field("event: ").unwrap(),
        data: serde_json::from_str(&field("data: ").unwrap()).unwrap(),
    }
}

/// A client that reads one stream. Dropping it is a disconnect.
pub struct Reader {
    pub headers: HeaderMap,
    body: Pin<Box<BoxBody>>,
    buffer: String,
    frames: VecDeque<Frame>,
}

impl Reader {
    pub async fn open<S>(app: &S, request: TestRequest) -> Self
    where
        S: Service<Request, Response = ServiceResponse<BoxBody>, Error = Error>,
    {
        let response = call_service(app, request.insert_header(("accept", "text/event-stream")).to_request()).await;
        assert_eq!(response.status(), 200);
        Self {
            headers: response.headers().clone(),
            body: Box::pin(response.into_body()),
            buffer: String::new(),
            frames: VecDeque::new(),
        }
    }

    /// The next piece as it leaves; None at a clean end.
    pub async fn piece(&mut self) -> Option<String> {
        let piece = std::future::poll_fn(|cx| self.body.as_mut().poll_next(cx)).await?;
        Some(String::from_utf8(piece.unwrap().to_vec()).unwrap())
    }

    /// The next frame; None at the end.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            let piece = self.piece().await?;
            self.buffer.push_str(&piece);
            while let Some(end) = self.buffer.find("\n\n") {
                let frame: String = self.buffer.drain(..end + 2).collect();
                self.frames.push_back(parse(frame.trim_end()));
            }
        }
    }

    /// The next frame that is no comment.
    pub async fn event(&mut self) -> Option<Frame> {
        loop {
            match self.frame().await? {
                Frame::Comment(_) => {}
                event => return Some(event),
            }
        }
    }

    pub async fn ids(&mut self, count: usize) -> Vec<i64> {
        let mut ids = Vec::new();
        while ids.len() < count {
            ids.push(self.event().await.unwrap().id().unwrap());
        }
        ids
    }

    async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.event().await {
            frames.push(frame);
        }
        frames
    }
}

fn stream(tenant: &Tenant, query: &str) -> TestRequest {
    signed(
        "GET",
        &format!("/api/conversations/{}/stream{query}", tenant.conversation),
        &tenant.full,
    )
}

fn world() -> World {
    tokio::time::pause();
    World::default()
}

/// Ends of a conversation, and the state that the server frame gives each.
const ENDS: [(ConversationStatus, &str); 2] = [
    (ConversationStatus::Terminated, "done"),
    (ConversationStatus::Failed, "failed"),
];

#[actix_web::test]
async fn rul_19c_connected_comes_first_and_the_headers_are_those_of_a_stream() {
    let world = world();
    let mut reader = Reader::open(&world.app().await, stream(&world.ann, "")).await;
    assert_eq!(reader.headers.get("content-type").unwrap(), "text/event-stream");
    assert_eq!(reader.headers.get("cache-control").unwrap(), "no-cache");
    assert!(reader.headers.contains_key("x-request-id"));
    assert_eq!(reader.piece().await.unwrap(), ": connected\n\n");
}

#[actix_web::test]
async fn sse_no_cursor_header_on_the_first_connection_replays_everything_and_tails() {
    let world = world();
    let app = world.app().await;
    world.say(&world.ann, Stream::Stdout, "one");
    world.say(&world.bob, Stream::Stdout, "not ours");
    world.say(&world.ann, Stream::Stdout, "two");
    let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
    assert_eq!(reader.ids(2).await, [1, 3]);
    let before = Instant::now();
    world.say(&world.ann, Stream::Stdout, "three");
    assert_eq!(reader.ids(1).await, [4]);
    assert_eq!(before.elapsed(), Duration::ZERO, "announced, so not polled for");
}

#[actix_web::test]
async fn the_bytes_of_every_kind_of_frame() {
    let world = world();
    let app = world.app().await;
    let turn: TurnId = world.ann.turn;
    world.append(
        &world.ann,
        world.ann.conversation,
        NewStage::new(Stage::Turn, StageState::Started).of_turn(turn, 1).into(),
        true,
    );
    let said = NewOutput {
        turn_id: Some(turn),
        stream: Stream::Acp,
        data: "{\"jsonrpc\":\"2.0\"}\n\u{2028}".into(),
        source: None,
        gap: None,
    };
    world.append(&world.ann, world.ann.conversation, said.into(), true);
    let gap = NewOutput {
        turn_id: None,
        stream: Stream::Stderr,
        data: "3 bytes are missing".into(),
        source: None,
        gap: Some((RawStream::Stdout, ByteRange { from: 4, to: 7 })),
    };
    world.append(&world.ann, world.ann.conversation, gap.into(), true);
    let mut reader = Reader::open(&app, stream(&world.ann, "?wait=false")).await;
    let mut bytes = String::new();
    while let Some(piece) = reader.piece().await {
        bytes.push_str(&piece);
    }
    let expected = [
        ": connected".to_owned(),
        format!(
            "id: 1\nevent: stage\ndata: {{\"kind\":\"stage\",\"stream\":\"\",\"data\":\"{{\\\"turn_id\\\":\\\"{turn}\\\",\
             \\\"turn_number\\\":1}}\",\"stage\":\"turn\",\"state\":\"started\",\"turn_id\":\"{turn}\",\
             \"ts\":\"2026-01-02T03:04:05.123456Z\"}}"
        ),
        format!(
            "id: 2\nevent: output\ndata: {{\"kind\":\"output\",\"stream\":\"acp\",\"data\":\"{{\\\"jsonrpc\\\":\\\"2.0\\\"}}\
             \\n\u{2028}\",\"stage\":\"turn\",\"state\":null,\"turn_id\":\"{turn}\",\"ts\":\"2026-01-02T03:04:05.123456Z\"}}"
        ),
        "id: 3\nevent: output\ndata: {\"kind\":\"output\",\"stream\":\"stderr\",\"data\":\"3 bytes are missing\",\
         \"stage\":\"turn\",\"state\":null,\"turn_id\":null,\"ts\":\"2026-01-02T03:04:05.123456Z\",\
         \"gap\":{\"stream\":\"stdout\",\"from\":4,\"to\":7}}"
            .to_owned(),
    ];
    assert_eq!(bytes, expected.map(|frame| frame + "\n\n").concat());
}

#[actix_web::test]
async fn blocks_stand_in_every_frame_when_asked_for() {
    let world = world();
    let app = world.app().await;
    world.say(&world.ann, Stream::Acp, "line");
    world.say(&world.ann, Stream::Stdout, "raw");
    world.stage(&world.ann, Stage::Provision, StageState::Done);
    let frames = Reader::open(&app, stream(&world.ann, "?wait=false&blocks=true"))
        .await
        .rest()
        .await;
    let blocks: Vec<_> = frames.iter().map(|frame| frame.data()["blocks"].clone()).collect();
    assert_eq!(
        blocks,
        [json!([{"kind": "text", "body": "line"}]), json!([]), json!([])]
    );
}

#[actix_web::test]
async fn p60_an_event_between_the_backlog_and_the_wait_is_not_lost() {
    let world = world();
    let app = world.app().await;
    world.say(&world.ann, Stream::Stdout, "one");
    let (rows, bus) = (world.rows.clone(), world.bus.clone());
    let (account, conversation) = (world.ann.account, world.ann.conversation);
    *world.rows.hook.lock().unwrap() = Some(Box::new(move || {
        let cursor = store_event(&rows, account, conversation, output(Stream::Stdout, "two"));
        fountain_actors::ports::Bus::publish(&*bus, cursor);
    }));
    let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
    let before = Instant::now();
    assert_eq!(reader.ids(2).await, [1, 2]);
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[actix_web::test]
async fn p60_an_event_that_nobody_announced_is_found_within_a_second() {
    let world = world();
    let app = world.app().await;
    let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
    assert_eq!(reader.frame().await, Some(Frame::Comment("connected".into())));
    assert!(timeout(Duration::from_millis(10), reader.frame()).await.is_err());
    world.append(
        &world.ann,
        world.ann.conversation,
        output(Stream::Stdout, "quiet"),
        false,
    );
    let before = Instant::now();
    assert_eq!(reader.ids(1).await, [1]);
    assert!(before.elapsed() <= Duration::from_secs(1));
}

#[actix_web::test]
async fn rul_19c_a_silent_stream_says_heartbeat_every_three_seconds() {
    let world = world();
    let mut reader = Reader::open(&world.app().await, stream(&world.ann, "")).await;
    assert_eq!(reader.frame().await, Some(Frame::Comment("connected".into())));
    for _ in 0..5 {
        let before = Instant::now();
        assert_eq!(reader.frame().await, Some(Frame::Comment("heartbeat".into())));
        let silence = before.elapsed();
        assert!((2..=4).contains(&silence.as_secs()), "{silence:?}");
    }
}

/// The published client looks at its deadline only when a stream ends; a parked conversation is left alone (RUL-15).
#[actix_web::test]
async fn a_running_turn_that_says_nothing_for_half_a_minute_ends_its_stream_cleanly() {
    let world = world();
    let app = world.app().await;
    world.set_status(world.ann.conversation, ConversationStatus::Running);
    let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
    let before = Instant::now();
    while let Some(frame) = reader.frame().await {
        assert!(matches!(frame, Frame::Comment(_)), "no synthetic frame: {frame:?}");
    }
    assert!(
        (30..=33).contains(&before.elapsed().as_secs()),
        "{:?}",
        before.elapsed()
    );
}

#[actix_web::test]
async fn sse_reconnect_resumes_from_last_event_id() {
    let world = world();
    let app = world.app().await;
    for text in ["a", "b", "c"] {
        world.say(&world.ann, Stream::Stdout, text);
    }
    for (header, ids) in [
        ("2", vec![3]),
        ("0", vec![1, 2, 3]),
        ("x", vec![1, 2, 3]),
        ("-7", vec![1, 2, 3]),
        ("3", vec![]),
    ] {
        let request = stream(&world.ann, "?wait=0").insert_header(("last-event-id", header));
        let frames = Reader::open(&app, request).await.rest().await;
        let seen: Vec<_> = frames.iter().filter_map(Frame::id).collect();
        assert_eq!(seen, ids, "{header}");
    }
}

#[actix_web::test]
async fn a_filter_leaves_gaps_in_the_ids_and_an_unknown_word_matches_nothing() {
    let world = world();
    let app = world.app().await;
    for stream in [Stream::Stdout, Stream::Acp, Stream::Stderr, Stream::Acp] {
        world.say(&world.ann, stream, "x");
    }
    world.stage(&world.ann, Stage::Provision, StageState::Done);
    for (filter, ids) in [
        ("streams=acp", vec![2, 4]),
        ("streams=stage,stderr", vec![3, 5]),
        ("streams=", vec![1, 2, 3, 4, 5]),
        ("streams=nope", vec![]),
    ] {
        let frames = Reader::open(&app, stream(&world.ann, &format!("?wait=false&{filter}")))
            .await
            .rest()
            .await;
        assert_eq!(frames.iter().filter_map(Frame::id).collect::<Vec<_>>(), ids, "{filter}");
    }
}

fn server_frame(frame: &Frame) -> (Option<i64>, Value, Value, Value) {
    let data = frame.data();
    let meta: Value = serde_json::from_str(data["data"].as_str().unwrap()).unwrap();
    (
        frame.id(),
        data["stage"].clone(),
        data["state"].clone(),
        meta["reason"].clone(),
    )
}

#[actix_web::test]
async fn rul_15_a_stream_ends_with_the_server_frame_when_its_conversation_has_ended() {
    tokio::time::pause();
    for (status, state) in ENDS {
        let world = World::default();
        let app = world.app().await;
        let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
        assert_eq!(reader.frame().await, Some(Frame::Comment("connected".into())));
        assert!(timeout(Duration::from_millis(10), reader.frame()).await.is_err());
        world.set_status(world.ann.conversation, status);
        let last = match status {
            ConversationStatus::Failed => world.stage(&world.ann, Stage::Provision, StageState::Failed),
            _ => world.stage(&world.ann, Stage::Terminate, StageState::Done),
        };
        let before = Instant::now();
        let frames = reader.rest().await;
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0].id(), Some(last.0));
        assert_eq!(
            server_frame(&frames[1]),
            (None, json!("server"), json!(state), json!(status.as_str()))
        );
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
}

#[actix_web::test]
async fn rul_15_rows_that_come_with_the_end_are_sent_before_the_server_frame() {
    let world = world();
    let app = world.app().await;
    world.set_status(world.ann.conversation, ConversationStatus::Terminated);
    for _ in 0..300 {
        world.say(&world.ann, Stream::Stdout, "x");
    }
    world.stage(&world.ann, Stage::Terminate, StageState::Done);
    let frames = Reader::open(&app, stream(&world.ann, "")).await.rest().await;
    assert_eq!(frames.len(), 302);
    assert_eq!(frames[301].id(), None);
}

#[actix_web::test]
async fn rul_15_a_deleted_conversation_ends_its_streams() {
    let world = world();
    let app = world.app().await;
    let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
    assert_eq!(reader.frame().await, Some(Frame::Comment("connected".into())));
    world.rows.edit(|t| {
        t.conversations
            .retain(|view| view.conversation.id != world.ann.conversation)
    });
    let frames = reader.rest().await;
    assert_eq!(
        frames.iter().map(server_frame).collect::<Vec<_>>(),
        [(None, json!("server"), json!("done"), json!("deleted"))]
    );
}

#[actix_web::test]
async fn rul_15_a_failed_turn_and_a_parked_conversation_keep_the_stream() {
    let world = world();
    let app = world.app().await;
    let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
    world.stage(&world.ann, Stage::Turn, StageState::Failed);
    assert_eq!(reader.ids(1).await, [1]);
    for _ in 0..100 {
        assert_eq!(reader.frame().await, Some(Frame::Comment("heartbeat".into())));
    }
}

#[actix_web::test]
async fn rul_15_a_drain_ends_streams_cleanly_and_without_a_frame() {
    let world = world();
    let app = world.app().await;
    let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
    assert_eq!(reader.frame().await, Some(Frame::Comment("connected".into())));
    assert!(timeout(Duration::from_millis(10), reader.frame()).await.is_err());
    world.closing.send_replace(true);
    let before = Instant::now();
    assert_eq!(reader.frame().await, None);
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[actix_web::test]
async fn p63_a_reader_that_does_not_read_costs_one_page_and_no_query() {
    let world = world();
    let app = world.app().await;
    for _ in 0..5000 {
        world.say(&world.ann, Stream::Stdout, &"x".repeat(1000));
    }
    let mut reader = Reader::open(&app, stream(&world.ann, "?wait=false")).await;
    reader.piece().await.unwrap();
    let first = reader
        .piece()
        .await
        .unwrap()
        .matches(
            "

",
        )
        .count();
    assert_eq!(world.rows.reads.load(Ordering::SeqCst), 1);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.rows.reads.load(Ordering::SeqCst), 1);
    assert_eq!(first + reader.rest().await.len(), 5000);
    assert!(
        world.rows.reads.load(Ordering::SeqCst) < 40,
        "pages grow while rows are small"
    );
}

#[actix_web::test]
async fn p64_pages_shrink_where_rows_are_large() {
    let world = world();
    let app = world.app().await;
    for _ in 0..200 {
        world.say(&world.ann, Stream::Stdout, &"x".repeat(100_000));
    }
    let mut reader = Reader::open(&app, stream(&world.ann, "?wait=false")).await;
    assert_eq!(reader.ids(200).await.len(), 200);
    // 64 rows, then 32, 16, 8 and so on: never a megabyte of rows times sixty-four again.
    assert!(world.rows.reads.load(Ordering::SeqCst) > 12);
}

#[actix_web::test]
async fn p61_a_store_that_is_down_for_a_while_does_not_end_a_stream() {
    let world = world();
    let app = world.app().await;
    world.say(&world.ann, Stream::Stdout, "one");
    let mut reader = Reader::open(&app, stream(&world.ann, "")).await;
    assert_eq!(reader.ids(1).await, [1]);
    world.rows.down.store(true, Ordering::SeqCst);
    world.say(&world.ann, Stream::Stdout, "two");
    assert_eq!(reader.frame().await, Some(Frame::Comment("heartbeat".into())));
    world.rows.down.store(false, Ordering::SeqCst);
    assert_eq!(reader.ids(1).await, [2]);
}

#[actix_web::test]
async fn the_account_stream_starts_from_now_and_names_the_conversation() {
    let world = world();
    let app = world.app().await;
    world.say(&world.ann, Stream::Stdout, "old");
    let path = "/api/events/stream";
    let mut reader = Reader::open(&app, signed("GET", path, &world.ann.full)).await;
    world.append(&world.ann, world.ann.other, output(Stream::Stdout, "new"), true);
    world.say(&world.bob, Stream::Stdout, "not ours");
    let frame = reader.event().await.unwrap();
    assert_eq!(frame.id(), Some(2));
    assert_eq!(frame.data()["conversation_id"], json!(world.ann.other));
    assert!(frame.data().as_object().unwrap().contains_key("duration_ms"));
    let resumed = signed("GET", path, &world.ann.full).insert_header(("last-event-id", "1"));
    assert_eq!(Reader::open(&app, resumed).await.ids(1).await, [2]);
}

#[actix_web::test]
async fn the_account_stream_says_when_the_list_is_worth_reading_again() {
    let world = world();
    let app = world.app().await;
    let mut reader = Reader::open(&app, signed("GET", "/api/events/stream", &world.ann.full)).await;
    assert_eq!(reader.frame().await, Some(Frame::Comment("connected".into())));
    for _ in 0..3 {
        world.stage(&world.ann, Stage::Turn, StageState::Done);
    }
    assert_eq!(reader.ids(3).await, [1, 2, 3]);
    let signal = reader.frame().await.unwrap();
    assert_eq!(
        signal,
        Frame::Event {
            id: None,
            event: "conversations".into(),
            data: json!({"reason": "changed"})
        }
    );
    assert_eq!(
        reader.frame().await,
        Some(Frame::Comment("heartbeat".into())),
        "debounced"
    );
}

async fn feed(world: &World, query: &str) -> Value {
    let path = format!("/api/conversations/{}/events{query}", world.ann.conversation);
    call(&world.app().await, signed("GET", &path, &world.ann.full))
        .await
        .json()
}

#[actix_web::test]
async fn history_empty_feed_is_an_empty_list() {
    let world = world();
    assert_eq!(
        feed(&world, "").await,
        json!({"data": [], "meta": {"limit": 100, "has_more": false, "next_cursor": null}})
    );
}

#[actix_web::test]
async fn history_drains_the_feed_across_pages() {
    let world = world();
    for n in 0..25 {
        let stream = if n % 10 == 0 { Stream::Acp } else { Stream::Stdout };
        world.say(&world.ann, stream, "x");
    }
    for (filter, expected) in [("", (1..=25).collect::<Vec<i64>>()), ("&streams=acp", vec![1, 11, 21])] {
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let page = feed(&world, &format!("?limit=4&after={after}{filter}")).await;
            seen.extend(
                page["data"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|row| row["id"].as_i64().unwrap()),
            );
            if page["meta"]["has_more"] == false {
                break;
            }
            after = page["meta"]["next_cursor"].as_i64().unwrap();
        }
        assert_eq!(seen, expected);
    }
}

#[actix_web::test]
async fn the_feed_has_ids_durations_and_prompts() {
    let world = world();
    let started = NewStage::new(Stage::Turn, StageState::Started).of_turn(world.ann.turn, 1);
    world.append(
        &world.ann,
        world.ann.conversation,
        started.took(Duration::from_millis(7)).into(),
        true,
    );
    let row = feed(&world, "").await["data"][0].clone();
    assert_eq!(
        row,
        json!({
            "id": 1, "kind": "stage", "stream": "", "stage": "turn", "state": "started", "duration_ms": 7,
            "data": format!("{{\"turn_id\":\"{}\",\"turn_number\":1}}", world.ann.turn),
            "turn_id": world.ann.turn, "ts": "2026-01-02T03:04:05.123456Z",
        })
    );
    let blocks = feed(&world, "?blocks=1&prompts=true").await["data"][0]["blocks"].clone();
    assert_eq!(blocks, json!([{"kind": "prompt", "body": "hi"}]));
    assert_eq!(feed(&world, "?prompts=true").await["data"][0].get("blocks"), None);
    world
        .rows
        .edit(|t| t.turns[0].origin = fountain_actors::domain::turn::Origin::Autonomous);
    assert_eq!(
        feed(&world, "?blocks=1&prompts=true").await["data"][0]["blocks"],
        json!([])
    );
}

#[actix_web::test]
async fn the_feed_bounds_its_pages_and_refuses_an_order_that_it_does_not_keep() {
    let world = world();
    for (query, limit) in [
        ("?limit=0", 1),
        ("?limit=9999", 1000),
        ("?limit=x", 100),
        ("?limit=-3", 1),
    ] {
        assert_eq!(feed(&world, query).await["meta"]["limit"], limit, "{query}");
    }
    for query in ["?order=desc", "?before=5", "?whole_turns=true"] {
        assert_eq!(feed(&world, query).await["error"], "invalid_parameters", "{query}");
    }
    assert_eq!(feed(&world, "?order=asc").await["data"], json!([]));
    assert_eq!(feed(&world, "?after=x").await["error"], "validation_failed");
}
