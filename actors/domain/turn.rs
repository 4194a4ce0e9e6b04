//! Turns: one prompt and what came of it (lifecycle 1.6, 2.6; RUL-5, RUL-27, RUL-37, RUL-56).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::*;
use crate::vocabulary;

vocabulary! {
    /// `Pending` waits for a build; the last three are final (INV-71).
    TurnStatus {
        Pending = "pending", Running = "running", Completed = "completed", Failed = "failed",
        Interrupted = "interrupted",
    }
}

impl TurnStatus {
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Interrupted)
    }

    /// T0 to T5: whether `self -> to` stands in the table (lifecycle 2.6, RUL-5).
    pub fn may_become(self, to: Self) -> bool {
        use TurnStatus as T;
        matches!(
            (self, to),
            (T::Pending, T::Running | T::Failed | T::Interrupted)
                | (T::Running, T::Completed | T::Failed | T::Interrupted)
        )
    }
}

vocabulary! { Origin { User = "user", Autonomous = "autonomous" } }

vocabulary! {
    /// Why the control plane, and not the agent, closed a turn (lifecycle 2.6). Published with the ending.
    OrphanReason {
        NoActiveSession = "no_active_session",
        ListSessionsFailed = "list_sessions_failed",
        AttachFailed = "attach_failed",
        AcpPromptNotSent = "acp_prompt_not_sent",
        InterruptDeadSandbox = "interrupt_dead_sandbox",
        StuckRunningNoServer = "stuck_running_no_server",
        ServerTerminatedNormally = "server_terminated_normally",
        MachineDestroyed = "machine_destroyed",
        MachineParked = "machine_parked",
    }
}

/// An image of a prompt, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptImage {
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub media_type: String,
    pub bytes: bytes::Bytes,
}

/// What a client asks for: text, images, its own correlation id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Not blank, without NUL.
    pub text: String,
    pub images: Vec<PromptImage>,
    pub client_request_id: Option<String>,
}

/// An open permission request on its turn (RUL-56).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingPermission {
    /// Public: the agent's id, a dot, 16 hex digits (RUL-10).
    pub request_id: String,
    /// The agent's JSON-RPC id as it came: number and string differ.
    pub rpc_id: Value,
    pub tool: Option<String>,
    /// As offered.
    pub options: Vec<Value>,
    pub asked_at: Moment,
    /// When it is denied by itself. Stored when it opens (RUL-L-57).
    pub deadline: Moment,
    /// The option that was chosen, once there is an answer. First wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<PermissionAnswer>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PermissionAnswer {
    pub outcome: AnswerOutcome,
    /// One of the offered; None denies with `cancelled`.
    pub option_id: Option<String>,
    pub at: Moment,
}

vocabulary! { AnswerOutcome { Answered = "answered", Timeout = "timeout", TurnEnded = "turn_ended" } }

/// Tokens of one turn as the agent reports them (runtimes 13).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub input: i64,
    pub output: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<i64>,
}

/// One row of `turns`.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub id: TurnId,
    pub conversation_id: ConversationId,
    /// From 1, without gaps at admission time.
    pub number: i64,
    pub prompt: String,
    pub origin: Origin,
    pub client_request_id: Option<String>,
    pub status: TurnStatus,
    pub started_at: Option<Moment>,
    pub ended_at: Option<Moment>,
    pub exit_code: Option<i64>,
    pub limit_reason: Option<String>,
    pub orphaned_at: Option<Moment>,
    /// JSON-RPC id of `session/prompt`; None until it was written (RUL-34).
    pub acp_prompt_id: Option<i64>,
    pub spawn_id: Option<SpawnId>,
    pub pending_permission: Option<PendingPermission>,
    pub waiting: bool,
    /// Until when a server is started for it again and again (RUL-L-23).
    pub pending_until: Option<Moment>,
    /// End of the reconnect window (RUL-37), and its hard end.
    pub reattach_deadline: Option<Moment>,
    pub reattach_first_loss: Option<Moment>,
    pub usage: Option<Usage>,
    pub model_selection: Option<Value>,
    pub reply_text: Option<String>,
    pub image_count: i64,
    pub inserted_at: Moment,
}

/// How a turn ends. One shape for every ending; the store publishes the matching `turn` stage in the same transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    pub turn_id: TurnId,
    pub status: TurnStatus,
    /// `stop_reason` of the stage event: the agent's own word.
    pub stop_reason: Option<String>,
    /// `reason` of the stage event: ours.
    pub reason: Option<String>,
    /// A sentence for people; never a secret.
    pub message: Option<String>,
    pub exit_code: Option<i64>,
    /// Set when the control plane closed it; billing skips it then.
    pub orphan: Option<OrphanReason>,
    pub usage: Option<Usage>,
    pub reply_text: Option<String>,
    pub at: Moment,
}

impl Ending {
    /// The agent answered its prompt.
    pub fn completed(turn_id: TurnId, stop_reason: impl Into<String>, at: Moment) -> Self {
        Self {
            status: TurnStatus::Completed,
            stop_reason: Some(stop_reason.into()),
            ..Self::bare(turn_id, at)
        }
    }

    /// Something of ours, or the agent, failed.
    pub fn failed(turn_id: TurnId, reason: impl Into<String>, at: Moment) -> Self {
        Self {
            status: TurnStatus::Failed,
            reason: Some(reason.into()),
            ..Self::bare(turn_id, at)
        }
    }

    /// The user said stop.
    pub fn interrupted(turn_id: TurnId, at: Moment) -> Self {
        Self {
            status: TurnStatus::Interrupted,
            ..Self::bare(turn_id, at)
        }
    }

    /// The control plane gave the turn up.
    pub fn orphaned(turn_id: TurnId, reason: OrphanReason, at: Moment) -> Self {
        Self {
            status: TurnStatus::Interrupted,
            reason: Some(reason.as_str().into()),
            orphan: Some(reason),
            ..Self::bare(turn_id, at)
        }
    }

    fn bare(turn_id: TurnId, at: Moment) -> Self {
        Self {
            turn_id,
            status: TurnStatus::Failed,
            stop_reason: None,
            reason: None,
            message: None,
            exit_code: None,
            orphan: None,
            usage: None,
            reply_text: None,
            at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inv_71_a_terminal_turn_never_changes_status() {
        for from in TurnStatus::ALL.iter().filter(|status| status.is_terminal()) {
            for to in TurnStatus::ALL {
                assert!(!from.may_become(*to), "{from} -> {to}");
            }
        }
    }
}
