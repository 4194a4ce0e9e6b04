//! Which runners are connected here. A miss is never proof of absence: another replica may have it (lifecycle 3.6).

use tokio::sync::watch;

use crate::domain::runner::Runner;
use crate::domain::{AccountId, KeyId, RunnerId};
use crate::runner::RunnerRegistry;

pub trait RunnerPresence: Send + Sync {
    fn is_online(&self, runner: RunnerId) -> bool;
    /// Everybody who is connected here, in no order.
    fn online(&self) -> Vec<RunnerId>;
    /// What the connected daemon said of itself when it dialled: its root is evidence (RUL-49).
    fn connected(&self, runner: RunnerId) -> Option<Runner>;
    /// Where a new machine of this account goes.
    fn latest(&self, account: AccountId) -> Option<Runner>;
    /// Ticks whenever somebody comes or goes.
    fn changes(&self) -> watch::Receiver<u64>;
    /// Ends the connection of a runner that was deleted (close 4404).
    fn disconnect(&self, runner: RunnerId);
    /// Ends the connections that dialled with a key that was revoked.
    fn key_revoked(&self, key: KeyId);
}

/// Nobody is connected, nobody comes.
#[derive(Debug, Default)]
pub struct NoRunners {
    changes: watch::Sender<u64>,
}

impl RunnerPresence for NoRunners {
    fn online(&self) -> Vec<RunnerId> {
        Vec::new()
    }
    fn is_online(&self, _: RunnerId) -> bool {
        false
    }
    fn connected(&self, _: RunnerId) -> Option<Runner> {
        None
    }
    fn latest(&self, _: AccountId) -> Option<Runner> {
        None
    }
    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
    fn disconnect(&self, _: RunnerId) {}
    fn key_revoked(&self, _: KeyId) {}
}

impl RunnerPresence for RunnerRegistry<()> {
    fn is_online(&self, runner: RunnerId) -> bool {
        RunnerRegistry::is_online(self, runner)
    }
    fn online(&self) -> Vec<RunnerId> {
        self.all().into_iter().map(|presence| presence.runner.id).collect()
    }
    fn connected(&self, runner: RunnerId) -> Option<Runner> {
        self.get(runner).map(|presence| presence.runner)
    }
    fn latest(&self, account: AccountId) -> Option<Runner> {
        RunnerRegistry::latest(self, account)
    }
    fn changes(&self) -> watch::Receiver<u64> {
        RunnerRegistry::changes(self)
    }
    fn disconnect(&self, runner: RunnerId) {
        if let Some(presence) = self.get(runner) {
            self.withdraw(runner, presence.ticket);
        }
    }
    fn key_revoked(&self, key: KeyId) {
        for presence in self.all() {
            if presence.key_id == key {
                self.withdraw(presence.runner.id, presence.ticket);
            }
        }
    }
}
