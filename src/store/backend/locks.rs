//! Advisory locks and the lease clock.
//!
//! All locks are transaction scoped and taken in the order of RUL-L-9: fleet, account (both the quota class), queue, machine
//! in ascending id order, then rows, and the event locks last (RUL-23). SQLite has one writer: there they are no-ops.

use std::collections::BTreeSet;

use diesel::prelude::*;
use diesel::sql_types::{Integer, Timestamp};
use uuid::Uuid;

use super::fault::is_lock_timeout;
use super::{Db, Fault};
use crate::store::columns::moment;
use crate::store::schema::replicas;
use fountain_actors::domain::{AccountId, ErrorCode, MachineId, Moment};

/// Lock classes: the first key of the two-key form. The first four are upstream's numbers (lifecycle 1.8).
const QUOTA: i32 = 4315;
const MACHINE: i32 = 4316;
const QUEUE: i32 = 4317;
const EVENTS: i32 = 4318;
/// Migrations, session scoped (`store/migrations.rs`).
pub(in crate::store) const MIGRATIONS: i32 = 4319;

/// The fleet's key in the quota class. An account may fold to it; then it waits for the fleet, which is harmless.
const FLEET: i32 = 0;

/// Folds an id into a lock key. Two ids with one key share a lock: slower, never wrong.
fn fold(id: Uuid) -> i32 {
    let word = id.as_u128();
    let folded = (word >> 96) ^ (word >> 64) ^ (word >> 32) ^ word;
    (folded & 0xffff_ffff) as u32 as i32
}

fn advisory(db: &mut Db, class: i32, key: i32) -> Result<(), Fault> {
    if let Db::Postgres(conn) = db {
        diesel::sql_query("SELECT pg_advisory_xact_lock($1, $2)")
            .bind::<Integer, _>(class)
            .bind::<Integer, _>(key)
            .execute(conn)?;
    }
    Ok(())
}

/// The fleet's quota lock. Before [`lock_account`], before any machine.
pub fn lock_fleet(db: &mut Db) -> Result<(), Fault> {
    advisory(db, QUOTA, FLEET)
}

/// The account's quota lock.
pub fn lock_account(db: &mut Db, account: AccountId) -> Result<(), Fault> {
    advisory(db, QUOTA, fold(account.0))
}

/// The account's launch queue: depth, and one request a schedule. After the quota locks, before any machine.
pub fn lock_queue(db: &mut Db, account: AccountId) -> Result<(), Fault> {
    advisory(db, QUEUE, fold(account.0))
}

/// The machine's lock; several machines in ascending order of their ids.
///
/// # Errors
/// `sandbox_unavailable` when it is not had within the lock timeout of 5 s (lifecycle 1.8).
pub fn lock_machine(db: &mut Db, machine: MachineId) -> Result<(), Fault> {
    match advisory(db, MACHINE, fold(machine.0)) {
        Err(Fault::Query(error)) if is_lock_timeout(&error) => Err(ErrorCode::SandboxUnavailable.into()),
        other => other,
    }
}

/// The event locks of these accounts, in ascending order: immediately before event ids are drawn, and after every
/// other lock (RUL-23). At most 16 accounts a transaction; the caller splits.
pub fn lock_events(db: &mut Db, accounts: impl IntoIterator<Item = AccountId>) -> Result<(), Fault> {
    let keys: BTreeSet<i32> = accounts.into_iter().map(|account| fold(account.0)).collect();
    keys.into_iter().try_for_each(|key| advisory(db, EVENTS, key))
}

#[derive(QueryableByName)]
struct DatabaseClock {
    #[diesel(sql_type = Timestamp)]
    now: chrono::NaiveDateTime,
}

/// The clock by which leases are written and compared (RUL-29): the database's on PostgreSQL, where many processes
/// share it; the caller's on SQLite, where its process is the only one and virtual time must reach it. There it never
/// runs backwards against the newest heartbeat (RUL-L-11): a wall clock that is set back must not make leases longer.
pub fn lease_clock(db: &mut Db, now: Moment) -> Result<Moment, Fault> {
    match db {
        Db::Sqlite(conn) => {
            let newest: Option<chrono::NaiveDateTime> = replicas::table
                .select(diesel::dsl::max(replicas::heartbeat))
                .get_result(conn)?;
            Ok(newest.map_or(now, |newest| now.max(moment(newest))))
        }
        Db::Postgres(conn) => {
            let clock: DatabaseClock =
                diesel::sql_query("SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now").get_result(conn)?;
            Ok(moment(clock.now))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_an_id_reaches_its_lock_key() {
        let base = fold(Uuid::from_u128(1));
        for bit in [32, 64, 96, 127] {
            assert_ne!(fold(Uuid::from_u128(1 | (1 << bit))), base, "bit {bit}");
        }
    }
}
