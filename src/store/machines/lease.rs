//! The first transaction of an operation: the lease, every condition read again, the stamp, the journal row, the first
//! stage (RUL-28); and what a holder may do with its lease until the second one (lifecycle 3.3).

use std::time::Duration;

use diesel::prelude::*;

use fountain_actors::domain::event::NewStage;
use fountain_actors::domain::machine::{DestroyReason, LeaseInfo, Machine, MachineEvent, MachineStatus, Transition};
use fountain_actors::domain::operation::Verb;
use fountain_actors::domain::*;
use fountain_actors::ports::clock::after;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::machines::{Claim, ClaimAnswer, ClaimRefusal, Claimed, ParkRule, Patch, Purpose};

use super::{finish, journal, quota, rows, sweeps};
use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{at, key};
use crate::store::events::Outbox;
use crate::store::replicas;
use crate::store::schema::machines;
use crate::store::turns;

/// What of a lease may be left when a process that is gone loses it: half a renewal interval of the shortest lease. A
/// holder's guard asks for more, so it has stopped by then (lifecycle 3.3, RUL-L-1).
const EARLY: Duration = Duration::from_secs(10);

/// Takes the lease, or says why not.
pub fn claim(db: &mut Db, claim: Claim) -> Result<(ClaimAnswer, Outbox), Fault> {
    let not = |refusal| Ok((ClaimAnswer::Not(refusal), Outbox::default()));
    if let Purpose::Wake { .. } = claim.purpose {
        // The quota locks come before the machine's (RUL-L-9); the account of a row never becomes another one.
        match rows::find(db, claim.machine_id)?.map(|machine| machine.account_id) {
            Some(Some(account)) => quota::lock(db, account)?,
            Some(None) => {}
            None => return not(ClaimRefusal::Missing),
        }
    }
    let Some(mut before) = rows::lock(db, claim.machine_id)? else {
        return not(ClaimRefusal::Missing);
    };
    let clock = lease_clock(db, claim.now)?;
    if let Some(refusal) = wrong_state(&claim.purpose, &before) {
        if before.status.is_terminal() && before.transition.is_some() {
            // M22: a late stamp on a row that is gone.
            unstamp(&mut before);
            rows::save(db, &before)?;
        }
        return not(refusal);
    }
    if let Some(lease) = before.lease.clone().filter(|_| before.lease_live(clock))
        && !may_take_early(db, &lease, &claim.holder, clock)?
    {
        let LeaseInfo { holder, until } = lease;
        return Ok((ClaimAnswer::Held { holder, until }, Outbox::default()));
    }
    if let Some(refusal) = refused(db, &claim, &before)? {
        return not(refusal);
    }

    let mut machine = before.clone();
    machine.lease_epoch.0 += 1;
    machine.lease = Some(LeaseInfo {
        holder: claim.holder.clone(),
        until: after(clock, claim.ttl),
    });
    stamp(&mut machine, &claim.purpose, claim.now);
    rows::save(db, &machine)?;
    let verb = verb_of(&claim.purpose, &machine);
    let reason = machine.transition_reason.as_deref();
    let actor = key(&claim.actor);
    journal::open(db, claim.operation_id, &machine, verb, reason, &actor, claim.now)?;
    let debts = journal::debts(db, machine.id, machine.lease_epoch)?;
    let mut outbox = Outbox::default();
    outbox.machine_stages(db, &machine, claim.stages, claim.now)?;
    let claimed = Claimed {
        epoch: machine.lease_epoch,
        machine,
        before,
        debts,
    };
    Ok((ClaimAnswer::Claimed(claimed), outbox))
}

/// The early door: the holder's process is gone, and too little of its lease is left for it to act on
/// (lifecycle 3.3, RUL-L-7). Never through it to the caller's own lease (RUL-L-6).
fn may_take_early(db: &mut Db, lease: &LeaseInfo, claimer: &str, clock: Moment) -> Result<bool, Fault> {
    if lease.holder == claimer || lease.until >= after(clock, EARLY) {
        return Ok(false);
    }
    Ok(!replicas::is_member(db, &lease.holder, clock)?)
}

/// Refusals that no waiting cures: they come before the lease (lifecycle 2.3, ordering rule).
fn wrong_state(purpose: &Purpose, machine: &Machine) -> Option<ClaimRefusal> {
    use MachineStatus as S;
    let passes_fence = matches!(purpose, Purpose::Destroy | Purpose::Reap);
    if machine.status.is_terminal() {
        let owed = match purpose {
            Purpose::Destroy | Purpose::Reap => machine.cleanup_pending,
            Purpose::Leftover => !machine.cleanup_pending,
            _ => false,
        };
        return (!owed).then_some(ClaimRefusal::Terminal(machine.status));
    }
    if machine.transition == Some(Transition::Destroying) {
        let reset = machine.transition_reason.as_deref() == Some(DestroyReason::Reset.as_str());
        return (!passes_fence).then_some(ClaimRefusal::Doomed { reset });
    }
    let fits = match purpose {
        Purpose::Provision => matches!(machine.status, S::Pending | S::Starting),
        Purpose::Park(_) | Purpose::Wake { .. } | Purpose::Confirm | Purpose::Settle => {
            matches!(machine.status, S::Ready | S::Suspended)
        }
        Purpose::Destroy | Purpose::Leftover => false,
        Purpose::Reap => true,
    };
    (!fits).then_some(ClaimRefusal::Status(machine.status))
}

/// Conditions of an unleased row.
fn refused(db: &mut Db, claim: &Claim, machine: &Machine) -> Result<Option<ClaimRefusal>, Fault> {
    use {MachineStatus as S, Transition as T};
    let status = Some(ClaimRefusal::Status(machine.status));
    match &claim.purpose {
        Purpose::Provision | Purpose::Destroy | Purpose::Confirm | Purpose::Settle | Purpose::Reap => Ok(None),
        Purpose::Leftover => Ok(rows::is_held(db, machine.provider, &machine.name)?.then_some(ClaimRefusal::NameTaken)),
        Purpose::Park(rule) => match (machine.status, machine.transition) {
            // PARK-STALE: the park is only found out about, so nobody who came meanwhile is disturbed (M10).
            (_, Some(T::Parking)) => Ok(None),
            (S::Ready, None) => occupied(db, machine, rule, &claim.holder, claim.now),
            _ => Ok(status),
        },
        Purpose::Wake { limits } => match (machine.status, machine.transition) {
            // WAKE-STALE is counted already and not admitted again (RUL-L-71).
            (_, Some(T::Resuming)) => Ok(None),
            (S::Suspended | S::Ready, None) => {
                let admitted = match machine.account_id {
                    None => Err(ErrorCode::AccountSuspended.into()),
                    Some(account) if quota::is_counted(db, machine.id)? => quota::require_active(db, account),
                    Some(account) => quota::admit(db, account, *limits),
                };
                match admitted {
                    Ok(()) => Ok(None),
                    Err(Fault::Verdict(StoreError::Refused(refusal))) => Ok(Some(ClaimRefusal::Refused(refusal))),
                    Err(fault) => Err(fault),
                }
            }
            _ => Ok(status),
        },
    }
}

/// The park's own rules (lifecycle 5.2, RUL-L-43).
fn occupied(
    db: &mut Db,
    machine: &Machine,
    rule: &ParkRule,
    claimer: &str,
    now: Moment,
) -> Result<Option<ClaimRefusal>, Fault> {
    let fresh_marker = rule
        .marker_before
        .is_some_and(|bound| machine.woken_at.is_some_and(|woken| woken >= bound));
    // Servers of other processes count as the claimer's own do (INV-110).
    let mut live = rule.live_servers.clone();
    let elsewhere = replicas::living_on(db, machine.id, now)?.into_iter();
    live.extend(elsewhere.filter(|(_, holder)| holder != claimer).map(|(id, _)| id));
    if fresh_marker || turns::rows::any_open_of(db, machine.id, &live)? {
        return Ok(Some(ClaimRefusal::Occupied));
    }
    match rule.idle_before {
        Some(bound) if sweeps::active_since(db, machine, bound)? => Ok(Some(ClaimRefusal::NotExpired)),
        _ => Ok(None),
    }
}

/// Writes the stamp of a purpose. One that stands already keeps its moment, except that a new build begins anew.
fn stamp(machine: &mut Machine, purpose: &Purpose, now: Moment) {
    let wanted = match purpose {
        Purpose::Provision => Transition::Provisioning,
        Purpose::Park(_) => Transition::Parking,
        Purpose::Wake { .. } => Transition::Resuming,
        Purpose::Destroy | Purpose::Confirm | Purpose::Settle | Purpose::Leftover | Purpose::Reap => return,
    };
    if machine.transition == Some(wanted) && wanted != Transition::Provisioning {
        return;
    }
    machine.transition = Some(wanted);
    machine.transition_reason = None;
    machine.transition_at = Some(now);
    machine.updated_at = now;
}

/// Takes the stamp away.
pub fn unstamp(machine: &mut Machine) {
    machine.transition = None;
    machine.transition_reason = None;
    machine.transition_at = None;
}

fn verb_of(purpose: &Purpose, machine: &Machine) -> Verb {
    match purpose {
        Purpose::Provision => Verb::Provision,
        Purpose::Park(_) => Verb::Park,
        Purpose::Wake { .. } => Verb::Wake,
        Purpose::Confirm => Verb::Confirm,
        Purpose::Settle => Verb::Settle,
        Purpose::Destroy if machine.transition_reason.as_deref() == Some(DestroyReason::Reset.as_str()) => Verb::Reset,
        Purpose::Destroy | Purpose::Leftover | Purpose::Reap => Verb::Destroy,
    }
}

/// Moves the end of a lease. It does not look whether it ran out: one that nobody took is still its owner's.
/// `updated_at` stays (INV-15).
pub fn renew(
    db: &mut Db,
    machine: MachineId,
    epoch: Epoch,
    holder: &str,
    ttl: Duration,
    now: Moment,
) -> Result<(), Fault> {
    let until = after(lease_clock(db, now)?, ttl);
    let touched = diesel::update(machines::table.find(key(machine)))
        .filter(machines::lease_epoch.eq(epoch.0))
        .filter(machines::lease_holder.eq(holder))
        .set(machines::lease_until.eq(at(until)))
        .execute(db)?;
    held(touched)?;
    journal::renewed(db, machine, epoch, until)
}

/// Gives the lease back; the epoch stays. Twice is `Stale`.
pub fn release(db: &mut Db, machine: MachineId, epoch: Epoch) -> Result<(), Fault> {
    let touched = diesel::update(machines::table.find(key(machine)))
        .filter(machines::lease_epoch.eq(epoch.0))
        .filter(machines::lease_holder.is_not_null())
        .set((
            machines::lease_holder.eq(None::<String>),
            machines::lease_until.eq(None::<chrono::NaiveDateTime>),
        ))
        .execute(db)?;
    held(touched)
}

fn held(touched: usize) -> Result<(), Fault> {
    match touched {
        0 => Err(StoreError::Stale("lease").into()),
        _ => Ok(()),
    }
}

/// Whether this epoch still holds the row, and the row may still change.
pub fn holds(machine: &Machine, epoch: Epoch) -> bool {
    machine.lease_epoch == epoch && machine.lease.is_some()
}

/// A step in between: a fact, a few columns, stages.
pub fn advance(
    db: &mut Db,
    id: MachineId,
    epoch: Epoch,
    event: Option<MachineEvent>,
    patch: Patch,
    stages: Vec<(ConversationId, NewStage)>,
    now: Moment,
) -> Result<(Machine, Outbox), Fault> {
    let mut machine = rows::lock(db, id)?
        .filter(|machine| holds(machine, epoch))
        .ok_or(StoreError::Stale("lease"))?;
    if let Some(event) = event {
        machine.status = finish::step(&machine, event)?;
    }
    let renamed = patch.name.is_some();
    finish::apply(&mut machine, patch);
    machine.updated_at = now;
    rows::save(db, &machine)?;
    if renamed {
        // What this operation sends from here on carries the new name, and a debt must be looked for under it. What was
        // sent under the old one stands on the journal rows of the epochs before.
        journal::renamed(db, id, epoch, &machine.name)?;
    }
    let mut outbox = Outbox::default();
    outbox.machine_stages(db, &machine, stages, now)?;
    Ok((machine, outbox))
}
