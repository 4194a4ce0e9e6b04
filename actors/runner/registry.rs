//! Who is connected to this replica. Online means registered here; no column says it (runner-protocol 8).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::domain::runner::Runner;
use crate::domain::{AccountId, KeyId, RunnerId};

/// One registered connection. `C` is how to reach it: the actor's address, or nothing in tests of placement.
#[derive(Clone, Debug)]
pub struct Presence<C> {
    pub runner: Runner,
    /// The key it dialled with: revoking that key ends the connection (runner-protocol 1.1).
    pub key_id: KeyId,
    /// Tells two connections of one runner apart: a late withdrawal must not remove its successor.
    pub ticket: u64,
    pub connection: C,
}

/// The registered connections, by runner. First wins, always: there is no takeover (runner-protocol 1.2).
pub struct RunnerRegistry<C> {
    present: Mutex<HashMap<RunnerId, Presence<C>>>,
    next_ticket: std::sync::atomic::AtomicU64,
    changes: watch::Sender<u64>,
}

impl<C: Clone> Default for RunnerRegistry<C> {
    fn default() -> Self {
        Self {
            present: Mutex::default(),
            next_ticket: std::sync::atomic::AtomicU64::new(1),
            changes: watch::Sender::new(0),
        }
    }
}

/// The runner has a live connection already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a runner of this name is connected already")]
pub struct AlreadyConnected;

impl<C: Clone> RunnerRegistry<C> {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunnerId, Presence<C>>> {
        // A panic under this lock leaves the map whole: every step under it is one insert or remove.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection and answers its ticket.
    ///
    /// # Errors
    /// [`AlreadyConnected`] while another connection of this runner is registered.
    pub fn register(&self, runner: Runner, key_id: KeyId, connection: C) -> Result<u64, AlreadyConnected> {
        let ticket = self.next_ticket.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut present = self.lock();
        if present.contains_key(&runner.id) {
            return Err(AlreadyConnected);
        }
        present.insert(
            runner.id,
            Presence {
                runner,
                key_id,
                ticket,
                connection,
            },
        );
        drop(present);
        self.changes.send_modify(|n| *n += 1);
        Ok(ticket)
    }

    /// Removes a registration, if the ticket is still the current one.
    pub fn withdraw(&self, runner: RunnerId, ticket: u64) -> bool {
        let mut present = self.lock();
        if present.get(&runner).is_none_or(|presence| presence.ticket != ticket) {
            return false;
        }
        present.remove(&runner);
        drop(present);
        self.changes.send_modify(|n| *n += 1);
        true
    }

    /// The connection of a runner.
    pub fn get(&self, runner: RunnerId) -> Option<Presence<C>> {
        self.lock().get(&runner).cloned()
    }

    pub fn is_online(&self, runner: RunnerId) -> bool {
        self.lock().contains_key(&runner)
    }

    /// All registered runners, in no order.
    pub fn all(&self) -> Vec<Presence<C>> {
        self.lock().values().cloned().collect()
    }

    /// Where a new machine of this account goes: its online runner that connected last (runner-protocol 8).
    pub fn latest(&self, account: AccountId) -> Option<Runner> {
        self.lock()
            .values()
            .filter(|presence| presence.runner.account_id == account)
            .max_by_key(|presence| (presence.runner.connected_at, presence.ticket))
            .map(|presence| presence.runner.clone())
    }

    /// Ticks whenever somebody comes or goes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
