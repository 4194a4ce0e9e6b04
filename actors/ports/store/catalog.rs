//! Agents, environments, vaults and secrets: what users configure.
//!
//! Deletes and moves that take the ground from under a persistent machine fence it in the same transaction (RUL-L-46)
//! and answer which machines to destroy.

use secrecy::SecretString;

use super::{Answer, Committed};
use crate::domain::account::NewAudit;
use crate::domain::agent::{Agent, AgentConfig, AgentFilter};
use crate::domain::environment::{Environment, EnvironmentConfig, SecretBundle, SecretHome, SecretInfo, Vault};
use crate::domain::*;

#[derive(Clone, Debug)]
pub struct NewVault {
    pub name: String,
    pub description: String,
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// Machines that a change fenced, to be destroyed through their owners next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fenced {
    pub machines: Vec<MachineId>,
    /// Conversations that ended with them (agent deletion).
    pub ended: Vec<ConversationId>,
}

pub trait CatalogStore {
    /// By name, then id.
    fn agents(&self, account: AccountId, filter: AgentFilter) -> Answer<'_, Vec<Agent>>;
    fn agent(&self, account: AccountId, id: AgentId) -> Answer<'_, Option<Agent>>;
    /// Writes version 1 too. `Refused(Validation)` on `name` when it is taken, on `environment_id` when that is not
    /// this account's.
    fn create_agent(
        &self,
        account: AccountId,
        id: AgentId,
        version: AgentVersionId,
        config: AgentConfig,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Agent>;
    /// Replaces the configuration; a version row is written when something changed. Moving `environment_id` fences the
    /// agent's homes on the old one, or is refused with `sandbox_mid_turn`.
    fn update_agent(
        &self,
        account: AccountId,
        id: AgentId,
        version: AgentVersionId,
        config: AgentConfig,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<(Agent, Fenced)>>;
    /// Fences the agent's homes, ends their conversations, deletes the row; other conversations keep their history.
    fn delete_agent(
        &self,
        account: AccountId,
        id: AgentId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>>;

    fn environments(&self, account: AccountId) -> Answer<'_, Vec<Environment>>;
    fn environment(&self, account: AccountId, id: EnvironmentId) -> Answer<'_, Option<Environment>>;
    fn create_environment(
        &self,
        account: AccountId,
        id: EnvironmentId,
        config: EnvironmentConfig,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Environment>;
    /// Clears the warm-start checkpoint when one of its fields changed.
    fn update_environment(
        &self,
        account: AccountId,
        id: EnvironmentId,
        config: EnvironmentConfig,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Environment>;
    /// `sandbox_mid_turn` while a turn is open on a home of it; otherwise those homes are fenced.
    fn delete_environment(
        &self,
        account: AccountId,
        id: EnvironmentId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>>;

    fn vaults(&self, account: AccountId) -> Answer<'_, Vec<Vault>>;
    fn vault(&self, account: AccountId, id: VaultId) -> Answer<'_, Option<Vault>>;
    fn create_vault(
        &self,
        account: AccountId,
        id: VaultId,
        vault: NewVault,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Vault>;
    fn update_vault(
        &self,
        account: AccountId,
        id: VaultId,
        vault: NewVault,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Vault>;
    fn delete_vault(
        &self,
        account: AccountId,
        id: VaultId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>>;

    /// By key. `NotFound` when the home is not this account's.
    fn secrets(&self, account: AccountId, home: SecretHome) -> Answer<'_, Vec<SecretInfo>>;
    /// Upsert by key; the value is encrypted under the account's data key before it leaves this process.
    fn put_secret(
        &self,
        account: AccountId,
        home: SecretHome,
        key: String,
        value: SecretString,
        expires_at: Option<Moment>,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, SecretInfo>;
    fn set_secret_expiry(
        &self,
        account: AccountId,
        home: SecretHome,
        key: String,
        expires_at: Option<Moment>,
        now: Moment,
    ) -> Answer<'_, SecretInfo>;
    fn delete_secret(
        &self,
        account: AccountId,
        home: SecretHome,
        key: String,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, ()>;
    /// Decrypts what a machine of this environment and vault gets.
    fn secret_bundle(
        &self,
        account: AccountId,
        environment: Option<EnvironmentId>,
        vault: Option<VaultId>,
    ) -> Answer<'_, SecretBundle>;
}
