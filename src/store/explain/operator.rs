//! What an operator sees across accounts, and the end of a row that an operator takes over.

use std::collections::BTreeMap;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use serde_json::Value;

use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::machine::MachineStatus;
use fountain_actors::domain::*;
use fountain_actors::ports::store::explain::{AuditEntry, Overview};
use fountain_actors::ports::store::machines::{Finish, Finished};

use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{Id, Json, Word, inner, moment};
use crate::store::events::Outbox;
use crate::store::machines::finish::{self, Verdict};
use crate::store::machines::journal;
use crate::store::machines::rows::MachineRow;
use crate::store::schema::{accounts, audit_events, conversations, machines};

/// Live rows and rows that owe a delete, newest first, in three queries.
pub fn live_machines(db: &mut Db, now: Moment) -> Result<Vec<Overview>, Fault> {
    let clock = lease_clock(db, now)?;
    let alive = || {
        machines::status
            .ne_all([Word(MachineStatus::Terminated), Word(MachineStatus::Failed)])
            .or(machines::cleanup_pending)
    };
    let rows = machines::table
        .filter(alive())
        .order((machines::inserted_at.desc(), machines::id.desc()))
        .select(MachineRow::as_select())
        .load(db)?;
    let emails: Vec<(Id<AccountId>, Option<String>)> = accounts::table
        .filter(
            accounts::id
                .nullable()
                .eq_any(machines::table.filter(alive()).select(machines::account_id)),
        )
        .select((accounts::id, accounts::email))
        .load(db)?;
    let emails: BTreeMap<AccountId, Option<String>> = emails.into_iter().map(|(id, email)| (id.0, email)).collect();
    let tenants: Vec<(Id<MachineId>, i64)> = conversations::table
        .filter(conversations::machine_id.eq_any(machines::table.filter(alive()).select(machines::id)))
        .group_by(conversations::machine_id)
        .select((conversations::machine_id, diesel::dsl::count_star()))
        .load(db)?;
    let tenants: BTreeMap<MachineId, i64> = tenants.into_iter().map(|(id, count)| (id.0, count)).collect();
    Ok(rows
        .into_iter()
        .map(Machine::from)
        .map(|machine| Overview {
            email: machine.account_id.and_then(|id| emails.get(&id).cloned()).flatten(),
            conversations: tenants.get(&machine.id).copied().unwrap_or_default(),
            abandoned: machine.transition.is_some() && !machine.lease_live(clock),
            machine,
        })
        .collect())
}

/// Newest first.
pub fn audit_log(db: &mut Db, prefix: Option<&str>, limit: i64) -> Result<Vec<AuditEntry>, Fault> {
    type Row = (
        i64,
        Option<Id<AccountId>>,
        String,
        String,
        Option<String>,
        String,
        Option<String>,
        Json<Value>,
        NaiveDateTime,
    );
    // Prefixes are words of ours without a wildcard.
    let pattern = format!("{}%", prefix.unwrap_or_default());
    let rows: Vec<Row> = audit_events::table
        .filter(audit_events::action.like(pattern))
        .order(audit_events::id.desc())
        .limit(limit)
        .select((
            audit_events::id,
            audit_events::account_id,
            audit_events::action,
            audit_events::resource_type,
            audit_events::resource_id,
            audit_events::actor,
            audit_events::request_ip,
            audit_events::metadata,
            audit_events::inserted_at,
        ))
        .load(db)?;
    let entry = |(id, account, action, resource_type, resource_id, actor, request_ip, metadata, at): Row| AuditEntry {
        id,
        account: inner(account),
        action,
        resource_type,
        resource_id,
        actor,
        request_ip,
        metadata: metadata.0,
        at: moment(at),
    };
    Ok(rows.into_iter().map(entry).collect())
}

/// The row ends, and with it everything that would be looked at under its name (RUL-L-47).
pub fn hand_over(db: &mut Db, taken: Finish) -> Result<(Verdict<Finished>, Outbox), Fault> {
    let (machine, epoch, now) = (taken.machine_id, taken.epoch, taken.now);
    let (verdict, outbox) = finish::finish(db, taken)?;
    if verdict.is_ok() {
        journal::close_all(db, machine, epoch, now)?;
    }
    Ok((verdict, outbox))
}
