//! The replicas of a run, what they stand on, and the accounts and agents that use them.

use std::sync::Arc;
use std::time::Duration;

use fountain::store::secrets::MasterKey;
use fountain::store::{Execution, SqlStore, StoreConfig};
use fountain_actors::directory::{Engine, Placement};
use fountain_actors::domain::account::{Account, Actor, Caller, NewAudit, Scope};
use fountain_actors::domain::agent::{Agent, AgentConfig, Runtime};
use fountain_actors::domain::environment::{EnvironmentConfig, NetworkingType};
use fountain_actors::domain::machine::{MachineMode, Provider};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::{AccountId, EnvironmentId};
use fountain_actors::fakes::{FakeClock, FakeSandbox, SeededRng};
use fountain_actors::passes::Passes;
use fountain_actors::ports::bus::InProcessBus;
use fountain_actors::ports::meter::NoMeter;
use fountain_actors::ports::presence::NoRunners;
use fountain_actors::ports::sandbox::{AdapterSet, Capability};
use fountain_actors::ports::store::accounts::{AccountStore as _, NewAccount};
use fountain_actors::ports::store::catalog::CatalogStore as _;
use fountain_actors::ports::store::machines::MachineStore as _;
use fountain_actors::ports::{Clock as _, World};

use crate::gate::{Climate, Gate};
use crate::oracle::Oracle;
use crate::plan::Plan;
use crate::sky::Sky;
use crate::watch::{Limits, Watch};

/// Small enough to be met: three tenants' worth of machines in a fleet of nine.
pub const LIMITS: Limits = Limits::flat(9, 5);

/// One process.
pub struct Node {
    pub holder: String,
    pub gate: Arc<Gate>,
    pub engine: Engine,
    pub world: World,
    passes: Passes,
}

impl Node {
    pub fn is_up(&self) -> bool {
        !self.gate.is_dead() && !self.gate.is_frozen()
    }
}

/// A tenant with what it configured.
pub struct Tenant {
    pub account: Account,
    pub agents: Vec<Agent>,
    pub environments: Vec<EnvironmentId>,
    pub caller: Caller,
}

/// Everything that a run happens in.
pub struct Realm {
    pub store: SqlStore,
    pub fake: FakeSandbox,
    pub clock: Arc<FakeClock>,
    pub climate: Arc<Climate>,
    pub watch: Arc<Watch>,
    pub oracle: Arc<Oracle>,
    pub nodes: Vec<Node>,
    pub tenants: Vec<Tenant>,
    rng: Arc<SeededRng>,
    is_alone: bool,
    born: u32,
}

/// An audit row of the run's own.
pub fn audit(account: AccountId, action: &'static str) -> NewAudit {
    NewAudit {
        account_id: Some(account),
        action,
        resource_type: "simulation",
        resource_id: None,
        actor: Actor::Api,
        request_ip: None,
        metadata: Default::default(),
    }
}

fn settings() -> Settings {
    Settings {
        default_provider: Provider::Fake,
        fleet_ceiling: i64::try_from(LIMITS.fleet).unwrap_or(i64::MAX),
        cap_ceiling: i64::try_from(LIMITS.cap).unwrap_or(i64::MAX),
        checkpoint_creation: true,
        // A run is mostly waiting, and every pass asks the database: shorter waits and rarer passes make more runs.
        adoption_interval: Duration::from_secs(30),
        idle_timeout: Some(Duration::from_secs(20 * 60)),
        ..Settings::default()
    }
}

impl Realm {
    /// A database, a provider, tenants, and the plan's replicas. The clock of this thread is paused already.
    ///
    /// # Errors
    /// What cannot be set up; never a property of the plan.
    pub async fn open(plan: &Plan) -> anyhow::Result<Self> {
        let clock = Arc::new(FakeClock::default());
        let rng = Arc::new(SeededRng::new(plan.seed));
        let mut fake = FakeSandbox::new(clock.clone())
            .offering(Capability::Checkpoint)
            .offering(Capability::DestroyOnce)
            .with_program(crate::run::agent().program());
        if plan.honours_epochs {
            fake = fake.honouring_epochs();
        }
        if plan.is_vague {
            fake = fake.vague();
        }
        let key = MasterKey::parse(&MasterKey::generate(&*rng))?;
        let mut config = StoreConfig::new("sqlite::memory:".into(), key, rng.clone());
        config.execution = Execution::Inline;
        let store = SqlStore::open(config)?;
        store.migrate().await?;
        let watch = Watch::new(clock.clone(), fake.clone(), LIMITS);
        let mut realm = Self {
            store,
            fake,
            clock,
            climate: Arc::new(Climate::new(plan.seed)),
            watch,
            oracle: Arc::default(),
            nodes: Vec::new(),
            tenants: Vec::new(),
            rng,
            is_alone: plan.replicas < 2,
            born: 0,
        };
        for number in 0..2 {
            let tenant = realm.tenant(number).await?;
            realm.tenants.push(tenant);
        }
        // Machines of somebody else, at the same provider.
        for name in ["somebody-elses", "fountain-00000000-deadbeef"] {
            realm.watch.stranger(name);
            use fountain_actors::ports::SandboxAdapter as _;
            realm.fake.create(name, None).await?;
        }
        for _ in 0..plan.replicas {
            let node = realm.start().await;
            realm.nodes.push(node);
        }
        Ok(realm)
    }

    async fn tenant(&self, number: u32) -> anyhow::Result<Tenant> {
        use fountain_actors::ports::Rng as _;
        let now = self.clock.now();
        let new = NewAccount {
            id: self.rng.uuid().into(),
            email: Some(format!("tenant-{number}@example.test")),
            email_verified_at: Some(now),
            is_admin: number == 0,
            now,
        };
        let account = self.store.create_account(new).await?;
        let mut environments = Vec::new();
        for name in ["limited", "other"] {
            let id: EnvironmentId = self.rng.uuid().into();
            let mut config = EnvironmentConfig::named(name);
            if name == "limited" {
                config.networking_type = NetworkingType::Limited;
                config
                    .networking_config
                    .insert("allowed_hosts".into(), serde_json::json!(["example.com"]));
            }
            let made = audit(account.id, "environment.created");
            self.store.create_environment(account.id, id, config, made, now).await?;
            environments.push(id);
        }
        let mut agents = Vec::new();
        for (name, mode, environment) in [
            ("ephemeral", MachineMode::Ephemeral, None),
            ("home", MachineMode::Persistent, environments.first().copied()),
            ("second home", MachineMode::Persistent, None),
        ] {
            let config = AgentConfig {
                name: name.into(),
                description: String::new(),
                system: String::new(),
                model: None,
                runtime: Runtime::Acp,
                runtime_command: Some("agent --acp".into()),
                sandbox_provider: Some(Provider::Fake),
                sandbox_mode: mode,
                environment_id: environment,
                skills: Vec::new(),
                mcp_servers: serde_json::Map::new(),
                metadata: serde_json::Map::new(),
                allowed_vault_ids: None,
                allowed_environment_ids: None,
                allowed_inference_credential_ids: None,
                inference_credential_id: None,
                // Asks about everything.
                permission_policy: [("*".to_owned(), serde_json::json!("ask"))].into_iter().collect(),
            };
            let (id, version) = (self.rng.uuid().into(), self.rng.uuid().into());
            let made = audit(account.id, "agent.created");
            agents.push(
                self.store
                    .create_agent(account.id, id, version, config, made, now)
                    .await?,
            );
        }
        let caller = Caller {
            account: account.clone(),
            key_id: self.rng.uuid().into(),
            scope: Scope::Full,
            remote_ip: None,
        };
        Ok(Tenant {
            account,
            agents,
            environments,
            caller,
        })
    }

    /// Starts a process on the rows that there are.
    pub async fn start(&mut self) -> Node {
        self.born += 1;
        let holder = format!("replica/{}", self.born);
        let gate = Gate::new(Arc::clone(&self.climate), Arc::clone(&self.watch), self.store.clone());
        self.watch.join(&holder, Arc::clone(&gate));
        let sky = Sky::new(Arc::clone(&self.climate), Arc::clone(&gate), Arc::clone(&self.watch));
        let world = World {
            store: Arc::new(self.store.through(gate.clone())),
            adapters: Arc::new(AdapterSet::default().with(Arc::new(self.fake.through(sky)))),
            bus: Arc::new(InProcessBus::default()),
            clock: self.clock.clone(),
            rng: self.rng.clone(),
            meter: Arc::new(NoMeter),
            runners: Arc::new(NoRunners::default()),
            settings: Arc::new(settings()),
            holder: holder.as_str().into(),
        };
        if self.is_alone {
            // A file lock proves that nobody else lives (RUL-30).
            if let Err(error) = self.store.end_dead_leases(holder.clone()).await {
                self.watch.violate("setup", error.to_string());
            }
            self.watch.committed("machine.end_dead_leases", &self.store).await;
        }
        let engine = Engine::start(world.clone(), Placement::Current);
        // A boot that the database refuses is repeated by the adoption pass.
        let _ = tokio::time::timeout(Duration::from_secs(1), engine.boot()).await;
        let passes = Passes::of(&engine);
        Node {
            holder,
            gate,
            engine,
            world,
            passes,
        }
    }

    /// The process dies in the middle of whatever it does.
    pub fn kill(&self, node: &Node) {
        node.gate.kill();
        node.engine.freeze();
        let passes = node.passes.clone();
        actix::spawn(async move { passes.stop().await });
    }

    /// Replaces a process by a new one.
    pub async fn replace(&mut self, at: usize) {
        let fresh = self.start().await;
        if let Some(old) = self.nodes.get_mut(at) {
            *old = fresh;
        }
    }

    /// A process that can be asked now.
    pub fn somebody(&self, pick: crate::plan::Pick) -> Option<&Node> {
        let up: Vec<&Node> = self.nodes.iter().filter(|node| node.is_up()).collect();
        pick.of(&up).copied()
    }
}
