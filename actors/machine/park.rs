//! Parking: M7 to M10 (lifecycle 5.2, RUL-L-4, RUL-L-27, RUL-L-43).
//!
//! 1. **C** claim: who works on the machine is judged in the transaction that stamps `parking`.
//! 2. What a dead park left is settled by looking, and that is all that is done then (M10).
//! 3. Bytes on any session of the machine inside the idle bound refuse, and so does a list that cannot be read; the
//!    ceiling asks nobody.
//! 4. Suspend. **C** `suspended`, slot freed. Refused: up as before, tried again later; three refusals over a quarter of
//!    an hour end an ephemeral machine and leave a home up and reported. Unknown: one look, else the stamp stays.
//!
//! A provider that cannot suspend makes this a destroy: the fence commits under the lease, so that no turn slips between.

use std::time::Duration;

use serde_json::json;

use super::Site;
use super::evidence::{self, Seen};
use super::facade::{CallError, Facade};
use super::lease::{self, Lease, Taken, Wanted};
use super::messages::{MachineError, Park, Parked};
use super::outcome::{self, Settlement};
use super::settle::{self, Settled};
use crate::domain::machine::{Machine, MachineEvent, MachineMode, MachineStatus, Transition};
use crate::domain::operation::{Outcome, Verb};
use crate::domain::{ErrorCode, Moment};
use crate::ports::clock;
use crate::ports::meter::Measure;
use crate::ports::sandbox::{Capability, SandboxError};
use crate::ports::store::StoreError;
use crate::ports::store::machines::{ClaimRefusal, Patch, Purpose};

/// Refusals in a row after which an ephemeral machine is given up (RUL-L-27).
const REFUSALS: usize = 3;
/// Over at least this long.
const REFUSED_FOR: Duration = Duration::from_secs(15 * 60);
/// Journal rows that are looked at for that: at one attempt in five minutes, far more than a quarter of an hour.
const JOURNAL: i64 = 50;

/// Parks the machine, if its rule holds.
pub(crate) async fn park(site: &Site, ask: Park) -> Result<Parked, MachineError> {
    let wanted = Wanted {
        purpose: Purpose::Park(ask.rule.clone()),
        actor: ask.actor.clone(),
        stages: Vec::new(),
        patience: site.world.settings.busy_wait,
    };
    let (lease, claimed) = match lease::take(site, wanted).await? {
        Taken::Lease(taken) => *taken,
        Taken::Held => return Err(MachineError::Busy),
        Taken::Not(ClaimRefusal::Terminal(_)) => return Ok(Parked::Gone(settle::row(site).await?)),
        Taken::Not(ClaimRefusal::Status(MachineStatus::Suspended)) => {
            return Ok(Parked::AlreadyParked(settle::row(site).await?));
        }
        Taken::Not(refusal) => return Err(outcome::claim_refused(refusal)),
    };
    let facade = settle::facade(site, &claimed.machine)?;
    if claimed.before.transition == Some(Transition::Parking) {
        return recover(site, &ask, lease, &facade, &claimed.before).await;
    }
    if !facade.capabilities().contains(&Capability::Suspend) {
        return destroy_instead(site, &ask, lease, &facade).await;
    }
    let machine = claimed.machine;
    if let Err(error) = quiet(&ask, &facade).await {
        let stood_down = Settlement::of(Outcome::Refused);
        outcome::finish(site, lease, facade.trace(), stood_down).await?;
        return Err(error);
    }
    match facade.suspend(&lease).await {
        Ok(()) => parked(site, &ask, lease, &facade, &machine).await,
        Err(CallError::Superseded) => Err(outcome::superseded(site, lease, facade.trace()).await),
        Err(CallError::Provider(error)) if error.is_refusal() => {
            refused(site, &ask, lease, &facade, &machine, &error).await
        }
        Err(CallError::Provider(_)) => match evidence::look(site, &machine, &facade).await {
            Ok(Seen::Suspended) => parked(site, &ask, lease, &facade, &machine).await,
            // Up as before, as far as a look can tell; the request may act late, so its debt stays (RUL-L-3).
            Ok(seen) => {
                let up = Settlement {
                    evidence: Some(json!({ "seen": seen.word() })),
                    ..Settlement::of(Outcome::Unknown)
                };
                outcome::finish(site, lease, facade.trace(), up).await?;
                Err(MachineError::SuspendFailed)
            }
            Err(_) => {
                outcome::finish(site, lease, facade.trace(), Settlement::unknown()).await?;
                Err(MachineError::SuspendFailed)
            }
        },
    }
}

/// M10: a park that died half-way. Absence found here changes nothing; the next wake or reattach retires the row.
async fn recover(
    site: &Site,
    ask: &Park,
    lease: Lease,
    facade: &Facade,
    before: &Machine,
) -> Result<Parked, MachineError> {
    let seen = match evidence::look(site, before, facade).await {
        Ok(Seen::Absent) => Seen::Exists,
        Ok(seen) => seen,
        Err(error) => {
            settle::look_failed(site, lease, facade).await?;
            return Err(outcome::probe_failed(&error).into());
        }
    };
    let settled = settle::write(site, lease, facade, before, seen, &ask.actor).await?;
    Ok(match settled {
        Settled::Up(machine) | Settled::Asleep(machine) | Settled::Lost(machine) => Parked::Recovered(machine),
    })
}

/// Whether nothing was said on any session within the idle bound (RUL-L-43).
async fn quiet(ask: &Park, facade: &Facade) -> Result<(), MachineError> {
    let Some(idle_before) = ask.rule.idle_before else {
        return Ok(());
    };
    match facade.sessions().await {
        Ok(sessions) => {
            let talked = |at: crate::domain::Moment| at > idle_before;
            if sessions
                .iter()
                .any(|session| session.last_activity_at.is_some_and(talked))
            {
                return Err(MachineError::Occupied);
            }
            Ok(())
        }
        // A provider without sessions is judged by what we received, which the claim has done.
        Err(SandboxError::NotSupported) => Ok(()),
        Err(error) => Err(outcome::probe_failed(&error).into()),
    }
}

/// M8.
async fn parked(
    site: &Site,
    ask: &Park,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
) -> Result<Parked, MachineError> {
    let notice = outcome::notice(
        "suspended",
        ask.reason.as_str(),
        "the sandbox is parked; the next prompt wakes it",
    );
    let settlement = Settlement {
        stages: outcome::notices(site, machine, notice).await?,
        audit: outcome::audit(machine, "sandbox.suspended", &ask.actor),
        usage: Some("suspended"),
        ..Settlement::moved(MachineEvent::ParkConfirmed)
    };
    let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
    site.world.meter.record(Measure::MachineSuspended);
    if finished.fenced {
        return Ok(Parked::Destroying(finished.machine));
    }
    Ok(Parked::Parked(finished.machine))
}

/// M9: up as before. A refusal by itself destroys nothing (RUL-L-27).
async fn refused(
    site: &Site,
    ask: &Park,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
    error: &SandboxError,
) -> Result<Parked, MachineError> {
    let (times, first) = earlier_refusals(site, machine).await?;
    let for_long = first.is_some_and(|first| first <= clock::before(site.world.now(), REFUSED_FOR));
    let given_up = times + 1 >= REFUSALS && for_long;
    if given_up && machine.mode == MachineMode::Ephemeral {
        return destroy_instead(site, ask, lease, facade).await;
    }
    if given_up {
        tracing::error!(
            machine.id = %machine.id, provider = %machine.provider, class = error.class(), times = times + 1,
            "machine {} cannot be parked: its provider refuses; it stays up and counted", machine.id
        );
    }
    let settlement = Settlement {
        patch: Patch {
            next_attempt_at: outcome::next_attempt(site),
            ..Patch::default()
        },
        ..Settlement::of(Outcome::Refused)
    };
    outcome::finish(site, lease, facade.trace(), settlement).await?;
    Err(MachineError::SuspendFailed)
}

/// How often the provider refused to suspend since anything else became of this machine, and when that began.
async fn earlier_refusals(site: &Site, machine: &Machine) -> Result<(usize, Option<Moment>), StoreError> {
    let Some(account) = machine.account_id else {
        return Ok((0, None));
    };
    let journal = site.world.store.operations(account, machine.id, JOURNAL).await?;
    let refused: Vec<_> = journal
        .iter()
        .filter(|operation| operation.finished_at.is_some())
        .take_while(|operation| operation.verb == Verb::Park)
        .filter(|operation| operation.outcome == Some(Outcome::Refused))
        // A park that stood down by its own rule was not refused by the provider.
        .filter(|operation| {
            operation
                .provider_call
                .as_deref()
                .is_some_and(|calls| calls.contains("suspend"))
        })
        .collect();
    Ok((refused.len(), refused.last().map(|operation| operation.started_at)))
}

/// The machine cannot be parked and would go on costing money: fenced under this lease, destroyed next.
async fn destroy_instead(site: &Site, ask: &Park, lease: Lease, facade: &Facade) -> Result<Parked, MachineError> {
    super::fence::fence(site, ask.reason, ask.actor.clone(), None).await?;
    let settlement = Settlement {
        keep_stamp: true,
        evidence: Some(json!({ "cannot_park": true })),
        ..Settlement::of(Outcome::Refused)
    };
    let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
    site.world.meter.record(Measure::MachineReclaimed);
    if finished.machine.status.is_terminal() {
        return Err(ErrorCode::SandboxUnavailable.into());
    }
    Ok(Parked::Destroying(finished.machine))
}
