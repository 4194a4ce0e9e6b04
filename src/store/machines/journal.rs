//! The operation journal: opened with the stamp, completed with the outcome, and read by whoever settles what an
//! older epoch left behind (DESIGN 1, RUL-L-3).
//!
//! A row with a known outcome has `finished_at`. A *debt* has no outcome, or `unknown` or `superseded`. A look at the
//! machine marks it `probed_at`; one that came late enough after the operation's lease `settled_at`; the last one
//! `closed_at`, and from then on it is none. So that the end of a lease is known whoever dies, `lease_until` is written
//! by the claim and by every renewal.

use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Bool, Timestamp};
use serde_json::Value;

use fountain_actors::domain::machine::{Machine, MachineStatus, Transition};
use fountain_actors::domain::operation::{LAST_LOOK_AFTER, Operation, Outcome, Receipt, SETTLED_AFTER, Verb};
use fountain_actors::domain::*;
use fountain_actors::ports::clock::{after, before};
use fountain_actors::ports::store::StoreError;

use super::{lease, rows};
use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{Id, Json, Word, at, inner, json, key, maybe_at, maybe_key, maybe_moment, moment};
use crate::store::schema::{machines, operations};

/// A lease that nobody wrote down (a release that did not know the column) ended before this: no lease is ever longer
/// than a build's (lifecycle 3.3).
const LONGEST_LEASE: Duration = Duration::from_secs(30 * 60);

/// [`Operation::is_debt`] in SQL; the words of the partial index.
pub const DEBT: &str = "(operations.closed_at IS NULL AND (operations.outcome IS NULL \
     OR operations.outcome IN ('unknown', 'superseded')))";

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
    lease_until: Option<NaiveDateTime>,
    probed_at: Option<NaiveDateTime>,
    settled_at: Option<NaiveDateTime>,
    closed_at: Option<NaiveDateTime>,
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
            lease_until: maybe_moment(row.lease_until),
            probed_at: maybe_moment(row.probed_at),
            settled_at: maybe_moment(row.settled_at),
            closed_at: maybe_moment(row.closed_at),
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
            operations::lease_until.eq(at(machine.lease.as_ref().map_or(now, |lease| lease.until))),
        ))
        .execute(db)?;
    Ok(())
}

/// Completes a row. An outcome that nobody knows leaves it an open debt.
pub fn complete(db: &mut Db, id: OperationId, receipt: &Receipt, now: Moment) -> Result<(), Fault> {
    let known = !matches!(receipt.outcome, Outcome::Unknown | Outcome::Superseded);
    // The commit that writes the outcome ends the lease.
    let ended = lease_clock(db, now)?;
    diesel::update(operations::table.find(key(id)))
        .set((
            operations::outcome.eq(Word(receipt.outcome)),
            operations::finished_at.eq(known.then(|| at(now))),
            operations::lease_until.eq(at(ended)),
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

/// The operation's lease was renewed, and so ends later.
pub fn renewed(db: &mut Db, machine: MachineId, epoch: Epoch, until: Moment) -> Result<(), Fault> {
    diesel::update(operations::table)
        .filter(operations::machine_id.eq(key(machine)))
        .filter(operations::epoch.eq(epoch.0))
        .filter(operations::outcome.is_null())
        .set(operations::lease_until.eq(at(until)))
        .execute(db)?;
    Ok(())
}

/// The machine was given another name in the middle of the operation (RUL-L-22).
pub fn renamed(db: &mut Db, machine: MachineId, epoch: Epoch, name: &str) -> Result<(), Fault> {
    diesel::update(operations::table)
        .filter(operations::machine_id.eq(key(machine)))
        .filter(operations::epoch.eq(epoch.0))
        .filter(operations::outcome.is_null())
        .set(operations::machine_name.eq(name))
        .execute(db)?;
    Ok(())
}

/// Debts of earlier epochs, oldest first; those that await their last look among them.
pub fn debts(db: &mut Db, machine: MachineId, epoch: Epoch) -> Result<Vec<Operation>, Fault> {
    let rows = operations::table
        .filter(operations::machine_id.eq(key(machine)))
        .filter(operations::epoch.lt(epoch.0))
        .filter(sql::<Bool>(DEBT))
        .order((operations::epoch, operations::started_at))
        .select(OperationRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Operation::from).collect())
}

/// When the lease of an operation ended, or the latest moment at which it can have.
fn lease_end(debt: &Operation) -> Moment {
    debt.lease_until
        .unwrap_or_else(|| after(debt.started_at, LONGEST_LEASE))
}

/// What an operation of `epoch` found out about the provider's machine `name`: debts of earlier epochs under this name
/// are probed; settled and closed as far as the look came late enough (RUL-L-3).
pub fn probed(db: &mut Db, machine: MachineId, name: &str, epoch: Epoch, now: Moment) -> Result<(), Fault> {
    let clock = lease_clock(db, now)?;
    for debt in debts(db, machine, epoch)? {
        if debt.machine_name != name {
            continue;
        }
        let end = lease_end(&debt);
        let settled = (end <= before(clock, SETTLED_AFTER)).then_some(now);
        let closed = (end <= before(clock, LAST_LOOK_AFTER)).then_some(now);
        mark(db, &debt, settled, closed, now)?;
    }
    Ok(())
}

/// Nobody can ever look again: every debt of an earlier epoch is closed (RUL-L-95).
pub fn close_all(db: &mut Db, machine: MachineId, epoch: Epoch, now: Moment) -> Result<(), Fault> {
    for debt in debts(db, machine, epoch)? {
        mark(db, &debt, Some(now), Some(now), now)?;
    }
    Ok(())
}

/// A look under a name that the row gave up, by the holder of `epoch`.
pub fn name_probed(db: &mut Db, machine: MachineId, epoch: Epoch, name: &str, now: Moment) -> Result<(), Fault> {
    rows::lock(db, machine)?
        .filter(|row| lease::holds(row, epoch))
        .ok_or(StoreError::Stale("lease"))?;
    probed(db, machine, name, epoch, now)
}

/// The row has ended and a live row holds its name: what comes late is found by that row's looks. Debts that are old
/// enough for their last look are closed.
pub fn waive(db: &mut Db, machine: MachineId, now: Moment) -> Result<(), Fault> {
    let Some(row) = rows::lock(db, machine)?.filter(|row| row.status.is_terminal()) else {
        return Ok(());
    };
    if !rows::is_held(db, row.provider, &row.name)? {
        return Ok(());
    }
    probed(db, machine, &row.name, Epoch(row.lease_epoch.0 + 1), now)
}

fn mark(
    db: &mut Db,
    debt: &Operation,
    settled: Option<Moment>,
    closed: Option<Moment>,
    now: Moment,
) -> Result<(), Fault> {
    let settled = debt.settled_at.or(settled);
    diesel::update(operations::table.find(key(debt.id)))
        .set((
            // What never got an outcome keeps saying so: the owner died before it could tell.
            operations::outcome.eq(Word(debt.outcome.unwrap_or(Outcome::Superseded))),
            operations::finished_at.eq(maybe_at(debt.finished_at.or(settled))),
            operations::probed_at.eq(maybe_at(debt.probed_at.or(Some(now)))),
            operations::settled_at.eq(maybe_at(settled)),
            operations::closed_at.eq(maybe_at(closed)),
        ))
        .execute(db)?;
    Ok(())
}

/// Whether the machine has a debt that nobody has looked after yet (RUL-L-45). A lease that lives is no debt.
pub fn owes_look(db: &mut Db, machine: &Machine, clock: Moment) -> Result<bool, Fault> {
    // An operation of the present epoch is one only once its lease is over.
    let epochs = if machine.lease_live(clock) {
        machine.lease_epoch.0 - 1
    } else {
        machine.lease_epoch.0
    };
    let owed: i64 = operations::table
        .filter(operations::machine_id.eq(key(machine.id)))
        .filter(operations::machine_name.eq(&machine.name))
        .filter(operations::epoch.le(epochs))
        .filter(operations::probed_at.is_null())
        .filter(sql::<Bool>(DEBT))
        .count()
        .get_result(db)?;
    Ok(owed > 0)
}

/// Machines with a debt that a look is due for: at once, when it would settle, and for the last time. Those that were
/// tried longest ago come first. A machine that is leased, or not yet built, has somebody who looks.
pub fn indebted(db: &mut Db, now: Moment, limit: i64) -> Result<Vec<MachineId>, Fault> {
    let clock = lease_clock(db, now)?;
    let ended = |ago: Duration| {
        let bound = before(clock, ago);
        sql::<Bool>("(operations.lease_until <= ")
            .bind::<Timestamp, _>(at(bound))
            .sql(" OR (operations.lease_until IS NULL AND operations.started_at <= ")
            .bind::<Timestamp, _>(at(before(bound, LONGEST_LEASE)))
            .sql("))")
    };
    let due = operations::probed_at
        .is_null()
        .or(operations::settled_at.is_null().and(ended(SETTLED_AFTER)))
        .or(ended(LAST_LOOK_AFTER).nullable());
    let rows: Vec<Id<MachineId>> = operations::table
        .inner_join(machines::table.on(machines::id.eq(operations::machine_id)))
        .filter(sql::<Bool>(DEBT))
        .filter(due.assume_not_null())
        .filter(
            operations::next_attempt_at
                .is_null()
                .or(operations::next_attempt_at.le(at(now))),
        )
        .filter(machines::lease_until.is_null().or(machines::lease_until.le(at(clock))))
        .filter(machines::status.ne_all([Word(MachineStatus::Pending), Word(MachineStatus::Starting)]))
        // What owes a delete has attempts of its own, five minutes apart.
        .filter(machines::cleanup_pending.eq(false))
        .filter(
            machines::transition
                .is_null()
                .or(machines::transition.ne(Word(Transition::Destroying)))
                .or(machines::next_attempt_at.is_null())
                .or(machines::next_attempt_at.le(at(now))),
        )
        .order((
            sql::<Timestamp>("coalesce(operations.next_attempt_at, operations.started_at)"),
            operations::id,
        ))
        .limit(limit)
        .select(operations::machine_id)
        .load(db)?;
    let mut seen = std::collections::BTreeSet::new();
    Ok(rows.into_iter().map(|id| id.0).filter(|id| seen.insert(*id)).collect())
}

/// A look at the machine's debts was not had; it is tried again at `until`, behind the others (RUL-L-55).
pub fn postpone(db: &mut Db, machine: MachineId, until: Moment) -> Result<(), Fault> {
    diesel::update(operations::table)
        .filter(operations::machine_id.eq(key(machine)))
        .filter(sql::<Bool>(DEBT))
        .set(operations::next_attempt_at.eq(at(until)))
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
