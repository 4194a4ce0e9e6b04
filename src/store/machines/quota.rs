//! The quota transaction: what is counted, and who may have one more (lifecycle 8, RUL-L-70 to RUL-L-72).
//!
//! Whoever takes a slot holds the fleet's lock and the account's from before the count until the commit, so two wakes
//! at the last slot cannot both pass. Both come before any machine lock (RUL-L-9).

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Bool;

use fountain_actors::domain::credit::Standing;
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::Limits;

use crate::store::backend::{Db, Fault, lock_account, lock_fleet};
use crate::store::columns::key;
use crate::store::schema::{accounts, machines};

/// [`fountain_actors::domain::machine::Machine::is_counted`] in SQL, and the suspended machine that an unsettled wake
/// may have started.
pub const COUNTED: &str = "(cleanup_pending OR status IN ('pending', 'starting', 'ready') \
     OR (status NOT IN ('terminated', 'failed') AND transition IN ('resuming', 'destroying')) \
     OR (status = 'suspended' AND EXISTS (SELECT 1 FROM operations o WHERE o.machine_id = machines.id \
         AND o.verb = 'wake' AND o.settled_at IS NULL AND o.closed_at IS NULL \
         AND (o.outcome IS NULL OR o.outcome IN ('unknown', 'superseded')))))";

/// Takes the quota locks in their order: fleet, then account.
pub fn lock(db: &mut Db, account: AccountId) -> Result<(), Fault> {
    lock_fleet(db)?;
    lock_account(db, account)
}

/// Counted machines, of one account or of all.
pub fn counted(db: &mut Db, account: Option<AccountId>) -> Result<i64, Fault> {
    let counted = sql::<Bool>(COUNTED);
    let count = match account {
        Some(account) => machines::table
            .filter(machines::account_id.eq(key(account)))
            .filter(counted)
            .count()
            .get_result(db),
        None => machines::table.filter(counted).count().get_result(db),
    }?;
    Ok(count)
}

/// Whether one machine is counted.
pub fn is_counted(db: &mut Db, machine: MachineId) -> Result<bool, Fault> {
    let count: i64 = machines::table
        .find(key(machine))
        .filter(sql::<Bool>(COUNTED))
        .count()
        .get_result(db)?;
    Ok(count > 0)
}

/// Counted machines of each of these accounts; none for an account without any.
pub fn counted_of(db: &mut Db, accounts: &[String]) -> Result<Vec<(String, i64)>, Fault> {
    let rows = machines::table
        .filter(machines::account_id.eq_any(accounts))
        .filter(sql::<Bool>(COUNTED))
        .group_by(machines::account_id)
        .select((machines::account_id.assume_not_null(), diesel::dsl::count_star()))
        .load(db)?;
    Ok(rows)
}

/// Whether the account may start anything, and what it is judged by.
///
/// # Errors
/// `NotFound` when there is no such account.
pub fn standing(db: &mut Db, account: AccountId) -> Result<(bool, Standing), Fault> {
    use chrono::NaiveDateTime;
    type Row = (Option<NaiveDateTime>, Option<NaiveDateTime>, bool, Option<i64>, i64);
    let (suspended, deleting, comped, limit_override, balance_mills) = accounts::table
        .find(key(account))
        .select((
            accounts::suspended_at,
            accounts::deleting_at,
            accounts::comped,
            accounts::sandbox_limit_override,
            accounts::credit_balance,
        ))
        .first::<Row>(db)
        .optional()?
        .ok_or_else(|| Fault::not_found("account"))?;
    let standing = Standing {
        comped,
        limit_override,
        balance_mills,
    };
    Ok((suspended.is_none() && deleting.is_none(), standing))
}

/// `account_suspended` unless the account may start and wake things (RUL-L-36).
pub fn require_active(db: &mut Db, of: AccountId) -> Result<(), Fault> {
    match standing(db, of)? {
        (true, _) => Ok(()),
        (false, _) => Err(ErrorCode::AccountSuspended.into()),
    }
}

/// Admits one more machine. The locks are held.
///
/// # Errors
/// `fleet_full`, `account_suspended`, `insufficient_credits`, `sandbox_quota_exceeded`, in this order: an account without
/// credit hears of that and not of a cap of 0.
pub fn admit(db: &mut Db, of: AccountId, limits: Limits) -> Result<(), Fault> {
    let (active, standing) = standing(db, of)?;
    if counted(db, None)? >= limits.fleet {
        return Err(ErrorCode::FleetFull.into());
    }
    if !active {
        return Err(ErrorCode::AccountSuspended.into());
    }
    if !standing.may_spend(limits.credits) {
        return Err(ErrorCode::InsufficientCredits.into());
    }
    let limit = standing.cap(limits.credits, limits.cap);
    let count = counted(db, Some(of))?;
    if count >= limit {
        return Err(Refusal::QuotaExceeded { active: count, limit }.into());
    }
    Ok(())
}
