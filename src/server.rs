//! The composition root of a serving process: configuration to ports, ports to actors, actors to doors.
//!
//! Order of a start (RUL-19c): open and lock the store, end dead leases, bind and serve, and only then adopt what was
//! running. Order of a stop (RUL-64b): streams first, then the listener, then the actors, whose turns go on at their
//! provider; `dev` ends its turns instead, because its runner goes with it (RUL-57).

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Data;
use actix_web::{App, HttpServer};
use anyhow::Context as _;
use fountain_actors::directory::{Engine, Placement, ShutdownKind};
use fountain_actors::domain::account::{Account, NewApiKey, Scope};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::{AccountId, KeyId, Moment};
use fountain_actors::passes::{Passes, Replica};
use fountain_actors::ports::bus::InProcessBus;
use fountain_actors::ports::clock::cut;
use fountain_actors::ports::store::{AccountStore, MachineStore, StoreError};
use fountain_actors::ports::{AdapterSet, Bus, Clock, Rng, Store, World};
use fountain_actors::runner::Connections;
use fountain_actors::runtimes;
use fountain_actors::transcript::blocks;
use fountain_provider_sprites::{SpritesAdapter, SpritesSettings};
use secrecy::SecretString;
use tokio::sync::watch;

use crate::api::auth::mint;
use crate::api::runners_ws::RunnerDoor;
use crate::api::stamps::{KeyStamps, write_stamps};
use crate::api::{self, ApiSettings, AppState, CatalogFacts};
use crate::config::Database;
use crate::providers::runner::RunnerAdapter;
use crate::store::secrets::MasterKey;
use crate::store::{ServingLock, SqlStore, StoreConfig, backend};
use crate::telemetry::{self, Metrics};

/// The machine's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        #[expect(clippy::disallowed_methods, reason = "this is the clock that everybody else asks")]
        cut(chrono::Utc::now())
    }
}

/// The system's randomness.
pub struct SystemRng;

impl Rng for SystemRng {
    fn fill(&self, bytes: &mut [u8]) {
        rand::fill(bytes);
    }
}

/// What a serving process is started with.
pub struct ServerConfig {
    pub listen: SocketAddr,
    /// None: the address that was bound.
    pub public_url: Option<String>,
    pub settings: Settings,
    pub metrics_port: Option<u16>,
    /// None: no Sprites service is configured.
    pub sprites: Option<SpritesSettings>,
    pub node: String,
    /// The page that `GET /` answers, given the base URL.
    pub landing: fn(&str) -> String,
}

/// Opens the store of a database.
///
/// # Errors
/// When it cannot be reached or the key is none.
pub fn open_store(database: &Database, master_key: &SecretString, metrics: &Arc<Metrics>) -> anyhow::Result<SqlStore> {
    let key = MasterKey::parse(master_key).context("MASTER_SECRETS_KEY cannot be used")?;
    let mut config = StoreConfig::new(database.url.clone(), key, Arc::new(SystemRng));
    config.pool_size = database.pool_size;
    config.tls = backend::Tls {
        enabled: database.ssl,
        verify: database.ssl_verify,
        ca_file: database.ssl_ca_file.clone(),
    };
    let metrics = Arc::clone(metrics);
    config.observer = Arc::new(move |op, took, ok| metrics.query(op, took, ok));
    Ok(SqlStore::open(config)?)
}

/// A key and what is stored of it (RUL-19).
pub fn new_key(account: AccountId, name: &str, scope: Scope, rng: &dyn Rng) -> (SecretString, NewApiKey) {
    let minted = mint(rng);
    let stored = NewApiKey {
        id: KeyId(rng.uuid()),
        account_id: account,
        name: name.to_owned(),
        prefix: minted.prefix,
        sha256: minted.sha256,
        scope,
        expires_at: None,
    };
    (minted.key, stored)
}

/// Mints a full key for an account.
///
/// # Errors
/// When the store refuses.
pub async fn mint_full_key(store: &SqlStore, account: &Account, name: &str) -> Result<SecretString, StoreError> {
    let (text, key) = new_key(account.id, name, Scope::Full, &SystemRng);
    store.create_key(key, None, SystemClock.now()).await?;
    Ok(text)
}

/// A process that serves.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// The base URL that machines and people use.
    pub url: String,
    pub connections: Arc<Connections>,
    engine: Engine,
    passes: Passes,
    closing: watch::Sender<bool>,
    http: actix_web::dev::ServerHandle,
    metrics: Option<actix_web::dev::ServerHandle>,
    /// Held while this process serves the file (RUL-30).
    _lock: Option<ServingLock>,
}

impl Server {
    /// Starts to serve a migrated store. Answers once the listener is open and adoption was begun.
    ///
    /// # Errors
    /// When another process serves the file, or an address cannot be bound.
    pub async fn start(
        config: ServerConfig,
        store: SqlStore,
        lock: Option<ServingLock>,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let rng: Arc<dyn Rng> = Arc::new(SystemRng);
        let holder = format!("{}/{}", config.node, rng.hex(8));
        if store.is_single_process() {
            let ended = store.end_dead_leases(holder.clone()).await?;
            tracing::info!("ended {ended} leases of an earlier process");
        }
        let listener = TcpListener::bind(config.listen)
            .with_context(|| format!("{} cannot be listened on; choose another with --listen", config.listen))?;
        let address = listener.local_addr()?;
        let url = config
            .public_url
            .unwrap_or_else(|| format!("http://{}", reachable(address)));
        let mut settings = config.settings;
        settings.public_url.clone_from(&url);
        let settings = Arc::new(settings);

        let connections = Arc::new(Connections::default());
        let mut adapters = AdapterSet::default();
        if settings.runners_enabled {
            adapters = adapters.with(Arc::new(RunnerAdapter::new(Arc::clone(&connections))));
        }
        if let Some(sprites) = config.sprites {
            adapters = adapters.with(Arc::new(SpritesAdapter::new(sprites)));
        }
        let providers = adapters.providers();
        let store: Arc<dyn Store> = Arc::new(store);
        let bus: Arc<dyn Bus> = Arc::new(InProcessBus::default());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let world = World {
            store: Arc::clone(&store),
            adapters: Arc::new(adapters),
            bus: Arc::clone(&bus),
            clock: Arc::clone(&clock),
            rng: Arc::clone(&rng),
            meter: Arc::clone(&metrics) as _,
            runners: Arc::clone(&connections) as _,
            settings: Arc::clone(&settings),
            holder: holder.into(),
        };
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let engine = Engine::start(world.clone(), Placement::Threads(cores));

        let (closing, is_closing) = watch::channel(false);
        let stamps = Arc::new(KeyStamps::default());
        actix::spawn(write_stamps(
            Arc::clone(&stamps),
            Arc::clone(&store),
            Arc::clone(&clock),
            is_closing.clone(),
        ));
        let request_metrics = Arc::clone(&metrics);
        let state = Data::new(AppState {
            store: Arc::clone(&store),
            doors: Arc::new(engine.clone()),
            bus,
            clock,
            rng,
            runners: Arc::clone(&connections) as _,
            settings: Arc::clone(&settings),
            api: ApiSettings::default(),
            catalog: CatalogFacts {
                runtimes: runtimes::ENABLED.to_vec(),
                providers,
            },
            blocks: |data| {
                blocks::blocks(data)
                    .iter()
                    .filter_map(|block| serde_json::to_value(block).ok())
                    .collect()
            },
            landing: (config.landing)(&url).into(),
            measure: Arc::new(move |m| request_metrics.request(m.route, m.method, m.status, m.took)),
            stamps,
            closing: is_closing,
        });
        let door = Data::new(RunnerDoor {
            connections: Arc::clone(&connections),
            unsaved_limit: settings.unsaved_limit,
        });
        let http = HttpServer::new(move || {
            let state = state.clone();
            App::new()
                .app_data(door.clone())
                .configure(move |config| api::configure(config, state))
        })
        .workers(cores)
        // Events and requests to runners are small and whole; held back for an acknowledgement they wait 40 ms.
        .tcp_nodelay(true)
        .disable_signals()
        .shutdown_timeout(10)
        .listen(listener)?
        .run();
        let handle = http.handle();
        actix::spawn(http);

        let metrics_handle = match config.metrics_port {
            None => None,
            Some(port) => {
                let server = telemetry::listener(Arc::clone(&metrics), port)
                    .with_context(|| format!("METRICS_PORT {port} cannot be listened on"))?;
                let handle = server.handle();
                actix::spawn(server);
                Some(handle)
            }
        };
        actix::spawn(levels(metrics, store, Arc::clone(&connections), closing.subscribe()));
        match engine.boot().await {
            Ok(0) => {}
            Ok(found) => tracing::info!("{found} turns were open; their servers are started"),
            // The adoption pass finds the same turns ten seconds later.
            Err(error) => tracing::warn!("open turns could not be looked up yet: {error}"),
        }
        let replica: Arc<dyn Replica> = Arc::new(engine.clone());
        let passes = Passes::start(&world, &replica);
        tracing::info!("serving on {address}");
        Ok(Self {
            address,
            url,
            connections,
            engine,
            passes,
            closing,
            http: handle,
            metrics: metrics_handle,
            _lock: lock,
        })
    }

    /// Stops. With [`ShutdownKind::Drain`] the streams and the listener go first and turns go on at their provider. With
    /// [`ShutdownKind::Clean`] the turns end first, while runners are still connected and readers can see it.
    pub async fn stop(self, how: ShutdownKind) {
        self.passes.stop().await;
        // Others adopt what is handed over from here on, and nothing new begins here (INV-112).
        self.engine.drain().await;
        if how == ShutdownKind::Clean {
            self.engine.shutdown(how).await;
        }
        // Streams end on this signal; workers that wait for connections would otherwise wait for them.
        let _ = self.closing.send(true);
        self.http.stop(true).await;
        if how == ShutdownKind::Drain {
            self.engine.shutdown(how).await;
        }
        if let Some(metrics) = self.metrics {
            metrics.stop(false).await;
        }
    }
}

/// An address that a client on this machine can use: nobody can dial "every address".
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::from(([127, 0, 0, 1], address.port()))
    } else {
        address
    }
}

/// Gauges that are counted from the rows, every ten seconds (lifecycle 10.1).
async fn levels(
    metrics: Arc<Metrics>,
    store: Arc<dyn Store>,
    connections: Arc<Connections>,
    mut closing: watch::Receiver<bool>,
) {
    loop {
        metrics.set_runners_online(connections.all().len());
        match store.census().await {
            Ok(census) => metrics.set_census(&census),
            Err(error) => tracing::debug!("the rows could not be counted: {error}"),
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(10)) => {}
            _ = closing.wait_for(|closing| *closing) => return,
        }
    }
}
