//! Building a machine: M2 to M6 (lifecycle 4.4, RUL-L-21, RUL-L-22, RUL-L-33).
//!
//! 1. **C** claim: stamp `provisioning`, journal row, `provision/started`.
//! 2. What cannot be built fails here, before anything is created (RUL-14, RUL-52).
//! 3. A remnant of an earlier build is deleted with confirmation and its minted name given up, so that a late call of
//!    the old build hits a name that nobody uses.
//! 4. Create; what it found is judged by the journal ([`adopt`]). **C** row `starting`.
//! 5. Restore of the environment's checkpoint, or packages. Network policy, read back. **C** callback key. Repositories and setup script unless restored,
//!    checkpoint. Files, the environment file
//!    last.
//! 6. **C** `ready` with the fingerprint, stamp and lease gone, `provision/done`.
//!
//! A crash leaves BUILD-STALE; the adoption pass starts a server that begins again at 1. A failure tries one delete and
//! writes `failed` at once, with `cleanup_pending` when the delete is owed. A fence that committed before 6 wins: the
//! machine is deleted by its own owner next. A lost lease writes nothing and deletes nothing, because the taker builds.

mod adopt;
mod cold;
mod pipeline;
mod warm;
pub(crate) mod watchdog;

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::Site;
use super::delete::{self, Deleted};
use super::facade::{Facade, Trace};
use super::lease::{self, Lease, Taken, Wanted};
use super::messages::{FailBuild, MachineError, Provision, ProvisionError, ProvisionFailure, Provisioned};
use super::outcome::{self, Settlement};
use crate::domain::account::Actor;
use crate::domain::event::{NewStage, Stage, StageState};
use crate::domain::machine::{Machine, MachineEvent, MachineState, MachineStatus, Transition};
use crate::domain::operation::Verb;
use crate::domain::{ConversationId, ErrorCode};
use crate::ports::meter::Measure;
use crate::ports::store::StoreError;
use crate::ports::store::machines::{ClaimRefusal, Claimed, Patch, Purpose};
use pipeline::Build;

/// Who writes the audit row of a build (lifecycle 10.3).
const BUILDER: Actor = Actor::System("conversation_server");

/// Why a build stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// M5.
    Failed(ProvisionFailure),
    /// The lease is lost: write nothing, delete nothing (INV-24).
    Superseded,
    /// Fenced, or its row ended: this build deletes exactly its own machine.
    Doomed,
    /// The database does not answer: the stamp stays and the build begins again later.
    Store(StoreError),
}

impl Stop {
    /// A step that failed.
    pub fn at(stage: Stage, reason: &str, message: impl Into<String>) -> Self {
        Self::Failed(ProvisionFailure {
            stage,
            reason: reason.into(),
            message: message.into(),
            exit_code: None,
            at_ceiling: false,
        })
    }
}

/// Builds the machine, or says why not.
pub(crate) async fn provision(site: &Site, ask: Provision) -> Result<Provisioned, ProvisionError> {
    let started = Instant::now();
    let row = site
        .world
        .store
        .machine(site.machine)
        .await?
        .ok_or(StoreError::NotFound("sandbox"))?;
    let mut announced = NewStage::new(Stage::Provision, StageState::Started);
    if may_have_remnant(&row) {
        announced = announced.with("retry", true);
    }
    let wanted = Wanted {
        purpose: Purpose::Provision,
        actor: BUILDER,
        stages: vec![(ask.conversation, announced)],
        patience: site.world.settings.busy_wait,
    };
    let (lease, claimed) = match lease::take(site, wanted).await? {
        Taken::Lease(taken) => *taken,
        Taken::Held => return Err(ProvisionError::ClaimedElsewhere),
        Taken::Not(refusal) => return not_claimed(site, refusal).await,
    };
    let ceiling = started + site.world.settings.provision_ceiling;
    let conversation = ask.conversation;
    let mut build = match Build::new(site, &lease, &claimed, ask) {
        Ok(build) => build,
        Err(error) => {
            let stop = Stop::at(Stage::Provision, "sandbox_provider_disabled", error.to_string());
            return Err(fail(site, lease, &claimed.machine, None, stop, conversation).await);
        }
    };
    let ran = match tokio::time::timeout_at(ceiling, build.run()).await {
        Ok(ran) => ran,
        Err(_) => {
            site.world.meter.record(Measure::ProvisionDeadlineExceeded);
            Err(Stop::Failed(ProvisionFailure {
                stage: Stage::Provision,
                reason: "deadline_exceeded".into(),
                message: "the build took too long and was given up; the next prompt builds anew".into(),
                exit_code: None,
                at_ceiling: true,
            }))
        }
    };
    let (facade, machine, settlement) = build.into_parts(started.elapsed());
    match ran {
        Ok(()) => {
            let finished = match outcome::finish(site, lease, facade.trace(), settlement).await {
                Ok(finished) => finished,
                Err(MachineError::Superseded) => return Err(ProvisionError::ClaimedElsewhere),
                Err(MachineError::Store(error)) => return Err(error.into()),
                Err(_) => return Err(ProvisionError::Crashed),
            };
            if finished.fenced {
                return Err(ProvisionError::Doomed);
            }
            site.world.meter.record(Measure::FreshProvision(started.elapsed()));
            Ok(Provisioned {
                machine: finished.machine,
                built: true,
            })
        }
        Err(stop) => Err(fail(site, lease, &machine, Some(facade), stop, conversation).await),
    }
}

/// What to say when the machine could not be claimed for a build.
async fn not_claimed(site: &Site, refusal: ClaimRefusal) -> Result<Provisioned, ProvisionError> {
    match refusal {
        ClaimRefusal::Doomed { .. } => Err(ProvisionError::Doomed),
        ClaimRefusal::Missing => Err(StoreError::NotFound("sandbox").into()),
        ClaimRefusal::Terminal(status) => Err(ProvisionError::NotBuildable(MachineState::Gone(status))),
        ClaimRefusal::Refused(refusal) => Err(StoreError::Refused(refusal).into()),
        ClaimRefusal::Status(_) | ClaimRefusal::Occupied | ClaimRefusal::NotExpired | ClaimRefusal::NameTaken => {
            let row = site
                .world
                .store
                .machine(site.machine)
                .await?
                .ok_or(StoreError::NotFound("sandbox"))?;
            if row.status == MachineStatus::Ready {
                return Ok(Provisioned {
                    machine: row,
                    built: false,
                });
            }
            let now = lease::clock(site).await?;
            Err(ProvisionError::NotBuildable(row.state(now)))
        }
    }
}

/// Ends a build that stopped: what is written and deleted depends on who owns the row now (lifecycle 4.4).
async fn fail(
    site: &Site,
    lease: Lease,
    machine: &Machine,
    facade: Option<Facade>,
    stop: Stop,
    conversation: ConversationId,
) -> ProvisionError {
    match stop {
        Stop::Superseded => {
            let nothing = Trace::default();
            let trace = facade.as_ref().map_or(&nothing, Facade::trace);
            outcome::superseded(site, lease, trace).await;
            ProvisionError::ClaimedElsewhere
        }
        Stop::Store(error) => ProvisionError::Store(error),
        Stop::Doomed => {
            give_way(site, lease, machine, facade).await;
            ProvisionError::Doomed
        }
        Stop::Failed(failure) => {
            let mut stages = Vec::new();
            for stage in [
                Some(failure.stage).filter(|stage| *stage != Stage::Provision),
                Some(Stage::Provision),
            ] {
                stages.extend(stage.map(|stage| {
                    let mut failed = NewStage::new(stage, StageState::Failed)
                        .with("reason", failure.reason.clone())
                        .with("message", failure.message.clone());
                    if let Some(code) = failure.exit_code.filter(|_| stage != Stage::Provision) {
                        failed = failed.with("exit_code", code);
                    }
                    (conversation, failed)
                }));
            }
            match close(site, lease, machine, facade, &failure.reason, stages, &BUILDER).await {
                Ok(_) => ProvisionError::Failed(failure),
                Err(MachineError::Superseded) => ProvisionError::ClaimedElsewhere,
                Err(MachineError::Store(error)) => ProvisionError::Store(error),
                Err(_) => ProvisionError::Doomed,
            }
        }
    }
}

/// The row was fenced, or ended, under the build. A fenced one is destroyed by its owner next (RUL-L-25); for one that
/// ended there is no such next, so the builder deletes what it made.
async fn give_way(site: &Site, lease: Lease, machine: &Machine, facade: Option<Facade>) {
    let Some(facade) = facade else { return };
    let row = site.world.store.machine(site.machine).await;
    if row.is_ok_and(|row| row.is_none_or(|row| row.status.is_terminal())) {
        if let Some(fence) = lease.fence() {
            let deleted = delete::confirmed(site, machine, &facade, &fence).await;
            tracing::warn!(machine.id = %machine.id, ?deleted, "a build whose row had ended deleted its own machine");
        }
        return;
    }
    let mut settlement = Settlement::of(facade.trace().failure());
    settlement.evidence = Some(json!({ "fenced": true }));
    settlement.keep_stamp = true;
    if let Err(error) = outcome::finish(site, lease, facade.trace(), settlement).await {
        tracing::warn!(machine.id = %machine.id, %error, "a fenced build could not be closed");
    }
}

/// M5, M6: one delete, then `failed` at once; the delete is owed when it was not confirmed (RUL-L-21).
async fn close(
    site: &Site,
    lease: Lease,
    machine: &Machine,
    facade: Option<Facade>,
    reason: &str,
    stages: Vec<(ConversationId, NewStage)>,
    actor: &Actor,
) -> Result<Machine, MachineError> {
    let mut patch = Patch::default();
    let mut evidence = json!({ "reason": reason });
    if let (Some(facade), Some(fence)) = (&facade, lease.fence())
        && facade.trace().owes_delete()
    {
        match delete::confirmed(site, machine, facade, &fence).await {
            Deleted::Confirmed => evidence = json!({ "reason": reason, "deleted": true }),
            Deleted::Superseded => return Err(outcome::superseded(site, lease, facade.trace()).await),
            Deleted::Unconfirmed(why) => {
                evidence = json!({ "reason": reason, "deleted": false, "why": why });
                patch.cleanup_pending = Some(true);
                patch.next_attempt_at = outcome::next_attempt(site);
            }
        }
    }
    let nothing = Trace::default();
    let trace = facade.as_ref().map_or(&nothing, Facade::trace);
    let settlement = Settlement {
        event: Some(MachineEvent::BuildFailed),
        patch,
        evidence: Some(evidence),
        stages,
        audit: outcome::audit(machine, "sandbox.provision_failed", actor),
        usage: Some("provision_failed"),
        ..Settlement::of(trace.failure())
    };
    Ok(outcome::finish(site, lease, trace, settlement).await?.machine)
}

/// What came of ending a build from outside.
pub(super) enum Ended {
    /// The row is `failed` by this.
    Now(Box<Machine>),
    /// It had ended or settled before, or is somebody's to destroy: nothing was done.
    Before,
}

/// Ends a build that nobody carries any more (M6, RUL-L-23).
pub(crate) async fn fail_build(site: &Site, ask: FailBuild) -> Result<Machine, MachineError> {
    match end_build(site, ask, site.world.settings.busy_wait).await? {
        Ended::Now(machine) => Ok(*machine),
        Ended::Before => {
            let row = site.world.store.machine(site.machine).await?;
            let row = row.ok_or(StoreError::NotFound("sandbox"))?;
            match (row.status.is_terminal(), row.transition) {
                (true, _) => Ok(row),
                (false, Some(Transition::Destroying)) => Err(ErrorCode::SandboxResetPending.into()),
                (false, _) => Err(ErrorCode::SandboxUnavailable.into()),
            }
        }
    }
}

/// [`fail_build`], waiting this long for the lease.
async fn end_build(site: &Site, ask: FailBuild, patience: Duration) -> Result<Ended, MachineError> {
    let wanted = Wanted {
        purpose: Purpose::Provision,
        actor: ask.actor.clone(),
        stages: Vec::new(),
        patience,
    };
    let (lease, claimed) = match lease::take(site, wanted).await? {
        Taken::Lease(taken) => *taken,
        Taken::Held => return Err(MachineError::Busy),
        Taken::Not(
            ClaimRefusal::Missing | ClaimRefusal::Terminal(_) | ClaimRefusal::Status(_) | ClaimRefusal::Doomed { .. },
        ) => return Ok(Ended::Before),
        Taken::Not(refusal) => return Err(outcome::claim_refused(refusal)),
    };
    let stages = ask.conversation.into_iter().map(|conversation| {
        let failed = NewStage::new(Stage::Provision, StageState::Failed)
            .with("reason", ask.reason.clone())
            .with("message", ask.message.clone());
        (conversation, failed)
    });
    let facade = Facade::of(site, &claimed.machine).ok();
    if let Some(facade) = facade.as_ref().filter(|_| is_rebuild(&claimed)) {
        facade.trace().inherited_create();
    }
    let failed = close(
        site,
        lease,
        &claimed.machine,
        facade,
        &ask.reason,
        stages.collect(),
        &ask.actor,
    );
    Ok(Ended::Now(Box::new(failed.await?)))
}

/// The row alone says that an earlier build got past its claim.
fn may_have_remnant(row: &Machine) -> bool {
    row.transition == Some(Transition::Provisioning) || row.status == MachineStatus::Starting
}

/// An earlier build of this row may have left something under its name.
fn is_rebuild(claimed: &Claimed) -> bool {
    may_have_remnant(&claimed.before) || claimed.debts.iter().any(|debt| debt.verb == Verb::Provision)
}
