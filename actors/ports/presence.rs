//! Which runners are connected here. A miss is never proof of absence: another replica may have it (lifecycle 3.6).

use tokio::sync::watch;

use crate::domain::runner::Runner;
use crate::domain::{AccountId, RunnerId};
use crate::runner::RunnerRegistry;

pub trait RunnerPresence: Send + Sync {
    fn is_online(&self, runner: RunnerId) -> bool;
    /// Everybody who is connected here, in no order. An implementation that cannot tell answers nobody.
    fn online(&self) -> Vec<RunnerId> {
        Vec::new()
    }
    /// Where a new machine of this account goes.
    fn latest(&self, account: AccountId) -> Option<Runner>;
    /// Ticks whenever somebody comes or goes.
    fn changes(&self) -> watch::Receiver<u64>;
    /// Ends the connection of a runner that was deleted (close 4404).
    fn disconnect(&self, runner: RunnerId);
}

/// Nobody is connected, nobody comes.
#[derive(Debug, Default)]
pub struct NoRunners {
    changes: watch::Sender<u64>,
}

impl RunnerPresence for NoRunners {
    fn is_online(&self, _: RunnerId) -> bool {
        false
    }
    fn latest(&self, _: AccountId) -> Option<Runner> {
        None
    }
    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
    fn disconnect(&self, _: RunnerId) {}
}

impl RunnerPresence for RunnerRegistry<()> {
    fn is_online(&self, runner: RunnerId) -> bool {
        RunnerRegistry::is_online(self, runner)
    }
    fn online(&self) -> Vec<RunnerId> {
        self.all().into_iter().map(|presence| presence.runner.id).collect()
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
}
