//! Agents and their versions (lifecycle 1.3, http-api 4.1, 5.4).

use serde_json::{Map, Value};

use crate::domain::machine::{MachineMode, Provider};
use crate::domain::{AccountId, AgentId, AgentVersionId, EnvironmentId, Moment, VaultId};
use crate::vocabulary;

vocabulary! {
    /// The five runtimes. The enum is wire; which of them is enabled is another matter (RUL-51).
    Runtime { Claude = "claude", Codex = "codex", Gemini = "gemini", Opencode = "opencode", Acp = "acp" }
}

impl Runtime {
    /// How many turns of this runtime one machine carries at once, over all its conversations; None: no limit
    /// (runtimes 1, INV-77). gemini's session store breaks with two writers, opencode keeps one database a process.
    pub fn turns_at_once(self) -> Option<i64> {
        match self {
            Self::Gemini | Self::Opencode => Some(1),
            Self::Claude | Self::Codex | Self::Acp => None,
        }
    }
}

/// What an agent is configured to be: the part that a version snapshots.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentConfig {
    /// 1 to 200 characters, unique in its account.
    pub name: String,
    pub description: String,
    pub system: String,
    /// `provider/model_id`; None only for runtime `acp`.
    pub model: Option<String>,
    pub runtime: Runtime,
    /// Required for `acp`, refused elsewhere.
    pub runtime_command: Option<String>,
    /// None: the instance's default.
    pub sandbox_provider: Option<Provider>,
    pub sandbox_mode: MachineMode,
    pub environment_id: Option<EnvironmentId>,
    pub skills: Vec<Value>,
    pub mcp_servers: Map<String, Value>,
    pub metadata: Map<String, Value>,
    /// None: any of the account. Empty: none. The agent's own environment always passes.
    pub allowed_vault_ids: Option<Vec<VaultId>>,
    pub allowed_environment_ids: Option<Vec<EnvironmentId>>,
    pub allowed_inference_credential_ids: Option<Vec<uuid::Uuid>>,
    pub inference_credential_id: Option<uuid::Uuid>,
    /// As stored: keys to verdicts (`domain::policy` judges it). Empty: no opinion.
    pub permission_policy: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    pub id: AgentId,
    pub account_id: AccountId,
    pub config: AgentConfig,
    /// The newest version, for provenance of a launch.
    pub version_id: AgentVersionId,
    pub version: i64,
    /// Conversations that name this agent.
    pub conversation_count: i64,
    pub inserted_at: Moment,
    pub updated_at: Moment,
}

/// Filters of the agents list (http-api 5.4); all of them narrow.
#[derive(Clone, Debug, Default)]
pub struct AgentFilter {
    pub search: Option<String>,
    pub runtimes: Vec<Runtime>,
    pub environment_ids: Vec<EnvironmentId>,
    pub has_skills: Option<bool>,
    pub has_mcp: Option<bool>,
}
