//! The store over SQLite and PostgreSQL: the one implementation of `ports::store`.
//!
//! This file is the door. [`SqlStore::run`] waits for a permit, takes a connection, runs one transaction away from the
//! arbiters, maps its error and measures it; nobody else sees a pool (STYLE 8). The verbs live in one file per group,
//! next to the tables that they own. Raw SQL stands nowhere outside this room, and every query of a tenant's rows
//! carries the account id. Follows DESIGN 5 and RUL-20 to RUL-32.

pub mod audit;
pub mod backend;
pub mod columns;
pub mod schema;
pub mod secrets;

mod accounts;
mod catalog;
mod conversations;
mod credits;
mod events;
mod explain;
pub mod inspect;
mod machines;
mod migrations;
mod passes;
mod queue;
mod replicas;
mod runners_rows;
mod schedules;
mod transcript;
mod turns;

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::web;
use secrecy::SecretString;
use tokio::sync::Semaphore;

use futures_util::future::LocalBoxFuture;

use fountain_actors::ports::Rng;
use fountain_actors::ports::store::{Answer, StoreError};

pub use migrations::ServingLock;

use backend::{Access, Db, Fault, Kind, Manager, Target, Tls, Use, classify, transact};
use secrets::MasterKey;

/// How long a verb waits for a connection before the database counts as unavailable.
const WAIT_LIMIT: Duration = Duration::from_secs(5);
/// How long a verb waits for PostgreSQL as a whole. Above the statement timeout: it only ends the wait for a server
/// that hangs, whose own timeouts do not run. Whether the transaction committed is then unknown.
const CALL_LIMIT: Duration = Duration::from_secs(45);
/// Readers beside the one writer of SQLite. WAL lets them go on while it commits.
const SQLITE_READERS: u32 = 4;

/// Told about every verb: its name, how long it took with the wait for a connection, and whether the database
/// answered (a verdict such as `NotFound` is an answer).
pub type Observer = Arc<dyn Fn(&'static str, Duration, bool) + Send + Sync>;

/// Where a verb computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// On the blocking pool: never on an arbiter (STYLE 7).
    #[default]
    Blocking,
    /// On the caller's thread, at once. For the simulation alone: one thread, virtual time (DESIGN 9).
    Inline,
}

/// Stands between a replica and its database in the simulation: every verb passes it twice (DESIGN 9).
pub trait Turnstile: Send + Sync {
    /// Before the transaction. An error is what the verb answers, and nothing is done.
    fn enter(&self, op: &'static str) -> LocalBoxFuture<'_, Result<(), StoreError>>;
    /// After the transaction ended and before its asker hears of it. An error is an answer that was lost.
    fn leave(&self, op: &'static str, access: Access) -> LocalBoxFuture<'_, Result<(), StoreError>>;
}

/// What a store is opened with. Printing it shows neither the URL nor the key.
#[derive(Clone)]
pub struct StoreConfig {
    pub url: SecretString,
    pub tls: Tls,
    /// Connections to PostgreSQL. SQLite has one writer whatever this says.
    pub pool_size: u32,
    pub master_key: MasterKey,
    pub rng: Arc<dyn Rng>,
    pub observer: Observer,
    pub execution: Execution,
    /// Bounds an SQLite file, in pages of 4 KiB. None: the disk does.
    pub page_limit: Option<u32>,
}

impl StoreConfig {
    /// Defaults for everything that has one.
    pub fn new(url: SecretString, master_key: MasterKey, rng: Arc<dyn Rng>) -> Self {
        Self {
            url,
            tls: Tls::default(),
            pool_size: 10,
            master_key,
            rng,
            observer: Arc::new(|_, _, _| {}),
            execution: Execution::default(),
            page_limit: None,
        }
    }
}

/// Why a store could not be opened or migrated. No variant shows a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `DATABASE_URL` cannot be used.
    #[error("DATABASE_URL cannot be used: {0}")]
    Url(&'static str),
    /// RUL-32: this build would have to send passwords in the clear.
    #[error(
        "this build has no TLS to PostgreSQL and the server is not on this host; use a build with the feature \
         `postgres-tls`, or set DATABASE_SSL=false to send everything in the clear"
    )]
    TlsNotBuilt,
    #[error("the database cannot be reached: {0}")]
    Connect(#[from] backend::ConnectFailed),
    #[error("the database could not be migrated: {0}")]
    Migrate(String),
    /// RUL-30: another process serves this file.
    #[error("another process uses the database file {0}; stop it, or use another data directory")]
    InUse(String),
}

/// Connections of one purpose, and as many permits as there are connections.
struct Lane {
    pool: r2d2::Pool<Manager>,
    permits: Arc<Semaphore>,
}

impl Lane {
    fn open(manager: Manager, size: u32, kept: Kept) -> Self {
        let builder = r2d2::Pool::builder()
            .max_size(size)
            .connection_timeout(WAIT_LIMIT)
            // The verb that waits reports the error; r2d2 would log it, address and all.
            .error_handler(Box::new(r2d2::NopErrorHandler));
        let builder = match kept {
            // A file's connections do not rot, and that of a database in memory is the database.
            Kept::ForEver => builder.test_on_check_out(false).idle_timeout(None).max_lifetime(None),
            Kept::WhileGood => builder.test_on_check_out(true),
        };
        Self {
            pool: builder.min_idle(Some(0)).build_unchecked(manager),
            permits: Arc::new(Semaphore::new(usize::try_from(size).unwrap_or(1))),
        }
    }
}

#[derive(Clone, Copy)]
enum Kept {
    ForEver,
    WhileGood,
}

struct Inner {
    target: Target,
    writer: Lane,
    /// None: the writer's connections read too (PostgreSQL, and SQLite in memory).
    readers: Option<Lane>,
    master_key: MasterKey,
    rng: Arc<dyn Rng>,
    observer: Observer,
    execution: Execution,
}

/// The store. Cheap to clone; all clones share the pools.
#[derive(Clone)]
pub struct SqlStore {
    inner: Arc<Inner>,
    turnstile: Option<Arc<dyn Turnstile>>,
}

impl std::fmt::Debug for SqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SqlStore").field(&self.inner.target).finish()
    }
}

impl SqlStore {
    /// Opens the database and checks that it answers. Changes nothing in it. Blocks: call it before the arbiters run
    /// or inside `web::block`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        use r2d2::ManageConnection as _;
        let target = Target::parse(&config.url, &config.tls)?;
        let manager = |r#use| Manager::new(target.clone(), r#use, config.page_limit);
        // Once by hand, because a pool would retry for seconds and then say "timed out".
        let mut first = manager(Use::Anything).connect()?;
        manager(Use::Anything).is_valid(&mut first)?;
        let (writer, readers) = match &target {
            Target::Memory => (Lane::open(manager(Use::Anything), 1, Kept::ForEver), None),
            Target::File(_) => (
                Lane::open(manager(Use::Anything), 1, Kept::ForEver),
                Some(Lane::open(manager(Use::ReadOnly), SQLITE_READERS, Kept::ForEver)),
            ),
            Target::Postgres { .. } => (
                Lane::open(manager(Use::Anything), config.pool_size.max(1), Kept::WhileGood),
                None,
            ),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                target,
                writer,
                readers,
                master_key: config.master_key,
                rng: config.rng,
                observer: config.observer,
                execution: config.execution,
            }),
            turnstile: None,
        })
    }

    /// The same database, seen through a turnstile: a replica of the simulation, which can be frozen, killed and lied to.
    #[must_use]
    pub fn through(&self, turnstile: Arc<dyn Turnstile>) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            turnstile: Some(turnstile),
        }
    }

    /// Which database this is.
    pub fn kind(&self) -> Kind {
        self.inner.target.kind()
    }

    /// Answers when the database does (`Store::ping`).
    pub async fn answers(&self) -> Result<(), StoreError> {
        self.run("store.ping", Access::Read, |db| {
            use diesel::RunQueryDsl as _;
            diesel::sql_query("SELECT 1").execute(db)?;
            Ok(())
        })
        .await
    }

    /// Runs one verb: `query` in the transaction that `access` asks for, on a connection of its own, and never on the
    /// thread of an arbiter.
    async fn run<T, F>(&self, op: &'static str, access: Access, query: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Db) -> Result<T, Fault> + Send + 'static,
    {
        let started = Instant::now();
        let answer = match &self.turnstile {
            None => self.run_unmeasured(op, access, query).await,
            Some(turnstile) => {
                turnstile.enter(op).await?;
                let answer = self.run_unmeasured(op, access, query).await;
                turnstile.leave(op, access).await?;
                answer
            }
        };
        let answered = !matches!(
            &answer,
            Err(StoreError::Unavailable { .. } | StoreError::Internal { .. })
        );
        (self.inner.observer)(op, started.elapsed(), answered);
        answer
    }

    async fn run_unmeasured<T, F>(&self, op: &'static str, access: Access, query: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Db) -> Result<T, Fault> + Send + 'static,
    {
        let unavailable = |detail: &str| StoreError::Unavailable {
            op,
            detail: detail.to_owned(),
        };
        let lane = match access {
            Access::Write => &self.inner.writer,
            Access::Read | Access::Snapshot => self.inner.readers.as_ref().unwrap_or(&self.inner.writer),
        };
        // Wait for a connection here, where waiting costs nothing, and not on a blocking thread.
        let permit = tokio::time::timeout(WAIT_LIMIT, lane.permits.clone().acquire_owned())
            .await
            .map_err(|_| unavailable("no connection became free"))?
            .map_err(|_| unavailable("the store is closed"))?;
        let pool = lane.pool.clone();
        let work = move || {
            let _permit = permit;
            let mut db = pool.get().map_err(|e| StoreError::Unavailable {
                op,
                detail: e.to_string(),
            })?;
            transact(&mut db, access, query).map_err(|fault| classify(op, fault))
        };
        if self.inner.execution == Execution::Inline {
            return work();
        }
        tokio::time::timeout(CALL_LIMIT, web::block(work))
            .await
            .map_err(|_| unavailable("the database does not answer"))?
            // The closure panicked, or the runtime is going down.
            .map_err(|_| StoreError::Internal {
                op,
                detail: "the transaction was abandoned".into(),
            })?
    }

    /// [`SqlStore::run`] as the answer of a verb.
    fn answer<T, F>(&self, op: &'static str, access: Access, query: F) -> Answer<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Db) -> Result<T, Fault> + Send + 'static,
    {
        Box::pin(self.run(op, access, query))
    }
}

impl fountain_actors::ports::Store for SqlStore {
    fn ping(&self) -> Answer<'_, ()> {
        Box::pin(self.answers())
    }
}
