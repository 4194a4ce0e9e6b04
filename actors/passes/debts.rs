//! The settle pass: every minute it looks after what dead and superseded operations did (RUL-L-3, RUL-L-24, INV-116).
//!
//! It selects; the machine's owner claims, looks and makes the row true. A look that was not had is due again a minute
//! later, behind the others.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::{StreamExt, stream};

use super::lease::PassLease;
use super::{Pass, Replica, SIDE_BY_SIDE, Step, Tally};
use crate::domain::MachineId;
use crate::domain::account::Actor;
use crate::domain::machine::Provider;
use crate::domain::runner::runner_of;
use crate::machine::messages::{MachineError, Settle};
use crate::ports::{World, clock};

/// Who does it.
const ACTOR: Actor = Actor::System("settle_pass");

pub(super) struct Debts {
    world: World,
    replica: Arc<dyn Replica>,
}

impl Debts {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self { world, replica }
    }

    /// Whether anybody can be asked about this machine from here. A claim that ends before the look would leave a journal
    /// row a minute.
    async fn can_look(&self, machine: MachineId) -> bool {
        match self.world.store.machine(machine).await {
            Ok(Some(row)) if row.provider == Provider::Runner => {
                runner_of(&row.name).is_some_and(|runner| self.world.runners.is_online(runner))
            }
            Ok(Some(row)) => self.world.adapters.offers(row.provider),
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(machine.id = %machine, %error, "the row of machine {machine} could not be read");
                false
            }
        }
    }

    async fn settle(&self, machine: MachineId, lease: &PassLease) -> Step {
        if lease.guard().await.is_err() {
            return Step::Skipped;
        }
        if !self.can_look(machine).await {
            self.postpone(machine).await;
            return Step::Skipped;
        }
        let asked = self.replica.owner(machine).send(Settle { actor: ACTOR }).await;
        match asked.unwrap_or(Err(MachineError::Busy)) {
            Ok(_) => Step::Done,
            // Whoever holds it looks at it himself, or leaves a debt of his own.
            Err(MachineError::Busy | MachineError::Superseded) => Step::Skipped,
            Err(error) => {
                tracing::info!(machine.id = %machine, %error, "the debts of machine {machine} are not settled yet");
                self.postpone(machine).await;
                Step::Refused
            }
        }
    }

    async fn postpone(&self, machine: MachineId) {
        // A little less than the interval: the next run finds it due.
        let rest = self.world.settings.settle_interval / 10 * 9;
        let until = clock::after(self.world.now(), rest);
        if let Err(error) = self.world.store.postpone_debts(machine, until).await {
            tracing::warn!(machine.id = %machine, %error, "a debt could not be moved to the end of the line");
        }
    }
}

impl Pass for Debts {
    const NAME: &'static str = "settle";

    fn every(&self) -> Duration {
        self.world.settings.settle_interval
    }

    fn run(self: Rc<Self>, lease: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let limit = self.world.settings.owner_attempts;
            let indebted = match self.world.store.indebted(self.world.now(), limit).await {
                Ok(indebted) => indebted,
                Err(error) => {
                    tracing::warn!(%error, "the settle pass could not read which machines have debts");
                    return Tally::default();
                }
            };
            let mut tally = Tally {
                candidates: indebted.len() as u64,
                ..Tally::default()
            };
            let (pass, lease) = (&self, &lease);
            let mut steps = stream::iter(indebted)
                .map(|machine| pass.settle(machine, lease))
                .buffer_unordered(SIDE_BY_SIDE);
            while let Some(step) = steps.next().await {
                tally.add(step);
            }
            drop(steps);
            tally
        })
    }
}
