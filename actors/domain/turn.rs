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

    /// T1 to T6 of lifecycle 2.6 with RUL-5's `pending`, and nothing else.
    ///
    /// # Errors
    /// [`IllegalTurn`] for every pair that does not stand in the table.
    pub fn on(self, event: TurnEvent) -> Result<Self, IllegalTurn> {
        use {TurnEvent as E, TurnStatus as S};
        match (self, event) {
            (S::Pending, E::Admitted) => Ok(S::Running),
            (S::Running, E::Answered | E::CycleOver) => Ok(S::Completed),
            (S::Pending | S::Running, E::Failed) => Ok(S::Failed),
            (S::Pending | S::Running, E::Interrupted) | (S::Running, E::Orphaned) => Ok(S::Interrupted),
            (from, event) => Err(IllegalTurn { from, event }),
        }
    }
}

vocabulary! {
    /// What happens to a turn. A turn is born `pending` (T0) or `running` (T1); this is the rest.
    TurnEvent {
        /// T1 of a turn that waited for a build (RUL-5).
        Admitted = "admitted",
        /// T2: the agent answered its prompt, or exited with 0 after it was written (RUL-39).
        Answered = "answered",
        /// T3; also a pending turn whose build failed or took too long (RUL-L-23).
        Failed = "failed",
        /// T4: a person said stop.
        Interrupted = "interrupted",
        /// T5: the control plane gave it up. Only what ran can be orphaned: a pending turn is built again (RUL-35).
        Orphaned = "orphaned",
        /// T6: the end of what the agent began by itself (RUL-27).
        CycleOver = "cycle_over",
    }
}

/// A step that is not in the table of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {from} turn knows no step '{event}'")]
pub struct IllegalTurn {
    pub from: TurnStatus,
    pub event: TurnEvent,
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
    /// The deadline that counts instead once its turn has ended `waiting`. None in rows of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached_until: Option<Moment>,
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

/// The answer to a request that outlived its turn, on its way to the agent in a turn of its own (lifecycle 6.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachedAnswer {
    pub request_id: String,
    /// `Answered` inside the deadline, `Timeout` behind it.
    pub outcome: AnswerOutcome,
    /// None denies.
    pub option_id: Option<String>,
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

    /// The step of the table that this ending is for a turn of that origin; None when it names no end at all.
    pub fn event(&self, origin: Origin) -> Option<TurnEvent> {
        match (self.status, origin) {
            (TurnStatus::Completed, Origin::User) => Some(TurnEvent::Answered),
            (TurnStatus::Completed, Origin::Autonomous) => Some(TurnEvent::CycleOver),
            (TurnStatus::Failed, _) => Some(TurnEvent::Failed),
            (TurnStatus::Interrupted, _) if self.orphan.is_some() => Some(TurnEvent::Orphaned),
            (TurnStatus::Interrupted, _) => Some(TurnEvent::Interrupted),
            (TurnStatus::Pending | TurnStatus::Running, _) => None,
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

    use {TurnEvent as E, TurnStatus as S};

    #[test]
    fn inv_71_a_terminal_turn_never_changes_status() {
        for from in S::ALL.iter().copied().filter(|status| status.is_terminal()) {
            for event in E::ALL.iter().copied() {
                assert_eq!(from.on(event), Err(IllegalTurn { from, event }));
            }
        }
    }

    #[test]
    fn t0_t1_a_turn_that_waited_for_a_build_runs_once() {
        assert_eq!(S::Pending.on(E::Admitted), Ok(S::Running));
        assert!(S::Running.on(E::Admitted).is_err(), "INV-119");
    }

    #[test]
    fn t2_t3_t4_t5_t6_a_running_turn_ends_in_exactly_these_ways() {
        let ends = [
            (E::Answered, S::Completed),
            (E::Failed, S::Failed),
            (E::Interrupted, S::Interrupted),
            (E::Orphaned, S::Interrupted),
            (E::CycleOver, S::Completed),
        ];
        for (event, to) in ends {
            assert_eq!(S::Running.on(event), Ok(to), "{event}");
        }
    }

    #[test]
    fn t0_rul_35_a_pending_turn_fails_or_is_stopped_and_is_never_answered_nor_orphaned() {
        assert_eq!(S::Pending.on(E::Failed), Ok(S::Failed));
        assert_eq!(S::Pending.on(E::Interrupted), Ok(S::Interrupted));
        for event in [E::Answered, E::Orphaned, E::CycleOver] {
            assert!(S::Pending.on(event).is_err(), "{event}");
        }
    }

    #[test]
    fn the_table_of_turns_has_eight_steps_and_nothing_else() {
        let legal = S::ALL
            .iter()
            .flat_map(|from| E::ALL.iter().map(move |event| from.on(*event)))
            .filter(Result::is_ok)
            .count();
        assert_eq!(legal, 8);
    }

    #[test]
    fn t2_t6_the_same_end_is_another_step_for_what_the_agent_began_by_itself() {
        let (turn, at) = (TurnId(uuid::Uuid::nil()), Moment::MIN_UTC);
        let done = Ending::completed(turn, "end_turn", at);
        assert_eq!(done.event(Origin::User), Some(E::Answered));
        assert_eq!(done.event(Origin::Autonomous), Some(E::CycleOver));
        let orphan = Ending::orphaned(turn, OrphanReason::AttachFailed, at);
        assert_eq!(orphan.event(Origin::User), Some(E::Orphaned));
        assert_eq!(Ending::interrupted(turn, at).event(Origin::User), Some(E::Interrupted));
        for status in [S::Pending, S::Running] {
            let nothing = Ending {
                status,
                ..Ending::failed(turn, "x", at)
            };
            assert_eq!(nothing.event(Origin::User), None);
        }
    }
}
