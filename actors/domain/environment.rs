//! Environments, vaults and their secrets (lifecycle 1.4, http-api 4.2, 4.3).

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::domain::machine::Provider;
use crate::domain::{AccountId, EnvironmentId, Moment, SecretId, VaultId};
use crate::vocabulary;

vocabulary! {
    NetworkingType { Unrestricted = "unrestricted", Limited = "limited" }
}

/// A checkout that a build makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repository {
    /// `https://…`
    pub url: String,
    /// Absolute.
    pub mount_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EnvironmentConfig {
    pub name: String,
    /// Manager to packages, for example `{"apt": ["ripgrep"]}`.
    pub packages: BTreeMap<String, Vec<String>>,
    pub env_vars: BTreeMap<String, String>,
    pub setup_script: String,
    /// 1 to 900.
    pub setup_timeout_seconds: i64,
    pub networking_type: NetworkingType,
    /// Only `allowed_hosts` is honoured.
    pub networking_config: Map<String, Value>,
    pub repositories: Vec<Repository>,
    pub metadata: Map<String, Value>,
}

impl EnvironmentConfig {
    /// An environment of this name with every default.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            packages: BTreeMap::new(),
            env_vars: BTreeMap::new(),
            setup_script: String::new(),
            setup_timeout_seconds: 120,
            networking_type: NetworkingType::Unrestricted,
            networking_config: Map::new(),
            repositories: Vec::new(),
            metadata: Map::new(),
        }
    }

    /// The fields whose change makes a warm-start checkpoint useless (http-api 5.5).
    pub fn same_warm_start(&self, other: &Self) -> bool {
        self.packages == other.packages
            && self.env_vars == other.env_vars
            && self.setup_script == other.setup_script
            && self.setup_timeout_seconds == other.setup_timeout_seconds
            && self.networking_type == other.networking_type
            && self.networking_config == other.networking_config
            && self.repositories == other.repositories
    }

    /// Digest of the fields of [`Self::same_warm_start`]; two configurations that differ in one of them differ in it.
    pub fn warm_start_fingerprint(&self) -> String {
        let fields = serde_json::json!([
            self.packages,
            self.env_vars,
            self.setup_script,
            self.setup_timeout_seconds,
            self.networking_type.as_str(),
            self.networking_config,
            self.repositories,
        ]);
        Sha256::digest(fields.to_string())
            .iter()
            .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }
}

/// A warm start: the checkpoint that builds of an environment begin from, and what tells whose it is (RUL-L-34).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentCheckpoint {
    /// As the provider knows it.
    pub id: String,
    #[serde(with = "provider_word")]
    pub provider: Provider,
    pub vault_id: Option<VaultId>,
    /// Of the warm-start fields that it was built from.
    pub fingerprint: String,
    /// Digest of the GitHub skills in it; empty: none.
    pub skills: String,
    /// What its marker file holds.
    pub marker: String,
}

mod provider_word {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::Provider;

    pub fn serialize<S: Serializer>(provider: &Provider, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(provider.as_str())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Provider, D::Error> {
        let word = String::deserialize(deserializer)?;
        word.parse().map_err(|_| D::Error::custom("no such provider"))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    pub id: EnvironmentId,
    pub account_id: AccountId,
    pub config: EnvironmentConfig,
    pub secret_count: i64,
    pub agent_count: i64,
    pub inserted_at: Moment,
    pub updated_at: Moment,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Vault {
    pub id: VaultId,
    pub account_id: AccountId,
    pub name: String,
    pub description: String,
    pub metadata: Map<String, Value>,
    pub secret_count: i64,
    pub inserted_at: Moment,
    pub updated_at: Moment,
}

/// Where a secret lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SecretHome {
    Environment(EnvironmentId),
    Vault(VaultId),
}

/// A secret as a list shows it: never its value.
#[derive(Clone, Debug, PartialEq)]
pub struct SecretInfo {
    pub id: SecretId,
    pub key: String,
    pub home: SecretHome,
    /// Advisory, vault secrets only.
    pub expires_at: Option<Moment>,
    pub inserted_at: Moment,
    pub updated_at: Moment,
}

/// Everything a machine of this environment and vault gets, decrypted. Printing it shows nothing.
#[derive(Clone, Debug, Default)]
pub struct SecretBundle {
    /// Environment secrets, by key.
    pub environment: BTreeMap<String, SecretString>,
    /// Vault secrets, by key; they win over the environment's (http-api 5.6).
    pub vault: BTreeMap<String, SecretString>,
}
