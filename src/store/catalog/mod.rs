//! Agents, environments, vaults and secrets: what users configure (lifecycle 1.3, 1.4; http-api 4.1 to 4.3).
//!
//! This file lists the verbs; each table has its own file. Taking the ground from under a home fences it in the same
//! transaction (RUL-L-46): `homes` does that, and nothing here calls a provider. Every query carries the account id.

mod agents;
mod environments;
mod homes;
mod sealed;
mod vaults;
mod warm;

use secrecy::SecretString;

use fountain_actors::domain::account::NewAudit;
use fountain_actors::domain::agent::{Agent, AgentConfig, AgentFilter};
use fountain_actors::domain::environment::{
    Environment, EnvironmentConfig, SecretBundle, SecretHome, SecretInfo, Vault,
};
use fountain_actors::domain::*;
use fountain_actors::ports::store::catalog::{CatalogStore, Fenced, NewVault};
use fountain_actors::ports::store::{Answer, Committed};

use super::SqlStore;
use super::backend::{Access, Db, Fault, violated};
use super::events::Outbox;
use sealed::Safe;

/// A change that somebody asked for, and when.
struct Change {
    account: AccountId,
    audit: NewAudit,
    now: Moment,
}

impl Change {
    /// Writes the audit row and what else `outbox` holds: the last step of the transaction.
    fn commit<T>(self, db: &mut Db, mut outbox: Outbox, value: T) -> Result<Committed<T>, Fault> {
        outbox.audit(self.audit, self.now);
        let cursors = outbox.write(db)?;
        Ok(Committed { value, cursors })
    }

    /// [`Change::commit`] for a change that announces nothing.
    fn done<T>(self, db: &mut Db, value: T) -> Result<T, Fault> {
        Ok(self.commit(db, Outbox::default(), value)?.value)
    }
}

/// Turns the refusal of a unique index on names into a field error, and a vanished account into `NotFound`.
fn named(result: diesel::QueryResult<usize>, index: &str, columns: &str) -> Result<usize, Fault> {
    use diesel::result::{DatabaseErrorKind, Error};
    match result {
        Err(error) if violated(&error, index, columns) => Err(Refusal::field("name", "has already been taken").into()),
        // What else the row points at was looked up in this transaction.
        Err(Error::DatabaseError(DatabaseErrorKind::ForeignKeyViolation, _)) => Err(Fault::not_found("account")),
        other => Ok(other?),
    }
}

impl SqlStore {
    /// What seals and opens secrets.
    fn safe(&self) -> Safe {
        Safe {
            master: self.inner.master_key.clone(),
            rng: self.inner.rng.clone(),
        }
    }
}

impl CatalogStore for SqlStore {
    fn agents(&self, account: AccountId, filter: AgentFilter) -> Answer<'_, Vec<Agent>> {
        self.answer("agent.list", Access::Snapshot, move |db| {
            agents::list(db, account, &filter)
        })
    }

    fn agent(&self, account: AccountId, id: AgentId) -> Answer<'_, Option<Agent>> {
        self.answer("agent.get", Access::Snapshot, move |db| agents::get(db, account, id))
    }

    fn create_agent(
        &self,
        account: AccountId,
        id: AgentId,
        version: AgentVersionId,
        config: AgentConfig,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Agent> {
        let change = Change { account, audit, now };
        self.answer("agent.create", Access::Write, move |db| {
            agents::create(db, id, version, &config, change)
        })
    }

    fn update_agent(
        &self,
        account: AccountId,
        id: AgentId,
        version: AgentVersionId,
        config: AgentConfig,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<(Agent, Fenced)>> {
        let change = Change { account, audit, now };
        self.answer("agent.update", Access::Write, move |db| {
            agents::update(db, id, version, &config, change)
        })
    }

    fn delete_agent(
        &self,
        account: AccountId,
        id: AgentId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>> {
        let change = Change { account, audit, now };
        self.answer("agent.delete", Access::Write, move |db| agents::delete(db, id, change))
    }

    fn environments(&self, account: AccountId) -> Answer<'_, Vec<Environment>> {
        self.answer("environment.list", Access::Snapshot, move |db| {
            environments::list(db, account)
        })
    }

    fn environment(&self, account: AccountId, id: EnvironmentId) -> Answer<'_, Option<Environment>> {
        self.answer("environment.get", Access::Snapshot, move |db| {
            environments::get(db, account, id)
        })
    }

    fn create_environment(
        &self,
        account: AccountId,
        id: EnvironmentId,
        config: EnvironmentConfig,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Environment> {
        let change = Change { account, audit, now };
        self.answer("environment.create", Access::Write, move |db| {
            environments::create(db, id, &config, change)
        })
    }

    fn update_environment(
        &self,
        account: AccountId,
        id: EnvironmentId,
        config: EnvironmentConfig,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Environment> {
        let change = Change { account, audit, now };
        self.answer("environment.update", Access::Write, move |db| {
            environments::update(db, id, &config, change)
        })
    }

    fn delete_environment(
        &self,
        account: AccountId,
        id: EnvironmentId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>> {
        let change = Change { account, audit, now };
        self.answer("environment.delete", Access::Write, move |db| {
            environments::delete(db, id, change)
        })
    }

    fn vaults(&self, account: AccountId) -> Answer<'_, Vec<Vault>> {
        self.answer("vault.list", Access::Snapshot, move |db| vaults::list(db, account))
    }

    fn vault(&self, account: AccountId, id: VaultId) -> Answer<'_, Option<Vault>> {
        self.answer("vault.get", Access::Snapshot, move |db| vaults::get(db, account, id))
    }

    fn create_vault(
        &self,
        account: AccountId,
        id: VaultId,
        vault: NewVault,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Vault> {
        let change = Change { account, audit, now };
        self.answer("vault.create", Access::Write, move |db| {
            vaults::create(db, id, &vault, change)
        })
    }

    fn update_vault(
        &self,
        account: AccountId,
        id: VaultId,
        vault: NewVault,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Vault> {
        let change = Change { account, audit, now };
        self.answer("vault.update", Access::Write, move |db| {
            vaults::update(db, id, &vault, change)
        })
    }

    fn delete_vault(
        &self,
        account: AccountId,
        id: VaultId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>> {
        let change = Change { account, audit, now };
        self.answer("vault.delete", Access::Write, move |db| vaults::delete(db, id, change))
    }

    fn secrets(&self, account: AccountId, home: SecretHome) -> Answer<'_, Vec<SecretInfo>> {
        self.answer("secret.list", Access::Snapshot, move |db| {
            sealed::list(db, account, home)
        })
    }

    fn put_secret(
        &self,
        account: AccountId,
        home: SecretHome,
        key: String,
        value: SecretString,
        expires_at: Option<Moment>,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, SecretInfo> {
        let change = Change { account, audit, now };
        let safe = self.safe();
        self.answer("secret.put", Access::Write, move |db| {
            sealed::put(db, &safe, home, &key, &value, expires_at, change)
        })
    }

    fn set_secret_expiry(
        &self,
        account: AccountId,
        home: SecretHome,
        key: String,
        expires_at: Option<Moment>,
        now: Moment,
    ) -> Answer<'_, SecretInfo> {
        self.answer("secret.set_expiry", Access::Write, move |db| {
            sealed::set_expiry(db, account, home, &key, expires_at, now)
        })
    }

    fn delete_secret(
        &self,
        account: AccountId,
        home: SecretHome,
        key: String,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, ()> {
        let change = Change { account, audit, now };
        self.answer("secret.delete", Access::Write, move |db| {
            sealed::delete(db, home, &key, change)
        })
    }

    fn secret_bundle(
        &self,
        account: AccountId,
        environment: Option<EnvironmentId>,
        vault: Option<VaultId>,
    ) -> Answer<'_, SecretBundle> {
        let safe = self.safe();
        self.answer("secret.bundle", Access::Snapshot, move |db| {
            sealed::bundle(db, &safe, account, environment, vault)
        })
    }
}
