//! The lease of a pass: one process of a deployment runs it at a time (RUL-L-56, RUL-L-1).
//!
//! Taken before a run, renewed while it lasts, and asked for before each call of a provider that the pass causes. Two
//! holders after a freeze do no harm, because every change to a machine also has its row's lease. A pass that runs less
//! often than its lease lasts keeps it until shortly before its next run is due, so that replicas whose timers stand at
//! other moments do not run it once each; a holder that died is missed for one run at most.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::Epoch;
use crate::ports::World;
use crate::ports::store::StoreError;

/// Another process holds the pass by now, or it cannot be shown that none does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

/// The lease of one pass in this process.
pub(super) struct PassLease {
    world: World,
    pass: &'static str,
    held: Cell<Option<Held>>,
}

#[derive(Clone, Copy)]
struct Held {
    epoch: Epoch,
    /// The moment before the last answer was asked for, plus its length.
    good_until: Instant,
}

impl PassLease {
    pub fn new(world: World, pass: &'static str) -> Self {
        Self {
            world,
            pass,
            held: Cell::new(None),
        }
    }

    fn ttl(&self) -> Duration {
        self.world.settings.pass_lease_ttl
    }

    fn lasts(&self, at_least: Duration) -> bool {
        self.held
            .get()
            .is_some_and(|held| held.good_until > Instant::now() + at_least)
    }

    /// Takes the lease for a run. False while another process has it, or nobody can tell.
    pub async fn take(&self) -> bool {
        // One that was just renewed need not be written again for each of the frequent passes.
        if self.lasts(self.ttl() / 2) {
            return true;
        }
        let world = &self.world;
        let sent = Instant::now();
        let taken = world
            .store
            .take_pass(self.pass, world.holder.to_string(), self.ttl(), world.now());
        match taken.await {
            Ok(Some(epoch)) => {
                let good_until = sent + self.ttl();
                self.held.set(Some(Held { epoch, good_until }));
                true
            }
            Ok(None) => {
                self.held.set(None);
                false
            }
            Err(error) => {
                tracing::warn!(pass = self.pass, %error, "pass {} does not know whether it may run", self.pass);
                false
            }
        }
    }

    /// Moves the end of the lease. A database that does not answer changes nothing here.
    async fn renew(&self, ttl: Duration) {
        let Some(held) = self.held.get() else { return };
        let world = &self.world;
        let sent = Instant::now();
        let renewed = world
            .store
            .renew_pass(self.pass, world.holder.to_string(), held.epoch, ttl, world.now());
        match renewed.await {
            Ok(()) => self.held.set(Some(Held {
                good_until: sent + ttl,
                ..held
            })),
            Err(StoreError::Stale(_)) => self.held.set(None),
            Err(error) => {
                tracing::warn!(pass = self.pass, %error, "the lease of pass {} could not be renewed", self.pass);
            }
        }
    }

    /// To be asked before each call of a provider that the pass causes.
    ///
    /// # Errors
    /// [`Lost`]: the run ends where it is, and the rest of its rows are due again.
    pub async fn guard(&self) -> Result<(), Lost> {
        let headroom = self.world.settings.guard_headroom;
        if !self.lasts(headroom) {
            self.renew(self.ttl()).await;
        }
        if self.lasts(headroom) { Ok(()) } else { Err(Lost) }
    }

    /// Renews for as long as it is polled.
    pub async fn keep(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(self.ttl() / self.world.settings.renewal_divisor).await;
            self.renew(self.ttl()).await;
        }
    }

    /// A run has ended, and the next one comes `rest` after its beginning, `took` ago.
    pub async fn hold(&self, rest: Duration, took: Duration) {
        // A tenth less, so that it is over when the next run is due anywhere.
        let until = (rest / 10 * 9).saturating_sub(took);
        if rest > self.ttl() && !self.lasts(until) {
            self.renew(until).await;
        }
    }

    /// Lets others run the pass at once.
    pub async fn give_back(&self) {
        if self.held.get().is_some() {
            self.renew(Duration::ZERO).await;
        }
        self.held.set(None);
    }
}
