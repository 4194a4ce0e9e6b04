//! What follows when a build outlived its ceiling: the conversation is told, then its server and owner are stopped
//! (lifecycle 4.6, RUL-L-31). The verdict is `machine::watch`'s; everything here comes after the row.

use std::rc::Rc;

use tokio::sync::oneshot;

use super::Engine;
use crate::conversation::messages::StandDown;
use crate::domain::turn::Ending;
use crate::domain::{ConversationId, MachineId};
use crate::machine::messages::Abandon;
use crate::machine::{Site, TOO_LONG, Verdict, watch};
use crate::ports::store::StoreError;

impl Engine {
    /// Watches a build that begins now, beside the server that asked for it. Dropping what is answered ends the watch.
    pub(crate) fn watch_build(&self, conversation: ConversationId, machine: MachineId) -> oneshot::Sender<()> {
        let (alive, over) = oneshot::channel();
        let engine = self.clone();
        actix::spawn(async move {
            let site = Site {
                world: engine.inner.world.clone(),
                machine,
                breaker: engine.inner.breaker.clone(),
                doomed: Rc::default(),
            };
            match watch(&site, conversation, over).await {
                Verdict::Over => return,
                Verdict::Failed => {
                    // Whatever is not told now, the next server says: it finds a machine that ended.
                    if let Err(error) = engine.tell_of_failure(conversation, machine).await {
                        tracing::warn!(conversation.id = %conversation, %error, "a build past its ceiling is not told yet");
                    }
                }
                Verdict::GaveUp => {
                    tracing::error!(machine.id = %machine, "the lease of a stuck build was not to be had; its server is stopped, and the row is left to the hourly pass");
                }
            }
            engine.stop_stuck(conversation, machine);
        });
        alive
    }

    /// Not even a first build is final at the ceiling (RUL-L-31).
    async fn tell_of_failure(&self, conversation: ConversationId, machine: MachineId) -> Result<(), StoreError> {
        let world = self.world();
        for (waiting, turn) in world.store.waiting_on(machine).await? {
            let ending = Ending {
                message: Some(TOO_LONG.into()),
                ..Ending::failed(turn, "provision_failed", world.now())
            };
            let closed = world.store.close_turn(waiting, ending, Some(machine), false).await?;
            closed.announce(&*world.bus);
        }
        world.store.settle_idle(conversation, machine, world.now()).await
    }

    /// Neither is started again by this: the next request starts them, from the rows.
    fn stop_stuck(&self, conversation: ConversationId, machine: MachineId) {
        if let Some(server) = self.inner.seats.live_server(conversation) {
            server.do_send(StandDown);
        }
        self.machine(machine).do_send(Abandon);
    }
}
