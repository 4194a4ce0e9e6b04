//! Launches that wait for a slot (lifecycle 2.7; http-api 4.9).
//!
//! A request keeps what was asked only as long as it may still start: every final state forgets the prompt (INV-106).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::conversation::SandboxApiAccess;
use crate::domain::machine::MachineMode;
use crate::domain::*;
use crate::vocabulary;

vocabulary! {
    /// The last four are final.
    RequestStatus {
        Queued = "queued", Starting = "starting", Started = "started", Failed = "failed", Cancelled = "cancelled",
        Expired = "expired",
    }
}

vocabulary! { RequestKind { Start = "start", ScheduleRun = "schedule_run" } }

vocabulary! {
    /// On whose behalf the request was made.
    RequestSource { Api = "api", Agent = "agent", Schedule = "schedule" }
}

/// What is launched when there is room: the fields of a create that wait with it (http-api 5.9).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuedLaunch {
    pub prompt: Option<String>,
    pub client_request_id: Option<String>,
    pub title: Option<String>,
    pub vault_id: Option<VaultId>,
    pub environment_id: Option<EnvironmentId>,
    pub inference_credential_id: Option<uuid::Uuid>,
    pub model: Option<String>,
    pub permission_policy: Option<Map<String, Value>>,
    pub sandbox_mode: Option<MachineMode>,
    pub sandbox_api_access: SandboxApiAccess,
    pub sprite_name: Option<String>,
    pub channel_id: Option<String>,
    pub fresh: bool,
    pub labels: BTreeMap<String, String>,
    pub parent: Option<String>,
    /// The conversation whose sandbox key asked; None for a key of full scope.
    pub asked_by: Option<ConversationId>,
}

/// One row of `sandbox_requests`.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxRequest {
    pub id: QueueRequestId,
    pub account_id: AccountId,
    pub agent_id: AgentId,
    pub kind: RequestKind,
    pub status: RequestStatus,
    pub source: RequestSource,
    pub schedule_id: Option<ScheduleId>,
    /// None once the request is over.
    pub launch: Option<QueuedLaunch>,
    pub conversation_id: Option<ConversationId>,
    /// The wire code of why it failed.
    pub error: Option<String>,
    pub inserted_at: Moment,
    /// Together with the status what a claim names (lifecycle 2.7).
    pub updated_at: Moment,
}

/// A request as the API shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestView {
    pub request: SandboxRequest,
    /// From 1; None once it does not wait.
    pub position: Option<i64>,
}

/// What a refusal during a replay means for the request (lifecycle 2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// Still no room: the request goes on waiting, and nobody behind it is tried.
    NoRoom,
    /// It may work later: the request goes on waiting, others are tried.
    Passing,
    /// It will not work.
    Lasting,
}

impl Setback {
    pub fn of(code: ErrorCode) -> Self {
        use ErrorCode as C;
        match code {
            C::SandboxQuotaExceeded | C::FleetFull => Self::NoRoom,
            C::ConversationBusy
            | C::Provisioning
            | C::RunnerOffline
            | C::SandboxAtCapacity
            | C::SandboxUnavailable
            // Not in the list of lifecycle 2.7, but certainly nothing that the request did (RUL-31).
            | C::StoreUnavailable => Self::Passing,
            _ => Self::Lasting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_words_of_lifecycle_2_7_keep_a_request_waiting() {
        let passing: Vec<_> = ErrorCode::ALL
            .iter()
            .filter(|code| Setback::of(**code) == Setback::Passing)
            .map(|code| code.as_str())
            .collect();
        assert_eq!(
            passing,
            [
                "store_unavailable",
                "conversation_busy",
                "provisioning",
                "sandbox_unavailable",
                "runner_offline",
                "sandbox_at_capacity"
            ]
        );
        assert_eq!(Setback::of(ErrorCode::InsufficientCredits), Setback::Lasting);
    }
}
