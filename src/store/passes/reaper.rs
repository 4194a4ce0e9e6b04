//! What the hourly reaper looks for among rows, and whose the names of a listing are (lifecycle 7, RUL-L-12, RUL-L-51
//! to RUL-L-53).

use std::collections::BTreeMap;

use diesel::dsl::{exists, not, sql};
use diesel::prelude::*;
use diesel::sql_types::{Bool, Timestamp};

use fountain_actors::domain::machine::{Machine, MachineStatus, Provider, Transition};
use fountain_actors::domain::operation::Outcome;
use fountain_actors::domain::*;
use fountain_actors::ports::store::passes::NameHolder;

use crate::on_backend;
use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{Id, Word, at};
use crate::store::machines::rows::MachineRow;
use crate::store::machines::sweeps::FAIR_ORDER;
use crate::store::schema::{machines, operations, untracked_machines};

/// Builds that nobody carries any more. Their age is the stamp's, because `updated_at` moves with every step (RUL-L-12).
pub fn stuck_builds(
    db: &mut Db,
    now: Moment,
    before: Moment,
    marker_before: Moment,
    limit: i64,
) -> Result<Vec<Machine>, Fault> {
    let clock = at(lease_clock(db, now)?);
    let rows = machines::table
        .filter(machines::status.eq_any([Word(MachineStatus::Pending), Word(MachineStatus::Starting)]))
        .filter(
            machines::transition
                .is_null()
                .or(machines::transition.ne(Word(Transition::Destroying))),
        )
        .filter(
            sql::<Bool>("coalesce(machines.transition_at, machines.inserted_at) < ").bind::<Timestamp, _>(at(before)),
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
        .order((sql::<Timestamp>(FAIR_ORDER), machines::id))
        .limit(limit)
        .select(MachineRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Machine::from).collect())
}

/// Who holds these names. Several rows may have had one; a live one wins, then the one that ended last. A row that was
/// handed over has none any more: what stands there is the operator's (RUL-L-47).
pub fn holders(db: &mut Db, provider: Provider, names: &[String]) -> Result<Vec<(String, NameHolder)>, Fault> {
    type Found = (String, Id<MachineId>, Word<MachineStatus>, bool);
    let found: Vec<Found> = machines::table
        .filter(machines::provider.eq(Word(provider)))
        .filter(machines::name.eq_any(names))
        .filter(
            machines::status
                .ne_all([Word(MachineStatus::Terminated), Word(MachineStatus::Failed)])
                .or(machines::cleanup_pending)
                .or(not(exists(
                    operations::table
                        .filter(operations::machine_id.eq(machines::id))
                        .filter(operations::outcome.eq(Word(Outcome::HandedOver))),
                ))),
        )
        .order((machines::terminated_at, machines::inserted_at, machines::id))
        .select((
            machines::name,
            machines::id,
            machines::status,
            machines::cleanup_pending,
        ))
        .load(db)?;
    let mut holders = BTreeMap::new();
    for (name, id, status, owes_delete) in found {
        if !status.0.is_terminal() || owes_delete {
            holders.insert(name, NameHolder::Live);
        } else if holders.get(&name) != Some(&NameHolder::Live) {
            holders.insert(name, NameHolder::Ended(id.0));
        }
    }
    Ok(holders.into_iter().collect())
}

pub fn note_untracked(db: &mut Db, provider: Provider, names: &[String], now: Moment) -> Result<(), Fault> {
    for name in names {
        let row = (
            untracked_machines::provider.eq(provider.as_str()),
            untracked_machines::name.eq(name),
            untracked_machines::first_seen.eq(at(now)),
            untracked_machines::last_seen.eq(at(now)),
        );
        on_backend!(db, |conn| diesel::insert_into(untracked_machines::table)
            .values(row)
            .on_conflict((untracked_machines::provider, untracked_machines::name))
            .do_update()
            .set(untracked_machines::last_seen.eq(at(now)))
            .execute(conn))?;
    }
    Ok(())
}

pub fn count_untracked(db: &mut Db, provider: Provider, since: Moment) -> Result<i64, Fault> {
    Ok(untracked_machines::table
        .filter(untracked_machines::provider.eq(provider.as_str()))
        .filter(untracked_machines::last_seen.ge(at(since)))
        .count()
        .get_result(db)?)
}
