//! What passes look for among turns: those without a server, those whose time is over (RUL-36, RUL-37, RUL-L-23,
//! RUL-L-50).

use std::time::Duration;

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Bool;

use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{Provider, Transition};
use fountain_actors::domain::turn::{Turn, TurnStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::clock::after;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::turns::Adoptable;

use super::rows::{self, OPEN, TurnRow};
use crate::store::backend::{Db, Fault, Kind, lease_clock};
use crate::store::columns::{Id, Word, at, key};
use crate::store::conversations::rows as conversation_rows;
use crate::store::schema::{conversations, machines, turns};

pub type Found = (TurnRow, Id<AccountId>, Id<MachineId>, String, Word<Provider>);

pub fn adoptable_of((turn, account, machine, name, provider): Found) -> Adoptable {
    let turn = Turn::from(turn);
    Adoptable {
        conversation_id: turn.conversation_id,
        account_id: account.0,
        machine_id: machine.0,
        machine_name: name,
        provider: provider.0,
        turn,
    }
}

/// Statuses that end a conversation.
const ENDED: [Word<ConversationStatus>; 2] = [Word(ConversationStatus::Failed), Word(ConversationStatus::Terminated)];

/// Turns that need a server: open, on a machine that is neither leased nor DOOMED, oldest first.
///
/// On SQLite a lease is not looked at: its only process knows which of its own operations run, and a lease of a dead
/// one was ended at boot (RUL-30).
pub fn adoptable(db: &mut Db, limit: i64) -> Result<Vec<Adoptable>, Fault> {
    let unleased = match db.kind() {
        Kind::Sqlite => "TRUE",
        Kind::Postgres => {
            "(machines.lease_until IS NULL OR machines.lease_until <= clock_timestamp() AT TIME ZONE 'UTC')"
        }
    };
    let found = turns::table
        .inner_join(conversations::table.inner_join(machines::table))
        .filter(turns::status.eq_any(OPEN))
        .filter(conversations::status.ne_all(ENDED))
        .filter(
            machines::transition
                .is_null()
                .or(machines::transition.ne(Word(Transition::Destroying))),
        )
        .filter(sql::<Bool>(unleased))
        .order((turns::inserted_at, turns::id))
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

/// Pending turns past their limit, unless a live lease builds for them, and running turns past their reconnect
/// window; oldest first.
pub fn overdue(db: &mut Db, now: Moment, limit: i64) -> Result<Vec<Adoptable>, Fault> {
    let clock = at(lease_clock(db, now)?);
    let waits = turns::status
        .eq(Word(TurnStatus::Pending))
        .and(turns::pending_until.le(at(now)))
        .and(machines::lease_until.is_null().or(machines::lease_until.le(clock)));
    let lost = turns::status
        .eq(Word(TurnStatus::Running))
        .and(turns::reattach_deadline.le(at(now)));
    let found = turns::table
        .inner_join(conversations::table.inner_join(machines::table))
        .filter(turns::status.eq_any(OPEN))
        .filter(waits.or(lost))
        .order((turns::inserted_at, turns::id))
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

/// Starts or keeps a reconnect window (RUL-37).
pub fn open_window(db: &mut Db, id: TurnId, now: Moment, until: Moment, hard_limit: Duration) -> Result<Moment, Fault> {
    let mut turn = lock_running(db, id)?;
    let first_loss = *turn.reattach_first_loss.get_or_insert(now);
    let deadline = match turn.reattach_deadline {
        Some(deadline) if deadline > now => return Ok(deadline),
        _ => until.min(after(first_loss, hard_limit)),
    };
    turn.reattach_deadline = Some(deadline);
    rows::save(db, &turn)?;
    Ok(deadline)
}

fn lock_running(db: &mut Db, id: TurnId) -> Result<Turn, Fault> {
    let gone = || Fault::not_found("turn");
    let seen = rows::find(db, id)?.ok_or_else(gone)?;
    conversation_rows::require(db, seen.conversation_id)?;
    let turn = rows::of_conversation(db, seen.conversation_id, id)?.ok_or_else(gone)?;
    match turn.status {
        TurnStatus::Running => Ok(turn),
        _ => Err(StoreError::Stale("turn").into()),
    }
}

/// The server is attached again: the next loss counts from its own beginning.
pub fn close_window(db: &mut Db, id: TurnId) -> Result<(), Fault> {
    diesel::update(turns::table.find(key(id)))
        .set((
            turns::reattach_deadline.eq(None::<chrono::NaiveDateTime>),
            turns::reattach_first_loss.eq(None::<chrono::NaiveDateTime>),
        ))
        .execute(db)?;
    Ok(())
}
