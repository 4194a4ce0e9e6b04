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

use super::lease::PassLease;
use super::{Pass, Replica, SIDE_BY_SIDE, Step, Tally};
use crate::domain::Moment;
use crate::domain::account::{Actor, NewAudit};
use crate::domain::machine::{DestroyReason, Machine, MachineMode};
use crate::machine::messages::{Destroy, Destroyed, MachineError, Park, Parked, Retire};
use crate::ports::meter::Measure;
use crate::ports::store::machines::ParkRule;
use crate::ports::{World, clock};

/// Who does it (lifecycle 10.3).
const ACTOR: Actor = Actor::System("sandbox_reaper");

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
        if !matches!(kind, Kind::Doomed) && self.replica.is_occupied(machine.id) {
            return Step::Skipped;
        }
        if lease.guard().await.is_err() {
            return Step::Skipped;
        }
        let done = match kind {
            Kind::Doomed => self.destroy(&machine).await,
            Kind::Parkable => self.park(&machine).await,
            Kind::Abandoned => self.retire(&machine, DestroyReason::Terminated).await,
        };
        match done {
            Ok(step) => step,
            Err(error) => {
                tracing::info!(machine.id = %machine.id, %error, "machine {} was left to the next sweep", machine.id);
                self.postpone(&machine).await;
                match error {
                    // It came back into use, or somebody else acts: nothing is wrong.
                    MachineError::Busy
                    | MachineError::Occupied
                    | MachineError::NotExpired
                    | MachineError::Superseded => Step::Skipped,
                    _ => Step::Refused,
                }
            }
        }
    }

    async fn postpone(&self, machine: &Machine) {
        let rests = self.world.settings.rests();
        if let Err(error) = self.world.store.defer(machine.id, rests, self.world.now()).await {
            tracing::warn!(machine.id = %machine.id, %error, "a row could not be moved to the end of the line");
        }
    }

    async fn destroy(&self, machine: &Machine) -> Result<Step, MachineError> {
        let answer = self.replica.owner(machine.id).send(Destroy { actor: ACTOR }).await;
        match answer.unwrap_or(Err(MachineError::Busy)) {
            Ok(Destroyed::Destroyed(_)) => {
                self.world.meter.record(Measure::TeardownReconciled);
                self.note(machine, "sandbox.teardown_reconciled").await;
                Ok(Step::Done)
            }
            Ok(Destroyed::AlreadyTerminal(_)) => Ok(Step::Skipped),
            Err(error) => {
                self.world.meter.record(Measure::TeardownRefused);
                Err(error)
            }
        }
    }

    async fn retire(&self, machine: &Machine, reason: DestroyReason) -> Result<Step, MachineError> {
        let answer = self
            .replica
            .owner(machine.id)
            .send(Retire { reason, actor: ACTOR })
            .await;
        match answer.unwrap_or(Err(MachineError::Busy))? {
            Destroyed::Destroyed(_) => {
                self.world.meter.record(Measure::MachineReclaimed);
                self.note(machine, "sandbox.expired").await;
                Ok(Step::Done)
            }
            Destroyed::AlreadyTerminal(_) => Ok(Step::Skipped),
        }
    }

    /// Idle: parked. Past its lifetime: an ephemeral machine goes, a home is parked (lifecycle 5.1).
    async fn park(&self, machine: &Machine) -> Result<Step, MachineError> {
        let settings = &self.world.settings;
        let born = machine.last_resumed_at.unwrap_or(machine.inserted_at);
        let too_old = settings.max_lifetime.is_some_and(|most| born <= self.ago(most));
        if too_old && machine.mode == MachineMode::Ephemeral {
            return self.retire(machine, DestroyReason::MaxLifetime).await;
        }
        let ask = Park {
            rule: ParkRule {
                live_servers: Vec::new(),
                idle_before: settings.idle_timeout.filter(|_| !too_old).map(|idle| self.ago(idle)),
                marker_before: Some(self.ago(settings.woken_grace)),
            },
            reason: if too_old {
                DestroyReason::MaxLifetime
            } else {
                DestroyReason::Idle
            },
            requester: None,
            actor: ACTOR,
        };
        let answer = self.replica.owner(machine.id).send(ask).await;
        Ok(match answer.unwrap_or(Err(MachineError::Busy))? {
            Parked::Parked(_) | Parked::Recovered(_) | Parked::Destroying(_) => Step::Done,
            Parked::AlreadyParked(_) | Parked::Gone(_) => Step::Skipped,
        })
    }

    /// An audit row of the sweep's own; it fails nothing.
    async fn note(&self, machine: &Machine, action: &'static str) {
        let Some(account) = machine.account_id else { return };
        let entry = NewAudit {
            account_id: Some(account),
            action,
            resource_type: "sandbox",
            resource_id: Some(machine.id.to_string()),
            actor: ACTOR,
            request_ip: None,
            metadata: [("reason", serde_json::json!(machine.transition_reason))].into(),
        };
        match self.world.store.audit(entry, self.world.now()).await {
            Ok(committed) => committed.announce(self.world.bus.as_ref()),
            Err(error) => tracing::warn!(machine.id = %machine.id, %error, "an audit row was not written"),
        }
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
