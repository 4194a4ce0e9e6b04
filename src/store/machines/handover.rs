//! Machines whose runner was forgotten: what owes a delete there ends at once, handed over to whoever holds that
//! computer (RUL-L-95, RUL-L-20).
//!
//! This is the one end without evidence beside an admin's reap, and the receipt says so. The epoch moves, so an owner
//! that still tries to delete is superseded. Live machines that are not DOOMED stay: the same runner may dial again.

use diesel::prelude::*;
use serde_json::{Map, json};

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{Machine, MachineEvent, MachineStatus, Provider, Transition};
use fountain_actors::domain::operation::{Outcome, Receipt, Verb};
use fountain_actors::domain::runner::{Runner, runner_of};
use fountain_actors::domain::turn::OrphanReason;
use fountain_actors::domain::*;
use fountain_actors::ports::Rng;

use super::{finish::step, journal, rows};
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Word, key};
use crate::store::conversations::rows as conversations;
use crate::store::events::{Outbox, Usage};
use crate::store::schema::{conversations as conversation_table, machines};
use crate::store::turns::ending;

/// Ends every machine on `runner` that is DOOMED or owes a delete.
pub fn hand_over(db: &mut Db, rng: &dyn Rng, outbox: &mut Outbox, runner: &Runner, now: Moment) -> Result<(), Fault> {
    let mut locked = Vec::new();
    for id in candidates(db, runner)? {
        locked.extend(rows::lock(db, id)?.filter(|machine| owes(machine, runner)));
    }
    let ids: Vec<String> = locked.iter().map(|machine| key(machine.id)).collect();
    let tenants: Vec<String> = conversation_table::table
        .filter(conversation_table::machine_id.eq_any(ids))
        .select(conversation_table::id)
        .load(db)?;
    // All at once and in one order, before anything below touches them (RUL-L-9).
    let tenants = if tenants.is_empty() {
        Vec::new()
    } else {
        conversations::lock_many(db, tenants)?
    };
    for machine in locked {
        ending::end_on_machine(db, outbox, machine.id, OrphanReason::MachineDestroyed, now)?;
        end(db, rng, outbox, machine, now)?;
    }
    for tenant in tenants {
        leave(db, tenant.id, now)?;
    }
    Ok(())
}

/// Ids of machines that may be meant, in order. They are looked at again under their locks.
fn candidates(db: &mut Db, runner: &Runner) -> Result<Vec<MachineId>, Fault> {
    let ids: Vec<Id<MachineId>> = machines::table
        .filter(machines::account_id.eq(key(runner.account_id)))
        .filter(machines::provider.eq(Word(Provider::Runner)))
        .filter(
            machines::transition
                .eq(Word(Transition::Destroying))
                .or(machines::cleanup_pending.nullable()),
        )
        .order(machines::id)
        .select(machines::id)
        .load(db)?;
    Ok(ids.into_iter().map(|id| id.0).collect())
}

fn owes(machine: &Machine, runner: &Runner) -> bool {
    let doomed = machine.transition == Some(Transition::Destroying) && !machine.status.is_terminal();
    (doomed || machine.cleanup_pending) && runner_of(&machine.name) == Some(runner.id)
}

fn end(db: &mut Db, rng: &dyn Rng, outbox: &mut Outbox, mut machine: Machine, now: Moment) -> Result<(), Fault> {
    let was = machine.status;
    let reason = machine.transition_reason.clone();
    machine.lease_epoch.0 += 1;
    machine.lease = None;
    machine.cleanup_pending = false;
    machine.transition = None;
    machine.transition_at = None;
    if !was.is_terminal() {
        machine.status = step(&machine, MachineEvent::DeleteConfirmed)?;
        machine.terminated_at = Some(now);
    }
    machine.updated_at = now;
    rows::save(db, &machine)?;

    let operation = OperationId(rng.uuid());
    let receipt = Receipt {
        evidence: Some(json!({"runner": "forgotten"})),
        ..Receipt::of(Outcome::HandedOver)
    };
    journal::open(
        db,
        operation,
        &machine,
        Verb::Destroy,
        reason.as_deref(),
        &key(Actor::Api),
        now,
    )?;
    journal::complete(db, operation, &receipt, now)?;
    // Nobody can ask the provider any more what earlier operations did.
    journal::close_all(db, machine.id, machine.lease_epoch, now)?;

    if machine.status == MachineStatus::Terminated && !was.is_terminal() {
        outbox.usage(ended_usage(&machine, was, now));
    }
    let audit = NewAudit {
        account_id: machine.account_id,
        action: "sandbox.handed_over",
        resource_type: "sandbox",
        resource_id: Some(key(machine.id)),
        actor: Actor::Api,
        request_ip: None,
        metadata: [
            ("reason", "runner_forgotten".into()),
            ("sprite_name", machine.name.into()),
        ]
        .into(),
    };
    outbox.audit(audit, now);
    Ok(())
}

fn ended_usage(machine: &Machine, was: MachineStatus, now: Moment) -> Usage {
    let mut metadata = Map::new();
    metadata.insert("status_before".into(), was.as_str().into());
    metadata.insert("status".into(), machine.status.as_str().into());
    Usage {
        account: machine.account_id,
        kind: "terminated",
        machine: Some((machine.id, machine.provider.as_str())),
        turn: None,
        metadata,
        at: now,
    }
}

/// The disk is out of reach for good: what the agent remembers by goes, and nobody runs on it (C6, R-93).
fn leave(db: &mut Db, id: ConversationId, now: Moment) -> Result<(), Fault> {
    let Some(mut conversation) = conversations::find(db, id)?.filter(|found| !found.status.is_terminal()) else {
        return Ok(());
    };
    if conversation.status == ConversationStatus::Running {
        conversation.status = ConversationStatus::Idle;
    }
    conversation.runtime_session_id = None;
    conversation.updated_at = now;
    conversations::save(db, &conversation)
}
