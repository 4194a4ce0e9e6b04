//! Destroying what was fenced: M16, M17, M22 and the delete that a failed build owes (lifecycle 2.2, RUL-L-20, 21, 91).
//!
//! 1. **C** claim of a DOOMED row, or of one that ended with `cleanup_pending`.
//! 2. Delete, then look until it is gone.
//! 3. **C** `terminated`, turns ended, sessions forgotten, audit, usage, slot freed — or, unconfirmed, the row stays as it
//!    is, counted and refused to everybody, and the sweep tries again in five minutes.
//!
//! A crash anywhere leaves a DOOMED row; deleting twice is deleting once. Nothing here decides that a machine goes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Site;
use super::delete::{self, Deleted};
use super::facade::{Facade, Trace};
use super::lease::{self, Lease, Taken, Wanted};
use super::messages::{Destroy, Destroyed, MachineError, Retire};
use super::outcome::{self, Settlement};
use crate::domain::Epoch;
use crate::domain::account::Actor;
use crate::domain::machine::{DestroyReason, Machine, MachineEvent, MachineStatus};
use crate::domain::operation::Outcome;
use crate::domain::turn::OrphanReason;
use crate::ports::store::StoreError;
use crate::ports::store::machines::{ClaimRefusal, FenceAnswer, Patch, Purpose};

/// The epoch of a row's first claim.
const FIRST: Epoch = Epoch(1);

/// Finishes a fenced machine, or one that owes a delete.
pub(crate) async fn destroy(site: &Site, ask: Destroy) -> Result<Destroyed, MachineError> {
    let wanted = Wanted {
        purpose: Purpose::Destroy,
        actor: ask.actor.clone(),
        stages: Vec::new(),
        patience: site.world.settings.busy_wait,
    };
    let (lease, claimed) = match lease::take(site, wanted).await? {
        Taken::Lease(taken) => *taken,
        Taken::Held => return Err(MachineError::Busy),
        Taken::Not(ClaimRefusal::Terminal(_)) => {
            let row = site.world.store.machine(site.machine).await?;
            let row = row.ok_or(StoreError::NotFound("sandbox"))?;
            return Ok(Destroyed::AlreadyTerminal(row));
        }
        Taken::Not(ClaimRefusal::Status(_)) => return Err(MachineError::NotFenced),
        Taken::Not(refusal) => return Err(outcome::claim_refused(refusal)),
    };
    let machine = claimed.machine;
    if !lease.is_for_doomed() {
        // M22: a terminal row that still wore its stamp; the claim found nothing owed, so nothing is sent.
        let finished = outcome::finish(site, lease, &Trace::default(), Settlement::of(Outcome::Done)).await?;
        return Ok(Destroyed::AlreadyTerminal(finished.machine));
    }
    if claimed.epoch == FIRST && machine.status == MachineStatus::Pending {
        // Nobody ever held this row, so nothing was ever sent for it: what has its name is somebody else's (INV-60).
        let evidence = json!({ "absent": true, "never_built": true });
        return confirmed(site, lease, &Trace::default(), machine, &ask.actor, evidence).await;
    }
    let Ok(facade) = Facade::of(site, &machine) else {
        return unconfirmed(site, lease, &Trace::default(), "provider_not_configured").await;
    };
    let deleted = match lease.fence() {
        Some(fence) => delete::confirmed(site, &machine, &facade, &fence).await,
        None => Deleted::Superseded,
    };
    match deleted {
        Deleted::Confirmed => {
            let evidence = json!({ "absent": true });
            confirmed(site, lease, facade.trace(), machine, &ask.actor, evidence).await
        }
        Deleted::Unconfirmed(why) => unconfirmed(site, lease, facade.trace(), why).await,
        Deleted::Superseded => Err(outcome::superseded(site, lease, facade.trace()).await),
    }
}

/// M16, or the end of an owed delete.
async fn confirmed(
    site: &Site,
    lease: Lease,
    trace: &Trace,
    machine: Machine,
    actor: &Actor,
    evidence: Value,
) -> Result<Destroyed, MachineError> {
    if machine.status.is_terminal() {
        let settlement = Settlement {
            patch: Patch {
                cleanup_pending: Some(false),
                ..Patch::default()
            },
            evidence: Some(evidence),
            ..Settlement::of(Outcome::Done)
        };
        let finished = outcome::finish(site, lease, trace, settlement).await?;
        return Ok(Destroyed::Destroyed(finished.machine));
    }
    let reason = machine.transition_reason.clone().unwrap_or_default();
    let is_reset = reason == DestroyReason::Reset.as_str();
    let notice = if is_reset {
        outcome::notice(
            "reset",
            &reason,
            "the sandbox was reset; the next prompt builds a new one",
        )
    } else {
        outcome::notice(
            "reclaimed",
            &reason,
            "the sandbox is gone; the next prompt builds a new one",
        )
    };
    let metadata = BTreeMap::from([("reason", Value::from(reason))]);
    let mut audit = Vec::new();
    if is_reset {
        audit = outcome::audit(&machine, "sandbox.reset", actor);
    }
    audit.extend(outcome::audit_with(&machine, "sandbox.destroyed", actor, metadata));
    let settlement = Settlement {
        evidence: Some(evidence),
        end_turns: Some(OrphanReason::MachineDestroyed),
        forget_sessions: true,
        stages: outcome::notices(site, &machine, notice).await?,
        audit,
        usage: Some("terminated"),
        ..Settlement::moved(MachineEvent::DeleteConfirmed)
    };
    let finished = outcome::finish(site, lease, trace, settlement).await?;
    Ok(Destroyed::Destroyed(finished.machine))
}

/// M17, for every reason (RUL-L-20): fence, count and name stay, and the row is tried again.
async fn unconfirmed(site: &Site, lease: Lease, trace: &Trace, why: &str) -> Result<Destroyed, MachineError> {
    let machine = lease.machine();
    let settlement = Settlement {
        keep_stamp: true,
        patch: Patch {
            next_attempt_at: outcome::next_attempt(site),
            ..Patch::default()
        },
        evidence: Some(json!({ "absent": false, "why": why })),
        ..Settlement::of(Outcome::Unconfirmed)
    };
    outcome::finish(site, lease, trace, settlement).await?;
    tracing::warn!(machine.id = %machine, why, "the delete of machine {machine} is not confirmed and will be tried again");
    Err(MachineError::Unconfirmed)
}

/// Fences for a reason of ours, then destroys.
pub(crate) async fn retire(site: &Site, ask: Retire) -> Result<Destroyed, MachineError> {
    match super::fence::fence(site, ask.reason, ask.actor.clone(), None).await? {
        FenceAnswer::AlreadyTerminal(machine) => Ok(Destroyed::AlreadyTerminal(machine)),
        FenceAnswer::Fenced(_) => destroy(site, Destroy { actor: ask.actor }).await,
    }
}
