//! M23, settling: what a dead or superseded operation did at the provider is found by looking, and the row is made true
//! (RUL-L-3, RUL-L-24, RUL-L-45).
//!
//! **C** claim; the claim tells the debts. Names that the row gave up (RUL-L-22) are looked up, and what a late create
//! left there is deleted with confirmation. Then the machine is looked at. **C** the true state; the same commit marks the
//! debts probed, settled or closed, as far as the look came late enough. A look that fails changes nothing.
//!
//! It never starts compute (INV-32): a machine that runs behind a parked row is suspended again, and where that is
//! refused the row says that it runs. A DOOMED row goes the way of every delete; under a terminal row the provider is
//! asked whether something came late, and that is deleted if no live row has the name (RUL-L-52).

use std::collections::BTreeSet;

use serde_json::json;

use super::Site;
use super::delete::{self, Deleted};
use super::destroy;
use super::evidence::{self, Seen};
use super::facade::{CallError, Facade, Trace};
use super::lease::{self, Lease, Taken, Wanted};
use super::messages::{Destroy, Leftover, MachineError, Settle, SettledDebts, Swept};
use super::outcome::{self, Settlement};
use super::settle::{self, Settled};
use crate::domain::account::Actor;
use crate::domain::machine::{Machine, MachineEvent, MachineStatus};
use crate::domain::operation::{Operation, Outcome};
use crate::ports::sandbox::Capability;
use crate::ports::store::StoreError;
use crate::ports::store::machines::{ClaimRefusal, Claimed, Patch, Purpose};

/// Whether a turn has to wait for a look at this machine (RUL-L-45).
///
/// # Errors
/// What the store said.
pub(crate) async fn owes_look(site: &Site) -> Result<bool, StoreError> {
    site.world.store.owes_look(site.machine, site.world.now()).await
}

/// Makes the row true before a turn, inside the caller's five seconds; a look that takes longer is dropped (RUL-L-45).
///
/// # Errors
/// Busy after that time; otherwise as [`settle::settle`].
pub(crate) async fn before_turn(site: &Site, actor: Actor) -> Result<Settled, MachineError> {
    let patience = site.world.settings.busy_wait;
    tokio::time::timeout(patience, settle::settle(site, actor))
        .await
        .unwrap_or(Err(MachineError::Busy))
}

/// Settles what is due, by whichever way the row allows.
pub(crate) async fn settle_debts(site: &Site, ask: Settle) -> Result<SettledDebts, MachineError> {
    match claim(site, Purpose::Settle, &ask.actor).await? {
        Taken::Lease(taken) => {
            let (lease, claimed) = *taken;
            look(site, lease, claimed, &ask.actor).await
        }
        Taken::Held => Err(MachineError::Busy),
        Taken::Not(ClaimRefusal::Doomed { .. }) => {
            destroy::destroy(site, Destroy { actor: ask.actor }).await?;
            Ok(SettledDebts::Swept)
        }
        Taken::Not(ClaimRefusal::Terminal(_)) => match leftover(site, Leftover { actor: ask.actor }).await? {
            // Whatever comes late there is the living machine's matter, whose own looks find it.
            Swept::NameTaken => {
                site.world.store.waive_debts(site.machine, site.world.now()).await?;
                Ok(SettledDebts::Swept)
            }
            Swept::Absent | Swept::Deleted | Swept::Owed => Ok(SettledDebts::Swept),
        },
        Taken::Not(refusal) => Err(outcome::claim_refused(refusal)),
    }
}

async fn claim(site: &Site, purpose: Purpose, actor: &Actor) -> Result<Taken, StoreError> {
    let wanted = Wanted {
        purpose,
        actor: actor.clone(),
        stages: Vec::new(),
        // A pass comes again; whoever holds the machine looks at it himself.
        patience: std::time::Duration::ZERO,
    };
    lease::take(site, wanted).await
}

/// The row is live: other names first, because what stands there belongs to nobody.
async fn look(site: &Site, lease: Lease, claimed: Claimed, actor: &Actor) -> Result<SettledDebts, MachineError> {
    let machine = claimed.machine;
    let facade = match settle::facade(site, &machine) {
        Ok(facade) => facade,
        Err(error) => {
            give_back(site, lease, &Trace::default()).await?;
            return Err(error);
        }
    };
    for name in given_up(&machine, &claimed.debts) {
        if let Err(error) = clear_remnant(site, &lease, &machine, name).await {
            return match error {
                MachineError::Superseded => Err(outcome::superseded(site, lease, facade.trace()).await),
                error => {
                    give_back(site, lease, facade.trace()).await?;
                    Err(error)
                }
            };
        }
    }
    match evidence::look(site, &machine, &facade).await {
        Ok(Seen::Running) if machine.status == MachineStatus::Suspended && machine.transition.is_none() => {
            suspend_again(site, lease, &facade, &machine, actor).await
        }
        Ok(seen) => settle::write(site, lease, &facade, &machine, seen, actor)
            .await
            .map(settled),
        Err(error) => {
            settle::look_failed(site, lease, &facade).await?;
            Err(outcome::probe_failed(&error).into())
        }
    }
}

fn settled(settled: Settled) -> SettledDebts {
    match settled {
        Settled::Up(machine) => SettledDebts::Up(machine),
        Settled::Asleep(machine) => SettledDebts::Asleep(machine),
        Settled::Lost(machine) => SettledDebts::Lost(machine),
    }
}

/// Names that earlier operations knew the machine by and that the row does not have any more.
fn given_up<'a>(machine: &Machine, debts: &'a [Operation]) -> BTreeSet<&'a str> {
    let names = debts.iter().map(|debt| debt.machine_name.as_str());
    names.filter(|name| *name != machine.name).collect()
}

/// A name that a rebuild gave up: nothing may stand there, and nobody else may have taken it.
async fn clear_remnant(site: &Site, lease: &Lease, machine: &Machine, name: &str) -> Result<(), MachineError> {
    let world = &site.world;
    let old = Machine {
        name: name.to_owned(),
        ..machine.clone()
    };
    if !world.store.is_name_held(machine.provider, name.to_owned()).await? {
        let facade = settle::facade(site, &old)?;
        match evidence::is_gone(site, &old, &facade).await {
            Ok(true) => {}
            Ok(false) => {
                let fence = lease.fence().ok_or(MachineError::NotFenced)?;
                match delete::confirmed(site, &old, &facade, &fence).await {
                    Deleted::Confirmed => {
                        tracing::warn!(machine.id = %machine.id, machine.name = name, "a build that came late was deleted");
                    }
                    Deleted::Unconfirmed(_) => return Err(MachineError::Unconfirmed),
                    Deleted::Superseded => return Err(MachineError::Superseded),
                }
            }
            Err(error) => return Err(outcome::probe_failed(&error).into()),
        }
    }
    let probed = world
        .store
        .name_probed(site.machine, lease.epoch(), name.to_owned(), world.now());
    Ok(probed.await?)
}

/// The machine runs although its row is parked: a resume that came late. Parked again; what refuses that is up.
async fn suspend_again(
    site: &Site,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
    actor: &Actor,
) -> Result<SettledDebts, MachineError> {
    if !facade.capabilities().contains(&Capability::Suspend) {
        return up(site, lease, facade, machine, actor).await;
    }
    match facade.suspend(&lease).await {
        Ok(()) => asleep(site, lease, facade).await,
        Err(CallError::Superseded) => Err(outcome::superseded(site, lease, facade.trace()).await),
        Err(CallError::Provider(error)) if error.is_refusal() => up(site, lease, facade, machine, actor).await,
        // Lost: one look decides, and an error leaves a debt of this operation's own (RUL-L-4).
        Err(CallError::Provider(_)) => match evidence::look(site, machine, facade).await {
            Ok(Seen::Suspended) => asleep(site, lease, facade).await,
            Ok(Seen::Running | Seen::Exists) => up(site, lease, facade, machine, actor).await,
            Ok(Seen::Absent) => {
                let row = settle::retire(site, lease, facade, machine, actor).await?;
                Ok(SettledDebts::Lost(row))
            }
            Err(error) => {
                outcome::finish(site, lease, facade.trace(), Settlement::unknown()).await?;
                Err(outcome::probe_failed(&error).into())
            }
        },
    }
}

async fn asleep(site: &Site, lease: Lease, facade: &Facade) -> Result<SettledDebts, MachineError> {
    let settlement = Settlement {
        evidence: Some(json!({ "seen": Seen::Suspended.word(), "suspended_again": true })),
        ..Settlement::moved(MachineEvent::ParkConfirmed)
    };
    let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
    Ok(SettledDebts::Asleep(finished.machine))
}

async fn up(
    site: &Site,
    lease: Lease,
    facade: &Facade,
    machine: &Machine,
    actor: &Actor,
) -> Result<SettledDebts, MachineError> {
    let settlement = Settlement {
        evidence: Some(json!({ "seen": Seen::Running.word(), "suspended_again": false })),
        ..settle::woken(site, machine, actor)
    };
    let finished = outcome::finish(site, lease, facade.trace(), settlement).await?;
    Ok(SettledDebts::Up(finished.machine))
}

/// Nothing was learned: stamp and debts stay.
async fn give_back(site: &Site, lease: Lease, trace: &Trace) -> Result<(), MachineError> {
    let kept = Settlement {
        keep_stamp: true,
        ..Settlement::of(Outcome::Failed)
    };
    outcome::finish(site, lease, trace, kept).await.map(drop)
}

/// Deletes what stands under the name of a row that ended, if nobody else holds that name (RUL-L-52).
pub(crate) async fn leftover(site: &Site, ask: Leftover) -> Result<Swept, MachineError> {
    let (lease, claimed) = match claim(site, Purpose::Leftover, &ask.actor).await? {
        Taken::Lease(taken) => *taken,
        Taken::Held => return Err(MachineError::Busy),
        Taken::Not(ClaimRefusal::NameTaken) => return Ok(Swept::NameTaken),
        Taken::Not(ClaimRefusal::Terminal(_)) => return Ok(Swept::Owed),
        Taken::Not(refusal) => return Err(outcome::claim_refused(refusal)),
    };
    let machine = claimed.machine;
    let facade = match settle::facade(site, &machine) {
        Ok(facade) => facade,
        Err(error) => {
            give_back(site, lease, &Trace::default()).await?;
            return Err(error);
        }
    };
    for name in given_up(&machine, &claimed.debts) {
        match clear_remnant(site, &lease, &machine, name).await {
            Ok(()) => {}
            Err(MachineError::Superseded) => return Err(outcome::superseded(site, lease, facade.trace()).await),
            Err(error) => {
                give_back(site, lease, facade.trace()).await?;
                return Err(error);
            }
        }
    }
    match evidence::is_gone(site, &machine, &facade).await {
        Ok(true) => gone(site, lease, &facade, Swept::Absent).await,
        Ok(false) => {
            let deleted = match lease.fence() {
                Some(fence) => delete::confirmed(site, &machine, &facade, &fence).await,
                None => Deleted::Superseded,
            };
            match deleted {
                Deleted::Confirmed => gone(site, lease, &facade, Swept::Deleted).await,
                Deleted::Unconfirmed(why) => owed(site, lease, &facade, why).await,
                Deleted::Superseded => Err(outcome::superseded(site, lease, facade.trace()).await),
            }
        }
        Err(error) => {
            give_back(site, lease, facade.trace()).await?;
            Err(outcome::probe_failed(&error).into())
        }
    }
}

async fn gone(site: &Site, lease: Lease, facade: &Facade, swept: Swept) -> Result<Swept, MachineError> {
    let settlement = Settlement {
        evidence: Some(json!({ "absent": true, "leftover": swept == Swept::Deleted })),
        ..Settlement::of(Outcome::Done)
    };
    outcome::finish(site, lease, facade.trace(), settlement).await?;
    Ok(swept)
}

/// It stands there and its delete is not confirmed: from now on the row owes it, is counted, and holds the name.
async fn owed(site: &Site, lease: Lease, facade: &Facade, why: &str) -> Result<Swept, MachineError> {
    let settlement = Settlement {
        patch: Patch {
            cleanup_pending: Some(true),
            next_attempt_at: outcome::next_attempt(site),
            ..Patch::default()
        },
        evidence: Some(json!({ "absent": false, "why": why })),
        ..Settlement::of(Outcome::Unconfirmed)
    };
    outcome::finish(site, lease, facade.trace(), settlement).await?;
    Err(MachineError::Unconfirmed)
}
