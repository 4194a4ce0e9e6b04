//! Stuck turns: running for long, nobody asked, nothing said, no server anywhere (lifecycle 7, R-92).
//!
//! Every five minutes the oldest of them are orphaned. A turn that waits for a permission, or whose server lives, is left
//! alone; a reconnect window has a deadline and a pass of its own.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use super::lease::PassLease;
use super::{Pass, Replica, Step, Tally};
use crate::domain::turn::OrphanReason;
use crate::ports::store::turns::Adoptable;
use crate::ports::{World, clock};

/// Turns that are looked at. More than are ended in one run: those with a live server must not hide the others.
const AT_ONCE: i64 = 1_000;

pub(super) struct StuckTurns {
    world: World,
    replica: Arc<dyn Replica>,
}

impl StuckTurns {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self { world, replica }
    }

    async fn orphan(&self, stuck: &Adoptable) -> Step {
        let world = &self.world;
        let reason = OrphanReason::StuckRunningNoServer;
        let orphaned = world
            .store
            .orphan_running(stuck.conversation_id, Some(stuck.machine_id), reason, world.now());
        match orphaned.await {
            Ok(committed) => match committed.announce(world.bus.as_ref()) {
                Some(_) => Step::Done,
                None => Step::Skipped,
            },
            Err(error) => {
                tracing::warn!(turn.id = %stuck.turn.id, %error, "a stuck turn was not ended");
                Step::Refused
            }
        }
    }
}

impl Pass for StuckTurns {
    const NAME: &'static str = "stuck_turns";

    fn every(&self) -> Duration {
        self.world.settings.stuck_turn_interval
    }

    fn run(self: Rc<Self>, _: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let (world, settings) = (&self.world, &self.world.settings);
            let ago = |age| clock::before(world.now(), age);
            let (started, quiet) = (ago(settings.stuck_turn_age), ago(settings.stuck_turn_quiet));
            let stuck = match world.store.stuck_turns(started, quiet, AT_ONCE).await {
                Ok(stuck) => stuck,
                Err(error) => {
                    tracing::warn!(%error, "stuck turns could not be read");
                    return Tally::default();
                }
            };
            let mut tally = Tally {
                candidates: stuck.len() as u64,
                ..Tally::default()
            };
            let mut tried = 0;
            for turn in &stuck {
                if tried == settings.stuck_turn_batch {
                    break;
                }
                if self.replica.is_live(turn.conversation_id).await {
                    continue;
                }
                tried += 1;
                tally.add(self.orphan(turn).await);
            }
            tally
        })
    }
}
