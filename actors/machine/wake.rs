//! Making a machine usable: M11 to M14 and the look that comes first (lifecycle 5.3, RUL-1, RUL-L-4, RUL-L-45).
//!
//! A machine that is up is looked at and left alone. A parked one: **C** claim with the quota and the stamp `resuming`,
//! resume, **C** `ready`. Refused, it is parked as before and its disk is untouched; an answer that got lost is looked
//! after once, and what is still unknown keeps its stamp for the next operation. A takeover of a dead wake looks and
//! never resumes; the wake that follows it is a new one, with an admission of its own.

use serde_json::json;

use super::Site;
use super::debts;
use super::evidence::{self, Seen};
use super::facade::{CallError, Facade};
use super::lease::{self, Lease, Taken, Wanted};
use super::messages::{EnsureUp, MachineError, Usable};
use super::outcome::{self, Settlement};
use super::settle::{self, Settled};
use crate::domain::ErrorCode;
use crate::domain::event::{NewStage, Stage, StageState};
use crate::domain::machine::{Machine, MachineEvent, MachineState, MachineStatus};
use crate::domain::operation::Outcome;
use crate::ports::sandbox::SandboxError;
use crate::ports::store::machines::{ClaimRefusal, Claimed, Purpose};

/// A look, a settlement, another look and a wake: more rounds than that mean that somebody else works on it too.
const MOST_ROUNDS: usize = 4;

/// Makes the machine usable, or says what stands in the way.
pub(crate) async fn ensure_up(site: &Site, ask: EnsureUp) -> Result<Usable, MachineError> {
    for _ in 0..MOST_ROUNDS {
        let row = settle::row(site).await?;
        let step = match row.state(lease::clock(site).await?) {
            MachineState::New | MachineState::BuildStale => Some(Usable::NotBuilt(row)),
            MachineState::Building => return Err(ErrorCode::Provisioning.into()),
            MachineState::UpBusy | MachineState::Parking | MachineState::Waking => return Err(MachineError::Busy),
            MachineState::Doomed { .. } => return Err(ErrorCode::SandboxResetPending.into()),
            MachineState::Gone(_) => Some(Usable::Gone(row)),
            // What an older operation did is looked after before anything runs (RUL-L-45).
            MachineState::Up | MachineState::Asleep if debts::owes_look(site).await? => {
                lost(debts::before_turn(site, ask.actor.clone()).await?)
            }
            MachineState::Up | MachineState::Asleep => look_and_wake(site, &ask, row).await?,
            MachineState::ParkStale | MachineState::WakeStale => {
                lost(debts::before_turn(site, ask.actor.clone()).await?)
            }
        };
        if let Some(usable) = step {
            return Ok(usable);
        }
    }
    Err(MachineError::Busy)
}

/// A settled row is judged again, unless there is nothing left of it.
fn lost(settled: Settled) -> Option<Usable> {
    match settled {
        Settled::Lost(machine) => Some(Usable::Lost(machine)),
        Settled::Up(_) | Settled::Asleep(_) => None,
    }
}

/// One look before anything is claimed: most prompts end here.
async fn look_and_wake(site: &Site, ask: &EnsureUp, row: Machine) -> Result<Option<Usable>, MachineError> {
    let facade = settle::facade(site, &row)?;
    let seen = match evidence::look(site, &row, &facade).await {
        Ok(seen) => seen,
        Err(error) => return Err(outcome::probe_failed(&error).into()),
    };
    match (row.status, seen) {
        // Looked at again under a lease before the row may go (M18).
        (_, Seen::Absent) => Ok(lost(settle::settle(site, ask.actor.clone()).await?)),
        (MachineStatus::Ready, Seen::Running | Seen::Exists) => Ok(Some(Usable::AlreadyUp(row))),
        (_, Seen::Running | Seen::Exists | Seen::Suspended) => wake(site, ask).await,
    }
}

/// M11: claim, resume, finish. None: the row moved meanwhile and has to be judged again.
async fn wake(site: &Site, ask: &EnsureUp) -> Result<Option<Usable>, MachineError> {
    let wanted = Wanted {
        purpose: Purpose::Wake { limits: ask.limits },
        actor: ask.actor.clone(),
        stages: Vec::new(),
        // A foreign lease is answered at once (RUL-1); our own operations wait in the actor's queue.
        patience: std::time::Duration::ZERO,
    };
    let (lease, claimed) = match lease::take(site, wanted).await? {
        Taken::Lease(taken) => *taken,
        Taken::Held => return Err(MachineError::Busy),
        Taken::Not(ClaimRefusal::Status(_) | ClaimRefusal::Terminal(_)) => return Ok(None),
        Taken::Not(refusal) => return Err(outcome::claim_refused(refusal)),
    };
    let facade = settle::facade(site, &claimed.machine)?;
    if claimed.before.transition.is_some() {
        return take_over(site, ask, lease, &claimed, &facade).await.map(lost);
    }
    let resumed = facade.resume(&lease).await;
    let machine = &claimed.before;
    match resumed {
        Ok(()) => awake(site, ask, lease, &facade, machine, "answered").await.map(Some),
        Err(CallError::Superseded) => Err(outcome::superseded(site, lease, facade.trace()).await),
        Err(CallError::Provider(error)) if error.is_refusal() && error != SandboxError::NotFound => {
            Err(refused(site, ask, lease, &facade, machine, &error).await?)
        }
        // Lost, or said to be gone: one look decides (RUL-L-4).
        Err(CallError::Provider(error)) => match evidence::look(site, machine, &facade).await {
            Ok(Seen::Running | Seen::Exists) if error != SandboxError::NotFound => {
                awake(site, ask, lease, &facade, machine, "seen").await.map(Some)
            }
            Ok(Seen::Absent) => {
                let retired = settle::retire(site, lease, &facade, machine, &ask.actor).await?;
                Ok(Some(Usable::Lost(retired)))
            }
            // Parked as before, as far as a look can tell; the request may act late, so its debt stays (RUL-L-3).
            Ok(_) => {
                outcome::finish(site, lease, facade.trace(), asleep(machine, Outcome::Unknown)).await?;
                Err(ErrorCode::SandboxUnavailable.into())
            }
            Err(_) => {
                outcome::finish(site, lease, facade.trace(), Settlement::unknown()).await?;
                Err(ErrorCode::SandboxUnavailable.into())
            }
        },
    }
}

/// M14: the row was claimed over a dead wake or park. It is counted already; looking is all that is done (INV-32).
async fn take_over(
    site: &Site,
    ask: &EnsureUp,
    lease: Lease,
    claimed: &Claimed,
    facade: &Facade,
) -> Result<Settled, MachineError> {
    match evidence::look(site, &claimed.before, facade).await {
        Ok(seen) => settle::write(site, lease, facade, &claimed.before, seen, &ask.actor).await,
        Err(error) => {
            settle::look_failed(site, lease, facade).await?;
            Err(outcome::probe_failed(&error).into())
        }
    }
}

/// M12, after the network policy is in force again (promise 9, RUL-L-97).
async fn awake(
    site: &Site,
    ask: &EnsureUp,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
    evidence: &str,
) -> Result<Usable, MachineError> {
    if let Some(policy) = &ask.policy {
        match facade.enforce(site, &lease, policy).await {
            Ok(_) => {}
            Err(CallError::Superseded) => return Err(outcome::superseded(site, lease, facade.trace()).await),
            Err(CallError::Provider(error)) => return unguarded(site, ask, lease, facade, machine, &error).await,
        }
    }
    let settlement = Settlement {
        evidence: Some(json!({ "resume": evidence })),
        ..settle::woken(site, machine, &ask.actor)
    };
    let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
    if finished.fenced {
        return Err(ErrorCode::SandboxResetPending.into());
    }
    Ok(Usable::Resumed(finished.machine))
}

/// The policy could not be verified: no command runs, and the machine is parked again.
async fn unguarded(
    site: &Site,
    ask: &EnsureUp,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
    error: &SandboxError,
) -> Result<Usable, MachineError> {
    match facade.suspend(&lease).await {
        Ok(()) => Err(refused(site, ask, lease, facade, machine, error).await?),
        Err(CallError::Superseded) => Err(outcome::superseded(site, lease, facade.trace()).await),
        Err(CallError::Provider(_)) => {
            outcome::finish(site, lease, facade.trace(), Settlement::unknown()).await?;
            Err(ErrorCode::SandboxUnavailable.into())
        }
    }
}

/// M13: parked as before. Answers what the client is told.
async fn refused(
    site: &Site,
    ask: &EnsureUp,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
    error: &SandboxError,
) -> Result<MachineError, MachineError> {
    let failed = NewStage::new(Stage::Wake, StageState::Failed)
        .with("reason", error.class())
        .with("retryable", true)
        .with("message", error.to_string());
    let settlement = Settlement {
        stages: vec![(ask.conversation, failed)],
        ..asleep(machine, Outcome::Refused)
    };
    let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
    let code = if finished.fenced {
        ErrorCode::SandboxResetPending
    } else if error.is_runner_offline() {
        ErrorCode::RunnerOffline
    } else {
        ErrorCode::SandboxResumeFailed
    };
    Ok(code.into())
}

/// The row that a wake leaves when the machine did not wake. One that was `ready` had been seen suspended.
fn asleep(machine: &Machine, outcome: Outcome) -> Settlement {
    Settlement {
        event: (machine.status == MachineStatus::Ready).then_some(MachineEvent::ParkConfirmed),
        ..Settlement::of(outcome)
    }
}
