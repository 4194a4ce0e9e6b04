//! The clock of schedules (lifecycle 7; RUL-L-59; R-104).
//!
//! Looks every half minute, because a firing that was snoozed is tried again after thirty seconds; the calendar itself has
//! minutes. A firing is taken off the calendar before it runs, so one fire time runs once however many replicas look.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream;

use super::lease::PassLease;
use super::{Pass, Replica, Step, Tally};
use crate::directory::Engine;
use crate::domain::schedule::{SNOOZE, Schedule};
use crate::ports::store::schedules::Fired;
use crate::ports::{World, clock};

/// Schedules in one run.
const AT_ONCE: i64 = 1_000;
/// Runs side by side: a slow wake must not hold up other people's prompts.
const SIDE_BY_SIDE: usize = 16;

pub(super) struct Schedules {
    world: World,
    engine: Option<Engine>,
}

impl Schedules {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self {
            world,
            engine: replica.engine(),
        }
    }

    async fn fire(&self, engine: &Engine, seen: Schedule) -> Step {
        let (store, now) = (&self.world.store, self.world.now());
        let id = seen.id;
        let until = clock::after(now, self.world.settings.queue_claim_timeout);
        let claimed = match store.claim_firing(seen, until, now).await {
            Ok(committed) => committed.announce(self.world.bus.as_ref()),
            Err(error) => {
                tracing::warn!(schedule.id = %id, %error, "a schedule could not be claimed");
                return Step::Refused;
            }
        };
        let Some(claimed) = claimed else { return Step::Skipped };
        let fired = engine.fire(&claimed).await;
        let step = match &fired {
            Fired::Ran(_) | Fired::Queued => Step::Done,
            Fired::Snoozed(_) | Fired::Failed(_) => Step::Refused,
        };
        if let Err(error) = store.finish_firing(claimed, fired, self.world.now()).await {
            // The claim lapses; the next try sees in the turns whether the prompt arrived.
            tracing::warn!(schedule.id = %id, %error, "the outcome of a schedule was not written");
        }
        step
    }
}

impl Pass for Schedules {
    const NAME: &'static str = "schedules";

    fn every(&self) -> Duration {
        SNOOZE
    }

    fn run(self: Rc<Self>, _: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let mut tally = Tally::default();
            let Some(engine) = &self.engine else { return tally };
            let due = match self.world.store.due_schedules(self.world.now(), AT_ONCE).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(%error, "due schedules could not be read");
                    return tally;
                }
            };
            tally.candidates = due.len() as u64;
            let pass = &self;
            let mut runs = stream::iter(due)
                .map(|schedule| pass.fire(engine, schedule))
                .buffer_unordered(SIDE_BY_SIDE);
            while let Some(step) = runs.next().await {
                tally.add(step);
            }
            drop(runs);
            tally
        })
    }
}
