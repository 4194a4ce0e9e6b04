//! Finding servers for conversations whose turn waits for one (RUL-36, RUL-L-50).
//!
//! Runs at boot, every ten seconds, and when a runner comes. It starts servers and nothing else; what they find is theirs
//! to judge. A turn that waits for a build on a runner that is away is not touched: there is nothing to ask.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use futures_util::future::LocalBoxFuture;

use super::lease::PassLease;
use super::{Pass, Replica, Run, Tally};
use crate::domain::machine::Provider;
use crate::domain::runner::runner_of;
use crate::domain::turn::TurnStatus;
use crate::ports::World;
use crate::ports::meter::Measure;
use crate::ports::store::turns::Adoptable;

/// Conversations in one run. More than a replica serves; the next run comes in ten seconds.
const AT_ONCE: i64 = 1_000;

pub(super) struct Adoption {
    world: World,
    replica: Arc<dyn Replica>,
}

impl Adoption {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self { world, replica }
    }

    /// Whether a server started now could do anything.
    fn is_ripe(&self, waiting: &Adoptable) -> bool {
        match (waiting.provider, runner_of(&waiting.machine_name)) {
            (Provider::Runner, Some(runner)) if waiting.turn.status == TurnStatus::Pending => {
                self.world.runners.is_online(runner)
            }
            _ => true,
        }
    }
}

impl Pass for Adoption {
    const NAME: &'static str = "adoption";

    fn every(&self) -> Duration {
        self.world.settings.adoption_interval
    }

    fn run(self: Rc<Self>, _: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let waiting = match self.world.store.adoptable(AT_ONCE).await {
                Ok(waiting) => waiting,
                Err(error) => {
                    tracing::warn!(%error, "adoption could not read which turns wait");
                    return Tally::default();
                }
            };
            let mut tally = Tally {
                candidates: waiting.len() as u64,
                ..Tally::default()
            };
            for turn in waiting {
                if self.is_ripe(&turn) && !self.replica.is_live(turn.conversation_id).await {
                    self.replica.adopt(turn.conversation_id, turn.machine_id);
                    tally.done += 1;
                }
            }
            if tally.done > 0 {
                self.world.meter.record(Measure::Rehydrated {
                    candidates: tally.candidates,
                    started: tally.done,
                });
            }
            tally
        })
    }
}

/// A runner that comes is a reason to look at once. Ends at the first change after the pass has.
pub(super) fn follow_runners(world: &World, pass: Recipient<Run>) {
    let mut changes = world.runners.changes();
    actix_rt::spawn(async move {
        while changes.changed().await.is_ok() {
            if pass.send(Run).await.is_err() {
                return;
            }
        }
    });
}
