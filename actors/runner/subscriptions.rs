//! Who gets which frame of a session (runner-protocol 4, RUL-44).
//!
//! A frame without a tag goes to every subscriber of its session, a tagged one to the subscriber that its request made.
//! An exit is a fact about the session and reaches all of them; it is the last thing that any of them gets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::wire::{StreamBody, StreamFrame};
use crate::ports::sandbox::{Frame, FrameStream, Held, SandboxError};

/// How long untagged frames are held for a fresh attacher at a daemon that does not announce order (P1).
pub const HOLD: Duration = Duration::from_secs(1);

struct Subscriber {
    /// The request that made it, and its reference towards the adapter.
    request: u64,
    frames: mpsc::UnboundedSender<Frame>,
    /// Untagged frames that arrived before its replay did; None once that is settled.
    held: Option<(Instant, Vec<StreamBody>)>,
}

/// Subscriptions of one connection.
pub struct Subscriptions {
    sessions: HashMap<String, Vec<Subscriber>>,
    /// Bytes handed out that are not durable yet (RUL-43).
    ledger: Arc<AtomicUsize>,
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self {
            sessions: HashMap::new(),
            ledger: Arc::new(AtomicUsize::new(0)),
        }
    }
}

impl Subscriptions {
    /// Bytes handed out that are not durable yet.
    pub fn unsaved(&self) -> usize {
        self.ledger.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Adds the subscriber of request `request`. With `hold`, untagged frames wait for its replay.
    pub fn add(&mut self, session_id: &str, request: u64, hold: bool, now: Instant) -> FrameStream {
        let (frames, stream) = mpsc::unbounded_channel();
        let held = hold.then(|| (now + HOLD, Vec::new()));
        self.sessions
            .entry(session_id.to_owned())
            .or_default()
            .push(Subscriber { request, frames, held });
        stream
    }

    /// Removes one subscriber; true when its session has none left and should be detached.
    pub fn remove(&mut self, session_id: &str, request: u64) -> bool {
        let Some(subscribers) = self.sessions.get_mut(session_id) else {
            return false;
        };
        let before = subscribers.len();
        subscribers.retain(|subscriber| subscriber.request != request);
        let emptied = subscribers.is_empty() && before > 0;
        if subscribers.is_empty() {
            self.sessions.remove(session_id);
        }
        emptied
    }

    /// Delivers a frame. Answers true when the session's last subscriber turned out to be gone.
    pub fn deliver(&mut self, frame: StreamFrame, now: Instant) -> bool {
        let Some(subscribers) = self.sessions.get_mut(&frame.session_id) else {
            return false;
        };
        let ended = matches!(frame.body, StreamBody::Exit(_));
        for subscriber in subscribers.iter_mut() {
            let mine = frame.replay_for == Some(subscriber.request);
            if mine {
                // Its replay has begun: what was held is in the journal too, and comes with the replay.
                subscriber.held = None;
            } else if frame.replay_for.is_some() && !ended {
                continue;
            }
            match &mut subscriber.held {
                Some((until, held)) if *until > now && !ended => held.push(frame.body.copy()),
                _ => {
                    release(subscriber, &self.ledger);
                    send(subscriber, frame.body.copy(), &self.ledger);
                }
            }
        }
        if ended {
            self.sessions.remove(&frame.session_id);
            return false;
        }
        subscribers.retain(|subscriber| !subscriber.frames.is_closed());
        if subscribers.is_empty() {
            self.sessions.remove(&frame.session_id);
            return true;
        }
        false
    }

    /// Hands out what was held past its second (an empty journal sends no tagged frame).
    pub fn release_overdue(&mut self, now: Instant) {
        for subscriber in self.sessions.values_mut().flatten() {
            if subscriber.held.as_ref().is_some_and(|(until, _)| *until <= now) {
                release(subscriber, &self.ledger);
            }
        }
    }

    /// Anything held at all: the connection keeps a timer then.
    pub fn holds(&self) -> bool {
        self.sessions
            .values()
            .flatten()
            .any(|subscriber| subscriber.held.is_some())
    }

    /// The connection ended: every subscriber learns it, and no exit follows.
    pub fn fail_all(&mut self, error: &SandboxError) {
        for (_, subscribers) in self.sessions.drain() {
            for mut subscriber in subscribers {
                release(&mut subscriber, &self.ledger);
                let _ = subscriber.frames.send(Frame::Error(error.clone()));
            }
        }
    }
}

fn release(subscriber: &mut Subscriber, ledger: &Arc<AtomicUsize>) {
    if let Some((_, held)) = subscriber.held.take() {
        for body in held {
            send(subscriber, body, ledger);
        }
    }
}

fn send(subscriber: &Subscriber, body: StreamBody, ledger: &Arc<AtomicUsize>) {
    let frame = match body {
        StreamBody::Stdout(bytes) => Frame::Stdout(Held::counted(bytes, ledger)),
        StreamBody::Stderr(bytes) => Frame::Stderr(Held::counted(bytes, ledger)),
        StreamBody::ReplayEnd {
            stdout_bytes,
            stderr_bytes,
        } => Frame::ReplayEnd {
            stdout_bytes,
            stderr_bytes,
        },
        StreamBody::Exit(code) => match StreamBody::verdict(code) {
            Ok(code) => Frame::Exit(code),
            Err(error) => Frame::Error(error),
        },
    };
    // A receiver that is gone is found and removed after the delivery.
    let _ = subscriber.frames.send(frame);
}

impl StreamBody {
    /// Bytes are shared, not copied.
    fn copy(&self) -> Self {
        match self {
            Self::Stdout(bytes) => Self::Stdout(bytes.clone()),
            Self::Stderr(bytes) => Self::Stderr(bytes.clone()),
            Self::Exit(code) => Self::Exit(*code),
            Self::ReplayEnd {
                stdout_bytes,
                stderr_bytes,
            } => Self::ReplayEnd {
                stdout_bytes: *stdout_bytes,
                stderr_bytes: *stderr_bytes,
            },
        }
    }
}
