//! One connected runner: requests by id, replies in any order, streams to their subscribers (runner-protocol 2 to 4).
//!
//! The mailbox is the order: a subscription is installed before its reply is handed out, in the same handler. Nothing
//! waits in here; a caller bounds its own patience, and a reply that comes later finds its asker gone and is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use actix::prelude::*;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Connections;
use super::subscriptions::{HOLD, Subscriptions};
use super::wire::{self, Inbound};
use crate::domain::machine::Provider;
use crate::domain::runner::Runner;
use crate::ports::sandbox::{FrameStream, RUNNER_DISCONNECTED, SandboxError};

/// What the socket is to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Outbound {
    Text(String),
    /// Close with this code; nothing follows.
    Close {
        code: u16,
        reason: String,
    },
}

/// Asks the daemon for one operation. Sent by the runner adapter; answered with the reply's `result`.
#[derive(Message)]
#[rtype(result = "Result<CallAnswer, SandboxError>")]
pub struct Call {
    pub op: &'static str,
    pub arguments: Map<String, Value>,
    /// The reply names a session, and the caller wants its frames.
    pub subscribe: bool,
}

#[derive(Debug)]
pub struct CallAnswer {
    pub result: Value,
    /// With `subscribe`: the session's frames, and the reference by which to unsubscribe.
    pub stream: Option<(u64, FrameStream)>,
}

/// Drops one subscription; the last one of a session detaches it at the daemon.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unsubscribe {
    pub session_id: String,
    pub reference: u64,
}

/// A batch of text messages from the socket. Answers false when the connection is to be given up.
#[derive(Message)]
#[rtype(result = "bool")]
pub struct Incoming(pub Vec<String>);

/// Ends the connection from our side.
#[derive(Message)]
#[rtype(result = "()")]
pub struct End {
    pub code: u16,
    pub reason: &'static str,
}

/// The socket is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Disconnected;

struct Waiting {
    subscribe: bool,
    attach: bool,
    reply: oneshot::Sender<Result<CallAnswer, SandboxError>>,
}

pub struct RunnerConnection {
    runner: Runner,
    registry: Arc<Connections>,
    /// Set once the registry took it.
    ticket: Option<u64>,
    outbound: mpsc::UnboundedSender<Outbound>,
    waiting: HashMap<u64, Waiting>,
    next_id: u64,
    subscriptions: Subscriptions,
    unsaved_limit: usize,
}

impl RunnerConnection {
    /// A connection of `runner`, not yet registered. Over `unsaved_limit` undurable bytes it is closed, and replay
    /// delivers them again later (RUL-43).
    pub fn new(
        runner: Runner,
        registry: Arc<Connections>,
        outbound: mpsc::UnboundedSender<Outbound>,
        unsaved_limit: usize,
    ) -> Self {
        Self {
            runner,
            registry,
            ticket: None,
            outbound,
            waiting: HashMap::new(),
            next_id: 1,
            subscriptions: Subscriptions::default(),
            unsaved_limit,
        }
    }

    fn write(&self, text: String) -> Result<(), SandboxError> {
        self.outbound.send(Outbound::Text(text)).map_err(|_| disconnected())
    }

    fn close(&mut self, code: u16, reason: impl Into<String>, ctx: &mut Context<Self>) {
        let _ = self.outbound.send(Outbound::Close {
            code,
            reason: reason.into(),
        });
        self.withdraw();
        ctx.stop();
    }

    /// Withdraws the registration first, then tells whoever waits: nobody may be sent here any more (4.5).
    fn withdraw(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.registry.withdraw(self.runner.id, ticket);
        }
        for (_, waiting) in self.waiting.drain() {
            let _ = waiting.reply.send(Err(disconnected()));
        }
        self.subscriptions.fail_all(&disconnected());
    }

    fn detach(&self, session_id: &str) {
        // Id 0: the reply is ignored (runner-protocol 2).
        let arguments = Map::from_iter([("session_id".to_owned(), Value::from(session_id))]);
        let _ = self.write(wire::request(0, "detach", arguments));
    }

    fn reply(&mut self, id: u64, answer: Result<Value, SandboxError>, ctx: &mut Context<Self>) {
        let Some(waiting) = self.waiting.remove(&id) else {
            return;
        };
        if waiting.reply.is_closed() {
            // Its asker gave up. A session that this reply names is found by `list_sessions` (RUL-L-42).
            return;
        }
        let answer = answer.and_then(|result| {
            if !waiting.subscribe {
                return Ok(CallAnswer { result, stream: None });
            }
            let session = result
                .get("session_id")
                .and_then(Value::as_str)
                .map(str::to_owned)
                .ok_or_else(malformed)?;
            let hold = waiting.attach && !self.runner.details.offers("replay_end");
            let stream = self.subscriptions.add(&session, id, hold, Instant::now());
            if hold {
                ctx.run_later(HOLD, |connection, _| {
                    connection.subscriptions.release_overdue(Instant::now())
                });
            }
            Ok(CallAnswer {
                result,
                stream: Some((id, stream)),
            })
        });
        let _ = waiting.reply.send(answer);
    }
}

fn disconnected() -> SandboxError {
    SandboxError::Unavailable(RUNNER_DISCONNECTED.into())
}

fn malformed() -> SandboxError {
    SandboxError::Provider {
        provider: Provider::Runner,
        detail: "malformed_reply".into(),
    }
}

impl Actor for RunnerConnection {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Self::Context) {
        self.withdraw();
    }
}

/// The registry took this connection under `0`.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Registered(pub u64);

impl Handler<Registered> for RunnerConnection {
    type Result = ();
    fn handle(&mut self, msg: Registered, _: &mut Self::Context) {
        self.ticket = Some(msg.0);
    }
}

impl Handler<Call> for RunnerConnection {
    type Result = ResponseFuture<Result<CallAnswer, SandboxError>>;

    fn handle(&mut self, msg: Call, _: &mut Self::Context) -> Self::Result {
        let id = self.next_id;
        self.next_id += 1;
        if let Err(error) = self.write(wire::request(id, msg.op, msg.arguments)) {
            return Box::pin(async move { Err(error) });
        }
        let (reply, answer) = oneshot::channel();
        self.waiting.insert(
            id,
            Waiting {
                subscribe: msg.subscribe,
                attach: msg.op == "attach",
                reply,
            },
        );
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(disconnected())) })
    }
}

impl Handler<Unsubscribe> for RunnerConnection {
    type Result = ();
    fn handle(&mut self, msg: Unsubscribe, _: &mut Self::Context) {
        if self.subscriptions.remove(&msg.session_id, msg.reference) {
            self.detach(&msg.session_id);
        }
    }
}

impl Handler<Incoming> for RunnerConnection {
    type Result = bool;

    fn handle(&mut self, msg: Incoming, ctx: &mut Self::Context) -> bool {
        let now = Instant::now();
        for text in msg.0 {
            match wire::read(&text) {
                Inbound::Reply { id, answer } => self.reply(id, answer, ctx),
                Inbound::Stream(frame) => {
                    let session = frame.session_id.clone();
                    if self.subscriptions.deliver(frame, now) {
                        self.detach(&session);
                    }
                }
                Inbound::Other => {
                    tracing::debug!(runner.id = %self.runner.id, "a frame of an unknown kind from runner {}", self.runner.id);
                }
                Inbound::Garbage => {
                    tracing::warn!(runner.id = %self.runner.id, "runner {} sent something that is not JSON", self.runner.id);
                    self.close(1003, "frames must be JSON text", ctx);
                    return false;
                }
            }
        }
        if self.subscriptions.unsaved() > self.unsaved_limit {
            tracing::warn!(
                runner.id = %self.runner.id,
                "runner {} is ahead of the store by more than the limit; it replays when it is back",
                self.runner.id
            );
            self.close(1013, "the server cannot keep up; reconnect and replay", ctx);
            return false;
        }
        true
    }
}

impl Handler<End> for RunnerConnection {
    type Result = ();
    fn handle(&mut self, msg: End, ctx: &mut Self::Context) {
        self.close(msg.code, msg.reason, ctx);
    }
}

impl Handler<Disconnected> for RunnerConnection {
    type Result = ();
    fn handle(&mut self, _: Disconnected, ctx: &mut Self::Context) {
        self.withdraw();
        ctx.stop();
    }
}
