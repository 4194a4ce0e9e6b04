//! What the peer tells its owner, and what the owner has to do for it (runtimes 10.3).
//!
//! **Positions (RUL-41).** Every raw stdout line ends in reports that carry its [`ByteRange`], or in one
//! [`Report::Passed`] when nothing of it has to be remembered. Reports of one line are adjacent and share the range:
//! the owner commits them together and moves the process's position to `range.to`. A `Passed` line needs no commit of
//! its own; the next commit may move past it. Bytes of a partial line appear in no report.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::failure::Failure;
use crate::domain::Moment;
use crate::domain::event::ByteRange;
use crate::domain::turn::{PendingPermission, Usage};
use crate::ports::clock::after;

/// One thing for the owner to do, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Write this to the process's stdin. If the transport refuses it, call `Peer::write_failed`.
    Write(Outgoing),
    /// Act on a report.
    Report(Report),
    /// Call `Peer::tick` at that time; replaces the former deadline. `None`: no deadline.
    Arm(Option<Instant>),
    /// End the process's stdin: a detachable process outlives its socket, end of file is what ends it.
    CloseInput,
}

/// A line for the agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// The line, newline included.
    pub line: String,
    /// What it is, so that the owner knows what an acknowledged write means.
    pub about: About,
}

/// What an outgoing line is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// A call before the prompt: handshake or setter.
    Setup(&'static str),
    /// `session/prompt`. [`Report::PromptSent`] follows at once.
    Prompt {
        /// Its JSON-RPC id.
        rpc_id: i64,
    },
    /// `session/cancel`.
    Cancel,
    /// The answer to a held permission request. When it is acknowledged the request is done (RUL-56).
    Permission {
        /// Public id of the request.
        request_id: String,
    },
    /// An answer that nobody waits for: automatic verdicts, refusals.
    Automatic,
}

/// The stored stream of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineStream {
    /// A message of the protocol.
    Acp,
    /// Anything else that the process wrote to stdout.
    Stdout,
}

/// Whether a line shows work of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKind {
    /// Opens an autonomous turn when no turn is open (runtimes 12.3).
    Work,
    /// Stored inside a turn, dropped outside.
    Metadata,
    /// Not protocol. Stored with or without a turn; opens none.
    Noise,
}

/// How the session came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionMethod {
    /// `session/new`.
    New,
    /// `session/resume`.
    Resume,
    /// `session/load`.
    Load,
}

impl SessionMethod {
    /// Its name in metrics and spans.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Resume => "resume",
            Self::Load => "load",
        }
    }

    /// The method on the wire.
    #[must_use]
    pub fn rpc(self) -> &'static str {
        match self {
            Self::New => "session/new",
            Self::Resume => "session/resume",
            Self::Load => "session/load",
        }
    }
}

/// Who says which model is in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelSource {
    /// The agent reported it.
    Runtime,
    /// The agent only accepted our selection.
    SelectionAck,
}

impl ModelSource {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::SelectionAck => "selection_ack",
        }
    }
}

/// The value of a session option.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// A switch.
    Flag(bool),
    /// A choice.
    Choice(String),
}

/// Why the agent stopped (runtimes 10.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// It is done.
    EndTurn,
    /// It waits for the answer to a permission request.
    Waiting,
    /// It was cancelled.
    Cancelled,
    /// Anything else, as the agent said it; `unknown` when it said nothing.
    Other(String),
}

impl StopReason {
    pub(super) fn of_result(result: &Value) -> Self {
        match result.get("stopReason").and_then(Value::as_str).map(str::trim) {
            Some("end_turn") => Self::EndTurn,
            Some("waiting") => Self::Waiting,
            Some("cancelled") => Self::Cancelled,
            Some("") | None => Self::Other("unknown".into()),
            Some(other) => Self::Other(other.to_owned()),
        }
    }

    /// The word that is stored and published.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::Waiting => "waiting",
            Self::Cancelled => "cancelled",
            Self::Other(word) => word,
        }
    }

    /// True when the turn is `completed`; every other reason is `failed`.
    #[must_use]
    pub fn completes(&self) -> bool {
        matches!(self, Self::EndTurn | Self::Waiting)
    }
}

/// A request that a person has to answer (runtimes 8.2). The owner stores, in one transaction: the request line, the
/// pending permission (with `raw_id`), stage `request/started`, and the position (RUL-56). Then it arms its timer.
#[derive(Debug, Clone, PartialEq)]
pub struct PermissionAsk {
    /// Public id: the agent's id, a dot, 16 hex digits. A stale card must miss.
    pub request_id: String,
    /// The agent's id, raw.
    pub raw_id: Value,
    /// What the agent wants to use: the tool call's title, else its name, else its kind.
    pub tool: Option<String>,
    /// The options as offered.
    pub options: Vec<Value>,
    /// Denied after this long, while the turn is open.
    pub timeout: Duration,
    /// Denied after this long, once the turn has ended `waiting`.
    pub detached_timeout: Duration,
    /// The request line to store on stream `acp`, with the public id in place of the agent's.
    pub line: String,
    /// Where the line came from.
    pub range: ByteRange,
}

/// A permission request that is waiting: what has to survive a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldPermission {
    /// Public id.
    pub request_id: String,
    /// The agent's id, raw.
    pub raw_id: Value,
    /// The options as offered.
    pub options: Vec<Value>,
}

impl PermissionAsk {
    /// The request as it is stored on its turn.
    #[must_use]
    pub fn pending(&self, asked_at: Moment) -> PendingPermission {
        PendingPermission {
            request_id: self.request_id.clone(),
            rpc_id: self.raw_id.clone(),
            tool: self.tool.clone(),
            options: self.options.clone(),
            asked_at,
            deadline: after(asked_at, self.timeout),
            detached_until: Some(after(asked_at, self.detached_timeout)),
            answer: None,
        }
    }
}

impl From<&PendingPermission> for HeldPermission {
    fn from(stored: &PendingPermission) -> Self {
        Self {
            request_id: stored.request_id.clone(),
            raw_id: stored.rpc_id.clone(),
            options: stored.options.clone(),
        }
    }
}

impl From<&PermissionAsk> for HeldPermission {
    fn from(ask: &PermissionAsk) -> Self {
        Self {
            request_id: ask.request_id.clone(),
            raw_id: ask.raw_id.clone(),
            options: ask.options.clone(),
        }
    }
}

/// What happened. The comment of each says what the owner does.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// Store `text` (newline included) as one output row. Outside a turn, `kind` decides.
    Line {
        stream: LineStream,
        text: String,
        kind: LineKind,
        range: ByteRange,
    },
    /// Nothing to remember up to here.
    Passed { to: i64 },
    /// Store the session id at once.
    Session {
        id: String,
        method: SessionMethod,
        range: ByteRange,
    },
    /// Forget the stored session id; stage `session/done`, event `reset`, reason `session_gone`. A new session is
    /// already being opened on the same connection, with the same prompt.
    SessionGone { detail: String, range: ByteRange },
    /// Metric and span: from the first written line to the session.
    Handshake { took: Duration, method: SessionMethod },
    /// Store the turn's model selection; stage `model/done`. `range`: of the line that told it, if one did.
    ModelSelected {
        requested: Option<String>,
        effective: Option<String>,
        source: ModelSource,
        range: Option<ByteRange>,
    },
    /// The options that were set for this turn. `range`: of the last setter's answer.
    ConfigSelected {
        applied: Vec<(String, OptionValue)>,
        range: Option<ByteRange>,
    },
    /// Wanted options that the agent does not know.
    ConfigSkipped { ids: Vec<String> },
    /// The options that the agent offers now, as it describes them.
    ConfigOptions { options: Vec<Value> },
    /// Store the id: without it a restart cannot take the turn back (RUL-34). No line belongs to it.
    PromptSent { rpc_id: i64 },
    /// Ask a person.
    PermissionAsk(Box<PermissionAsk>),
    /// The policy denied a request; audit it, tool only.
    PermissionDenied { tool: Option<String>, range: ByteRange },
    /// Stamp the labels on the conversation; not output.
    Labels {
        labels: BTreeMap<String, String>,
        range: ByteRange,
    },
    /// The agent names the conversation; `None` clears. Raw: redact it, then `updates::tidy_title`. Inside a turn the
    /// `Line` of the same range follows.
    Title { title: Option<String>, range: ByteRange },
    /// A background cycle has ended; closes an autonomous turn.
    CycleEnd { kind: String, range: ByteRange },
    /// The prompt was answered; the turn ends. `unanswered`: requests that were still held. They stay open only for
    /// [`StopReason::Waiting`]; otherwise the agent has been told `cancelled` and they resolve as `turn_ended`.
    Done {
        stop_reason: StopReason,
        usage: Option<Usage>,
        unanswered: Vec<String>,
        range: ByteRange,
    },
    /// The turn failed and the connection is of no more use. `range`: of the line that told it, if one did.
    Failed { reason: Failure, range: Option<ByteRange> },
}

impl Report {
    /// The raw bytes of the line that this report tells of; `None` when no line does.
    #[must_use]
    pub fn range(&self) -> Option<ByteRange> {
        match self {
            Self::Line { range, .. }
            | Self::Session { range, .. }
            | Self::SessionGone { range, .. }
            | Self::PermissionDenied { range, .. }
            | Self::Labels { range, .. }
            | Self::Title { range, .. }
            | Self::CycleEnd { range, .. }
            | Self::Done { range, .. } => Some(*range),
            Self::PermissionAsk(ask) => Some(ask.range),
            Self::ModelSelected { range, .. } | Self::ConfigSelected { range, .. } | Self::Failed { range, .. } => {
                *range
            }
            Self::Passed { .. }
            | Self::Handshake { .. }
            | Self::ConfigSkipped { .. }
            | Self::ConfigOptions { .. }
            | Self::PromptSent { .. } => None,
        }
    }
}
