//! The part of an agent's configuration that one JSON document holds.
//!
//! Keys may be added; a key that is missing reads as its default, so that a row of an older release and a replica of
//! an older release both keep working (STYLE 8: expand, move, contract).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use fountain_actors::domain::agent::{AgentConfig, Runtime};
use fountain_actors::domain::machine::{MachineMode, Provider};
use fountain_actors::domain::{EnvironmentId, VaultId};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredConfig {
    #[serde(default)]
    description: String,
    #[serde(default)]
    system: String,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    runtime_command: Option<String>,
    #[serde(default)]
    sandbox_provider: Option<Provider>,
    #[serde(default = "ephemeral")]
    sandbox_mode: MachineMode,
    #[serde(default)]
    skills: Vec<Value>,
    #[serde(default)]
    mcp_servers: Map<String, Value>,
    #[serde(default)]
    metadata: Map<String, Value>,
    #[serde(default)]
    allowed_vault_ids: Option<Vec<VaultId>>,
    #[serde(default)]
    allowed_environment_ids: Option<Vec<EnvironmentId>>,
    #[serde(default)]
    allowed_inference_credential_ids: Option<Vec<uuid::Uuid>>,
    #[serde(default)]
    inference_credential_id: Option<uuid::Uuid>,
    #[serde(default)]
    permission_policy: Map<String, Value>,
}

fn ephemeral() -> MachineMode {
    MachineMode::Ephemeral
}

impl StoredConfig {
    pub(super) fn of(config: &AgentConfig) -> Self {
        // Named one by one, so that a new field of the domain cannot be forgotten here.
        let AgentConfig {
            name: _,
            description,
            system,
            model,
            runtime: _,
            runtime_command,
            sandbox_provider,
            sandbox_mode,
            environment_id: _,
            skills,
            mcp_servers,
            metadata,
            allowed_vault_ids,
            allowed_environment_ids,
            allowed_inference_credential_ids,
            inference_credential_id,
            permission_policy,
        } = config.clone();
        Self {
            description,
            system,
            model,
            runtime_command,
            sandbox_provider,
            sandbox_mode,
            skills,
            mcp_servers,
            metadata,
            allowed_vault_ids,
            allowed_environment_ids,
            allowed_inference_credential_ids,
            inference_credential_id,
            permission_policy,
        }
    }

    pub(super) fn into_domain(
        self,
        name: String,
        runtime: Runtime,
        environment_id: Option<EnvironmentId>,
    ) -> AgentConfig {
        AgentConfig {
            name,
            description: self.description,
            system: self.system,
            model: self.model,
            runtime,
            runtime_command: self.runtime_command,
            sandbox_provider: self.sandbox_provider,
            sandbox_mode: self.sandbox_mode,
            environment_id,
            skills: self.skills,
            mcp_servers: self.mcp_servers,
            metadata: self.metadata,
            allowed_vault_ids: self.allowed_vault_ids,
            allowed_environment_ids: self.allowed_environment_ids,
            allowed_inference_credential_ids: self.allowed_inference_credential_ids,
            inference_credential_id: self.inference_credential_id,
            permission_policy: self.permission_policy,
        }
    }
}

/// A version's document: everything, with the names of the API (http-api 4.1).
pub(super) fn snapshot(config: &AgentConfig) -> Value {
    let mut document = serde_json::to_value(StoredConfig::of(config)).expect("plain data with text keys serializes");
    if let Value::Object(document) = &mut document {
        document.insert("name".into(), config.name.clone().into());
        document.insert("runtime".into(), config.runtime.as_str().into());
        document.insert(
            "environment_id".into(),
            config.environment_id.map(|id| id.to_string()).into(),
        );
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_document_reads_as_the_defaults() {
        let stored: StoredConfig = serde_json::from_str("{}").unwrap();
        let config = stored.into_domain("a".into(), Runtime::Acp, None);
        assert_eq!(config.sandbox_mode, MachineMode::Ephemeral);
        assert_eq!(config.allowed_vault_ids, None, "absent means any of the account");
    }
}
