//! What passes look for among machines: few rows of many, found through the partial indexes, in an order that starves
//! nobody (lifecycle 7, RUL-L-54, RUL-L-55). A selection is a guess; the claim reads every condition again (INV-114).

use std::collections::BTreeSet;

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Bool, Timestamp};

use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{DestroyReason, Machine, MachineMode, MachineStatus, Provider, Transition};
use fountain_actors::domain::*;
use fountain_actors::ports::clock::after;
use fountain_actors::ports::store::machines::Census;
use fountain_actors::ports::store::passes::Rests;

use super::rows::{self, MachineRow};
use crate::store::backend::{Db, Fault, Kind, lease_clock};
use crate::store::columns::{Word, at, key};
use crate::store::replicas;
use crate::store::schema::{conversations, machines, pass_leases};

/// Rows that were never postponed come by their age.
pub const FAIR_ORDER: &str = "coalesce(machines.next_attempt_at, machines.inserted_at)";

/// A conversation of the machine did something at or after the bind. One that never had a turn counts by its own row
/// (lifecycle 5.2); `last_active_at` moves with turns and with output.
const ACTIVE_SINCE: &str = "EXISTS (SELECT 1 FROM conversations c WHERE c.machine_id = machines.id AND \
     coalesce(c.last_active_at, CASE WHEN c.status IN ('failed', 'terminated') THEN c.inserted_at \
     ELSE c.updated_at END) >= ";

const TERMINAL: [Word<MachineStatus>; 2] = [Word(MachineStatus::Terminated), Word(MachineStatus::Failed)];

fn machines_of(rows: Vec<MachineRow>) -> Vec<Machine> {
    rows.into_iter().map(Machine::from).collect()
}

/// Whether a machine was in use at or after `bound`: by a wake, or by any of its conversations.
pub fn active_since(db: &mut Db, machine: &Machine, bound: Moment) -> Result<bool, Fault> {
    if machine.inserted_at >= bound || machine.last_resumed_at.is_some_and(|resumed| resumed >= bound) {
        return Ok(true);
    }
    let active: i64 = machines::table
        .find(key(machine.id))
        .filter(sql::<Bool>(ACTIVE_SINCE).bind::<Timestamp, _>(at(bound)).sql(")"))
        .count()
        .get_result(db)?;
    Ok(active > 0)
}

/// DOOMED rows and rows that owe a delete.
pub fn doomed(db: &mut Db, now: Moment, stamped_before: Moment, limit: i64) -> Result<Vec<Machine>, Fault> {
    let clock = at(lease_clock(db, now)?);
    let doomed = machines::transition
        .eq(Word(Transition::Destroying))
        .or(machines::cleanup_pending.nullable());
    let ripe = machines::transition_reason
        .eq(DestroyReason::Reset.as_str())
        .or(machines::transition_at.lt(at(stamped_before)))
        .or(machines::cleanup_pending.nullable());
    let rows = machines::table
        .filter(doomed)
        .filter(ripe)
        .filter(
            machines::next_attempt_at
                .is_null()
                .or(machines::next_attempt_at.le(at(now))),
        )
        .filter(machines::lease_until.is_null().or(machines::lease_until.le(clock)))
        .order((sql::<Timestamp>(FAIR_ORDER), machines::id))
        .limit(limit)
        .select(MachineRow::as_select())
        .load(db)?;
    Ok(machines_of(rows))
}

/// Machines that are up and past their idle bound or their ceiling.
pub fn parkable(
    db: &mut Db,
    now: Moment,
    idle_before: Option<Moment>,
    born_before: Option<Moment>,
    marker_before: Moment,
    limit: i64,
) -> Result<Vec<Machine>, Fault> {
    let clock = at(lease_clock(db, now)?);
    // Without a bound nothing is older than it.
    let idle = at(idle_before.unwrap_or(Moment::MIN_UTC));
    let born = at(born_before.unwrap_or(Moment::MIN_UTC));
    let expired = sql::<Bool>("((machines.inserted_at < ")
        .bind::<Timestamp, _>(idle)
        .sql(" AND (machines.last_resumed_at IS NULL OR machines.last_resumed_at < ")
        .bind::<Timestamp, _>(idle)
        .sql(") AND NOT ")
        .sql(ACTIVE_SINCE)
        .bind::<Timestamp, _>(idle)
        .sql(")) OR coalesce(machines.last_resumed_at, machines.inserted_at) < ")
        .bind::<Timestamp, _>(born)
        .sql(")");
    let rows = machines::table
        .filter(machines::status.eq(Word(MachineStatus::Ready)))
        .filter(
            machines::transition
                .is_null()
                .or(machines::transition.eq(Word(Transition::Parking))),
        )
        .filter(machines::lease_until.is_null().or(machines::lease_until.le(clock)))
        .filter(
            machines::woken_at
                .is_null()
                .or(machines::woken_at.lt(at(marker_before))),
        )
        .filter(
            machines::next_attempt_at
                .is_null()
                .or(machines::next_attempt_at.le(at(now))),
        )
        .filter(expired)
        .order((sql::<Timestamp>(FAIR_ORDER), machines::id))
        .limit(limit)
        .select(MachineRow::as_select())
        .load(db)?;
    Ok(machines_of(rows))
}

/// Ephemeral machines that nobody can reach any more.
pub fn abandoned(db: &mut Db, now: Moment, before: Moment, limit: i64) -> Result<Vec<Machine>, Fault> {
    let reachable = conversations::table
        .filter(conversations::machine_id.eq(machines::id))
        .filter(
            conversations::status
                .ne_all([Word(ConversationStatus::Failed), Word(ConversationStatus::Terminated)])
                .or(conversations::updated_at.ge(at(before))),
        );
    let rows = machines::table
        .filter(machines::mode.eq(Word(MachineMode::Ephemeral)))
        .filter(machines::status.eq_any([Word(MachineStatus::Ready), Word(MachineStatus::Suspended)]))
        .filter(
            machines::transition
                .is_null()
                .or(machines::transition.ne(Word(Transition::Destroying))),
        )
        .filter(machines::updated_at.lt(at(before)))
        .filter(
            machines::next_attempt_at
                .is_null()
                .or(machines::next_attempt_at.le(at(now))),
        )
        .filter(diesel::dsl::not(diesel::dsl::exists(reachable)))
        .order((sql::<Timestamp>(FAIR_ORDER), machines::id))
        .limit(limit)
        .select(MachineRow::as_select())
        .load(db)?;
    Ok(machines_of(rows))
}

/// Boot on SQLite: no other process can hold a lease or a marker there, or live (RUL-30, RUL-L-6).
pub fn end_dead_leases(db: &mut Db, holder: &str) -> Result<u64, Fault> {
    if db.kind() == Kind::Postgres {
        return Ok(0);
    }
    let ended = diesel::update(machines::table)
        .filter(machines::lease_holder.is_not_null())
        .filter(machines::lease_holder.ne(holder))
        .set((
            machines::lease_holder.eq(None::<String>),
            machines::lease_until.eq(None::<chrono::NaiveDateTime>),
        ))
        .execute(db)?;
    diesel::update(pass_leases::table)
        .set((
            pass_leases::holder.eq(None::<String>),
            pass_leases::until.eq(None::<chrono::NaiveDateTime>),
        ))
        .execute(db)?;
    diesel::update(machines::table.filter(machines::woken_at.is_not_null()))
        .filter(machines::lease_holder.is_null())
        .set(machines::woken_at.eq(None::<chrono::NaiveDateTime>))
        .execute(db)?;
    replicas::end_others(db, holder)?;
    Ok(u64::try_from(ended).unwrap_or(u64::MAX))
}

pub fn postpone(db: &mut Db, machine: MachineId, until: Moment) -> Result<(), Fault> {
    diesel::update(machines::table.find(key(machine)))
        .set(machines::next_attempt_at.eq(at(until)))
        .execute(db)?;
    Ok(())
}

/// Moves a row's next attempt and counts the one that failed (RUL-L-55).
pub fn defer(db: &mut Db, machine: MachineId, rests: &Rests, now: Moment) -> Result<Moment, Fault> {
    let Some(row) = rows::lock(db, machine)? else {
        return Err(Fault::not_found("sandbox"));
    };
    let attempts: i64 = machines::table
        .find(key(machine))
        .select(machines::attempts)
        .first(db)?;
    let owes_delete = row.transition == Some(Transition::Destroying) || row.cleanup_pending;
    let step = usize::try_from(attempts).unwrap_or(usize::MAX);
    let rest = match rests.others.get(step).or(rests.others.last()) {
        Some(rest) if !owes_delete => *rest,
        _ => rests.deletes,
    };
    let until = after(now, rest);
    diesel::update(machines::table.find(key(machine)))
        .set((
            machines::next_attempt_at.eq(at(until)),
            machines::attempts.eq(attempts + 1),
        ))
        .execute(db)?;
    Ok(until)
}

/// The row was brought to where it should be: its next trouble begins anew.
pub fn forget_attempts(db: &mut Db, machine: MachineId) -> Result<(), Fault> {
    diesel::update(machines::table.find(key(machine)).filter(machines::attempts.gt(0)))
        .set((
            machines::next_attempt_at.eq(None::<chrono::NaiveDateTime>),
            machines::attempts.eq(0),
        ))
        .execute(db)?;
    Ok(())
}

/// Names that rows hold at a provider, those that still owe a delete among them.
pub fn live_names(db: &mut Db, provider: Provider) -> Result<BTreeSet<String>, Fault> {
    let names: Vec<String> = machines::table
        .filter(machines::provider.eq(Word(provider)))
        .filter(machines::status.ne_all(TERMINAL).or(machines::cleanup_pending))
        .select(machines::name)
        .load(db)?;
    Ok(names.into_iter().collect())
}

pub fn census(db: &mut Db) -> Result<Census, Fault> {
    use diesel::dsl::count_star;
    let conversations = conversations::table
        .group_by(conversations::status)
        .select((conversations::status, count_star()))
        .order(conversations::status)
        .load::<(Word<ConversationStatus>, i64)>(db)?;
    let machines = machines::table
        .group_by((machines::provider, machines::status))
        .select((machines::provider, machines::status, count_star()))
        .order((machines::provider, machines::status))
        .load::<(Word<Provider>, Word<MachineStatus>, i64)>(db)?;
    Ok(Census {
        conversations: conversations
            .into_iter()
            .map(|(status, count)| (status.0, count))
            .collect(),
        machines: machines
            .into_iter()
            .map(|(provider, status, count)| (provider.0, status.0, count))
            .collect(),
    })
}
