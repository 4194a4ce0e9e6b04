//! What one connection hears of sessions: replies to `spawn` and `attach`, replay, live frames (runner-protocol 4).
//!
//! One emitter per session and connection is the session lock of the protocol: everything about the session passes
//! through it in order. It holds one cursor into the journal. An attachment is answered, the journal is replayed *up to
//! that cursor* to the new subscriber alone, `replay_end` says so (RUL-44), and then the cursor walks on for everybody. So
//! no live frame falls between a reply and its replay (P1), and a slow socket makes the cursor wait and nobody else (P4).
//! All emitters end with their connection (P5); the next one starts its own (P2).

use std::{cell::RefCell, collections::HashMap, io, rc::Rc, sync::Arc, time::Duration};

use serde_json::json;
use tokio::sync::mpsc;

use super::wire::{self, Frame};
use crate::process::{Event, Exit, Reader, Session};

/// Messages that may wait for the socket, of all sessions together. Each is at most one chunk or one reply.
pub const OUTBOUND: usize = 16;
/// A spill file that cannot be read is tried again; its bytes are not given up.
const READ_RETRY: Duration = Duration::from_secs(1);

/// The way to the socket. Waits when the socket is slow; tells when it is gone.
#[derive(Clone, Debug)]
pub struct Outbound(mpsc::Sender<String>);

/// The connection is over.
#[derive(Debug)]
pub struct Gone;

impl Outbound {
    /// A way to the socket, and its end at the writer.
    pub fn new() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(OUTBOUND);
        (Self(sender), receiver)
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn send(&self, message: String) -> Result<(), Gone> {
        self.0.send(message).await.map_err(|_| Gone)
    }
}

/// The emitters of one connection.
#[derive(Debug)]
pub struct Subscriptions {
    out: Outbound,
    emitters: RefCell<HashMap<String, Emitter>>,
}

#[derive(Debug)]
struct Emitter {
    requests: mpsc::UnboundedSender<i64>,
    task: tokio::task::JoinHandle<()>,
}

impl Subscriptions {
    /// None yet.
    pub fn new(out: Outbound) -> Rc<Self> {
        Rc::new(Self {
            out,
            emitters: RefCell::default(),
        })
    }

    /// Attaches the sender of `request` to a session: reply, replay, live frames.
    pub fn attach(&self, request: i64, session: Arc<Session>) {
        let mut emitters = self.emitters.borrow_mut();
        emitters.retain(|_, emitter| !emitter.requests.is_closed());
        if let Some(emitter) = emitters.get(session.id())
            && emitter.requests.send(request).is_ok()
        {
            return;
        }
        let (requests, asked) = mpsc::unbounded_channel();
        // The receiver is in the next line.
        let _ = requests.send(request);
        let id = session.id().to_owned();
        let task = actix_rt::spawn(emit(session, asked, self.out.clone()));
        emitters.insert(id, Emitter { requests, task });
    }

    /// Stops what is said about a session. The command lives.
    pub fn detach(&self, session: &str) {
        self.emitters.borrow_mut().remove(session);
    }

    /// Waits until every emitter whose session has ended has said so.
    pub async fn finish(&self) {
        let emitters: Vec<_> = self.emitters.borrow_mut().drain().collect();
        for (_, Emitter { requests, task }) in emitters {
            let _ = task.await;
            drop(requests);
        }
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for (_, emitter) in self.emitters.get_mut().drain() {
            emitter.task.abort();
        }
    }
}

/// Runs one emitter until its session has ended, nobody asks any more, or the connection is gone.
async fn emit(session: Arc<Session>, mut asked: mpsc::UnboundedReceiver<i64>, out: Outbound) {
    let start = session.tail();
    let mut voice = Voice {
        live: session.reader_at(start.end),
        said: start.exit,
        session: &session,
        out,
    };
    while let Ok(more) = voice.turn(&mut asked).await {
        if !more {
            return;
        }
    }
}

struct Voice<'s> {
    session: &'s Session,
    live: Reader,
    /// The end, once the live frames have told it.
    said: Option<Exit>,
    out: Outbound,
}

impl Voice<'_> {
    /// Serves one request or one live event; answers whether there can be more.
    async fn turn(&mut self, asked: &mut mpsc::UnboundedReceiver<i64>) -> Result<bool, Gone> {
        if self.said.is_some() {
            // No await between the look and the close: a request either is here or finds the queue closed.
            let Ok(request) = asked.try_recv() else {
                asked.close();
                return Ok(false);
            };
            self.replay(request).await?;
            return Ok(true);
        }
        let event = tokio::select! {
            biased;
            request = asked.recv() => match request {
                Some(request) => {
                    self.replay(request).await?;
                    return Ok(true);
                }
                None => return Ok(false),
            },
            event = self.live.next() => event,
        };
        let frame = match event {
            Ok(Event::Output { stream, data }) => Frame::output(self.session.id(), stream, &data, None),
            Ok(Event::Exit(exit)) => {
                self.said = Some(exit);
                Frame::exit(self.session.id(), exit.code, None)
            }
            Err(error) => {
                unreadable(&error).await;
                return Ok(true);
            }
        };
        self.out.send(frame.text()).await?;
        Ok(true)
    }

    async fn replay(&self, request: i64) -> Result<(), Gone> {
        let id = self.session.id();
        self.out
            .send(wire::reply(request, &Ok(json!({"session_id": id}))))
            .await?;
        let mut reader = self.session.reader();
        let (mut stdout, mut stderr) = (0, 0);
        loop {
            match reader.next_before(self.live.position()).await {
                Ok(Some((stream, data))) => {
                    match stream {
                        crate::process::Stream::Stdout => stdout += data.len() as u64,
                        crate::process::Stream::Stderr => stderr += data.len() as u64,
                    }
                    self.out
                        .send(Frame::output(id, stream, &data, Some(request)).text())
                        .await?;
                }
                Ok(None) => break,
                Err(error) => unreadable(&error).await,
            }
        }
        self.out
            .send(Frame::replay_end(id, request, stdout, stderr).text())
            .await?;
        match self.said {
            Some(exit) => self.out.send(Frame::exit(id, exit.code, Some(request)).text()).await,
            None => Ok(()),
        }
    }
}

async fn unreadable(error: &io::Error) {
    tracing::warn!(%error, "a spilled journal cannot be read; trying again");
    tokio::time::sleep(READ_RETRY).await;
}
