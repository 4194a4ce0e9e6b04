//! Everything that explains one machine, in a constant number of queries.

use std::collections::BTreeMap;

use chrono::NaiveDateTime;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Bool;

use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::explain::{OpenTurn, Tenant, Testimony};
use fountain_actors::domain::operation::Operation;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::*;

use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{Id, Word, key, maybe_moment};
use crate::store::machines::journal::{DEBT, OperationRow};
use crate::store::machines::{quota, rows};
use crate::store::schema::{conversations, operations, turns};
use crate::store::turns::rows::OPEN;

/// None for a machine that is not this account's.
pub fn of_machine(
    db: &mut Db,
    account: AccountId,
    id: MachineId,
    limit: i64,
    now: Moment,
) -> Result<Option<Testimony>, Fault> {
    let clock = lease_clock(db, now)?;
    let Some(machine) = rows::find(db, id)?.filter(|machine| machine.account_id == Some(account)) else {
        return Ok(None);
    };
    let newest = operations::table
        .filter(operations::machine_id.eq(key(id)))
        .order((operations::started_at.desc(), operations::epoch.desc()))
        .limit(limit)
        .select(OperationRow::as_select())
        .load(db)?;
    let open = operations::table
        .filter(operations::machine_id.eq(key(id)))
        .filter(sql::<Bool>(DEBT))
        .order((operations::started_at, operations::epoch))
        .select(OperationRow::as_select())
        .load(db)?;
    Ok(Some(Testimony {
        clock,
        operations: newest.into_iter().map(Operation::from).collect(),
        open: open.into_iter().map(Operation::from).collect(),
        tenants: tenants(db, id)?,
        counted: quota::is_counted(db, id)?,
        machine,
    }))
}

fn tenants(db: &mut Db, machine: MachineId) -> Result<Vec<Tenant>, Fault> {
    type Bound = (Id<ConversationId>, Word<ConversationStatus>, Option<NaiveDateTime>);
    type Open = (Id<TurnId>, Id<ConversationId>, Word<TurnStatus>, Option<NaiveDateTime>);
    let bound: Vec<Bound> = conversations::table
        .filter(conversations::machine_id.eq(key(machine)))
        .order((conversations::inserted_at, conversations::id))
        .select((conversations::id, conversations::status, conversations::last_active_at))
        .load(db)?;
    let open: Vec<Open> = turns::table
        .inner_join(conversations::table)
        .filter(conversations::machine_id.eq(key(machine)))
        .filter(turns::status.eq_any(OPEN))
        .select((turns::id, turns::conversation_id, turns::status, turns::pending_until))
        .load(db)?;
    let mut open: BTreeMap<ConversationId, OpenTurn> = open
        .into_iter()
        .map(|(id, conversation, status, until)| {
            let turn = OpenTurn {
                id: id.0,
                status: status.0,
                pending_until: maybe_moment(until),
            };
            (conversation.0, turn)
        })
        .collect();
    let alive = bound.into_iter().filter(|(_, status, _)| !status.0.is_terminal());
    Ok(alive
        .map(|(id, status, active)| Tenant {
            conversation: id.0,
            status: status.0,
            last_active_at: maybe_moment(active),
            turn: open.remove(&id.0),
        })
        .collect())
}
