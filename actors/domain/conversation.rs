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
