//! The lease: proof that an operation may change a machine, for as long as it really may (lifecycle 3.3, RUL-L-1, 5).
//!
//! A [`Lease`] has private fields and one maker, [`take`], which is the only caller of the store's claim. While it lives
//! a task of its own renews it every TTL/3, from the slot that was due, and never longer than ten TTLs (a build: its
//! ceiling). Before each effect [`Lease::guard`] compares a local monotonic deadline, taken before the last successful
//! claim or renewal was sent, because a process that was frozen must not act on a machine that has a new owner by now.
//!
//! What the end of an operation leaves: finished, nothing. Dropped between calls (a panic, an actor that stopped): the
//! task gives the lease back at once, stamp and journal row stay. Dropped with a call in flight: renewals stop and the
//! lease lapses, because the call may still take effect beside the next owner's. A destructor never waits for anything.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};

use super::breaker::Breaker;
use super::{Site, outcome};
use crate::domain::account::Actor;
use crate::domain::event::NewStage;
use crate::domain::machine::{Machine, Transition};
use crate::domain::{ConversationId, Epoch, MachineId, Moment, OperationId};
use crate::ports::World;
use crate::ports::store::StoreError;
use crate::ports::store::machines::{Claim, ClaimAnswer, ClaimRefusal, Claimed, Purpose};

/// Renewals of an operation stop after this many TTLs (lifecycle 3.3, INV-09).
const MOST_TTLS: u32 = 10;

/// The holder is not the holder any more; it writes nothing and deletes nothing (RUL-L-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superseded;

/// What the lease, its guard and its renewal task share.
struct Core {
    world: World,
    breaker: Arc<Breaker>,
    machine: MachineId,
    epoch: Epoch,
    ttl: Duration,
    /// No renewal after this, by anybody.
    limit: Instant,
    /// Moment before the last successful claim or renewal was sent, plus TTL.
    good_until: Cell<Instant>,
    lost: Cell<bool>,
    /// A call that changes something was sent and has not been answered.
    in_flight: Cell<bool>,
    /// The second transaction committed; there is nothing to give back.
    finished: Cell<bool>,
}

impl Core {
    /// One renewal. A database fault is not a loss: the next slot tries again (lifecycle 3.3).
    async fn renew(&self) -> bool {
        let sent = Instant::now();
        if self.lost.get() || sent >= self.limit {
            return false;
        }
        let world = &self.world;
        let holder = world.holder.to_string();
        match world
            .store
            .renew(self.machine, self.epoch, holder, self.ttl, world.now())
            .await
        {
            Ok(()) => {
                self.good_until.set(sent + self.ttl);
                self.breaker.holdings.hold(self.machine, self.epoch, sent + self.ttl);
                true
            }
            Err(StoreError::Stale(_) | StoreError::NotFound(_)) => {
                self.lost.set(true);
                self.breaker.holdings.give_up(self.machine, self.epoch);
                false
            }
            Err(error) => {
                tracing::warn!(machine.id = %self.machine, epoch = self.epoch.0, %error, "a lease could not be renewed");
                false
            }
        }
    }

    /// Renews until the lease is dropped; then gives it back, if that is safe.
    async fn keep(self: Rc<Self>, mut dropped: oneshot::Receiver<()>, every: Duration) {
        let mut slots = tokio::time::interval_at(Instant::now() + every, every);
        slots.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                _ = &mut dropped => break,
                _ = slots.tick(), if !self.lost.get() && Instant::now() < self.limit => {
                    self.renew().await;
                }
            }
        }
        if self.finished.get() || self.lost.get() || self.in_flight.get() {
            return;
        }
        if let Err(error) = self.world.store.release(self.machine, self.epoch).await {
            tracing::warn!(machine.id = %self.machine, epoch = self.epoch.0, %error, "a lease was left to lapse");
            return;
        }
        self.breaker.holdings.give_up(self.machine, self.epoch);
    }
}

/// Proof that this operation holds its machine. Every effect at the provider asks for one.
pub(crate) struct Lease {
    core: Rc<Core>,
    operation: OperationId,
    warrant: Option<Warrant>,
    /// Closes when the lease is dropped: the message to its renewal task.
    _alive: oneshot::Sender<()>,
}

/// Why a delete is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warrant {
    /// The row is DOOMED, or terminal and owes a delete: only delete may follow (field-lessons P22).
    Doomed,
    /// The builder may delete what a build of this row made (RUL-L-21, RUL-L-22, INV-24); so may the settle pass, under
    /// names that the row does not have any more.
    Builder,
}

/// Proof that a delete is allowed: the machine was fenced in a committed transaction, or is this builder's own.
pub(crate) struct Fence<'a> {
    lease: &'a Lease,
}

impl<'a> Fence<'a> {
    /// The lease under which the fence was seen.
    pub fn lease(&self) -> &'a Lease {
        self.lease
    }
}

impl Lease {
    /// The generation that this lease is.
    pub fn epoch(&self) -> Epoch {
        self.core.epoch
    }

    pub fn machine(&self) -> MachineId {
        self.core.machine
    }

    /// Its row in the journal.
    pub fn operation(&self) -> OperationId {
        self.operation
    }

    /// The permission to delete, for claims that carry one.
    pub fn fence(&self) -> Option<Fence<'_>> {
        self.warrant.map(|_| Fence { lease: self })
    }

    /// The row was fenced when it was claimed, or the delete is owed.
    pub fn is_for_doomed(&self) -> bool {
        self.warrant == Some(Warrant::Doomed)
    }

    /// To be asked before each call that changes something and each step of a build (RUL-L-1, INV-115).
    ///
    /// # Errors
    /// [`Superseded`] when the lease is lost, or nearly over and could not be renewed.
    pub async fn guard(&self) -> Result<(), Superseded> {
        let headroom = self.core.world.settings.guard_headroom;
        let enough = |core: &Core| !core.lost.get() && core.good_until.get() > Instant::now() + headroom;
        if enough(&self.core) || (self.core.renew().await && enough(&self.core)) {
            Ok(())
        } else {
            Err(Superseded)
        }
    }

    /// Notes that a call is about to be sent. Dropping the note without [`Flight::landed`] leaves it noted.
    pub fn take_off(&self) -> Flight<'_> {
        self.core.in_flight.set(true);
        Flight { core: &self.core }
    }

    /// The operation's second transaction has committed and released the lease.
    pub fn finished(self) {
        self.core.finished.set(true);
        self.core.breaker.holdings.give_up(self.core.machine, self.core.epoch);
    }

    /// The store said that somebody newer holds the machine.
    pub fn superseded(self) {
        self.core.lost.set(true);
        self.core.breaker.holdings.give_up(self.core.machine, self.core.epoch);
    }
}

/// A call on its way.
pub(crate) struct Flight<'a> {
    core: &'a Core,
}

impl Flight<'_> {
    /// It was answered, whatever the answer.
    pub fn landed(self) {
        self.core.in_flight.set(false);
    }
}

/// What to claim and how.
pub(crate) struct Wanted {
    pub purpose: Purpose,
    pub actor: Actor,
    pub stages: Vec<(ConversationId, NewStage)>,
    /// How long to wait while somebody else holds it; zero answers at once (lifecycle 3.5).
    pub patience: Duration,
}

/// What came of a claim.
pub(crate) enum Taken {
    Lease(Box<(Lease, Claimed)>),
    Held,
    Not(ClaimRefusal),
}

/// Claims the machine, waiting up to `patience` for another holder, and starts the renewals.
///
/// # Errors
/// What the store said.
pub(crate) async fn take(site: &Site, wanted: Wanted) -> Result<Taken, StoreError> {
    let world = &site.world;
    let settings = &world.settings;
    let give_up = Instant::now() + wanted.patience;
    let (ttl, limit) = match wanted.purpose {
        Purpose::Park(_) => (settings.park_lease_ttl, settings.park_lease_ttl * MOST_TTLS),
        Purpose::Provision => (settings.lease_ttl, settings.provision_ceiling),
        Purpose::Wake { .. }
        | Purpose::Destroy
        | Purpose::Confirm
        | Purpose::Settle
        | Purpose::Leftover
        | Purpose::Reap => (settings.lease_ttl, settings.lease_ttl * MOST_TTLS),
    };
    loop {
        if is_still_ours(site).await? {
            if Instant::now() + settings.busy_poll > give_up {
                return Ok(Taken::Held);
            }
            tokio::time::sleep(settings.busy_poll).await;
            continue;
        }
        let sent = Instant::now();
        let claim = Claim {
            machine_id: site.machine,
            holder: world.holder.to_string(),
            ttl,
            purpose: wanted.purpose.clone(),
            operation_id: world.id(),
            actor: wanted.actor.clone(),
            stages: wanted.stages.clone(),
            now: world.now(),
        };
        let operation = claim.operation_id;
        match world.store.claim(claim).await?.announce(world.bus.as_ref()) {
            ClaimAnswer::Claimed(claimed) => {
                tracing::Span::current().record("epoch", claimed.epoch.0);
                outcome::count(site, &wanted.stages);
                let core = Rc::new(Core {
                    world: world.clone(),
                    breaker: Arc::clone(&site.breaker),
                    machine: site.machine,
                    epoch: claimed.epoch,
                    ttl,
                    limit: sent + limit,
                    good_until: Cell::new(sent + ttl),
                    lost: Cell::new(false),
                    in_flight: Cell::new(false),
                    finished: Cell::new(false),
                });
                site.breaker.holdings.hold(site.machine, claimed.epoch, sent + ttl);
                let (alive, dropped) = oneshot::channel();
                actix_rt::spawn(Rc::clone(&core).keep(dropped, ttl / settings.renewal_divisor));
                let lease = Lease {
                    core,
                    operation,
                    warrant: warrant(&wanted.purpose, &claimed.machine),
                    _alive: alive,
                };
                return Ok(Taken::Lease(Box::new((lease, claimed))));
            }
            ClaimAnswer::Held { holder, until } => {
                if Instant::now() + settings.busy_poll > give_up {
                    tracing::debug!(machine.id = %site.machine, %holder, %until, "machine {} is held", site.machine);
                    return Ok(Taken::Held);
                }
            }
            ClaimAnswer::Not(refusal) => return Ok(Taken::Not(refusal)),
        }
        tokio::time::sleep(settings.busy_poll).await;
    }
}

/// An operation of this very process may still act on the machine, whatever the lease clock says of its lease
/// (RUL-L-11). A lease that the rows gave to somebody else is not its any more.
async fn is_still_ours(site: &Site) -> Result<bool, StoreError> {
    let Some(epoch) = site.breaker.holdings.held(site.machine) else {
        return Ok(false);
    };
    let row = site.world.store.machine(site.machine).await?;
    Ok(row.is_some_and(|row| {
        let is_holder = row.lease.is_some_and(|lease| *lease.holder == *site.world.holder);
        is_holder && row.lease_epoch == epoch
    }))
}

/// Which delete a claim allows. Read from the committed row, not from what was asked for.
fn warrant(purpose: &Purpose, machine: &Machine) -> Option<Warrant> {
    match purpose {
        Purpose::Destroy if machine.status.is_terminal() => machine.cleanup_pending.then_some(Warrant::Doomed),
        Purpose::Destroy => (machine.transition == Some(Transition::Destroying)).then_some(Warrant::Doomed),
        Purpose::Leftover => machine.status.is_terminal().then_some(Warrant::Doomed),
        Purpose::Provision | Purpose::Settle => Some(Warrant::Builder),
        // An admin's reap asks the provider for nothing.
        Purpose::Park(_) | Purpose::Wake { .. } | Purpose::Confirm | Purpose::Reap => None,
    }
}

/// The lease clock, for judging rows that were just read (RUL-29).
///
/// # Errors
/// What the store said.
pub(crate) async fn clock(site: &Site) -> Result<Moment, StoreError> {
    site.world.store.lease_clock(site.world.now()).await
}
