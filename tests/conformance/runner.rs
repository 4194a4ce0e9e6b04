//! The runner adapter, through a real daemon process that dials a real server door.
//!
//! The server runs in this process, so that the adapter shares its registry of connections; the daemon is the program
//! that a user starts, with nothing in its environment but an address and a key.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fountain::config::Database;
use fountain::providers::runner::RunnerAdapter;
use fountain::server::{Server, ServerConfig, SystemClock, mint_full_key, open_store};
use fountain::store::secrets::MasterKey;
use fountain::telemetry::Metrics;
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::{AccountId, RunnerId};
use fountain_actors::fakes::SeededRng;
use fountain_actors::ports::clock::{Clock as _, Rng as _};
use fountain_actors::ports::sandbox::{Capability, SandboxAdapter, SandboxError};
use fountain_actors::ports::store::accounts::{AccountStore as _, NewAccount};
use fountain_actors::runner::Connections;
use secrecy::ExposeSecret as _;
use tokio::time::timeout;

use crate::bench::{Bench, Line, line};

/// Longer than a daemon takes to dial on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Runner {
    connections: Arc<Connections>,
    runner: RunnerId,
    // In this order they end.
    _daemon: Daemon,
    _server: Server,
    _folder: tempfile::TempDir,
}

/// A child that ends with its test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench for Runner {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (server, key) = serve(&folder).await;
        let log = std::fs::File::create(folder.path().join("daemon.log")).unwrap();
        let daemon = Command::new(env!("CARGO_BIN_EXE_fountain"))
            .args(["runner", "--name", "bench", "--root"])
            .arg(folder.path().join("sandboxes"))
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", folder.path())
            .env("FOUNTAIN_BASE_URL", &server.url)
            .env("FOUNTAIN_API_KEY", key.expose_secret())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let daemon = Daemon(daemon);
        let connections = Arc::clone(&server.connections);
        let mut changes = connections.changes();
        let dialled = timeout(PATIENCE, async {
            loop {
                if let Some(presence) = connections.all().first() {
                    return presence.runner.id;
                }
                changes
                    .changed()
                    .await
                    .expect("the registry lives as long as its server");
            }
        });
        let runner = dialled.await.unwrap_or_else(|_| {
            let log = std::fs::read_to_string(folder.path().join("daemon.log")).unwrap_or_default();
            panic!("the daemon did not dial:\n{log}")
        });
        Self {
            connections,
            runner,
            _daemon: daemon,
            _server: server,
            _folder: folder,
        }
    }

    fn adapter(&self) -> Arc<dyn SandboxAdapter> {
        Arc::new(RunnerAdapter::new(Arc::clone(&self.connections)))
    }

    fn name(&self, _: &str) -> String {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        format!("runner-{}-{number:08x}", self.runner.0.simple())
    }

    fn capabilities(&self) -> BTreeSet<Capability> {
        BTreeSet::from([Capability::Suspend, Capability::Attach])
    }

    fn ok(&self) -> Line {
        shell("echo hello")
    }

    fn fails(&self) -> Line {
        shell("echo oops; exit 3")
    }

    fn stays(&self) -> Line {
        shell("echo ready; exec cat")
    }

    /// A command cannot break the daemon's socket; see `README.md`.
    fn drops(&self) -> Option<Line> {
        None
    }

    /// The daemon ends the command itself and says so with 124 (RUL-2); nothing is unknown, so it is no error.
    fn out_of_time(&self) -> Result<i64, SandboxError> {
        Ok(124)
    }

    fn both(&self) -> Line {
        shell("echo out; echo err >&2")
    }

    fn pours(&self) -> Line {
        shell("while :; do echo drop; sleep 0.01; done")
    }

    fn cat(&self) -> Line {
        line("cat", &[])
    }

    fn bytes(&self) -> Line {
        shell("for n in $(seq 0 255); do printf \"\\\\$(printf %03o $n)\"; done")
    }
}

fn shell(script: &str) -> Line {
    line("bash", &["-c", script])
}

/// A server on a database of its own, and a key of its only account.
async fn serve(folder: &tempfile::TempDir) -> (Server, secrecy::SecretString) {
    let rng = SeededRng::new(7);
    let database = Database {
        url: format!("sqlite://{}", folder.path().join("fountain.db").display()).into(),
        pool_size: 2,
        ssl: None,
        ssl_verify: false,
        ssl_ca_file: None,
    };
    let metrics = Arc::new(Metrics::default());
    let store = open_store(&database, &MasterKey::generate(&rng), &metrics).unwrap();
    store.migrate().await.unwrap();
    let now = SystemClock.now();
    let account = NewAccount {
        id: AccountId(rng.uuid()),
        email: Some("bench@example.test".to_owned()),
        email_verified_at: Some(now),
        is_admin: true,
        now,
    };
    let account = store.create_account(account).await.unwrap();
    let key = mint_full_key(&store, &account, "bench").await.unwrap();
    let config = ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        public_url: None,
        settings: Settings::default(),
        metrics_port: None,
        sprites: None,
        node: "bench".to_owned(),
        landing: |_| String::new(),
    };
    let lock = store.serving_lock().unwrap();
    (Server::start(config, store, lock, metrics).await.unwrap(), key)
}

crate::suite!(Runner);
