//! One replica on one thread: engine, store in memory, fake provider, paused clock. Tests look at rows and at the
//! provider's own log, and wait for levels, never for time to pass.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fountain::store::secrets::MasterKey;
use fountain::store::{Execution, SqlStore, StoreConfig};
use fountain_actors::directory::{Engine, Placement};
use fountain_actors::domain::account::{Account, Actor, Caller, NewAudit, Scope};
use fountain_actors::domain::agent::{Agent, AgentConfig, Runtime};
use fountain_actors::domain::conversation::{ConversationView, SandboxApiAccess};
use fountain_actors::domain::environment::{EnvironmentConfig, NetworkingType};
use fountain_actors::domain::event::{LogEvent, StreamFilter};
use fountain_actors::domain::machine::{MachineMode, Provider};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::turn::{Prompt, Turn};
use fountain_actors::domain::*;
use fountain_actors::doors::{Doors, LaunchRequest, Launched};
use fountain_actors::fakes::{FakeAgent, FakeClock, FakeSandbox, SeededRng};
use fountain_actors::ports::bus::InProcessBus;
use fountain_actors::ports::meter::NoMeter;
use fountain_actors::ports::sandbox::{AdapterSet, SandboxAdapter as _};
use fountain_actors::ports::store::accounts::NewAccount;
use fountain_actors::ports::store::transcript::EventQuery;
use fountain_actors::ports::{RunnerPresence, World};
use serde_json::Value;

/// Longest virtual time that a test waits for a level.
const PATIENCE: Duration = Duration::from_secs(900);

/// The names of the store's verbs, in the order in which they were answered.
pub type Verbs = Arc<Mutex<Vec<&'static str>>>;

pub struct Bench {
    pub world: World,
    pub engine: Engine,
    pub sandbox: FakeSandbox,
    pub caller: Caller,
    pub agent: Agent,
    pub verbs: Verbs,
    holder: u32,
    pub store: SqlStore,
    began: Moment,
    /// A process came back and freed the leases of the one before it, whatever was on its way (RUL-30).
    booted: bool,
}

/// What a test changes before the world is made.
pub struct Setup {
    pub agent: FakeAgent,
    pub settings: Settings,
    pub provider: Provider,
    pub mode: MachineMode,
    pub runners: Arc<dyn RunnerPresence>,
    pub policy: serde_json::Map<String, Value>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            agent: FakeAgent::echo(),
            settings: Settings {
                default_provider: Provider::Fake,
                ..Settings::default()
            },
            provider: Provider::Fake,
            mode: MachineMode::Persistent,
            runners: Arc::new(fountain_actors::ports::presence::NoRunners::default()),
            policy: serde_json::Map::new(),
        }
    }
}

impl Setup {
    /// With this agent inside the machines.
    pub fn with(agent: FakeAgent) -> Self {
        Self {
            agent,
            ..Self::default()
        }
    }
}

impl Bench {
    pub async fn new() -> Self {
        Self::of(Setup::default()).await
    }

    pub async fn with(agent: FakeAgent) -> Self {
        Self::of(Setup::with(agent)).await
    }

    pub async fn of(setup: Setup) -> Self {
        pause();
        let clock = Arc::new(FakeClock::default());
        let began = fountain_actors::ports::Clock::now(clock.as_ref());
        let rng = Arc::new(SeededRng::new(7));
        let sandbox = FakeSandbox::new(clock.clone())
            .as_provider(setup.provider)
            .with_program(setup.agent.program());
        let verbs = Verbs::default();
        let seen = verbs.clone();
        let key = MasterKey::parse(&MasterKey::generate(&*rng)).unwrap();
        let mut config = StoreConfig::new("sqlite::memory:".into(), key, rng.clone());
        config.execution = Execution::Inline;
        config.observer = Arc::new(move |verb, _, _| seen.lock().unwrap().push(verb));
        let store = SqlStore::open(config).unwrap();
        store.migrate().await.unwrap();
        let world = World {
            store: Arc::new(store.clone()),
            adapters: Arc::new(AdapterSet::default().with(Arc::new(sandbox.clone()))),
            bus: Arc::new(InProcessBus::default()),
            clock,
            rng,
            meter: Arc::new(NoMeter),
            runners: setup.runners,
            settings: Arc::new(setup.settings),
            holder: "replica/1".into(),
        };
        let account = account(&world).await;
        let agent = agent(&world, &account, setup.provider, setup.mode, setup.policy).await;
        let engine = Engine::start(world.clone(), Placement::Current);
        let caller = Caller {
            account,
            key_id: world.id(),
            scope: Scope::Full,
            remote_ip: None,
        };
        Self {
            world,
            engine,
            sandbox,
            caller,
            agent,
            verbs,
            holder: 1,
            store,
            began,
            booted: false,
        }
    }

    /// The agent's machines get an environment that may reach one host only.
    pub async fn limit_networking(&mut self) {
        let (account, id) = (self.caller.account_id(), self.world.id());
        let mut config = EnvironmentConfig::named("limited");
        config.networking_type = NetworkingType::Limited;
        config
            .networking_config
            .insert("allowed_hosts".into(), serde_json::json!(["example.com"]));
        let created = audit(account, "environment.created");
        let made = self
            .world
            .store
            .create_environment(account, id, config, created, self.world.now());
        made.await.unwrap();
        let mut config = self.agent.config.clone();
        config.environment_id = Some(id);
        let updated = audit(account, "agent.updated");
        let version = self.world.id();
        let moved = self
            .world
            .store
            .update_agent(account, self.agent.id, version, config, updated, self.world.now());
        self.agent = moved.await.unwrap().value.0;
    }

    /// The process dies without a word and another one starts on the same rows: actors of before are forgotten, their
    /// attachments end, and their leases are dead (RUL-30).
    pub async fn kill_and_restart(&mut self) {
        self.holder += 1;
        self.booted = true;
        self.world.holder = format!("replica/{}", self.holder).into();
        self.engine.freeze();
        self.world
            .store
            .end_dead_leases(self.world.holder.to_string())
            .await
            .unwrap();
        self.engine = Engine::start(self.world.clone(), Placement::Current);
    }

    pub fn request(&self) -> LaunchRequest {
        LaunchRequest {
            agent_id: self.agent.id,
            prompt: None,
            title: None,
            vault_id: None,
            environment_id: None,
            inference_credential_id: None,
            model: None,
            permission_policy: None,
            sandbox_mode: None,
            sandbox_id: None,
            sandbox_api_access: SandboxApiAccess::Owner,
            sprite_name: None,
            channel_id: None,
            fresh: false,
            labels: Default::default(),
            parent: None,
        }
    }

    pub async fn launch(&self, prompt: Option<&str>) -> Result<Launched, Refusal> {
        let request = LaunchRequest {
            prompt: prompt.map(text),
            ..self.request()
        };
        self.engine.launch(self.caller.clone(), request).await
    }

    /// A conversation whose first turn has ended.
    pub async fn warm(&self) -> ConversationId {
        let id = self.launch(Some("first")).await.unwrap().view.conversation.id;
        self.ended(id, 1).await;
        id
    }

    /// The verbs since the list was cleared that wrote something.
    pub fn commits(&self) -> Vec<&'static str> {
        const READS: [&str; 9] = [
            "conversation.read",
            "conversation.view",
            "agent.get",
            "environment.get",
            "secret.bundle",
            "transcript.events",
            "turn.list",
            "machine.read",
            "machine.lease_clock",
        ];
        let verbs = self.verbs.lock().unwrap();
        verbs.iter().filter(|verb| !READS.contains(verb)).copied().collect()
    }

    pub async fn prompt(&self, id: ConversationId, words: &str) -> Result<(), Refusal> {
        self.engine.prompt(self.caller.clone(), id, text(words)).await
    }

    pub async fn interrupt(&self, id: ConversationId) -> Result<(), Refusal> {
        self.engine.interrupt(self.caller.clone(), id).await
    }

    pub async fn terminate(&self, id: ConversationId) -> Result<(), Refusal> {
        self.engine.terminate(self.caller.clone(), id).await
    }

    pub async fn view(&self, id: ConversationId) -> ConversationView {
        let view = self.world.store.conversation_view(self.caller.account_id(), id).await;
        view.unwrap().unwrap()
    }

    pub async fn turns(&self, id: ConversationId) -> Vec<Turn> {
        self.world.store.turns(self.caller.account_id(), id).await.unwrap()
    }

    pub async fn events(&self, id: ConversationId) -> Vec<LogEvent> {
        let query = EventQuery {
            after: EventId(0),
            filter: StreamFilter::default(),
            limit: 1000,
        };
        let page = self.world.store.events(self.caller.account_id(), id, query).await;
        page.unwrap().events
    }

    /// Stage events as `stage/state`, in order, of one stage or of all.
    pub async fn stages(&self, id: ConversationId, only: &str) -> Vec<String> {
        let events = self.events(id).await;
        let stages = events.iter().filter_map(|event| {
            let (stage, state) = (event.stage?, event.state?);
            Some(format!("{stage}/{state}"))
        });
        stages.filter(|word| word.starts_with(only)).collect()
    }

    /// Everything that the agent said, joined.
    pub async fn said(&self, id: ConversationId) -> String {
        let events = self.events(id).await;
        let lines = events
            .iter()
            .filter_map(|event| serde_json::from_str::<Value>(&event.data).ok());
        lines
            .filter_map(|line| Some(line.pointer("/params/update/content/text")?.as_str()?.to_owned()))
            .collect()
    }

    /// Waits until turn `number` is final and answers it.
    pub async fn ended(&self, id: ConversationId, number: i64) -> Turn {
        self.until(id, &format!("turn {number} ended"), |turns| {
            turns
                .iter()
                .find(|turn| turn.number == number && turn.status.is_terminal())
                .cloned()
        })
        .await
    }

    /// Waits until the turns satisfy a level.
    pub async fn until<T>(&self, id: ConversationId, level: &str, reached: impl Fn(&[Turn]) -> Option<T>) -> T {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let turns = self.turns(id).await;
            if let Some(value) = reached(&turns) {
                return value;
            }
            if tokio::time::Instant::now() > until {
                let stages = self.stages(id, "").await;
                panic!("{level} was not reached; turns {turns:#?}, stages {stages:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the agent has said this.
    pub async fn heard(&self, id: ConversationId, words: &str) {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let said = self.said(id).await;
            if said.contains(words) {
                return;
            }
            assert!(
                tokio::time::Instant::now() < until,
                "{words:?} was not said; {said:?} was"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends every actor before the system is dropped (DESIGN 9).
    pub async fn close(self) {
        self.engine
            .shutdown(fountain_actors::directory::ShutdownKind::Drain)
            .await;
        self.engine.freeze();
        tokio::time::sleep(Duration::from_secs(120)).await;
        self.audit();
    }

    /// Rows, journal and provider together (DESIGN 9).
    fn audit(&self) {
        let audit = crate::auditor::Audit {
            store: &self.store,
            fake: &self.sandbox,
            provider: self.sandbox.provider(),
            began: self.began,
            lease: self.world.settings.lease_ttl,
            secrets: Vec::new(),
        };
        let excused: &[&str] = if self.booted { &["RUL-L-5", "INV-50"] } else { &[] };
        crate::auditor::assert_honest(audit, excused);
    }
}

/// Stops the clock of this test, once: a test may make several worlds.
fn pause() {
    thread_local!(static PAUSED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    if !PAUSED.replace(true) {
        tokio::time::pause();
    }
}

pub fn text(words: &str) -> Prompt {
    Prompt {
        text: words.into(),
        images: Vec::new(),
        client_request_id: None,
    }
}

fn audit(account: AccountId, action: &'static str) -> NewAudit {
    NewAudit {
        account_id: Some(account),
        action,
        resource_type: "test",
        resource_id: None,
        actor: Actor::Api,
        request_ip: None,
        metadata: Default::default(),
    }
}

async fn account(world: &World) -> Account {
    let account = NewAccount {
        id: world.id(),
        email: Some("someone@example.test".into()),
        email_verified_at: Some(world.now()),
        is_admin: true,
        now: world.now(),
    };
    world.store.create_account(account).await.unwrap()
}

async fn agent(
    world: &World,
    account: &Account,
    provider: Provider,
    mode: MachineMode,
    policy: serde_json::Map<String, Value>,
) -> Agent {
    let config = AgentConfig {
        name: "agent".into(),
        description: String::new(),
        system: String::new(),
        model: None,
        runtime: Runtime::Acp,
        runtime_command: Some("agent --acp".into()),
        sandbox_provider: Some(provider),
        sandbox_mode: mode,
        environment_id: None,
        skills: Vec::new(),
        mcp_servers: serde_json::Map::new(),
        metadata: serde_json::Map::new(),
        allowed_vault_ids: None,
        allowed_environment_ids: None,
        allowed_inference_credential_ids: None,
        inference_credential_id: None,
        permission_policy: policy,
    };
    let created = world
        .store
        .create_agent(
            account.id,
            world.id(),
            world.id(),
            config,
            audit(account.id, "agent.created"),
            world.now(),
        )
        .await;
    created.unwrap()
}
