//! The catalogue of the in-memory store: agents, environments, vaults, secrets.

use fountain_actors::domain::account::*;
use fountain_actors::domain::agent::*;
use fountain_actors::domain::environment::*;
use fountain_actors::domain::*;
use fountain_actors::ports::store::catalog::*;
use fountain_actors::ports::store::{Answer, Committed, StoreError};
use secrecy::{ExposeSecret, SecretString};

use crate::store::*;

impl CatalogStore for Rows {
    fn agents(&self, account: AccountId, filter: AgentFilter) -> Answer<'_, Vec<Agent>> {
        self.ask(|t| {
            let words = filter.search.unwrap_or_default().to_lowercase();
            let wanted = |agent: &&Agent| {
                agent.account_id == account
                    && agent.config.name.to_lowercase().contains(&words)
                    && (filter.runtimes.is_empty() || filter.runtimes.contains(&agent.config.runtime))
            };
            Ok(t.agents.iter().filter(wanted).cloned().collect())
        })
    }
    fn agent(&self, account: AccountId, id: AgentId) -> Answer<'_, Option<Agent>> {
        self.ask(|t| Ok(t.agents.iter().find(|a| a.id == id && a.account_id == account).cloned()))
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
        self.ask(|t| {
            if t.agents
                .iter()
                .any(|a| a.account_id == account && a.config.name == config.name)
            {
                return Err(Refusal::field("name", "has already been taken").into());
            }
            t.audits.push(audit);
            let agent = Agent {
                id,
                account_id: account,
                config,
                version_id: version,
                version: 1,
                conversation_count: 0,
                inserted_at: now,
                updated_at: now,
            };
            t.agents.push(agent.clone());
            Ok(agent)
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
        self.ask(|t| {
            let found = t.agents.iter_mut().find(|a| a.id == id && a.account_id == account);
            let agent = found.ok_or(StoreError::NotFound("agent"))?;
            agent.config = config;
            agent.version_id = version;
            agent.version += 1;
            agent.updated_at = now;
            t.audits.push(audit);
            Ok(plain((agent.clone(), Fenced::default())))
        })
    }
    fn delete_agent(
        &self,
        account: AccountId,
        id: AgentId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>> {
        self.ask(|t| {
            let before = t.agents.len();
            t.agents.retain(|a| !(a.id == id && a.account_id == account));
            if t.agents.len() == before {
                return Err(StoreError::NotFound("agent"));
            }
            t.audits.push(audit);
            let homes = t
                .machines
                .iter()
                .filter(|(of, view)| *of == account && view.machine.agent_id == Some(id));
            let machines = homes.map(|(_, view)| view.machine.id).collect();
            let _ = now;
            Ok(plain(Fenced {
                machines,
                ended: Vec::new(),
            }))
        })
    }
    fn environments(&self, account: AccountId) -> Answer<'_, Vec<Environment>> {
        self.ask(|t| {
            Ok(t.environments
                .iter()
                .filter(|e| e.account_id == account)
                .cloned()
                .collect())
        })
    }
    fn environment(&self, account: AccountId, id: EnvironmentId) -> Answer<'_, Option<Environment>> {
        self.ask(|t| {
            Ok(t.environments
                .iter()
                .find(|e| e.id == id && e.account_id == account)
                .cloned())
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
        self.ask(|t| {
            t.audits.push(audit);
            let environment = Environment {
                id,
                account_id: account,
                config,
                secret_count: 0,
                agent_count: 0,
                inserted_at: now,
                updated_at: now,
            };
            t.environments.push(environment.clone());
            Ok(environment)
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
        self.ask(|t| {
            let found = t
                .environments
                .iter_mut()
                .find(|e| e.id == id && e.account_id == account);
            let environment = found.ok_or(StoreError::NotFound("environment"))?;
            environment.config = config;
            environment.updated_at = now;
            t.audits.push(audit);
            Ok(environment.clone())
        })
    }
    fn delete_environment(
        &self,
        account: AccountId,
        id: EnvironmentId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>> {
        self.ask(|t| {
            let before = t.environments.len();
            t.environments.retain(|e| !(e.id == id && e.account_id == account));
            t.audits.push(audit);
            let _ = now;
            if t.environments.len() == before {
                return Err(StoreError::NotFound("environment"));
            }
            Ok(plain(Fenced::default()))
        })
    }
    fn vaults(&self, account: AccountId) -> Answer<'_, Vec<Vault>> {
        self.ask(|t| Ok(t.vaults.iter().filter(|v| v.account_id == account).cloned().collect()))
    }
    fn vault(&self, account: AccountId, id: VaultId) -> Answer<'_, Option<Vault>> {
        self.ask(|t| Ok(t.vaults.iter().find(|v| v.id == id && v.account_id == account).cloned()))
    }
    fn create_vault(
        &self,
        account: AccountId,
        id: VaultId,
        vault: NewVault,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Vault> {
        self.ask(|t| {
            t.audits.push(audit);
            let vault = Vault {
                id,
                account_id: account,
                name: vault.name,
                description: vault.description,
                metadata: vault.metadata,
                secret_count: 0,
                inserted_at: now,
                updated_at: now,
            };
            t.vaults.push(vault.clone());
            Ok(vault)
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
        self.ask(|t| {
            let found = t.vaults.iter_mut().find(|v| v.id == id && v.account_id == account);
            let row = found.ok_or(StoreError::NotFound("vault"))?;
            row.name = vault.name;
            row.description = vault.description;
            row.metadata = vault.metadata;
            row.updated_at = now;
            t.audits.push(audit);
            Ok(row.clone())
        })
    }
    fn delete_vault(
        &self,
        account: AccountId,
        id: VaultId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Fenced>> {
        self.ask(|t| {
            let before = t.vaults.len();
            t.vaults.retain(|v| !(v.id == id && v.account_id == account));
            t.audits.push(audit);
            let _ = now;
            if t.vaults.len() == before {
                return Err(StoreError::NotFound("vault"));
            }
            Ok(plain(Fenced::default()))
        })
    }
    fn secrets(&self, account: AccountId, home: SecretHome) -> Answer<'_, Vec<SecretInfo>> {
        self.ask(|t| {
            t.own_home(account, home)?;
            Ok(t.secrets
                .iter()
                .map(|(secret, _)| secret)
                .filter(|s| s.home == home)
                .cloned()
                .collect())
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
        self.ask(|t| {
            t.own_home(account, home)?;
            t.audits.push(audit);
            let value = value.expose_secret().to_owned();
            if let Some((secret, old)) = t.secrets.iter_mut().find(|(s, _)| s.home == home && s.key == key) {
                *old = value;
                secret.expires_at = expires_at;
                secret.updated_at = now;
                return Ok(secret.clone());
            }
            let id = SecretId(uuid::Uuid::from_u128(t.secrets.len() as u128 + 1));
            let secret = SecretInfo {
                id,
                key,
                home,
                expires_at,
                inserted_at: now,
                updated_at: now,
            };
            t.secrets.push((secret.clone(), value));
            Ok(secret)
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
        self.ask(|t| {
            t.own_home(account, home)?;
            let found = t
                .secrets
                .iter_mut()
                .map(|(s, _)| s)
                .find(|s| s.home == home && s.key == key);
            let secret = found.ok_or(StoreError::NotFound("secret"))?;
            secret.expires_at = expires_at;
            secret.updated_at = now;
            Ok(secret.clone())
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
        self.ask(|t| {
            t.own_home(account, home)?;
            let before = t.secrets.len();
            t.secrets.retain(|(s, _)| !(s.home == home && s.key == key));
            t.audits.push(audit);
            let _ = now;
            if t.secrets.len() == before {
                return Err(StoreError::NotFound("secret"));
            }
            Ok(())
        })
    }
    fn secret_bundle(&self, _: AccountId, _: Option<EnvironmentId>, _: Option<VaultId>) -> Answer<'_, SecretBundle> {
        not_here("secret_bundle")
    }
}
