//! Making a row true again: what a dead operation left is found by looking, under a lease (M10, M14, M18, RUL-L-24).
//!
//! A look never starts compute (INV-32), never guesses, and an error changes nothing. The debt is settled before a turn
//! may run on the machine (RUL-L-45).

use serde_json::json;

use super::Site;
use super::evidence::{self, Seen};
use super::facade::Facade;
use super::lease::{self, Lease, Taken, Wanted};
use super::messages::MachineError;
use super::outcome::{self, Settlement};
use crate::domain::ErrorCode;
use crate::domain::account::Actor;
use crate::domain::machine::{DestroyReason, Machine, MachineEvent, MachineStatus, Transition};
use crate::domain::operation::Outcome;
use crate::domain::turn::OrphanReason;
use crate::ports::store::StoreError;
use crate::ports::store::machines::{Patch, Purpose};

/// What the row says now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Settled {
    Up(Machine),
    Asleep(Machine),
    Lost(Machine),
}

/// The row of this site's machine.
///
/// # Errors
/// `NotFound`, or what the store said.
pub(crate) async fn row(site: &Site) -> Result<Machine, StoreError> {
    let row = site.world.store.machine(site.machine).await?;
    row.ok_or(StoreError::NotFound("sandbox"))
}

/// The machine's provider, as a client hears that it is not configured here.
///
/// # Errors
/// `sandbox_provider_disabled`.
pub(crate) fn facade(site: &Site, machine: &Machine) -> Result<Facade, MachineError> {
    Facade::of(site, machine).map_err(|_| ErrorCode::SandboxProviderDisabled.into())
}

/// Claims the machine for looking at it.
///
/// # Errors
/// [`MachineError::Busy`] when it is held longer than a caller waits.
pub(crate) async fn claim_to_confirm(
    site: &Site,
    actor: Actor,
    patience: std::time::Duration,
) -> Result<(Lease, crate::ports::store::machines::Claimed), MachineError> {
    let wanted = Wanted {
        purpose: Purpose::Confirm,
        actor,
        stages: Vec::new(),
        patience,
    };
    match lease::take(site, wanted).await? {
        Taken::Lease(taken) => Ok(*taken),
        Taken::Held => Err(MachineError::Busy),
        Taken::Not(refusal) => Err(outcome::claim_refused(refusal)),
    }
}

/// Settles PARK-STALE and WAKE-STALE, and retires a machine that its provider does not know.
///
/// # Errors
/// Busy, refused, or a look that did not answer; then the stamp stays.
pub(crate) async fn settle(site: &Site, actor: Actor) -> Result<Settled, MachineError> {
    let patience = site.world.settings.busy_wait;
    let (lease, claimed) = claim_to_confirm(site, actor.clone(), patience).await?;
    let facade = facade(site, &claimed.machine)?;
    match evidence::look(site, &claimed.machine, &facade).await {
        Ok(seen) => write(site, lease, &facade, &claimed.machine, seen, &actor).await,
        Err(error) => {
            look_failed(site, lease, &facade).await?;
            Err(outcome::probe_failed(&error).into())
        }
    }
}

/// Nothing was learned and nothing was sent: the stamp and its debt stay as they are.
///
/// # Errors
/// What the store said.
pub(crate) async fn look_failed(site: &Site, lease: Lease, facade: &Facade) -> Result<(), MachineError> {
    let kept = Settlement {
        keep_stamp: true,
        ..Settlement::of(Outcome::Failed)
    };
    outcome::finish(site, lease, facade.trace(), kept).await.map(|_| ())
}

/// Writes the smallest true state for what was seen.
///
/// # Errors
/// What the store said.
pub(crate) async fn write(
    site: &Site,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
    seen: Seen,
    actor: &Actor,
) -> Result<Settled, MachineError> {
    let stamped = matches!(machine.transition, Some(Transition::Parking | Transition::Resuming));
    let evidence = Some(json!({ "seen": seen.word() }));
    let asleep = machine.status == MachineStatus::Suspended;
    match seen {
        Seen::Absent => retire(site, lease, facade, machine, actor).await.map(Settled::Lost),
        Seen::Suspended => {
            let settlement = Settlement {
                evidence,
                // Its processes are stopped with it, so turns that ran there cannot go on.
                end_turns: (!asleep).then_some(OrphanReason::MachineParked),
                usage: (!asleep).then_some("suspended"),
                ..Settlement::moved(MachineEvent::ParkConfirmed)
            };
            let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
            Ok(Settled::Asleep(finished.machine))
        }
        // Existence alone moves only what wore a stamp (RUL-L-24, RUL-L-115).
        Seen::Exists if asleep && !stamped => {
            let settlement = Settlement {
                evidence,
                ..Settlement::of(Outcome::Done)
            };
            let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
            Ok(Settled::Asleep(finished.machine))
        }
        Seen::Running | Seen::Exists => {
            let settlement = Settlement {
                evidence,
                ..woken(site, machine, actor)
            };
            let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
            Ok(Settled::Up(finished.machine))
        }
    }
}

/// The machine runs: what is written depends on whether that is news (M12, M19, M20, INV-35).
pub(crate) fn woken(site: &Site, machine: &Machine, actor: &Actor) -> Settlement {
    let news = machine.status == MachineStatus::Suspended;
    Settlement {
        patch: Patch {
            last_resumed_at: news.then(|| site.world.now()),
            ..Patch::default()
        },
        audit: if news {
            outcome::audit(machine, "sandbox.resumed", actor)
        } else {
            Vec::new()
        },
        usage: news.then_some("resumed"),
        ..Settlement::moved(MachineEvent::WakeConfirmed)
    }
}

/// M18: its provider does not know it any more.
///
/// # Errors
/// What the store said.
pub(crate) async fn retire(
    site: &Site,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
    actor: &Actor,
) -> Result<Machine, MachineError> {
    let reason = DestroyReason::ProviderGone.as_str();
    let notice = outcome::notice("reclaimed", reason, "the provider does not know the sandbox any more");
    let metadata = std::collections::BTreeMap::from([("reason", serde_json::Value::from(reason))]);
    let settlement = Settlement {
        evidence: Some(json!({ "seen": Seen::Absent.word() })),
        end_turns: Some(OrphanReason::MachineDestroyed),
        forget_sessions: true,
        stages: outcome::notices(site, machine, notice).await?,
        audit: outcome::audit_with(machine, "sandbox.destroyed", actor, metadata),
        usage: Some("terminated"),
        ..Settlement::moved(MachineEvent::DeleteConfirmed)
    };
    tracing::warn!(machine.id = %machine.id, provider = %machine.provider, "machine {} is lost at its provider", machine.id);
    Ok(outcome::retire_lost(site, lease, facade.trace(), settlement)
        .await?
        .machine)
}
