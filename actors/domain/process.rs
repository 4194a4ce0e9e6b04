//! Processes of a conversation and how far their output is durable (RUL-40 to RUL-42).

use crate::domain::*;

/// How far one pipe of a process has become durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Raw bytes from the first byte on whose rows or effects are durable. The next append starts exactly here.
    pub consumed: i64,
    /// SHA-256, hex, of the raw prefix of that length. None at 0.
    pub digest: Option<String>,
}

/// One spawn: the holder of positions. A connection carries many turns; replay starts at byte 0 of the process.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub id: ProcessId,
    pub account_id: AccountId,
    pub conversation_id: ConversationId,
    pub machine_id: MachineId,
    pub spawn_id: SpawnId,
    /// The provider's id of the session; None until its answer was committed.
    pub session_id: Option<String>,
    pub stdout: Position,
    pub stderr: Position,
    /// A wish to stop it that survives everything (RUL-19d, RUL-47).
    pub stop_requested: bool,
    /// It is known to have ended.
    pub ended_at: Option<Moment>,
    pub inserted_at: Moment,
}

/// Moves a process's position in the transaction that makes its bytes durable.
///
/// Refused as a whole when `from` is not the stored position: then somebody else has appended (RUL-L-8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advance {
    pub process_id: ProcessId,
    pub stream: crate::domain::event::RawStream,
    pub from: i64,
    pub to: i64,
    /// SHA-256, hex, of all raw bytes before `to`.
    pub digest: String,
}
