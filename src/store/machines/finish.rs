//! The second transaction of an operation: the outcome, the stamp, the turns that end with it, the journal and the
//! release, all under the epoch (RUL-L-10).

use diesel::prelude::*;
use serde_json::{Map, Value};

use fountain_actors::domain::conversation::{Conversation, ConversationStatus};
use fountain_actors::domain::machine::{DestroyReason, Machine, MachineEvent, MachineStatus, Transition};
use fountain_actors::domain::operation::{Outcome, Receipt};
use fountain_actors::domain::turn::{OrphanReason, TurnStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::machines::{Finish, Finished, Patch};

use super::{journal, lease, quota, rows, sweeps};
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Word, key};
use crate::store::conversations::rows as conversations;
use crate::store::events::{Outbox, Usage};
use crate::store::schema::{conversations as conversation_table, turns as turn_table};
use crate::store::turns::{ending, rows as turns};

/// A refusal that must not undo what was written beside it.
pub type Verdict<T> = Result<T, StoreError>;

/// The status after `event`. A step outside the table is a bug of the holder.
pub fn step(machine: &Machine, event: MachineEvent) -> Result<MachineStatus, Fault> {
    machine
        .status
        .on(event)
        .map_err(|illegal| Fault::internal("machine.step", illegal.to_string()))
}

/// Applies what a holder may change.
pub fn apply(machine: &mut Machine, patch: Patch) {
    if let Some(name) = patch.name {
        machine.name = name;
    }
    if !patch.provider_meta.is_empty() {
        let mut meta = match std::mem::take(&mut machine.provider_meta) {
            Value::Object(meta) => meta,
            _ => Map::new(),
        };
        meta.extend(patch.provider_meta);
        machine.provider_meta = Value::Object(meta);
    }
    if patch.build_fingerprint.is_some() {
        machine.build_fingerprint = patch.build_fingerprint;
    }
    if patch.last_resumed_at.is_some() {
        machine.last_resumed_at = patch.last_resumed_at;
    }
    if let Some(owed) = patch.cleanup_pending {
        machine.cleanup_pending = owed;
    }
    if patch.next_attempt_at.is_some() {
        machine.next_attempt_at = patch.next_attempt_at;
    }
}

/// Finishes an operation. A superseded one writes its journal row and nothing else (INV-06).
pub fn finish(db: &mut Db, mut finish: Finish) -> Result<(Verdict<Finished>, Outbox), Fault> {
    if finish.event == Some(MachineEvent::WakeConfirmed)
        && let Some(row) = rows::find(db, finish.machine_id)?
        && let (MachineStatus::Suspended, None, Some(account)) = (row.status, row.transition, row.account_id)
    {
        // M19 and M23: a machine that was not counted runs. That is never refused, but whoever counts at the same
        // moment sees it or is seen by it (RUL-L-72). The locks come before the machine's (RUL-L-9).
        quota::lock(db, account)?;
    }
    let Some(before) = rows::lock(db, finish.machine_id)? else {
        return Err(Fault::not_found("sandbox"));
    };
    if !lease::holds(&before, finish.epoch) {
        let id = finish.operation_id;
        journal::supersede(db, id, finish.machine_id, finish.epoch, &finish.receipt)?;
        return Ok((Err(StoreError::Stale("lease")), Outbox::default()));
    }
    let doomed = before.transition == Some(Transition::Destroying);
    let mut machine = before.clone();
    let usable = matches!(
        finish.event,
        Some(MachineEvent::BuildFinished | MachineEvent::WakeConfirmed | MachineEvent::ParkConfirmed)
    );
    match finish.event {
        // A fence that committed before the finalize wins (INV-23): the build stays what it was.
        Some(MachineEvent::BuildFinished) if doomed => {}
        // The delete that a failed build owed: the row is terminal already.
        Some(MachineEvent::DeleteConfirmed) if before.status.is_terminal() => {}
        Some(event) => machine.status = step(&before, event)?,
        None => {}
    }
    let resumed = before.status == MachineStatus::Suspended && machine.status == MachineStatus::Ready;
    let mut patch = std::mem::take(&mut finish.patch);
    // INV-35: it moves on suspended -> ready and on nothing else.
    patch.last_resumed_at = patch.last_resumed_at.filter(|_| resumed);
    if machine.status == MachineStatus::Ready
        && finish.event == Some(MachineEvent::BuildFinished)
        && patch.build_fingerprint.is_none()
    {
        // INV-22: `ready` and what it was built from are one statement.
        return Err(Fault::internal(
            "machine.finish",
            "a build was finished without its fingerprint",
        ));
    }
    if finish.event == Some(MachineEvent::DeleteConfirmed) {
        machine.cleanup_pending = false;
    }
    apply(&mut machine, patch);
    let gone = machine.status.is_terminal();
    if gone {
        machine.terminated_at = machine.terminated_at.or(Some(finish.now));
        machine.transition = None;
        machine.transition_at = None;
    } else if !doomed && !finish.keep_stamp {
        lease::unstamp(&mut machine);
    }
    machine.lease = None;
    machine.updated_at = finish.now;
    rows::save(db, &machine)?;

    let fenced = doomed && !gone && usable;
    let mut outbox = Outbox::default();
    let touched = lock_conversations(db, &finish)?;
    let ended_turns = match finish.end_turns {
        Some(reason) => ending::end_on_machine(db, &mut outbox, machine.id, reason, finish.now)?,
        None => Vec::new(),
    };
    if finish.forget_sessions {
        forget_sessions(db, machine.id, touched, finish.now)?;
    }
    let receipt = Receipt {
        // A build that a fence overtook did not make a machine (RUL-L-25).
        outcome: match finish.receipt.outcome {
            Outcome::Done if fenced && finish.event == Some(MachineEvent::BuildFinished) => Outcome::Refused,
            outcome => outcome,
        },
        ..finish.receipt
    };
    journal::complete(db, finish.operation_id, &receipt, finish.now)?;
    if receipt.outcome == Outcome::Done && before.next_attempt_at.is_some() {
        sweeps::forget_attempts(db, machine.id)?;
    }
    if finish.learned {
        journal::probed(db, machine.id, &machine.name, finish.epoch, finish.now)?;
    }
    if let Some(kind) = finish.usage {
        outbox.usage(usage_of(&before, &machine, kind, finish.now));
    }
    if !fenced {
        // What was fenced did not become usable, so nobody is told that it did (RUL-L-25).
        for entry in finish.audit {
            outbox.audit(entry, finish.now);
        }
        outbox.machine_stages(db, &machine, finish.stages, finish.now)?;
    }
    let finished = Finished {
        machine,
        fenced,
        ended_turns,
    };
    Ok((Ok(finished), outbox))
}

/// M18: a machine that its provider does not know. Fence and end are one step, and nothing is asked of the provider.
pub fn retire_lost(db: &mut Db, lost: Finish) -> Result<(Verdict<Finished>, Outbox), Fault> {
    let machine = lost.machine_id;
    let lost = Finish {
        event: Some(MachineEvent::DeleteConfirmed),
        keep_stamp: false,
        end_turns: lost.end_turns.or(Some(OrphanReason::MachineDestroyed)),
        forget_sessions: true,
        ..lost
    };
    let (verdict, outbox) = finish(db, lost)?;
    let Ok(mut finished) = verdict else {
        return Ok((verdict, outbox));
    };
    if finished.machine.transition_reason.is_none() {
        finished.machine.transition_reason = Some(DestroyReason::ProviderGone.as_str().to_owned());
        diesel::update(crate::store::schema::machines::table.find(key(machine)))
            .set(crate::store::schema::machines::transition_reason.eq(DestroyReason::ProviderGone.as_str()))
            .execute(db)?;
    }
    Ok((Ok(finished), outbox))
}

/// Locks every conversation that this finish may touch, in one order (RUL-L-9).
fn lock_conversations(db: &mut Db, finish: &Finish) -> Result<Vec<Conversation>, Fault> {
    let machine = key(finish.machine_id);
    let mut ids: Vec<String> = Vec::new();
    if finish.end_turns.is_some() {
        ids = turn_table::table
            .filter(turn_table::machine_id.eq(&machine))
            .filter(turn_table::status.eq(Word(TurnStatus::Running)))
            .select(turn_table::conversation_id)
            .load(db)?;
    }
    if finish.forget_sessions {
        let bound: Vec<String> = conversation_table::table
            .filter(conversation_table::machine_id.eq(&machine))
            .select(conversation_table::id)
            .load(db)?;
        ids.extend(bound);
    }
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    conversations::lock_many(db, ids)
}

/// The disk is gone or new: what the agent remembers by is gone with it, and nobody runs on it (C6).
fn forget_sessions(db: &mut Db, machine: MachineId, touched: Vec<Conversation>, now: Moment) -> Result<(), Fault> {
    for seen in touched {
        // Turn endings above may have written the row since it was read.
        let Some(mut conversation) = conversations::find(db, seen.id)? else {
            continue;
        };
        if conversation.machine_id != machine || conversation.status.is_terminal() {
            continue;
        }
        let idle = conversation.status == ConversationStatus::Running && turns::open(db, seen.id)?.is_none();
        if !idle && conversation.runtime_session_id.is_none() {
            continue;
        }
        if idle {
            conversation.status = ConversationStatus::Idle;
        }
        conversation.runtime_session_id = None;
        conversation.updated_at = now;
        conversations::save(db, &conversation)?;
    }
    Ok(())
}

fn usage_of(before: &Machine, after: &Machine, kind: &'static str, now: Moment) -> Usage {
    let mut metadata = Map::new();
    metadata.insert("status_before".into(), before.status.as_str().into());
    metadata.insert("status".into(), after.status.as_str().into());
    Usage {
        account: after.account_id,
        kind,
        machine: Some((after.id, after.provider.as_str())),
        turn: None,
        metadata,
        at: now,
    }
}
