//! The second transaction of an operation: what came of it, in one commit (RUL-L-10).
//!
//! Outcome, cleared stamp, turn endings, audit, usage, stages, journal and release commit together, so a finished
//! operation cannot leave a held lease, and a crash before it leaves stamp and journal row for the next holder. A
//! database that does not answer is asked three times; after that the stamp stays and the lease is given back.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Site;
use super::facade::Trace;
use super::lease::Lease;
use super::messages::MachineError;
use crate::domain::account::{Actor, NewAudit};
use crate::domain::event::{NewStage, Stage, StageState};
use crate::domain::machine::{Machine, MachineEvent, Transition};
use crate::domain::operation::Outcome;
use crate::domain::turn::OrphanReason;
use crate::domain::{ConversationId, ErrorCode, Moment, Refusal};
use crate::ports::meter::Measure;
use crate::ports::sandbox::SandboxError;
use crate::ports::store::machines::{ClaimRefusal, Finish, Finished, Patch};
use crate::ports::store::{Committed, StoreError};
use crate::retry::{Policy, Verdict, retry};

/// How an operation ended.
pub(crate) struct Settlement {
    pub outcome: Outcome,
    pub event: Option<MachineEvent>,
    pub keep_stamp: bool,
    pub patch: Patch,
    pub evidence: Option<Value>,
    pub end_turns: Option<OrphanReason>,
    pub forget_sessions: bool,
    pub stages: Vec<(ConversationId, NewStage)>,
    pub audit: Vec<NewAudit>,
    pub usage: Option<&'static str>,
}

impl Settlement {
    /// Nothing but a journal entry and a cleared stamp.
    pub fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            event: None,
            keep_stamp: false,
            patch: Patch::default(),
            evidence: None,
            end_turns: None,
            forget_sessions: false,
            stages: Vec::new(),
            audit: Vec::new(),
            usage: None,
        }
    }

    /// The machine moved.
    pub fn moved(event: MachineEvent) -> Self {
        Self {
            event: Some(event),
            ..Self::of(Outcome::Done)
        }
    }

    /// Nobody knows what the call did: the stamp stays, and the journal row is a debt (RUL-L-4).
    pub fn unknown() -> Self {
        Self {
            keep_stamp: true,
            ..Self::of(Outcome::Unknown)
        }
    }

    /// Whether the provider said how the machine is. Every successful look stands in the evidence; a move says that an
    /// effect was answered, except that a failed build moves whatever the provider said.
    fn learned(&self) -> bool {
        let told = |key: &str, wanted: fn(&Value) -> bool| {
            let said = self.evidence.as_ref().and_then(|evidence| evidence.get(key));
            said.is_some_and(wanted)
        };
        let moved = self.event.is_some_and(|event| event != MachineEvent::BuildFailed);
        let is_true = |value: &Value| value == &Value::Bool(true);
        let seen = |value: &Value| value.is_string();
        moved || told("seen", seen) || told("absent", is_true) || told("deleted", is_true)
    }

    fn into_finish(self, site: &Site, lease: &Lease, trace: &Trace) -> Finish {
        let learned = self.learned();
        Finish {
            machine_id: lease.machine(),
            epoch: lease.epoch(),
            operation_id: lease.operation(),
            event: self.event,
            keep_stamp: self.keep_stamp,
            patch: self.patch,
            learned,
            receipt: trace.receipt(self.outcome, self.evidence),
            end_turns: self.end_turns,
            forget_sessions: self.forget_sessions,
            stages: self.stages,
            audit: self.audit,
            usage: self.usage,
            now: site.world.now(),
        }
    }
}

/// Commits the outcome and lets the lease go.
///
/// # Errors
/// [`MachineError::Superseded`] when somebody newer holds the machine; the store's word when it does not answer.
pub(crate) async fn finish(
    site: &Site,
    lease: Lease,
    trace: &Trace,
    settlement: Settlement,
) -> Result<Finished, MachineError> {
    let finish = settlement.into_finish(site, &lease, trace);
    let store = &site.world.store;
    let finished = close(site, lease, || store.finish(finish.clone())).await?;
    count(site, &finish.stages);
    Ok(finished)
}

/// M18: the row ends because its provider does not know the machine; its turns end with it.
///
/// # Errors
/// As [`finish`].
pub(crate) async fn retire_lost(
    site: &Site,
    lease: Lease,
    trace: &Trace,
    settlement: Settlement,
) -> Result<Finished, MachineError> {
    let finish = settlement.into_finish(site, &lease, trace);
    let store = &site.world.store;
    close(site, lease, || store.retire_lost(finish.clone())).await
}

/// An admin's reap: the row ends, and nobody asks its provider any more (RUL-L-47).
///
/// # Errors
/// As [`finish`].
pub(crate) async fn hand_over(
    site: &Site,
    lease: Lease,
    trace: &Trace,
    settlement: Settlement,
) -> Result<Finished, MachineError> {
    let finish = settlement.into_finish(site, &lease, trace);
    let store = &site.world.store;
    let finished = close(site, lease, || store.hand_over(finish.clone())).await?;
    count(site, &finish.stages);
    Ok(finished)
}

/// The lease is lost, or cannot be shown to be held: the one thing that is still written is the journal row, with what
/// was sent until then (RUL-L-3). Should the row be ours after all, its stamp stays for whoever comes next.
pub(crate) async fn superseded(site: &Site, lease: Lease, trace: &Trace) -> MachineError {
    let kept = Settlement {
        keep_stamp: true,
        ..Settlement::of(Outcome::Superseded)
    };
    let finish = kept.into_finish(site, &lease, trace);
    lease.superseded();
    if let Err(error) = site.world.store.finish(finish).await {
        tracing::info!(machine.id = %site.machine, %error, "an operation on machine {} was superseded", site.machine);
    }
    MachineError::Superseded
}

async fn close<'s>(
    site: &Site,
    lease: Lease,
    mut commit: impl FnMut() -> crate::ports::store::Answer<'s, Committed<Finished>>,
) -> Result<Finished, MachineError> {
    let world = &site.world;
    match retry(Policy::CONTRACT, &mut || world.rng.unit(), transient, |_| commit()).await {
        Ok(committed) => {
            let was_for_doomed = lease.is_for_doomed();
            lease.finished();
            let mut finished = committed.announce(world.bus.as_ref());
            let machine = &finished.machine;
            if !machine.is_counted() {
                world.bus.slot_freed(); // INV-102: after the commit
            }
            // The fence shows on the row whatever the operation wrote; a destroy that could not be confirmed is left to
            // the sweep, or it would run in circles.
            if !was_for_doomed && !machine.status.is_terminal() && machine.transition == Some(Transition::Destroying) {
                finished.fenced = true;
                site.doomed.set(true);
            }
            Ok(finished)
        }
        Err(StoreError::Stale(_)) => {
            lease.superseded();
            Err(MachineError::Superseded)
        }
        Err(error) => Err(error.into()),
    }
}

/// Counts stages that were published.
pub(crate) fn count(site: &Site, stages: &[(ConversationId, NewStage)]) {
    for (_, NewStage { stage, state, .. }) in stages {
        site.world.meter.record(Measure::Stage {
            stage: *stage,
            state: *state,
        });
    }
}

/// What is worth asking the database again.
pub(crate) fn transient(error: &StoreError) -> Verdict {
    if error.is_transient() {
        Verdict::Transient
    } else {
        Verdict::Permanent
    }
}

/// An audit row about this machine; none once its account is gone (lifecycle 10.3).
pub(crate) fn audit(machine: &Machine, action: &'static str, actor: &Actor) -> Vec<NewAudit> {
    audit_with(machine, action, actor, BTreeMap::new())
}

/// As [`audit`], with metadata.
pub(crate) fn audit_with(
    machine: &Machine,
    action: &'static str,
    actor: &Actor,
    metadata: BTreeMap<&'static str, Value>,
) -> Vec<NewAudit> {
    machine
        .account_id
        .map(|account| NewAudit {
            account_id: Some(account),
            action,
            resource_type: "sandbox",
            resource_id: Some(machine.id.to_string()),
            actor: actor.clone(),
            request_ip: None,
            metadata,
        })
        .into_iter()
        .collect()
}

/// `sandbox/done` for everybody whose conversation on this machine has not ended (lifecycle 10.2).
///
/// # Errors
/// What the store said.
pub(crate) async fn notices(
    site: &Site,
    machine: &Machine,
    notice: NewStage,
) -> Result<Vec<(ConversationId, NewStage)>, StoreError> {
    let Some(account) = machine.account_id else {
        return Ok(Vec::new());
    };
    let view = site.world.store.machine_view(account, machine.id).await?;
    Ok(view
        .into_iter()
        .flat_map(|view| view.conversations)
        .filter(|tenant| !tenant.status.is_terminal())
        .map(|tenant| (tenant.id, notice.clone()))
        .collect())
}

/// The stage that tells what became of a machine.
pub(crate) fn notice(event: &str, reason: &str, message: &str) -> NewStage {
    NewStage::new(Stage::Sandbox, StageState::Done)
        .with("event", event)
        .with("reason", reason)
        .with("message", message)
}

/// What a claim that was not had means for a verb that a client asked for.
pub(crate) fn claim_refused(refusal: ClaimRefusal) -> MachineError {
    match refusal {
        ClaimRefusal::Missing => StoreError::NotFound("sandbox").into(),
        ClaimRefusal::Doomed { .. } => ErrorCode::SandboxResetPending.into(),
        ClaimRefusal::Terminal(_) | ClaimRefusal::Status(_) | ClaimRefusal::NameTaken => {
            ErrorCode::SandboxUnavailable.into()
        }
        ClaimRefusal::Occupied => MachineError::Occupied,
        ClaimRefusal::NotExpired => MachineError::NotExpired,
        ClaimRefusal::Refused(refusal) => refusal.into(),
    }
}

/// A probe that did not answer, as a client hears it.
pub(crate) fn probe_failed(error: &SandboxError) -> Refusal {
    if error.is_runner_offline() {
        ErrorCode::RunnerOffline.into()
    } else {
        ErrorCode::SandboxProbeFailed.into()
    }
}

/// `now` plus what a sweep waits before it tries such a row again (RUL-L-55).
pub(crate) fn next_attempt(site: &Site) -> Option<Moment> {
    Some(crate::ports::clock::after(
        site.world.now(),
        site.world.settings.delete_rest,
    ))
}
