//! Rows made through the store's own verbs: an account, an agent, and conversations with a registered server and
//! process, ready to be appended to.
#![allow(dead_code, reason = "no program uses all of it")]

use std::sync::Arc;

use anyhow::Context as _;
use fountain::store::secrets::MasterKey;
use fountain::store::{SqlStore, StoreConfig};
use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::agent::{AgentConfig, Runtime};
use fountain_actors::domain::conversation::{SandboxApiAccess, Source};
use fountain_actors::domain::machine::{MachineMode, Provider};
use fountain_actors::domain::process::{Position, Process};
use fountain_actors::domain::*;
use fountain_actors::fakes::SeededRng;
use fountain_actors::ports::Rng;
use fountain_actors::ports::store::accounts::NewAccount;
use fountain_actors::ports::store::conversations::{Launch, Limits, NewConversation, NewMachine};
use fountain_actors::ports::store::{AccountStore, CatalogStore, ConversationStore, TurnStore};

/// A conversation that a server of this generation appends to.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub account: AccountId,
    pub conversation: ConversationId,
    pub epoch: ServerEpoch,
    pub process: ProcessId,
}

/// Opens and migrates a store. Answers its random source too.
pub async fn open(url: &str, seed: u64) -> anyhow::Result<(SqlStore, Arc<dyn Rng>)> {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
    let key = MasterKey::parse(&MasterKey::generate(rng.as_ref())).context("a generated key is a key")?;
    let store = SqlStore::open(StoreConfig::new(url.to_owned().into(), key, Arc::clone(&rng)))?;
    store.migrate().await?;
    Ok((store, rng))
}

pub fn now() -> Moment {
    Moment::from(std::time::SystemTime::now())
}

fn audit(account: AccountId, action: &'static str) -> NewAudit {
    NewAudit {
        account_id: Some(account),
        action,
        resource_type: "bench",
        resource_id: None,
        actor: Actor::Api,
        request_ip: None,
        metadata: Default::default(),
    }
}

/// One account and one agent on the fake provider.
pub async fn agent(store: &SqlStore, rng: &dyn Rng) -> anyhow::Result<(AccountId, AgentId, AgentVersionId)> {
    let account = AccountId(rng.uuid());
    store
        .create_account(NewAccount {
            id: account,
            email: Some("bench@example.com".into()),
            email_verified_at: Some(now()),
            is_admin: true,
            now: now(),
        })
        .await?;
    let (agent, version) = (AgentId(rng.uuid()), AgentVersionId(rng.uuid()));
    let config = AgentConfig {
        name: "bench".into(),
        description: String::new(),
        system: String::new(),
        model: None,
        runtime: Runtime::Acp,
        runtime_command: Some("agent".into()),
        sandbox_provider: Some(Provider::Fake),
        sandbox_mode: MachineMode::Ephemeral,
        environment_id: None,
        skills: Vec::new(),
        mcp_servers: Default::default(),
        metadata: Default::default(),
        allowed_vault_ids: None,
        allowed_environment_ids: None,
        allowed_inference_credential_ids: None,
        inference_credential_id: None,
        permission_policy: Default::default(),
    };
    store
        .create_agent(account, agent, version, config, audit(account, "agent.created"), now())
        .await?;
    Ok((account, agent, version))
}

/// As many conversations, each on a machine of its own.
pub async fn targets(store: &SqlStore, rng: &dyn Rng, count: usize) -> anyhow::Result<Vec<Target>> {
    let (account, agent, version) = agent(store, rng).await?;
    let mut targets = Vec::with_capacity(count);
    for _ in 0..count {
        let id = ConversationId(rng.uuid());
        let machine = MachineId(rng.uuid());
        let launch = Launch {
            conversation: conversation(id, account, agent, version),
            machine: NewMachine {
                id: machine,
                name: format!("bench-{machine}"),
                mode: MachineMode::Ephemeral,
                runtime: Runtime::Acp,
                provider: Provider::Fake,
                provider_meta: serde_json::json!({}),
                agent_id: agent,
                environment_id: None,
                vault_id: None,
            },
            prompt: None,
            pending_until: now() + std::time::Duration::from_secs(3600),
            limits: Limits::flat(i64::MAX, i64::MAX),
            audit: audit(account, "conversation.created"),
            now: now(),
        };
        store.launch(launch).await?;
        let serving = store.start_server(id, now()).await?;
        let process = ProcessId(rng.uuid());
        let epoch = serving.conversation.server_epoch;
        let opened = Process {
            id: process,
            account_id: account,
            conversation_id: id,
            machine_id: machine,
            spawn_id: SpawnId(rng.uuid()),
            session_id: None,
            stdout: Position::default(),
            stderr: Position::default(),
            stop_requested: false,
            ended_at: None,
            inserted_at: now(),
        };
        store.open_process(opened, epoch).await?;
        targets.push(Target {
            account,
            conversation: id,
            epoch,
            process,
        });
    }
    Ok(targets)
}

fn conversation(id: ConversationId, account: AccountId, agent: AgentId, version: AgentVersionId) -> NewConversation {
    NewConversation {
        id,
        account_id: account,
        runtime: Runtime::Acp,
        agent_id: agent,
        agent_version_id: version,
        environment_id: None,
        vault_id: None,
        parent_conversation_id: None,
        source: Source::Api,
        channel_id: None,
        title: None,
        labels: Default::default(),
        model: None,
        sandbox_api_access: SandboxApiAccess::Owner,
        permission_policy: None,
    }
}
