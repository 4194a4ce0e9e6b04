//! The operation journal: opened with the stamp, completed with the outcome, and read by whoever settles what an
//! older epoch left behind (DESIGN 1, RUL-L-3).
//!
//! A row with a known outcome has `finished_at`. An *open debt* has none: no outcome at all, or `unknown` or
//! `superseded`, until a later operation on the machine has found out what it did.

use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use serde_json::Value;

use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::operation::{Operation, Outcome, Receipt, Verb};
use fountain_actors::domain::*;
use fountain_actors::ports::clock::before;

use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Json, Word, at, inner, json, key, maybe_key, maybe_moment, moment};
use crate::store::schema::{machines, operations};

/// A probe this long after the operation settles its debt: the longest bound of a provider call (RUL-L-3).
const SETTLED_AFTER: Duration = Duration::from_secs(120);

#[derive(Queryable, Selectable)]
#[diesel(table_name = operations)]
pub struct OperationRow {
    id: Id<OperationId>,
    machine_id: Id<MachineId>,
    machine_name: String,
    verb: Word<Verb>,
    reason: Option<String>,
    actor: String,
    epoch: i64,
    started_at: NaiveDateTime,
    finished_at: Option<NaiveDateTime>,
    outcome: Option<Word<Outcome>>,
    provider_call: Option<String>,
    provider_answer: Option<String>,
    evidence: Option<Json<Value>>,
}

impl From<OperationRow> for Operation {
    fn from(row: OperationRow) -> Self {
        Self {
            id: row.id.0,
            machine_id: row.machine_id.0,
            machine_name: row.machine_name,
            verb: row.verb.0,
            reason: row.reason,
            actor: row.actor,
            epoch: Epoch(row.epoch),
            started_at: moment(row.started_at),
            finished_at: maybe_moment(row.finished_at),
            outcome: inner(row.outcome),
            provider_call: row.provider_call,
            provider_answer: row.provider_answer,
            evidence: inner(row.evidence),
        }
    }
}

/// Opens the row of an operation that was just claimed; the epoch is the claim's.
pub fn open(
    db: &mut Db,
    id: OperationId,
    machine: &Machine,
    verb: Verb,
    reason: Option<&str>,
    actor: &str,
    now: Moment,
) -> Result<(), Fault> {
    diesel::insert_into(operations::table)
        .values((
            operations::id.eq(key(id)),
            operations::account_id.eq(maybe_key(machine.account_id)),
            operations::machine_id.eq(key(machine.id)),
            operations::machine_name.eq(&machine.name),
            operations::verb.eq(Word(verb)),
            operations::reason.eq(reason),
            operations::actor.eq(actor),
            operations::epoch.eq(machine.lease_epoch.0),
            operations::started_at.eq(at(now)),
        ))
        .execute(db)?;
    Ok(())
}

/// Completes a row. An outcome that nobody knows leaves it an open debt.
pub fn complete(db: &mut Db, id: OperationId, receipt: &Receipt, now: Moment) -> Result<(), Fault> {
    let known = !matches!(receipt.outcome, Outcome::Unknown | Outcome::Superseded);
    diesel::update(operations::table.find(key(id)))
        .set((
            operations::outcome.eq(Word(receipt.outcome)),
            operations::finished_at.eq(known.then(|| at(now))),
            operations::provider_call.eq(receipt.provider_call.as_deref()),
            operations::provider_answer.eq(receipt.provider_answer.as_deref()),
            operations::evidence.eq(receipt.evidence.as_ref().map(json)),
        ))
        .execute(db)?;
    Ok(())
}

/// The one thing that a superseded holder may write (RUL-L-3): that it was superseded, on its own row, with what it
/// had done at the provider until then.
pub fn supersede(
    db: &mut Db,
    id: OperationId,
    machine: MachineId,
    epoch: Epoch,
    receipt: &Receipt,
) -> Result<(), Fault> {
    diesel::update(operations::table.find(key(id)))
        .filter(operations::machine_id.eq(key(machine)))
        .filter(operations::epoch.eq(epoch.0))
        .filter(operations::outcome.is_null())
        .set((
            operations::outcome.eq(Word(Outcome::Superseded)),
            operations::provider_call.eq(receipt.provider_call.as_deref()),
            operations::provider_answer.eq(receipt.provider_answer.as_deref()),
            operations::evidence.eq(receipt.evidence.as_ref().map(json)),
        ))
        .execute(db)?;
    Ok(())
}

/// Open debts of earlier epochs, oldest first.
pub fn debts(db: &mut Db, machine: MachineId, epoch: Epoch) -> Result<Vec<Operation>, Fault> {
    let rows = operations::table
        .filter(operations::machine_id.eq(key(machine)))
        .filter(operations::epoch.lt(epoch.0))
        .filter(operations::finished_at.is_null())
        .order((operations::epoch, operations::started_at))
        .select(OperationRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Operation::from).collect())
}

/// A later operation has found the truth: debts of earlier epochs that are old enough are settled. With `all`, the
/// machine is confirmed gone and nothing is left to find.
pub fn settle(db: &mut Db, machine: MachineId, epoch: Epoch, all: bool, now: Moment) -> Result<(), Fault> {
    let bound = if all { at(now) } else { at(before(now, SETTLED_AFTER)) };
    let owed = operations::table
        .filter(operations::machine_id.eq(key(machine)))
        .filter(operations::epoch.lt(epoch.0))
        .filter(operations::finished_at.is_null())
        .filter(operations::started_at.le(bound));
    // What never got an outcome keeps saying so: the owner died before it could tell.
    diesel::update(owed.filter(operations::outcome.is_null()))
        .set((
            operations::outcome.eq(Word(Outcome::Superseded)),
            operations::finished_at.eq(at(now)),
        ))
        .execute(db)?;
    let owed = operations::table
        .filter(operations::machine_id.eq(key(machine)))
        .filter(operations::epoch.lt(epoch.0))
        .filter(operations::finished_at.is_null())
        .filter(operations::started_at.le(bound));
    diesel::update(owed)
        .set(operations::finished_at.eq(at(now)))
        .execute(db)?;
    Ok(())
}

/// Newest first. `NotFound` for a machine that is not this account's.
pub fn of_machine(db: &mut Db, account: AccountId, machine: MachineId, limit: i64) -> Result<Vec<Operation>, Fault> {
    let owned: i64 = machines::table
        .find(key(machine))
        .filter(machines::account_id.eq(key(account)))
        .count()
        .get_result(db)?;
    if owned == 0 {
        return Err(Fault::not_found("sandbox"));
    }
    let rows = operations::table
        .filter(operations::machine_id.eq(key(machine)))
        .order((operations::started_at.desc(), operations::epoch.desc()))
        .limit(limit)
        .select(OperationRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Operation::from).collect())
}
