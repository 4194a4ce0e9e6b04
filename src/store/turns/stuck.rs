//! Turns that nobody carries any more, as the passes look for them (lifecycle 7, RUL-L-31).

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Bool, Timestamp};

use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::*;
use fountain_actors::ports::store::turns::Adoptable;

use super::rows::TurnRow;
use super::sweeps::{Found, adoptable_of};
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Word, at, key};
use crate::store::schema::{conversations, machines, turns};

/// Turns that run since long before, with nobody asked and nothing said; oldest first.
pub fn running(db: &mut Db, started_before: Moment, quiet_before: Moment, limit: i64) -> Result<Vec<Adoptable>, Fault> {
    let quiet = sql::<Bool>("(conversations.last_active_at IS NULL OR conversations.last_active_at < ")
        .bind::<Timestamp, _>(at(quiet_before))
        .sql(")");
    let found = turns::table
        .inner_join(conversations::table.inner_join(machines::table))
        .filter(turns::status.eq(Word(TurnStatus::Running)))
        .filter(turns::started_at.lt(at(started_before)))
        .filter(turns::pending_permission.is_null())
        .filter(quiet)
        .order((turns::started_at, turns::id))
        .limit(limit)
        .select((
            TurnRow::as_select(),
            conversations::account_id,
            machines::id,
            machines::name,
            machines::provider,
        ))
        .load::<Found>(db)?;
    Ok(found.into_iter().map(adoptable_of).collect())
}

/// Prompts of conversations on this machine that wait for its build.
pub fn waiting_on(db: &mut Db, machine: MachineId) -> Result<Vec<(ConversationId, TurnId)>, Fault> {
    let rows: Vec<(Id<ConversationId>, Id<TurnId>)> = turns::table
        .inner_join(conversations::table)
        .filter(conversations::machine_id.eq(key(machine)))
        .filter(turns::status.eq(Word(TurnStatus::Pending)))
        .order(turns::id)
        .select((conversations::id, turns::id))
        .load(db)?;
    Ok(rows
        .into_iter()
        .map(|(conversation, turn)| (conversation.0, turn.0))
        .collect())
}
