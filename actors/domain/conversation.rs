//! Conversations (lifecycle 1.5, 2.5; http-api 4.4).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::domain::agent::Runtime;
use crate::domain::machine::Machine;
use crate::domain::turn::PendingPermission;
use crate::domain::*;
use crate::vocabulary;

vocabulary! {
    /// `Failed` and `Terminated` are final (C8, INV-78).
    ConversationStatus {
        Pending = "pending", Running = "running", Idle = "idle", Failed = "failed", Terminated = "terminated",
    }
}

impl ConversationStatus {
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Failed | Self::Terminated)
    }

    /// C2 to C9 of lifecycle 2.5 as RUL-11 and RUL-L-31 left them, and nothing else. (C7 is gone: `pending` is the
    /// first build only.)
    ///
    /// # Errors
    /// [`IllegalConversation`] for every pair that does not stand in the table; C8: a final status knows no step.
    pub fn on(self, event: ConversationEvent) -> Result<Self, IllegalConversation> {
        use {ConversationEvent as E, ConversationStatus as S};
        match (self, event) {
            (S::Pending | S::Idle, E::Admitted) => Ok(S::Running),
            (S::Pending | S::Idle | S::Running, E::TurnEnded) | (S::Idle | S::Running, E::MachineLeft) => Ok(S::Idle),
            (S::Pending, E::BuildFailed) => Ok(S::Failed),
            (S::Pending, E::BuildFinished) => Ok(S::Idle),
            (S::Pending | S::Idle | S::Running, E::Ended) => Ok(S::Terminated),
            (from, event) => Err(IllegalConversation { from, event }),
        }
    }
}

vocabulary! {
    /// What happens to a conversation after it was made (C1).
    ConversationEvent {
        /// C2: a turn of it runs from the same transaction on.
        Admitted = "admitted",
        /// C3: its open turn ended. One that waited for a build may end too, while the conversation is `pending`
        /// (RUL-L-31) or `idle`: what remains is idle.
        TurnEnded = "turn_ended",
        /// C4: its first build failed for good.
        BuildFailed = "build_failed",
        /// C5: terminated or released.
        Ended = "ended",
        /// C6: its machine was parked, lost, reset or replaced, and no turn is left on it.
        MachineLeft = "machine_left",
        /// C9: the first build finished without a prompt to run.
        BuildFinished = "build_finished",
    }
}

/// A step that is not in the table of conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {from} conversation knows no step '{event}'")]
pub struct IllegalConversation {
    pub from: ConversationStatus,
    pub event: ConversationEvent,
}

vocabulary! { Source { Ui = "ui", Api = "api", Agent = "agent" } }
vocabulary! { SandboxApiAccess { Owner = "owner", None = "none" } }

/// One row of `conversations`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    pub id: ConversationId,
    pub account_id: AccountId,
    pub status: ConversationStatus,
    pub runtime: Runtime,
    /// Bumped by a committed reapply (INV-76).
    pub configuration_revision: i64,
    /// The id by which the agent resumes; gone with the disk.
    pub runtime_session_id: Option<String>,
    pub machine_id: MachineId,
    pub agent_id: Option<AgentId>,
    pub agent_version_id: Option<AgentVersionId>,
    pub vault_id: Option<VaultId>,
    /// Override; None means the agent's.
    pub environment_id: Option<EnvironmentId>,
    pub parent_conversation_id: Option<ConversationId>,
    pub source: Source,
    pub channel_id: Option<String>,
    pub title: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub model: Option<String>,
    pub sandbox_api_access: SandboxApiAccess,
    pub permission_policy: Option<Map<String, Value>>,
    pub callback_key_id: Option<KeyId>,
    /// Generation of its server (RUL-L-8).
    pub server_epoch: ServerEpoch,
    /// Durable output so far, in bytes, against the budget (lifecycle 6.4).
    pub output_bytes: i64,
    pub usage_input_tokens: i64,
    pub usage_output_tokens: i64,
    pub last_active_at: Option<Moment>,
    pub last_read_at: Option<Moment>,
    pub inserted_at: Moment,
    pub updated_at: Moment,
}

/// A conversation as `GET` shows it: its row and what is read beside it in a constant number of queries.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationView {
    pub conversation: Conversation,
    pub machine: Machine,
    /// Set for machines on a runner.
    pub runner: Option<crate::domain::runner::Runner>,
    pub agent_version: Option<i64>,
    pub first_prompt: Option<String>,
    pub turn_count: i64,
    /// Filled for a single conversation; empty in lists (http-api 4.4).
    pub pending_requests: Vec<(TurnId, PendingPermission)>,
}

/// Filters of the list (http-api 5.7.3).
#[derive(Clone, Debug, Default)]
pub struct ConversationFilter {
    pub roots_only: bool,
    pub agent_id: Option<AgentId>,
    pub machine_id: Option<MachineId>,
    pub channel_id: Option<String>,
    pub statuses: Vec<ConversationStatus>,
    pub labels: Vec<(String, String)>,
    /// 1 to 500; None: all.
    pub limit: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use {ConversationEvent as E, ConversationStatus as S};

    fn all(event: E) -> Vec<(S, Option<S>)> {
        S::ALL.iter().map(|from| (*from, from.on(event).ok())).collect()
    }

    #[test]
    fn c2_a_turn_is_admitted_while_pending_or_idle() {
        let expected = [
            (S::Pending, Some(S::Running)),
            (S::Running, None),
            (S::Idle, Some(S::Running)),
            (S::Failed, None),
            (S::Terminated, None),
        ];
        assert_eq!(all(E::Admitted), expected);
    }

    #[test]
    fn c3_after_a_turn_it_is_idle() {
        let expected = [
            (S::Pending, Some(S::Idle)),
            (S::Running, Some(S::Idle)),
            (S::Idle, Some(S::Idle)),
            (S::Failed, None),
            (S::Terminated, None),
        ];
        assert_eq!(all(E::TurnEnded), expected);
    }

    #[test]
    fn c4_c9_only_a_first_build_fails_or_finishes() {
        for from in S::ALL.iter().copied() {
            let is_first = from == S::Pending;
            assert_eq!(from.on(E::BuildFailed).ok(), is_first.then_some(S::Failed), "{from}");
            assert_eq!(from.on(E::BuildFinished).ok(), is_first.then_some(S::Idle), "{from}");
        }
    }

    #[test]
    fn c5_whatever_lives_can_be_ended() {
        for from in S::ALL.iter().copied() {
            assert_eq!(
                from.on(E::Ended).ok(),
                (!from.is_terminal()).then_some(S::Terminated),
                "{from}"
            );
        }
    }

    #[test]
    fn c6_inv_79_losing_the_machine_leaves_an_idle_conversation_and_ends_none() {
        let expected = [
            (S::Pending, None),
            (S::Running, Some(S::Idle)),
            (S::Idle, Some(S::Idle)),
            (S::Failed, None),
            (S::Terminated, None),
        ];
        assert_eq!(all(E::MachineLeft), expected);
    }

    #[test]
    fn c7_rul_11_nothing_makes_a_conversation_pending_again() {
        for from in S::ALL.iter().copied() {
            for event in E::ALL.iter().copied() {
                assert_ne!(from.on(event), Ok(S::Pending), "{from} {event}");
            }
        }
    }

    #[test]
    fn c8_inv_78_a_final_status_knows_no_step() {
        for from in S::ALL.iter().copied().filter(|status| status.is_terminal()) {
            for event in E::ALL.iter().copied() {
                assert_eq!(from.on(event), Err(IllegalConversation { from, event }));
            }
        }
    }
}
