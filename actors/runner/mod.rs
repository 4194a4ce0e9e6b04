//! The server end of the runner protocol: one actor per connected runner, and who is connected (runner-protocol 4, 8).
//!
//! The socket itself is the shell's: it hands in batches of text and takes out what is to be written. Everything
//! between the two, requests by id, subscriptions, replay and their order, is decided here.

pub mod connection;
pub mod registry;
pub mod subscriptions;
#[cfg(test)]
mod tests;
pub mod wire;

use actix::Addr;

pub use connection::{Call, CallAnswer, Incoming, Outbound, RunnerConnection, Unsubscribe};
pub use registry::{Presence, RunnerRegistry};

use crate::domain::runner::Runner;
use crate::domain::{AccountId, KeyId, RunnerId};
use crate::ports::RunnerPresence;

/// The connections of this replica.
pub type Connections = RunnerRegistry<Addr<RunnerConnection>>;

/// Close code of a runner that was deleted (runner-protocol 1.3).
pub const CLOSE_DELETED: u16 = 4404;
/// Close code of a second connection that lost the race.
pub const CLOSE_DUPLICATE: u16 = 4409;

impl RunnerPresence for Connections {
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

    fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        RunnerRegistry::changes(self)
    }

    fn disconnect(&self, runner: RunnerId) {
        if let Some(presence) = self.get(runner) {
            presence.connection.do_send(connection::End {
                code: CLOSE_DELETED,
                reason: "the runner was deleted",
            });
        }
    }

    fn key_revoked(&self, key: KeyId) {
        for presence in self.all() {
            if presence.key_id == key {
                // The next dial gets 401 `api_key_revoked`; an ordinary policy close makes the daemon dial.
                presence.connection.do_send(connection::End {
                    code: 1008,
                    reason: "the key was revoked",
                });
            }
        }
    }
}
