//! The harness: one or more replicas over one store in memory and one fake provider, on tokio's paused clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use secrecy::SecretString;
use serde_json::json;

use fountain::store::secrets::MasterKey;
use fountain::store::{Execution, SqlStore, StoreConfig};
use fountain_actors::domain::account::{Actor as By, NewAudit};
use fountain_actors::domain::agent::{AgentConfig, Runtime};
use fountain_actors::domain::conversation::{SandboxApiAccess, Source};
use fountain_actors::domain::event::StreamFilter;
use fountain_actors::domain::machine::{Machine, MachineMode, MachineStatus, Provider};
use fountain_actors::domain::operation::Operation;
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::turn::{Prompt, Turn};
use fountain_actors::domain::*;
use fountain_actors::fakes::{FakeClock, FakeSandbox, SeededRng};
use fountain_actors::machine::MachineActor;
use fountain_actors::machine::breaker::Breaker;
use fountain_actors::machine::messages::*;
use fountain_actors::machine::names;
use fountain_actors::passes::Replica;
use fountain_actors::ports::bus::InProcessBus;
use fountain_actors::ports::meter::NoMeter;
use fountain_actors::ports::presence::NoRunners;
use fountain_actors::ports::sandbox::SandboxAdapter as _;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::accounts::{AccountStore, NewAccount};
use fountain_actors::ports::store::catalog::CatalogStore;
use fountain_actors::ports::store::conversations::{ConversationStore, Launch, Limits, NewConversation, NewMachine};
use fountain_actors::ports::store::machines::{MachineStore, ParkRule};
use fountain_actors::ports::store::transcript::{EventQuery, TranscriptStore};
use fountain_actors::ports::store::turns::{Admit, TurnStore};
use fountain_actors::ports::{AdapterSet, Clock, Rng, World};

/// What the environment file of a test machine holds.
pub const ENV_FILE: &str = "/home/sprite/.env";

/// One process: its world, its owners, and which servers it believes to live.
pub struct Node {
    pub world: World,
    breaker: Arc<Breaker>,
    owners: Mutex<HashMap<MachineId, Addr<MachineActor>>>,
    pub adopted: Mutex<Vec<ConversationId>>,
    /// Conversations whose servers live here, with their machines.
    pub servers: Mutex<Vec<(ConversationId, MachineId)>>,
}

impl Node {
    fn new(world: World) -> Arc<Self> {
        Arc::new(Self {
            world,
            breaker: Arc::default(),
            owners: Mutex::default(),
            adopted: Mutex::default(),
            servers: Mutex::default(),
        })
    }

    /// The owner of a machine, started if there is none.
    pub fn owner(&self, machine: MachineId) -> Addr<MachineActor> {
        let mut owners = self.owners.lock().unwrap();
        let owner = owners.entry(machine).or_insert_with(|| self.fresh(machine));
        if !owner.connected() {
            *owner = self.fresh(machine);
        }
        owner.clone()
    }

    fn fresh(&self, machine: MachineId) -> Addr<MachineActor> {
        MachineActor::new(self.world.clone(), Arc::clone(&self.breaker), machine).start()
    }
}

impl Replica for Node {
    fn adopt(&self, conversation: ConversationId, _: MachineId) {
        self.adopted.lock().unwrap().push(conversation);
    }

    fn is_live(&self, conversation: ConversationId) -> LocalBoxFuture<'_, bool> {
        let servers = self.servers.lock().unwrap();
        let lives = servers.iter().any(|(live, _)| *live == conversation);
        Box::pin(std::future::ready(lives))
    }

    fn is_occupied(&self, machine: MachineId) -> LocalBoxFuture<'_, bool> {
        let occupied = self.servers.lock().unwrap().iter().any(|(_, of)| *of == machine);
        Box::pin(std::future::ready(occupied))
    }

    fn owner(&self, machine: MachineId) -> Addr<MachineActor> {
        Node::owner(self, machine)
    }
}

/// A conversation and its machine.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    pub conversation: ConversationId,
    pub machine: MachineId,
    pub turn: TurnId,
}

/// The whole.
pub struct Sim {
    pub clock: Arc<FakeClock>,
    pub store: SqlStore,
    pub fake: FakeSandbox,
    pub here: Arc<Node>,
    pub account: AccountId,
    began: Moment,
    excused: Mutex<Vec<&'static str>>,
}

/// Every test ends with an audit of rows, journal and provider (DESIGN 9).
impl Drop for Sim {
    fn drop(&mut self) {
        let audit = crate::auditor::Audit {
            store: &self.store,
            fake: &self.fake,
            provider: self.fake.provider(),
            began: self.began,
            lease: self.world().settings.lease_ttl,
            secrets: Vec::new(),
        };
        crate::auditor::assert_honest(audit, &self.excused.lock().unwrap());
    }
}

impl Sim {
    pub async fn start() -> Self {
        Self::with(|_| {}, |fake| fake).await
    }

    /// Pauses the clock first. `adjust` changes single settings, `shape` the provider.
    pub async fn with(adjust: impl FnOnce(&mut Settings), shape: impl FnOnce(FakeSandbox) -> FakeSandbox) -> Self {
        tokio::time::pause();
        let fake_clock = Arc::new(FakeClock::default());
        let clock: Arc<dyn Clock> = fake_clock.clone();
        let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(42));
        let key = MasterKey::parse(&MasterKey::generate(rng.as_ref())).unwrap();
        let mut config = StoreConfig::new(SecretString::from("sqlite::memory:"), key, Arc::clone(&rng));
        config.execution = Execution::Inline;
        let store = SqlStore::open(config).unwrap();
        store.migrate().await.unwrap();
        let fake = shape(FakeSandbox::new(Arc::clone(&clock)));
        let mut settings = Settings {
            default_provider: Provider::Fake,
            ..Settings::default()
        };
        adjust(&mut settings);
        let world = World {
            store: Arc::new(store.clone()),
            adapters: Arc::new(AdapterSet::default().with(Arc::new(fake.clone()))),
            bus: Arc::new(InProcessBus::default()),
            clock,
            rng,
            meter: Arc::new(NoMeter),
            runners: Arc::new(NoRunners::default()),
            settings: Arc::new(settings),
            holder: "here/1".into(),
        };
        let account = world.id();
        let new = NewAccount {
            id: account,
            email: None,
            email_verified_at: Some(world.now()),
            is_admin: false,
            now: world.now(),
        };
        store.create_account(new).await.unwrap();
        Self {
            clock: fake_clock,
            store,
            fake,
            began: world.now(),
            here: Node::new(world),
            account,
            excused: Mutex::default(),
        }
    }

    /// A law that this test breaks on purpose: the auditor does not ask for it in the end.
    pub fn excuse(&self, law: &'static str) {
        self.excused.lock().unwrap().push(law);
    }

    pub fn world(&self) -> &World {
        &self.here.world
    }

    pub fn now(&self) -> Moment {
        self.world().now()
    }

    /// Another process over the same database and provider.
    pub fn node(&self, holder: &str) -> Arc<Node> {
        Node::new(World {
            holder: holder.into(),
            ..self.world().clone()
        })
    }

    /// The rows of a launch with an opening prompt, and nothing built (M1).
    pub async fn launch(&self, mode: MachineMode) -> Home {
        self.launch_named(mode, None).await
    }

    /// As [`Sim::launch`], with a machine name that its user chose.
    pub async fn launch_named(&self, mode: MachineMode, chosen: Option<&str>) -> Home {
        let world = self.world();
        let (agent, version) = (world.id(), world.id());
        let config = agent_config(&format!("agent {agent}"), mode);
        let created = audit(self.account, "agent.created");
        let made = self
            .store
            .create_agent(self.account, agent, version, config, created, self.now());
        made.await.unwrap();
        let home = Home {
            conversation: world.id(),
            machine: world.id(),
            turn: world.id(),
        };
        let name = chosen.map_or_else(|| names::minted(self.account, world.rng.as_ref()), str::to_owned);
        let meta = if chosen.is_some() {
            json!({ names::CHOSEN: true })
        } else {
            json!({})
        };
        let launch = Launch {
            conversation: self.conversation(home.conversation, agent, version),
            machine: NewMachine {
                id: home.machine,
                name,
                mode,
                runtime: Runtime::Acp,
                provider: Provider::Fake,
                provider_meta: meta,
                agent_id: agent,
                environment_id: None,
                vault_id: None,
            },
            prompt: Some((home.turn, prompt("hello"))),
            pending_until: self.now() + chrono::TimeDelta::minutes(60),
            limits: limits(),
            audit: audit(self.account, "conversation.created"),
            now: self.now(),
        };
        self.store.launch(launch).await.unwrap();
        home
    }

    fn conversation(&self, id: ConversationId, agent: AgentId, version: AgentVersionId) -> NewConversation {
        NewConversation {
            id,
            account_id: self.account,
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

    /// A machine that is up, its opening turn ended long enough ago for the marker of sweeps to be old.
    pub async fn up(&self, mode: MachineMode) -> Home {
        let home = self.launch(mode).await;
        self.build(home).await.unwrap();
        self.end_turn(home).await;
        home
    }

    /// A machine that was parked.
    pub async fn asleep(&self, mode: MachineMode) -> Home {
        let home = self.up(mode).await;
        self.idle().await;
        assert!(matches!(self.park(home).await, Ok(Parked::Parked(_))));
        home
    }

    /// Ends the opening turn, as an interrupt of a turn that waits does.
    pub async fn end_turn(&self, home: Home) {
        let interrupt = audit(self.account, "conversation.interrupted");
        self.store
            .interrupt(self.account, home.conversation, interrupt, self.now())
            .await
            .unwrap();
    }

    /// Lets the idle bound, and the marker's quarter of an hour, pass.
    pub async fn idle(&self) {
        let bound = self.world().settings.idle_timeout.unwrap();
        tokio::time::sleep(bound + Duration::from_secs(1)).await;
    }

    /// The build of a conversation's server, with the plan of every test.
    pub async fn provision(&self, home: Home) -> Provision {
        let serving = self.store.start_server(home.conversation, self.now()).await.unwrap();
        Provision {
            conversation: home.conversation,
            server_epoch: serving.conversation.server_epoch,
            plan: plan(),
        }
    }

    pub async fn build(&self, home: Home) -> Result<Provisioned, ProvisionError> {
        let ask = self.provision(home).await;
        self.here.owner(home.machine).send(ask).await.unwrap()
    }

    pub fn ensure_up(&self, home: Home) -> EnsureUp {
        EnsureUp {
            conversation: home.conversation,
            limits: limits(),
            policy: None,
            actor: By::System("wake"),
            deadline: tokio::time::Instant::now() + Duration::from_secs(20),
        }
    }

    pub async fn wake(&self, home: Home) -> Result<Usable, MachineError> {
        let ask = self.ensure_up(home);
        self.here.owner(home.machine).send(ask).await.unwrap()
    }

    pub fn confirm_up(&self, home: Home) -> ConfirmUp {
        ConfirmUp {
            conversation: home.conversation,
            server_epoch: ServerEpoch(0),
            announce: true,
            policy: None,
            callback_key: None,
            files: plan().files,
        }
    }

    /// A park for idleness, as the idle tick asks for it.
    pub fn idle_park(&self, home: Home) -> Park {
        let bound = self.world().settings.idle_timeout.unwrap();
        Park {
            rule: ParkRule {
                live_servers: vec![home.conversation],
                idle_before: Some(self.now() - chrono::TimeDelta::from_std(bound).unwrap()),
                marker_before: None,
            },
            reason: fountain_actors::domain::machine::DestroyReason::Idle,
            requester: Some(home.conversation),
            actor: By::System("conversation_server"),
        }
    }

    pub async fn park(&self, home: Home) -> Result<Parked, MachineError> {
        let ask = self.idle_park(home);
        self.here.owner(home.machine).send(ask).await.unwrap()
    }

    pub async fn reset(&self, home: Home) -> Result<(), MachineError> {
        self.here.owner(home.machine).send(reset()).await.unwrap()
    }

    /// Admits a turn, as a server does.
    pub async fn admit(&self, home: Home) -> Turn {
        self.try_admit(home).await.unwrap()
    }

    pub async fn try_admit(&self, home: Home) -> Result<Turn, StoreError> {
        let serving = self.store.start_server(home.conversation, self.now()).await.unwrap();
        let admit = Admit {
            conversation_id: home.conversation,
            server_epoch: serving.conversation.server_epoch,
            machine_id: home.machine,
            revision: serving.conversation.configuration_revision,
            turn_id: self.world().id(),
            prompt: prompt("go on"),
            spawn_id: Some(self.world().id()),
            announce: true,
            answers: None,
            deadline: self.now() + chrono::TimeDelta::seconds(20),
            audit: audit(self.account, "conversation.prompted"),
            now: self.now(),
        };
        Ok(self.store.admit_turn(admit).await?.value)
    }

    pub async fn row(&self, home: Home) -> Machine {
        self.store.machine(home.machine).await.unwrap().unwrap()
    }

    pub async fn status(&self, home: Home) -> MachineStatus {
        self.row(home).await.status
    }

    pub async fn turns(&self, home: Home) -> Vec<Turn> {
        self.store.turns(self.account, home.conversation).await.unwrap()
    }

    /// The journal, newest first.
    pub async fn journal(&self, home: Home) -> Vec<Operation> {
        self.store.operations(self.account, home.machine, 100).await.unwrap()
    }

    /// Stages of a conversation in order, as `stage/state`.
    pub async fn stages(&self, home: Home) -> Vec<String> {
        let query = EventQuery {
            after: EventId(0),
            filter: StreamFilter::parse(Some("stage")),
            limit: 1000,
        };
        let page = self.store.events(self.account, home.conversation, query).await.unwrap();
        let word = |event: &fountain_actors::domain::event::LogEvent| {
            let (stage, state) = (event.stage.unwrap(), event.state.unwrap());
            format!("{stage}/{state}")
        };
        page.events.iter().map(word).collect()
    }

    /// Waits for a level, a virtual hour at most.
    pub async fn until(&self, home: Home, level: impl Fn(&Machine) -> bool) -> Machine {
        let mut row = self.row(home).await;
        for _ in 0..36_000 {
            if level(&row) {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            row = self.row(home).await;
        }
        panic!("the level was not reached; the row is {row:?}");
    }
}

/// Far above what a test uses.
pub fn limits() -> Limits {
    Limits::flat(100, 100)
}

pub fn reset() -> Reset {
    Reset {
        actor: By::Api,
        request_ip: None,
    }
}

pub fn plan() -> BuildPlan {
    BuildPlan {
        fingerprint: "fingerprint".into(),
        policy: None,
        groundwork: Default::default(),
        unsupported: Vec::new(),
        callback_key: None,
        files: vec![PlannedFile {
            path: ENV_FILE.into(),
            content: Bytes::from_static(b"A='1'\n"),
            mode: Some(0o600),
            best_effort: false,
        }],
    }
}

fn prompt(text: &str) -> Prompt {
    Prompt {
        text: text.into(),
        images: Vec::new(),
        client_request_id: None,
    }
}

/// For verbs that a test calls by itself.
pub fn audited(account: AccountId, action: &'static str) -> NewAudit {
    audit(account, action)
}

fn audit(account: AccountId, action: &'static str) -> NewAudit {
    NewAudit {
        account_id: Some(account),
        action,
        resource_type: "test",
        resource_id: None,
        actor: By::Api,
        request_ip: None,
        metadata: Default::default(),
    }
}

fn agent_config(name: &str, mode: MachineMode) -> AgentConfig {
    AgentConfig {
        name: name.into(),
        description: String::new(),
        system: String::new(),
        model: None,
        runtime: Runtime::Acp,
        runtime_command: Some("agent".into()),
        sandbox_provider: None,
        sandbox_mode: mode,
        environment_id: None,
        skills: Vec::new(),
        mcp_servers: Default::default(),
        metadata: Default::default(),
        allowed_vault_ids: None,
        allowed_environment_ids: None,
        allowed_inference_credential_ids: None,
        inference_credential_id: None,
        permission_policy: Default::default(),
    }
}
