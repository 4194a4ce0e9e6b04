//! The harness: a fresh, migrated database for each case, on every backend that this run has.

use std::io::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Once, OnceLock};

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use r2d2::ManageConnection as _;
use secrecy::{ExposeSecret as _, SecretString};
use tempfile::TempDir;

use fountain::store::backend::{Db, Kind, Manager, Target, Tls, Use};
use fountain::store::secrets::MasterKey;
use fountain::store::{SqlStore, StoreConfig};
use fountain_actors::domain::account::{Account, Actor, NewAudit};
use fountain_actors::domain::agent::{AgentConfig, Runtime};
use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::*;
use fountain_actors::ports::Rng;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::accounts::{AccountStore, NewAccount};

/// Randomness of the tests. Ids only have to differ.
pub struct Dice;

impl Rng for Dice {
    fn fill(&self, bytes: &mut [u8]) {
        rand::fill(bytes);
    }
}

/// A fresh id.
pub fn id<T: From<uuid::Uuid>>() -> T {
    T::from(Dice.uuid())
}

/// One database with its store.
pub struct Backend {
    pub store: SqlStore,
    url: SecretString,
    seconds: AtomicI64,
    /// Goes when the case is over.
    _files: Option<TempDir>,
    _database: Option<Database>,
}

impl Backend {
    /// One for each database that this run has, migrated and empty.
    pub async fn all() -> Vec<Self> {
        let mut all = vec![Self::sqlite(|_| {}).await];
        all.extend(Self::postgres().await);
        all
    }

    /// A file of its own. `adjust` may change the configuration.
    pub async fn sqlite(adjust: impl FnOnce(&mut StoreConfig)) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        let url = format!("sqlite://{}", files.path().join("fountain.db").display());
        let mut config = config(&url);
        adjust(&mut config);
        let store = SqlStore::open(config).expect("a fresh file opens");
        store.migrate().await.expect("a fresh file migrates");
        Self::new(store, url, Some(files), None)
    }

    /// A database of its own on the server of this run, if there is one.
    pub async fn postgres() -> Option<Self> {
        let server = postgres_server()?;
        let database = actix_web::web::block(|| Database::from_template(server))
            .await
            .expect("it does not panic");
        let url = database.url();
        let store = SqlStore::open(config(&url)).expect("a fresh database opens");
        Some(Self::new(store, url, None, Some(database)))
    }

    fn new(store: SqlStore, url: String, files: Option<TempDir>, database: Option<Database>) -> Self {
        Self {
            store,
            url: SecretString::from(url),
            seconds: AtomicI64::new(0),
            _files: files,
            _database: database,
        }
    }

    /// Where the database is.
    pub fn url(&self) -> String {
        self.url.expose_secret().to_owned()
    }

    pub fn kind(&self) -> Kind {
        self.store.kind()
    }

    /// A connection beside the store, to look and to break things.
    pub fn raw(&self) -> Db {
        let target = Target::parse(&self.url, &Tls::default()).expect("the harness made the URL");
        Manager::new(target, Use::Anything, None)
            .connect()
            .expect("the store is connected too")
    }

    /// A moment one second after the last one.
    pub fn tick(&self) -> Moment {
        let second = self.seconds.fetch_add(1, Ordering::Relaxed);
        let start = chrono::DateTime::from_timestamp(1_790_000_000, 123_456_000).expect("it is a moment");
        start + chrono::TimeDelta::seconds(second)
    }

    /// A fresh account.
    pub async fn account(&self) -> Account {
        let account = NewAccount {
            id: id(),
            email: Some(format!("{}@example.com", Dice.hex(6))),
            email_verified_at: None,
            is_admin: false,
            now: self.tick(),
        };
        self.store.create_account(account).await.expect("a fresh account")
    }
}

/// A configuration with every default.
pub fn config(url: &str) -> StoreConfig {
    let mut config = StoreConfig::new(SecretString::from(url.to_owned()), master_key(), Arc::new(Dice));
    config.pool_size = 4;
    config
}

/// The master key of this run.
pub fn master_key() -> MasterKey {
    static KEY: OnceLock<MasterKey> = OnceLock::new();
    KEY.get_or_init(|| MasterKey::parse(&MasterKey::generate(&Dice)).expect("a generated key parses"))
        .clone()
}

/// An audit row for an action of a test.
pub fn audit(account: AccountId, action: &'static str) -> NewAudit {
    NewAudit {
        account_id: Some(account),
        action,
        resource_type: "test",
        resource_id: None,
        actor: Actor::Api,
        request_ip: Some("192.0.2.1".into()),
        metadata: Default::default(),
    }
}

/// Actions in the audit trail of an account, oldest first.
pub fn audited(db: &Backend, account: AccountId) -> Vec<String> {
    use fountain::store::schema::audit_events;
    audit_events::table
        .filter(audit_events::account_id.eq(account.to_string()))
        .order(audit_events::id)
        .select(audit_events::action)
        .load(&mut db.raw())
        .expect("audit rows")
}

pub fn agent_config(name: &str) -> AgentConfig {
    AgentConfig {
        name: name.into(),
        description: "does things".into(),
        system: "be kind".into(),
        model: Some("anthropic/claude-x".into()),
        runtime: Runtime::Claude,
        runtime_command: None,
        sandbox_provider: None,
        sandbox_mode: MachineMode::Persistent,
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

/// The fields that a validation refused.
#[track_caller]
pub fn refused_fields<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> Vec<String> {
    match answer {
        Err(StoreError::Refused(Refusal::Validation(fields))) => fields.into_keys().collect(),
        other => panic!("expected refused fields, got {other:?}"),
    }
}

/// The code of a refusal.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> ErrorCode {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal.code(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Checks that the answer is `NotFound`.
#[track_caller]
pub fn not_found<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::NotFound(_))), "{answer:?}");
}

/// The server-level URL of this run, for example `postgres://postgres@127.0.0.1:5433`.
#[expect(
    clippy::disallowed_methods,
    reason = "only src/config.rs reads the product's environment; this is the tests' own"
)]
fn postgres_server() -> Option<&'static str> {
    static SERVER: OnceLock<Option<String>> = OnceLock::new();
    static NOTICE: Once = Once::new();
    let server = SERVER.get_or_init(|| {
        std::env::var("FOUNTAIN_TEST_POSTGRES_URL")
            .ok()
            .filter(|url| !url.is_empty())
    });
    if server.is_none() {
        NOTICE.call_once(|| {
            // Past the capture of the test harness: half a suite must not look like a whole one.
            let notice = "\n*** PostgreSQL half NOT run: FOUNTAIN_TEST_POSTGRES_URL is not set ***\n\n";
            let _ = std::io::stderr().write_all(notice.as_bytes());
        });
    }
    server.as_deref()
}

/// A PostgreSQL database that is dropped with its case.
pub struct Database {
    server: &'static str,
    name: String,
}

impl Database {
    /// An empty one without a schema, if this run has a server.
    pub fn empty() -> Option<Self> {
        let server = postgres_server()?;
        Some(Self::create(server, ""))
    }

    fn create(server: &'static str, from: &str) -> Self {
        let name = format!("fountain_test_{}", Dice.hex(6));
        administer(server, &format!("CREATE DATABASE {name} {from}"));
        Self { server, name }
    }

    /// A copy of the migrated template.
    fn from_template(server: &'static str) -> Self {
        static TEMPLATE: OnceLock<String> = OnceLock::new();
        let template = TEMPLATE.get_or_init(|| {
            let database = Self::create(server, "");
            let url = database.url();
            let store = SqlStore::open(StoreConfig {
                execution: fountain::store::Execution::Inline,
                ..config(&url)
            })
            .expect("the template opens");
            futures_util::FutureExt::now_or_never(store.migrate())
                .expect("an inline store answers at once")
                .expect("the template migrates");
            drop(store);
            administer(
                server,
                &format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
                    database.name
                ),
            );
            // It stays until the cluster goes; every case needs it.
            let name = database.name.clone();
            std::mem::forget(database);
            name
        });
        Self::create(server, &format!("TEMPLATE {template}"))
    }

    pub fn url(&self) -> String {
        format!("{}/{}", self.server.trim_end_matches('/'), self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        administer(
            self.server,
            &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name),
        );
    }
}

/// Runs one statement on the server's own database.
fn administer(server: &str, statement: &str) {
    let url = format!("{}/postgres", server.trim_end_matches('/'));
    let mut conn = PgConnection::establish(&url).expect("the server of FOUNTAIN_TEST_POSTGRES_URL answers");
    conn.batch_execute(statement)
        .expect("the test role may create databases");
}
