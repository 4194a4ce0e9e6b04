//! What can go wrong at the fake provider, by name, and the log of what did (RUL-L-122, RUL-L-123).

use std::time::Duration;

use crate::domain::Epoch;
use crate::ports::sandbox::SandboxError;
use crate::vocabulary;

vocabulary! {
    /// The operations that faults can be planned for.
    Op {
        Create = "create", Get = "get", Destroy = "destroy", Suspend = "suspend", Resume = "resume",
        List = "list", WriteFile = "write_file", Exec = "exec", Spawn = "spawn", Attach = "attach",
        WriteStdin = "write_stdin", ListSessions = "list_sessions", Terminate = "terminate", Policy = "policy",
        PolicyRead = "policy_read", Checkpoint = "checkpoint", Restore = "restore",
        DeleteCheckpoint = "delete_checkpoint",
    }
}

/// One planned fault; it befalls the next call of its operation, once.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The effect and its answer come after this long, whoever still waits.
    Slow(Duration),
    /// The effect comes, the answer does not: the caller hears `unavailable`.
    LostAnswer,
    /// The caller hears `unavailable` at once; the effect comes after this long.
    LateSuccess(Duration),
    /// No effect, and this answer.
    Refused(SandboxError),
    /// No effect, and the caller is never answered.
    NoAnswer,
    /// No effect; the provider client is broken.
    Panics,
    /// For a create: somebody else's machine has the name already.
    Exists,
}

vocabulary! {
    /// A request came in; it took effect; it was answered.
    Logged { Requested = "requested", Effect = "effect", Answered = "answered" }
}

/// One line of the fake's own log.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEntry {
    /// Since the fake was made, on the test's clock.
    pub at: Duration,
    pub op: Op,
    pub what: Logged,
    pub machine: String,
    /// As the request carried it.
    pub epoch: Option<Epoch>,
    /// Class of the answer, `ok` included; empty on other lines.
    pub answer: &'static str,
}
