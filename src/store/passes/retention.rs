//! What is forgotten, in batches that hold the writer for a moment only (lifecycle 1.8, RUL-L-60).
//!
//! Events are deleted from the beginning of their table on: ids grow with time, so the oldest page tells whether
//! anything is due, and no index on a time is needed on the largest tables.

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Bool;

use fountain_actors::domain::operation::{Outcome, Verb};
use fountain_actors::domain::*;
use fountain_actors::ports::store::passes::Forgettable;

use crate::store::backend::{Db, Fault};
use crate::store::columns::{Word, at};
use crate::store::machines::journal;
use crate::store::schema::{api_keys, audit_events, log_events, operations, usage_events};

/// Deletes the oldest rows of a table whose ids grow with time.
macro_rules! forget_oldest {
    ($db:expr, $table:ident, $before:expr, $limit:expr) => {{
        let oldest: Vec<(i64, chrono::NaiveDateTime)> = $table::table
            .order($table::id)
            .limit($limit)
            .select(($table::id, $table::inserted_at))
            .load($db)?;
        let due: Vec<i64> = oldest
            .into_iter()
            .filter(|(_, inserted)| *inserted < $before)
            .map(|(id, _)| id)
            .collect();
        diesel::delete($table::table.filter($table::id.eq_any(due))).execute($db)
    }};
}

/// One batch.
pub fn forget(db: &mut Db, what: Forgettable, before: Moment, limit: i64) -> Result<u64, Fault> {
    let before = at(before);
    let gone = match what {
        Forgettable::LogEvents => forget_oldest!(db, log_events, before, limit)?,
        Forgettable::AuditEvents => forget_oldest!(db, audit_events, before, limit)?,
        Forgettable::UsageEvents => forget_oldest!(db, usage_events, before, limit)?,
        Forgettable::RevokedKeys => {
            let due: Vec<String> = api_keys::table
                .filter(api_keys::revoked_at.lt(before))
                .order(api_keys::id)
                .limit(limit)
                .select(api_keys::id)
                .load(db)?;
            diesel::delete(api_keys::table.filter(api_keys::id.eq_any(due))).execute(db)?
        }
        Forgettable::Operations => operations_before(db, before, limit, false)?,
        Forgettable::DeletionReceipts => operations_before(db, before, limit, true)?,
    };
    Ok(u64::try_from(gone).unwrap_or(u64::MAX))
}

/// Journal rows that say that a delete was confirmed, or handed over, are receipts.
fn operations_before(
    db: &mut Db,
    before: chrono::NaiveDateTime,
    limit: i64,
    receipts: bool,
) -> Result<usize, diesel::result::Error> {
    let is_receipt = operations::verb.eq_any([Word(Verb::Destroy), Word(Verb::Reset)]).and(
        operations::outcome
            .eq_any([Word(Outcome::Done), Word(Outcome::HandedOver)])
            .assume_not_null(),
    );
    let old = operations::table
        .filter(operations::started_at.lt(before))
        .filter(operations::outcome.is_not_null())
        .filter(diesel::dsl::not(sql::<Bool>(journal::DEBT)))
        .order(operations::started_at)
        .limit(limit)
        .select(operations::id);
    let due: Vec<String> = if receipts {
        old.filter(is_receipt).load(db)?
    } else {
        old.filter(diesel::dsl::not(is_receipt)).load(db)?
    };
    diesel::delete(operations::table.filter(operations::id.eq_any(due))).execute(db)
}
