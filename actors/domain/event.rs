//! Log events: what a conversation's stream is made of (http-api 3.2 to 3.4, lifecycle 10.2).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::*;
use crate::vocabulary;

vocabulary! { EventKind { Output = "output", Stage = "stage" } }
vocabulary! { Stream { Stdout = "stdout", Stderr = "stderr", Acp = "acp" } }
vocabulary! {
    Stage {
        Provision = "provision", CheckpointRestore = "checkpoint_restore", Packages = "packages", Network = "network",
        Clone = "clone", Setup = "setup", Broker = "broker", Turn = "turn", Reattach = "reattach",
        Sandbox = "sandbox", Connection = "connection", Model = "model", Session = "session", Request = "request",
        Wake = "wake", Terminate = "terminate", Checkpoint = "checkpoint", Configuration = "configuration",
    }
}
vocabulary! { StageState { Started = "started", Done = "done", Failed = "failed", Interrupted = "interrupted" } }

/// Which raw bytes of which stream a row came from, counted from the process's first byte (DESIGN 1, RUL-40).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// First byte.
    pub from: i64,
    /// One past the last byte.
    pub to: i64,
}

/// A row to be appended. Ids are drawn by the store, in commit order.
#[derive(Clone, Debug, PartialEq)]
pub enum NewEvent {
    Output(NewOutput),
    Stage(NewStage),
}

/// Text that the runtime wrote, redacted, without NUL.
#[derive(Clone, Debug, PartialEq)]
pub struct NewOutput {
    pub turn_id: Option<TurnId>,
    pub stream: Stream,
    pub data: String,
    /// Where it came from; None for what we say ourselves (markers).
    pub source: Option<(ProcessId, RawStream, ByteRange)>,
    /// Bytes that a reader misses, when this row is a gap record (RUL-42a).
    pub gap: Option<(RawStream, ByteRange)>,
}

vocabulary! {
    /// A pipe of a process. `Stream::Acp` rows come from its stdout.
    RawStream { Stdout = "stdout", Stderr = "stderr" }
}

/// A stage event. `meta` becomes the JSON object inside `data`.
#[derive(Clone, Debug, PartialEq)]
pub struct NewStage {
    pub turn_id: Option<TurnId>,
    pub stage: Stage,
    pub state: StageState,
    pub meta: Map<String, Value>,
    pub duration_ms: Option<i64>,
}

impl NewStage {
    /// A stage event without metadata.
    pub fn new(stage: Stage, state: StageState) -> Self {
        Self {
            turn_id: None,
            stage,
            state,
            meta: Map::new(),
            duration_ms: None,
        }
    }

    /// Adds one key of metadata.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.meta.insert(key.into(), value.into());
        self
    }

    /// Names the turn: as the row's turn and inside the metadata, with its number (http-api 3.4).
    #[must_use]
    pub fn of_turn(mut self, turn: TurnId, number: i64) -> Self {
        self.turn_id = Some(turn);
        self.with("turn_id", turn.to_string()).with("turn_number", number)
    }

    /// Adds how long the stage took.
    #[must_use]
    pub fn took(mut self, duration: std::time::Duration) -> Self {
        self.duration_ms = i64::try_from(duration.as_millis()).ok();
        self
    }
}

impl From<NewStage> for NewEvent {
    fn from(stage: NewStage) -> Self {
        Self::Stage(stage)
    }
}

impl From<NewOutput> for NewEvent {
    fn from(output: NewOutput) -> Self {
        Self::Output(output)
    }
}

/// A stored event, as every reader gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEvent {
    pub id: EventId,
    pub conversation_id: ConversationId,
    pub turn_id: Option<TurnId>,
    pub kind: EventKind,
    /// None on stage events.
    pub stream: Option<Stream>,
    /// Output text, or the JSON object of a stage event as text.
    pub data: String,
    /// `turn` on output of the runtime.
    pub stage: Option<Stage>,
    pub state: Option<StageState>,
    pub duration_ms: Option<i64>,
    pub gap: Option<(RawStream, ByteRange)>,
    pub at: Moment,
}

/// Which events a reader wants: the words of `streams=` (http-api 3.1). Empty: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamFilter {
    /// None: everything. Otherwise only what is named; an unknown word names nothing.
    pub only: Option<StreamSet>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSet {
    pub stdout: bool,
    pub stderr: bool,
    pub acp: bool,
    pub stage: bool,
}

impl StreamFilter {
    /// Reads the query value. Absent and empty mean all.
    pub fn parse(query: Option<&str>) -> Self {
        let Some(words) = query.filter(|words| !words.trim().is_empty()) else {
            return Self::default();
        };
        let mut set = StreamSet::default();
        for word in words.split(',') {
            match word.trim() {
                "stdout" => set.stdout = true,
                "stderr" => set.stderr = true,
                "acp" => set.acp = true,
                "stage" => set.stage = true,
                _ => {}
            }
        }
        Self { only: Some(set) }
    }

    /// Whether an event passes.
    pub fn admits(&self, event: &LogEvent) -> bool {
        let Some(set) = self.only else { return true };
        match (event.kind, event.stream) {
            (EventKind::Stage, _) => set.stage,
            (EventKind::Output, Some(Stream::Stdout)) => set.stdout,
            (EventKind::Output, Some(Stream::Stderr)) => set.stderr,
            (EventKind::Output, Some(Stream::Acp)) => set.acp,
            (EventKind::Output, None) => false,
        }
    }
}
