//! Where servers live: the answer from the rows (RUL-L-7, INV-110), and the end of a home row.
//!
//! A home's row is written with the generation that it belongs to and goes when its server does, however that ends: a
//! stop, a panic, a stand-down. The drop of [`Home`] only sends a message; a destructor never waits for the database. A
//! row that a dead process left means nothing, because that process is no member.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::Engine;
use crate::domain::{ConversationId, MachineId, ServerEpoch};
use crate::ports::World;
use crate::ports::store::StoreError;
use crate::ports::store::replicas::Resident;

/// A server's home, for as long as the server exists.
pub(crate) struct Home {
    engine: Engine,
    conversation: ConversationId,
    generation: ServerEpoch,
}

impl Drop for Home {
    fn drop(&mut self) {
        self.engine.inner.movers.left(self.conversation, self.generation);
    }
}

type Left = (ConversationId, ServerEpoch);

/// Those who clear homes out.
pub(super) struct Movers {
    left: mpsc::UnboundedSender<Left>,
    #[cfg_attr(
        not(any(test, feature = "fakes")),
        expect(dead_code, reason = "only tests kill a process that lives")
    )]
    silent: Arc<AtomicBool>,
}

impl Movers {
    pub fn new(world: &World) -> (Self, Moving) {
        // Unbounded, because a destructor cannot wait; there is one message a server.
        let (left, leaving) = mpsc::unbounded_channel();
        let silent = Arc::new(AtomicBool::new(false));
        let movers = Self {
            left,
            silent: Arc::clone(&silent),
        };
        let moving = Moving {
            world: world.clone(),
            leaving,
            silent,
        };
        (movers, moving)
    }

    fn left(&self, conversation: ConversationId, generation: ServerEpoch) {
        let _ = self.left.send((conversation, generation)); // the process is going down: its row goes with it
    }

    /// Nothing is written any more, as after the death of the process.
    #[cfg(any(test, feature = "fakes"))]
    pub fn silence(&self) {
        self.silent.store(true, Ordering::Release);
    }
}

/// The task behind [`Movers`].
pub(super) struct Moving {
    world: World,
    leaving: mpsc::UnboundedReceiver<Left>,
    silent: Arc<AtomicBool>,
}

impl Moving {
    pub async fn run(mut self) {
        while let Some((conversation, generation)) = self.leaving.recv().await {
            if self.silent.load(Ordering::Acquire) {
                return;
            }
            let holder = self.world.holder.to_string();
            if let Err(error) = self.world.store.leave_home(conversation, holder, generation).await {
                // The membership task finds rows of this process without a server.
                tracing::warn!(conversation.id = %conversation, %error, "the home of a server that stopped is still on record");
            }
        }
    }
}

impl Engine {
    /// The home of this generation, on record since it was registered.
    pub(crate) fn home(&self, conversation: ConversationId, generation: ServerEpoch) -> Home {
        Home {
            engine: self.clone(),
            conversation,
            generation,
        }
    }

    /// A server of this conversation lives here, or in another process that is a member. Rows that cannot be read are
    /// no proof that none does.
    pub(crate) async fn lives_anywhere(&self, conversation: ConversationId) -> bool {
        if self.is_live(conversation) {
            return true;
        }
        let home = self
            .world()
            .store
            .home(Resident::Conversation(conversation), self.world().now());
        // The process's own row without an actor is a server that has just stopped, or died.
        assumed(
            home.await
                .map(|home| home.is_some_and(|member| self.is_other(&member.holder))),
        )
    }

    /// A server of some conversation on this machine lives here, or in another process that is a member.
    pub(crate) async fn is_occupied_anywhere(&self, machine: MachineId) -> bool {
        if !self.live_on(machine).is_empty() {
            return true;
        }
        let servers = self.world().store.servers_on(machine, self.world().now());
        assumed(
            servers
                .await
                .map(|found| found.iter().any(|(_, holder)| self.is_other(holder))),
        )
    }

    pub(super) fn is_other(&self, holder: &str) -> bool {
        *self.world().holder != *holder
    }
}

fn assumed(lives: Result<bool, StoreError>) -> bool {
    lives.unwrap_or_else(|error| {
        tracing::warn!(%error, "it could not be read whether a server lives; it is taken for alive");
        true
    })
}
