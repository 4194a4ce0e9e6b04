//! Sessions of a fake machine: journal, replay from byte 0, attachments, one verdict (sandbox-contract 7, 8).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::process::FakeProcess;
use crate::domain::Moment;
use crate::ports::sandbox::{CLOSED_BEFORE_EXIT, Frame, Held, SandboxError, Session};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pipe {
    Stdout,
    Stderr,
}

impl Pipe {
    fn frame(self, bytes: Bytes) -> Frame {
        match self {
            Self::Stdout => Frame::Stdout(Held::free(bytes)),
            Self::Stderr => Frame::Stderr(Held::free(bytes)),
        }
    }
}

/// A process that can be talked to outside the lock of what it writes to.
pub(super) type Running = Arc<Mutex<Box<dyn FakeProcess>>>;

/// One process and what it said.
pub(super) struct FakeSession {
    pub id: String,
    pub command: String,
    pub created_at: Moment,
    pub last_activity_at: Moment,
    journal: Vec<(Pipe, Bytes)>,
    /// How it ended, for whoever attaches later as well (F8).
    pub verdict: Option<Result<i64, SandboxError>>,
    /// Local attachments that were stopped: they may write no more.
    stopped: BTreeSet<u64>,
    attachments: Vec<(u64, mpsc::UnboundedSender<Frame>)>,
    pub process: Running,
    pub stdin_open: bool,
}

impl FakeSession {
    pub fn new(id: String, command: String, now: Moment, process: Box<dyn FakeProcess>, stdin_open: bool) -> Self {
        Self {
            id,
            command,
            created_at: now,
            last_activity_at: now,
            journal: Vec::new(),
            verdict: None,
            stopped: BTreeSet::new(),
            attachments: Vec::new(),
            process: Arc::new(Mutex::new(process)),
            stdin_open,
        }
    }

    /// Adds an attachment; `replay` also sends what was said before and where that ends.
    pub fn attach(&mut self, reference: u64, replay: Replay) -> mpsc::UnboundedReceiver<Frame> {
        let (sender, frames) = mpsc::unbounded_channel();
        if replay != Replay::None {
            for (pipe, bytes) in &self.journal {
                let _ = sender.send(pipe.frame(bytes.clone()));
            }
        }
        if replay == Replay::Marked {
            let _ = sender.send(Frame::ReplayEnd {
                stdout_bytes: self.length(Pipe::Stdout),
                stderr_bytes: self.length(Pipe::Stderr),
            });
        }
        match &self.verdict {
            Some(verdict) => drop(sender.send(frame_of(verdict))),
            None => self.attachments.push((reference, sender)),
        }
        frames
    }

    fn length(&self, pipe: Pipe) -> i64 {
        let bytes = self
            .journal
            .iter()
            .filter(|(of, _)| *of == pipe)
            .map(|(_, bytes)| bytes.len());
        i64::try_from(bytes.sum::<usize>()).unwrap_or(i64::MAX)
    }

    pub fn detach(&mut self, reference: u64) {
        self.attachments.retain(|(of, _)| *of != reference);
        self.stopped.insert(reference);
    }

    pub fn is_stopped(&self, reference: u64) -> bool {
        self.stopped.contains(&reference)
    }

    pub fn emit(&mut self, pipe: Pipe, bytes: Bytes, now: Moment) {
        if self.verdict.is_some() || bytes.is_empty() {
            return;
        }
        self.last_activity_at = now;
        self.journal.push((pipe, bytes.clone()));
        self.attachments
            .retain(|(_, sender)| sender.send(pipe.frame(bytes.clone())).is_ok());
    }

    pub fn exit(&mut self, code: i64) {
        self.end(Ok(code));
    }

    /// The first verdict stands.
    pub fn end(&mut self, verdict: Result<i64, SandboxError>) {
        if self.verdict.is_some() {
            return;
        }
        self.stdin_open = false;
        for (_, sender) in self.attachments.drain(..) {
            let _ = sender.send(frame_of(&verdict));
        }
        self.verdict = Some(verdict);
    }

    /// Every attachment of now ends without a verdict.
    pub fn drop_connections(&mut self, error: &SandboxError) {
        for (_, sender) in self.attachments.drain(..) {
            let _ = sender.send(Frame::Error(error.clone()));
        }
    }

    pub fn listed(&self) -> Session {
        Session {
            id: self.id.clone(),
            command: Some(self.command.clone()),
            created_at: Some(self.created_at),
            last_activity_at: Some(self.last_activity_at),
            exit_code: self.verdict.as_ref().and_then(|verdict| verdict.as_ref().ok().copied()),
        }
    }
}

/// What a new attachment is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replay {
    None,
    Plain,
    Marked,
}

fn frame_of(verdict: &Result<i64, SandboxError>) -> Frame {
    match verdict {
        Ok(code) => Frame::Exit(*code),
        Err(error) => Frame::Error(error.clone()),
    }
}

/// A transport that closed without a verdict.
pub(super) fn closed() -> SandboxError {
    SandboxError::Unavailable(CLOSED_BEFORE_EXIT.into())
}
