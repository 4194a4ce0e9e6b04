//! Sessions of a fake machine: journal, replay from byte 0, attachments, one verdict (sandbox-contract 7, 8).

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
    pub exit_code: Option<i64>,
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
            exit_code: None,
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
        match self.exit_code {
            Some(code) => drop(sender.send(Frame::Exit(code))),
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
    }

    pub fn emit(&mut self, pipe: Pipe, bytes: Bytes, now: Moment) {
        if self.exit_code.is_some() || bytes.is_empty() {
            return;
        }
        self.last_activity_at = now;
        self.journal.push((pipe, bytes.clone()));
        self.attachments
            .retain(|(_, sender)| sender.send(pipe.frame(bytes.clone())).is_ok());
    }

    pub fn exit(&mut self, code: i64) {
        if self.exit_code.is_some() {
            return;
        }
        self.exit_code = Some(code);
        self.stdin_open = false;
        for (_, sender) in self.attachments.drain(..) {
            let _ = sender.send(Frame::Exit(code));
        }
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
            exit_code: self.exit_code,
        }
    }

    /// All that it wrote, as one `exec` answers it.
    pub fn output(&self, stderr_too: bool) -> Bytes {
        let wanted = self
            .journal
            .iter()
            .filter(|(pipe, _)| stderr_too || *pipe == Pipe::Stdout);
        wanted
            .map(|(_, bytes)| bytes.as_ref())
            .collect::<Vec<_>>()
            .concat()
            .into()
    }
}

/// What a new attachment is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replay {
    None,
    Plain,
    Marked,
}

/// A transport that closed without a verdict.
pub(super) fn closed() -> SandboxError {
    SandboxError::Unavailable(CLOSED_BEFORE_EXIT.into())
}
