//! What becomes of a machine past a bound, for the five-minute sweep and the hourly reaper (lifecycle 5.1, 7; RUL-L-27).
//!
//! Idle: parked. Past its lifetime: an ephemeral machine goes, a home is parked. The owner decides under a lease, reads
//! every condition again and may refuse; no conversation is named, otherwise an idle one would keep its machine for ever.

use std::time::Duration;

use super::Replica;
use crate::domain::Moment;
use crate::domain::account::{Actor, NewAudit};
use crate::domain::machine::{DestroyReason, Machine, MachineMode};
use crate::domain::settings::Settings;
use crate::machine::messages::{Destroyed, MachineError, Park, Parked, Retire};
use crate::ports::meter::Measure;
use crate::ports::store::machines::ParkRule;
use crate::ports::{World, clock};

/// Who does it (lifecycle 10.3).
pub(super) const REAPER: Actor = Actor::System("sandbox_reaper");

/// What a bound asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Park(DestroyReason),
    Destroy(DestroyReason),
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    Parked,
    Reclaimed,
    /// Somebody was quicker.
    Skipped,
}

/// What the bounds ask for; the machine is past one of them.
pub(super) fn verdict(settings: &Settings, machine: &Machine, now: Moment) -> Verdict {
    let born = machine.last_resumed_at.unwrap_or(machine.inserted_at);
    let is_too_old = settings
        .max_lifetime
        .is_some_and(|most| born <= clock::before(now, most));
    match (is_too_old, machine.mode) {
        (true, MachineMode::Ephemeral) => Verdict::Destroy(DestroyReason::MaxLifetime),
        (true, MachineMode::Persistent) => Verdict::Park(DestroyReason::MaxLifetime),
        (false, _) => Verdict::Park(DestroyReason::Idle),
    }
}

/// Asks the owner for what the bound asks for.
pub(super) async fn expire(
    world: &World,
    replica: &dyn Replica,
    machine: &Machine,
    verdict: Verdict,
) -> Result<Expired, MachineError> {
    match verdict {
        Verdict::Destroy(reason) => retire(world, replica, machine, reason).await,
        Verdict::Park(reason) => park(world, replica, machine, reason).await,
    }
}

async fn park(
    world: &World,
    replica: &dyn Replica,
    machine: &Machine,
    reason: DestroyReason,
) -> Result<Expired, MachineError> {
    let ago = |duration: Duration| clock::before(world.now(), duration);
    let settings = &world.settings;
    let idle = settings.idle_timeout.filter(|_| reason == DestroyReason::Idle);
    let ask = Park {
        rule: ParkRule {
            live_servers: Vec::new(),
            idle_before: idle.map(ago),
            marker_before: Some(ago(settings.woken_grace)),
        },
        reason,
        requester: None,
        actor: REAPER,
    };
    let answer = replica.owner(machine.id).send(ask).await;
    match answer.unwrap_or(Err(MachineError::Busy))? {
        Parked::Parked(_) | Parked::Recovered(_) => Ok(Expired::Parked),
        // A provider that cannot suspend: fenced, and its owner destroys it (lifecycle 7, degradations).
        Parked::Destroying(_) => {
            note(world, machine, "sandbox.expired", reason.as_str()).await;
            Ok(Expired::Reclaimed)
        }
        Parked::AlreadyParked(_) | Parked::Gone(_) => Ok(Expired::Skipped),
    }
}

/// Fences and destroys a machine.
pub(super) async fn retire(
    world: &World,
    replica: &dyn Replica,
    machine: &Machine,
    reason: DestroyReason,
) -> Result<Expired, MachineError> {
    let ask = Retire { reason, actor: REAPER };
    let answer = replica.owner(machine.id).send(ask).await;
    match answer.unwrap_or(Err(MachineError::Busy))? {
        Destroyed::Destroyed(_) => {
            world.meter.record(Measure::MachineReclaimed);
            note(world, machine, "sandbox.expired", reason.as_str()).await;
            Ok(Expired::Reclaimed)
        }
        Destroyed::AlreadyTerminal(_) => Ok(Expired::Skipped),
    }
}

/// An audit row of a pass's own; it fails nothing.
pub(super) async fn note(world: &World, machine: &Machine, action: &'static str, reason: &str) {
    let Some(account) = machine.account_id else { return };
    let entry = NewAudit {
        account_id: Some(account),
        action,
        resource_type: "sandbox",
        resource_id: Some(machine.id.to_string()),
        actor: REAPER,
        request_ip: None,
        metadata: [("reason", serde_json::json!(reason))].into(),
    };
    match world.store.audit(entry, world.now()).await {
        Ok(committed) => committed.announce(world.bus.as_ref()),
        Err(error) => tracing::warn!(machine.id = %machine.id, %error, "an audit row was not written"),
    }
}

/// Whether a refusal is somebody else's right, and nothing is wrong: it came back into use, or somebody acts.
pub(super) fn is_contention(error: &MachineError) -> bool {
    matches!(
        error,
        MachineError::Busy | MachineError::Occupied | MachineError::NotExpired | MachineError::Superseded
    )
}

/// A row could not be finished: it rests, and goes behind the others (RUL-L-55).
pub(super) async fn defer(world: &World, machine: &Machine) {
    let rests = world.settings.rests();
    if let Err(error) = world.store.defer(machine.id, rests, world.now()).await {
        tracing::warn!(machine.id = %machine.id, %error, "a row could not be moved to the end of the line");
    }
}
