//! Processes inside fake machines: the vocabulary of sandbox-contract 11, or whatever a test programs.

use std::sync::Arc;

use bytes::Bytes;

use super::sandbox::State;
use crate::ports::sandbox::Env;

/// How a process was started.
#[derive(Clone, Debug)]
pub struct Spawn {
    pub machine: String,
    pub session_id: String,
    pub command: String,
    pub arguments: Vec<String>,
    pub env: Env,
    pub dir: Option<String>,
}

/// Where a process writes. Clones write to the same pipes, so that a task may go on after the call that started it.
#[derive(Clone)]
pub struct Stdio {
    pub(super) state: Arc<State>,
    pub(super) machine: String,
    pub(super) session: String,
}

impl Stdio {
    pub fn stdout(&self, bytes: impl Into<Bytes>) {
        self.state.emit(
            &self.machine,
            &self.session,
            super::sessions::Pipe::Stdout,
            bytes.into(),
        );
    }

    pub fn stderr(&self, bytes: impl Into<Bytes>) {
        self.state.emit(
            &self.machine,
            &self.session,
            super::sessions::Pipe::Stderr,
            bytes.into(),
        );
    }

    /// The process ends. Nothing that it writes afterwards is seen.
    pub fn exit(&self, code: i64) {
        self.state.exit(&self.machine, &self.session, code);
    }

    /// The process is lost: everybody hears `closed_before_exit`, now and at every later attach.
    pub fn vanish(&self) {
        self.state.end_without_verdict(&self.machine, &self.session);
    }

    /// Every attachment of now ends without a verdict; the process lives.
    pub fn drop_connections(&self) {
        self.state.drop_connections(&self.machine, &self.session);
    }

    /// The process has ended.
    pub fn is_over(&self) -> bool {
        self.state.is_over(&self.machine, &self.session)
    }
}

/// A process of a fake machine. Methods are called one at a time, in the order of what happened.
pub trait FakeProcess: Send {
    fn start(&mut self, stdio: &Stdio);
    fn stdin(&mut self, bytes: &[u8], stdio: &Stdio);
    fn eof(&mut self, stdio: &Stdio);
}

/// What a command runs.
pub type Program = Arc<dyn Fn(&Spawn) -> Box<dyn FakeProcess> + Send + Sync>;

/// The program of sandbox-contract 11: arguments are instructions.
pub fn vocabulary() -> Program {
    Arc::new(|spawn| {
        Box::new(Instructions {
            words: spawn.arguments.clone(),
        })
    })
}

struct Instructions {
    words: Vec<String>,
}

impl FakeProcess for Instructions {
    fn start(&mut self, stdio: &Stdio) {
        for word in &self.words {
            match word.split_once(':') {
                Some(("out", text)) => stdio.stdout(text.to_owned()),
                Some(("err", text)) => stdio.stderr(text.to_owned()),
                Some(("exit", code)) => return stdio.exit(code.parse().unwrap_or(1)),
                _ if word == "stay" => return,
                _ if word == "drop" => return stdio.vanish(),
                _ => {}
            }
        }
        stdio.exit(0);
    }

    fn stdin(&mut self, bytes: &[u8], stdio: &Stdio) {
        stdio.stdout([b"echo:", bytes].concat());
    }

    fn eof(&mut self, stdio: &Stdio) {
        stdio.exit(0);
    }
}
