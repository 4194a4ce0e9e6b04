//! What a server knows about its agent, environment and secrets (lifecycle 4.3): resolved at a generation's start and
//! again before every fresh process, so that an edited secret reaches the next spawn.
//!
//! Values of secrets leave here into process environments, the environment file and the redactor, and nowhere else.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use secrecy::SecretString;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::position::digest;
use crate::acp::{McpError, mcp_servers};
use crate::domain::account::{NewApiKey, Scope};
use crate::domain::agent::Agent;
use crate::domain::conversation::{Conversation, SandboxApiAccess};
use crate::domain::environment::{Environment, NetworkingType, Repository, SecretBundle};
use crate::domain::event::Stage;
use crate::domain::machine::Machine;
use crate::domain::policy::{EffectivePolicy, PermissionPolicy};
use crate::domain::{AccountId, ConversationId, Refusal, SpawnId};
use crate::machine::groundwork::{Checkout, Groundwork, Install, Manager, Setup, WarmStart};
use crate::machine::messages::{BuildPlan, PlannedFile, Unsupported};
use crate::ports::World;
use crate::ports::clock::after;
use crate::ports::sandbox::{Env, NetworkPolicy, SpawnOptions};
use crate::runtimes::environment::Sources;
use crate::runtimes::{self, layout};
use crate::transcript::redaction::Redactor;

/// Agent, environment and secrets of one conversation on one machine.
#[derive(Clone)]
pub(super) struct Profile {
    pub conversation: Conversation,
    pub machine: Machine,
    pub agent: Option<Agent>,
    /// The machine's own: on a shared machine no other row has a say (RUL-L-83).
    pub environment: Option<Environment>,
    pub secrets: SecretBundle,
}

/// A callback key: the row, and the plain text that only a process gets.
pub(super) struct Callback {
    pub row: NewApiKey,
    pub secret: SecretString,
}

impl Profile {
    /// Reads everything anew.
    ///
    /// # Errors
    /// What the store says; a missing agent or environment is no error here.
    pub async fn resolve(world: &World, conversation: Conversation, machine: Machine) -> Result<Self, Refusal> {
        let account = conversation.account_id;
        let store = &world.store;
        let said = |error: crate::ports::store::StoreError| error.refusal();
        let agent = match conversation.agent_id {
            Some(id) => store.agent(account, id).await.map_err(said)?,
            None => None,
        };
        let environment = match machine.environment_id {
            Some(id) => store.environment(account, id).await.map_err(said)?,
            None => None,
        };
        let secrets = store
            .secret_bundle(account, machine.environment_id, machine.vault_id)
            .await
            .map_err(said)?;
        Ok(Self {
            conversation,
            machine,
            agent,
            environment,
            secrets,
        })
    }

    /// Egress of the machine; None is unrestricted. A list that is there but empty denies everything (INV-29).
    pub fn network(&self) -> Option<NetworkPolicy> {
        let config = &self.environment.as_ref()?.config;
        (config.networking_type == NetworkingType::Limited).then(|| NetworkPolicy {
            allow: config
                .networking_config
                .get("allowed_hosts")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        })
    }

    /// The policy of a turn: the stricter of agent and launch, computed anew each time (runtimes 8.2).
    pub fn permissions(&self) -> EffectivePolicy {
        let agent = self
            .agent
            .as_ref()
            .map(|agent| PermissionPolicy::from_stored(&agent.config.permission_policy));
        let launch = self
            .conversation
            .permission_policy
            .as_ref()
            .map(PermissionPolicy::from_stored);
        EffectivePolicy::of(agent.unwrap_or_default(), launch)
    }

    /// The model as this runtime spells it; None leaves the agent's own.
    pub fn model(&self) -> Option<String> {
        let configured = self.agent.as_ref().and_then(|agent| agent.config.model.as_deref());
        let stored = self.conversation.model.as_deref().or(configured);
        runtimes::models::sent(self.conversation.runtime, stored)
    }

    /// The servers for the session calls.
    pub fn mcp(&self) -> Result<Value, McpError> {
        match &self.agent {
            Some(agent) => mcp_servers(&Value::Object(agent.config.mcp_servers.clone())),
            None => mcp_servers(&Value::Null),
        }
    }

    /// Nothing of these may reach a row, an error or a log.
    pub fn register(&self, token: Option<&SecretString>, redactor: &mut Redactor) {
        self.with_sources(None, token, |sources| redactor.add(sources.secret_values()));
    }

    /// The command of the agent, and what it is spawned with.
    pub fn spawn(
        &self,
        world: &World,
        spawn: SpawnId,
        token: Option<&SecretString>,
    ) -> Result<(runtimes::Spawn, Env), runtimes::RuntimeError> {
        let command = self
            .agent
            .as_ref()
            .and_then(|agent| agent.config.runtime_command.as_deref());
        let command = runtimes::spawn(self.conversation.runtime, command, self.conversation.id, spawn)?;
        let env = self.with_sources(Some(world), token, |sources| sources.process());
        Ok((command, env))
    }

    /// The plan of a build, or what a reattach rewrites.
    pub fn plan(&self, world: &World, key: Option<NewApiKey>, token: Option<&SecretString>) -> BuildPlan {
        BuildPlan {
            fingerprint: self.fingerprint(),
            policy: self.network(),
            groundwork: self.groundwork(world, token),
            unsupported: self.unsupported(),
            callback_key: key,
            files: self.files(world),
        }
    }

    /// The files of the machine; the environment file is the last (RUL-L-33).
    pub fn files(&self, world: &World) -> Vec<PlannedFile> {
        let mut files = Vec::new();
        let instructions = layout::of(self.conversation.runtime).instructions;
        if let (Some(path), Some(agent)) = (instructions, &self.agent)
            && !agent.config.system.is_empty()
        {
            files.push(PlannedFile {
                path: path.into(),
                content: Bytes::from(agent.config.system.clone()),
                mode: None,
                best_effort: true,
            });
        }
        files.push(PlannedFile {
            path: layout::ENV_FILE.into(),
            content: Bytes::from(self.with_sources(Some(world), None, |sources| sources.file())),
            mode: Some(0o600),
            best_effort: false,
        });
        files
    }

    /// What a cold build does first. The callback key reaches the setup script through its process only.
    fn groundwork(&self, world: &World, token: Option<&SecretString>) -> Groundwork {
        let Some(config) = self.environment.as_ref().map(|environment| &environment.config) else {
            return Groundwork::default();
        };
        let install = |manager: Manager, word: &str| {
            let names = config.packages.get(word).filter(|names| !names.is_empty())?.clone();
            Some(Install { manager, names })
        };
        let secret = |key: &String| {
            self.secrets
                .vault
                .get(key)
                .or_else(|| self.secrets.environment.get(key))
        };
        let checkout = |repository: &Repository| Checkout {
            url: repository.url.clone(),
            mount_path: repository.mount_path.clone(),
            reference: repository.r#ref.clone().filter(|name| !name.is_empty()),
            secret_key: repository.secret_key.clone().filter(|key| !key.is_empty()),
            token: repository.secret_key.as_ref().and_then(secret).cloned(),
        };
        let setup = (!config.setup_script.trim().is_empty()).then(|| Setup {
            script: config.setup_script.clone(),
            limit: Duration::from_secs(config.setup_timeout_seconds.clamp(1, 900).unsigned_abs()),
            env: self.with_sources(Some(world), token, |sources| sources.process()),
            dir: layout::HOME.into(),
        });
        let mut groundwork = Groundwork {
            installs: [install(Manager::Apt, "apt"), install(Manager::Npm, "npm")]
                .into_iter()
                .flatten()
                .collect(),
            checkouts: config.repositories.iter().map(checkout).collect(),
            setup,
            warm: None,
        };
        let is_bare = groundwork.installs.is_empty() && groundwork.checkouts.is_empty() && groundwork.setup.is_none();
        groundwork.warm = self
            .machine
            .environment_id
            .filter(|_| !is_bare)
            .map(|environment| WarmStart {
                account: self.conversation.account_id,
                environment,
                vault: self.machine.vault_id,
                fingerprint: config.warm_start_fingerprint(),
                skills: String::new(),
            });
        groundwork
    }

    /// What this release cannot build is refused in its own stage, never left out (RUL-52).
    fn unsupported(&self) -> Vec<Unsupported> {
        let mut missing = Vec::new();
        let mut lack = |there: bool, stage: Stage, what: &str| {
            if there {
                missing.push(Unsupported {
                    stage,
                    message: format!("{what} cannot be built by this server yet; remove them and launch again"),
                });
            }
        };
        if let Some(agent) = &self.agent {
            lack(!agent.config.skills.is_empty(), Stage::Setup, "skills of an agent");
            let servers = Value::Object(agent.config.mcp_servers.clone()).to_string();
            lack(servers.contains("${"), Stage::Setup, "variables in MCP servers");
        }
        missing
    }

    /// Of everything that shapes the disk. Never of a value: a fingerprint is shown to operators.
    fn fingerprint(&self) -> String {
        let mut hasher = Sha256::new();
        let mut part = |text: &str| {
            hasher.update(text.len().to_le_bytes());
            hasher.update(text);
        };
        part(self.conversation.runtime.as_str());
        part(self.agent.as_ref().map_or("", |agent| agent.config.system.as_str()));
        if let Some(environment) = &self.environment {
            let config = &environment.config;
            part(&format!("{:?}", config.packages));
            part(&format!("{:?}", config.env_vars.keys()));
            part(&config.setup_script);
            part(&format!("{:?}", config.repositories));
            part(config.networking_type.as_str());
            part(&Value::Object(config.networking_config.clone()).to_string());
        }
        digest(&hasher)
    }

    fn with_sources<T>(
        &self,
        world: Option<&World>,
        token: Option<&SecretString>,
        look: impl FnOnce(&Sources<'_>) -> T,
    ) -> T {
        let none = BTreeMap::new();
        look(&Sources {
            runtime: self.conversation.runtime,
            token,
            base_url: world.map_or("", |world| world.settings.public_url.as_str()),
            conversation: self.conversation.id,
            machine: self.machine.id,
            env_vars: self
                .environment
                .as_ref()
                .map_or(&none, |environment| &environment.config.env_vars),
            secrets: &self.secrets,
        })
    }

    /// A fresh callback key, unless the conversation has no access to the API.
    pub fn callback(&self, world: &World) -> Option<Callback> {
        (self.conversation.sandbox_api_access == SandboxApiAccess::Owner)
            .then(|| mint(world, self.conversation.account_id, self.conversation.id))
    }
}

/// `ftn_` and 43 characters (RUL-19); only its hash is kept.
fn mint(world: &World, account_id: AccountId, conversation: ConversationId) -> Callback {
    let mut random = [0u8; 32];
    world.rng.fill(&mut random);
    let key = format!("ftn_{}", URL_SAFE_NO_PAD.encode(random));
    let row = NewApiKey {
        id: world.id(),
        account_id,
        name: format!("conversation {conversation}"),
        prefix: key.chars().take(12).collect(),
        sha256: Sha256::digest(&key).into(),
        scope: Scope::Sprite(conversation),
        expires_at: Some(after(world.now(), world.settings.callback_key_ttl)),
    };
    Callback {
        row,
        secret: SecretString::from(key),
    }
}

/// How an agent's process is spawned (runtimes 9).
pub(super) fn spawn_options(env: Env, dir: String) -> SpawnOptions {
    SpawnOptions {
        env,
        dir: Some(dir),
        stdin: true,
        tty: false,
        detachable: true,
    }
}
