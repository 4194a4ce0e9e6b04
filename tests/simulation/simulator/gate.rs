//! The gate between a replica and the database: where it freezes, dies, and is told things that are not so.
//!
//! Every verb of the store passes twice. A frozen replica waits here, a dead one for ever; as all decisions of the
//! domain are made between two such calls, that is freezing at every point where it could matter. A fault before the
//! transaction means that nothing was done; one after it, that it was done and nobody heard.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fountain::store::backend::Access;
use fountain::store::{SqlStore, Turnstile};
use fountain_actors::ports::store::StoreError;
use futures_util::future::LocalBoxFuture;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};
use tokio::sync::Notify;

use crate::plan::Level;
use crate::watch::Watch;

/// What all gates of a run share: chance, and how bad things are.
pub struct Climate {
    inner: Mutex<Inner>,
}

struct Inner {
    rng: StdRng,
    provider: Level,
    database: Level,
    freezing: Level,
    blind_until: Option<tokio::time::Instant>,
}

impl Climate {
    pub fn new(seed: u64) -> Self {
        let inner = Inner {
            rng: StdRng::seed_from_u64(seed),
            provider: Level::Calm,
            database: Level::Calm,
            freezing: Level::Calm,
            blind_until: None,
        };
        Self {
            inner: Mutex::new(inner),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is drawn from now on depends on this step and on what follows it, not on what was before.
    pub fn reseed(&self, salt: u64) {
        self.lock().rng = StdRng::seed_from_u64(salt);
    }

    pub fn set_provider(&self, level: Level) {
        self.lock().provider = level;
    }

    pub fn set_database(&self, level: Level) {
        self.lock().database = level;
    }

    pub fn set_freezing(&self, level: Level) {
        self.lock().freezing = level;
    }

    /// The provider denies that any machine exists.
    pub fn blind(&self, time: Duration) {
        self.lock().blind_until = Some(tokio::time::Instant::now() + time);
    }

    pub fn is_blind(&self) -> bool {
        self.lock()
            .blind_until
            .is_some_and(|until| until > tokio::time::Instant::now())
    }

    /// Everything works from now on.
    pub fn clear(&self) {
        let mut inner = self.lock();
        (inner.provider, inner.database, inner.freezing) = (Level::Calm, Level::Calm, Level::Calm);
        inner.blind_until = None;
    }

    /// The database or the provider misbehaves, so that honest code may have to give up.
    pub fn is_rough(&self) -> bool {
        let inner = self.lock();
        inner.database != Level::Calm || inner.provider != Level::Calm
    }

    pub fn provider(&self) -> Level {
        self.lock().provider
    }

    fn happens(&self, per_mille: impl FnOnce(&Inner) -> u32) -> bool {
        let mut inner = self.lock();
        let per_mille = per_mille(&inner);
        per_mille > 0 && inner.rng.random_range(0..1_000) < per_mille
    }

    /// One draw, for whoever needs chance.
    pub fn draw(&self, below: u32) -> u32 {
        self.lock().rng.random_range(0..below.max(1))
    }
}

#[derive(Default)]
struct Door {
    is_frozen: bool,
    is_dead: bool,
}

/// One replica's gate.
pub struct Gate {
    door: Mutex<Door>,
    opened: Notify,
    climate: Arc<Climate>,
    watch: Arc<Watch>,
    store: SqlStore,
    me: Weak<Self>,
}

impl Gate {
    /// `store` is the database without a gate, for the watch.
    pub fn new(climate: Arc<Climate>, watch: Arc<Watch>, store: SqlStore) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            door: Mutex::default(),
            opened: Notify::new(),
            climate,
            watch,
            store,
            me: me.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops here for this long. A replica that is frozen already stays so until the first of the two ends.
    pub fn freeze(&self, time: Duration) {
        self.lock().is_frozen = true;
        let me = self.me.clone();
        actix::spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(gate) = me.upgrade() {
                gate.thaw();
            }
        });
    }

    pub fn thaw(&self) {
        self.lock().is_frozen = false;
        self.opened.notify_waiters();
    }

    /// The process is gone: whoever waits here waits for ever.
    pub fn kill(&self) {
        self.lock().is_dead = true;
    }

    pub fn is_dead(&self) -> bool {
        self.lock().is_dead
    }

    pub fn is_frozen(&self) -> bool {
        self.lock().is_frozen
    }

    /// Waits while the replica is frozen; a dead one does not come back.
    pub async fn pass(&self) {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            let (is_dead, is_frozen) = {
                let door = self.lock();
                (door.is_dead, door.is_frozen)
            };
            if is_dead {
                std::future::pending::<()>().await;
            }
            if !is_frozen {
                return;
            }
            opened.await;
        }
    }

    /// The whole replica stops where it is, for longer than some leases and shorter than others.
    fn maybe_freeze(&self) {
        if !self.climate.happens(|inner| inner.freezing.per_mille(4, 25)) {
            return;
        }
        let seconds = match self.climate.draw(3) {
            0 => 1 + self.climate.draw(25),
            1 => 60 + self.climate.draw(90),
            _ => 100 + self.climate.draw(900),
        };
        self.freeze(Duration::from_secs(seconds.into()));
    }

    fn fault(op: &'static str, detail: &str) -> StoreError {
        StoreError::Unavailable {
            op,
            detail: detail.into(),
        }
    }
}

impl Turnstile for Gate {
    fn enter(&self, op: &'static str) -> LocalBoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.maybe_freeze();
            self.pass().await;
            if self.climate.happens(|inner| inner.database.per_mille(10, 120)) {
                return Err(Self::fault(op, "the simulated database does not answer"));
            }
            Ok(())
        })
    }

    fn leave(&self, op: &'static str, access: Access) -> LocalBoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            // The leases of passes are no rows of machines.
            if access == Access::Write && !matches!(op, "pass.take" | "pass.renew") {
                self.watch.committed(op, &self.store).await;
            }
            self.maybe_freeze();
            self.pass().await;
            if access == Access::Write && self.climate.happens(|inner| inner.database.per_mille(5, 40)) {
                return Err(Self::fault(op, "the simulated database answered, and nobody heard"));
            }
            Ok(())
        })
    }
}
