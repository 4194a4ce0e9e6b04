//! The five-minute sweep: fenced machines, owed deletes, idle machines, nobody's machines (lifecycle 7, RUL-63).
//!
//! It selects, and asks each machine's owner, who decides under a lease. A row that refuses is moved to the end of the
//! line, so that rows which never clear starve nobody (RUL-L-55). Machines with a live server are its server's matter.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream;

use super::expiry::{self, Expired, REAPER, Verdict};
use super::lease::PassLease;
use super::{Pass, Replica, SIDE_BY_SIDE, Step, Tally};
use crate::domain::Moment;
use crate::domain::machine::{DestroyReason, Machine};
use crate::machine::messages::{Destroy, Destroyed, MachineError};
use crate::ports::meter::Measure;
use crate::ports::{World, clock};

pub(super) struct Sweep {
    world: World,
    replica: Arc<dyn Replica>,
}

/// Why a machine was selected.
#[derive(Clone, Copy)]
enum Kind {
    Doomed,
    Parkable,
    Abandoned,
}

impl Sweep {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self { world, replica }
    }

    fn ago(&self, duration: Duration) -> Moment {
        clock::before(self.world.now(), duration)
    }

    async fn candidates(&self) -> Vec<(Kind, Machine)> {
        let (store, settings) = (&self.world.store, &self.world.settings);
        let (now, limit) = (self.world.now(), settings.sweep_attempts);
        let mut all = Vec::new();
        let mut take = |kind, found: Result<Vec<Machine>, _>| match found {
            Ok(rows) => all.extend(rows.into_iter().map(|row| (kind, row))),
            // The other kinds still run.
            Err(error) => tracing::warn!(%error, "the sweep could not read some of its rows"),
        };
        take(
            Kind::Doomed,
            store.doomed(now, self.ago(settings.teardown_grace), limit).await,
        );
        let idle_before = settings.idle_timeout.map(|idle| self.ago(idle));
        let born_before = settings.max_lifetime.map(|most| self.ago(most));
        if idle_before.is_some() || born_before.is_some() {
            let marker_before = self.ago(settings.woken_grace);
            let found = store
                .parkable(now, idle_before, born_before, marker_before, limit)
                .await;
            take(Kind::Parkable, found);
        }
        take(
            Kind::Abandoned,
            store.abandoned(now, self.ago(settings.teardown_grace), limit).await,
        );
        all
    }

    async fn settle(&self, kind: Kind, machine: Machine, lease: &PassLease) -> Step {
        // A fenced machine serves nobody, whoever still sits on it: a server that never left would keep it for ever
        // (INV-54).
        if !matches!(kind, Kind::Doomed) && self.replica.is_occupied(machine.id).await {
            return Step::Skipped;
        }
        if lease.guard().await.is_err() {
            return Step::Skipped;
        }
        let done = match kind {
            Kind::Doomed => self.destroy(&machine).await,
            Kind::Parkable => {
                let verdict = expiry::verdict(&self.world.settings, &machine, self.world.now());
                self.expire(&machine, verdict).await
            }
            Kind::Abandoned => self.expire(&machine, Verdict::Destroy(DestroyReason::Terminated)).await,
        };
        match done {
            Ok(step) => step,
            Err(error) => {
                tracing::info!(machine.id = %machine.id, %error, "machine {} was left to the next sweep", machine.id);
                expiry::defer(&self.world, &machine).await;
                if expiry::is_contention(&error) {
                    Step::Skipped
                } else {
                    Step::Refused
                }
            }
        }
    }

    async fn destroy(&self, machine: &Machine) -> Result<Step, MachineError> {
        let answer = self.replica.owner(machine.id).send(Destroy { actor: REAPER }).await;
        match answer.unwrap_or(Err(MachineError::Busy)) {
            Ok(Destroyed::Destroyed(_)) => {
                self.world.meter.record(Measure::TeardownReconciled);
                let reason = machine.transition_reason.as_deref().unwrap_or("cleanup_pending");
                expiry::note(&self.world, machine, "sandbox.teardown_reconciled", reason).await;
                Ok(Step::Done)
            }
            Ok(Destroyed::AlreadyTerminal(_)) => Ok(Step::Skipped),
            Err(error) => {
                self.world.meter.record(Measure::TeardownRefused);
                Err(error)
            }
        }
    }

    async fn expire(&self, machine: &Machine, verdict: Verdict) -> Result<Step, MachineError> {
        let expired = expiry::expire(&self.world, self.replica.as_ref(), machine, verdict).await?;
        Ok(match expired {
            Expired::Parked | Expired::Reclaimed => Step::Done,
            Expired::Skipped => Step::Skipped,
        })
    }
}

impl Pass for Sweep {
    const NAME: &'static str = "sweep";

    fn every(&self) -> Duration {
        self.world.settings.sweep_interval
    }

    fn run(self: Rc<Self>, lease: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let candidates = self.candidates().await;
            let mut tally = Tally {
                candidates: candidates.len() as u64,
                ..Tally::default()
            };
            let (sweep, lease) = (&self, &lease);
            let mut steps = stream::iter(candidates)
                .map(|(kind, machine)| sweep.settle(kind, machine, lease))
                .buffer_unordered(SIDE_BY_SIDE);
            while let Some(step) = steps.next().await {
                tally.add(step);
            }
            drop(steps);
            tally
        })
    }
}
