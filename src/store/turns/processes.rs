//! Process records: which spawn of which conversation, how far its pipes are durable, and whether somebody wants it to
//! stop (RUL-40, RUL-19d).

use std::collections::BTreeMap;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use diesel::sql_types::{Array, BigInt, Nullable, Text};

use fountain_actors::domain::process::{Position, Process};
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::*;
use fountain_actors::ports::store::StoreError;

use crate::locked;
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Word, at, key, maybe_at, maybe_moment, moment};
use crate::store::conversations::rows as conversations;
use crate::store::schema::{processes, turns};

#[derive(Queryable, Selectable)]
#[diesel(table_name = processes)]
struct ProcessRow {
    id: Id<ProcessId>,
    account_id: Id<AccountId>,
    conversation_id: Id<ConversationId>,
    machine_id: Id<MachineId>,
    spawn_id: Id<SpawnId>,
    session_id: Option<String>,
    stdout_consumed: i64,
    stdout_digest: Option<String>,
    stderr_consumed: i64,
    stderr_digest: Option<String>,
    stop_requested: bool,
    ended_at: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
}

impl From<ProcessRow> for Process {
    fn from(row: ProcessRow) -> Self {
        Self {
            id: row.id.0,
            account_id: row.account_id.0,
            conversation_id: row.conversation_id.0,
            machine_id: row.machine_id.0,
            spawn_id: row.spawn_id.0,
            session_id: row.session_id,
            stdout: Position {
                consumed: row.stdout_consumed,
                digest: row.stdout_digest,
            },
            stderr: Position {
                consumed: row.stderr_consumed,
                digest: row.stderr_digest,
            },
            stop_requested: row.stop_requested,
            ended_at: maybe_moment(row.ended_at),
            inserted_at: moment(row.inserted_at),
        }
    }
}

/// Processes of a conversation that are not known to have ended, newest first.
pub fn live_of(db: &mut Db, conversation: ConversationId) -> Result<Vec<Process>, Fault> {
    let rows = processes::table
        .filter(processes::conversation_id.eq(key(conversation)))
        .filter(processes::ended_at.is_null())
        .order((processes::inserted_at.desc(), processes::id.desc()))
        .select(ProcessRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Process::from).collect())
}

/// Processes by id, locked in the order of their ids.
pub fn lock_many(db: &mut Db, ids: Vec<String>) -> Result<BTreeMap<ProcessId, Process>, Fault> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let rows: Vec<ProcessRow> = locked!(
        db,
        load,
        processes::table
            .filter(processes::id.eq_any(ids))
            .order(processes::id)
            .select(ProcessRow::as_select())
    )?;
    Ok(rows
        .into_iter()
        .map(Process::from)
        .map(|process| (process.id, process))
        .collect())
}

/// Writes the positions of locked records back: on PostgreSQL in one round trip, however many there are.
pub fn save_positions(db: &mut Db, moved: &[&Process]) -> Result<(), Fault> {
    match db {
        Db::Postgres(conn) if !moved.is_empty() => {
            let ids: Vec<String> = moved.iter().map(|process| key(process.id)).collect();
            let consumed = |of: fn(&Process) -> &Position| moved.iter().map(|process| of(process).consumed).collect();
            let digests = |of: fn(&Process) -> &Position| -> Vec<Option<&str>> {
                moved.iter().map(|process| of(process).digest.as_deref()).collect()
            };
            let (stdout, stderr): (Vec<i64>, Vec<i64>) = (consumed(|p| &p.stdout), consumed(|p| &p.stderr));
            diesel::sql_query(
                "UPDATE processes SET stdout_consumed = n.stdout, stdout_digest = n.stdout_digest, \
                 stderr_consumed = n.stderr, stderr_digest = n.stderr_digest \
                 FROM unnest($1, $2, $3, $4, $5) AS n (id, stdout, stdout_digest, stderr, stderr_digest) \
                 WHERE processes.id = n.id",
            )
            .bind::<Array<Text>, _>(ids)
            .bind::<Array<BigInt>, _>(stdout)
            .bind::<Array<Nullable<Text>>, _>(digests(|p| &p.stdout))
            .bind::<Array<BigInt>, _>(stderr)
            .bind::<Array<Nullable<Text>>, _>(digests(|p| &p.stderr))
            .execute(conn)?;
        }
        _ => {
            for process in moved {
                diesel::update(processes::table.find(key(process.id)))
                    .set((
                        processes::stdout_consumed.eq(process.stdout.consumed),
                        processes::stdout_digest.eq(process.stdout.digest.as_deref()),
                        processes::stderr_consumed.eq(process.stderr.consumed),
                        processes::stderr_digest.eq(process.stderr.digest.as_deref()),
                    ))
                    .execute(db)?;
            }
        }
    }
    Ok(())
}

/// Registers a spawn before its answer is known. The turn that runs remembers it (RUL-L-41).
pub fn open(db: &mut Db, process: &Process, server: ServerEpoch) -> Result<(), Fault> {
    let conversation = conversations::require(db, process.conversation_id)?;
    if conversation.server_epoch != server {
        return Err(StoreError::Stale("server generation").into());
    }
    diesel::insert_into(processes::table)
        .values((
            processes::id.eq(key(process.id)),
            processes::account_id.eq(key(conversation.account_id)),
            processes::conversation_id.eq(key(process.conversation_id)),
            processes::machine_id.eq(key(process.machine_id)),
            processes::spawn_id.eq(key(process.spawn_id)),
            processes::session_id.eq(process.session_id.as_deref()),
            processes::stdout_consumed.eq(process.stdout.consumed),
            processes::stdout_digest.eq(process.stdout.digest.as_deref()),
            processes::stderr_consumed.eq(process.stderr.consumed),
            processes::stderr_digest.eq(process.stderr.digest.as_deref()),
            processes::stop_requested.eq(process.stop_requested),
            processes::ended_at.eq(maybe_at(process.ended_at)),
            processes::inserted_at.eq(at(process.inserted_at)),
        ))
        .execute(db)?;
    diesel::update(turns::table)
        .filter(turns::conversation_id.eq(key(process.conversation_id)))
        .filter(turns::status.eq(Word(TurnStatus::Running)))
        .set(turns::spawn_id.eq(key(process.spawn_id)))
        .execute(db)?;
    Ok(())
}

pub fn bind_session(db: &mut Db, process: ProcessId, session: &str) -> Result<(), Fault> {
    let touched = diesel::update(processes::table.find(key(process)))
        .set(processes::session_id.eq(session))
        .execute(db)?;
    match touched {
        0 => Err(Fault::not_found("process")),
        _ => Ok(()),
    }
}

/// A process whose record is gone needs no stop: idempotent.
pub fn request_stop(db: &mut Db, process: ProcessId) -> Result<(), Fault> {
    diesel::update(processes::table.find(key(process)))
        .set(processes::stop_requested.eq(true))
        .execute(db)?;
    Ok(())
}

/// The first end stays; idempotent.
pub fn end(db: &mut Db, process: ProcessId, now: Moment) -> Result<(), Fault> {
    diesel::update(processes::table.find(key(process)))
        .filter(processes::ended_at.is_null())
        .set(processes::ended_at.eq(at(now)))
        .execute(db)?;
    Ok(())
}

pub fn to_stop(db: &mut Db, machine: MachineId) -> Result<Vec<Process>, Fault> {
    let rows = processes::table
        .filter(processes::machine_id.eq(key(machine)))
        .filter(processes::stop_requested)
        .filter(processes::ended_at.is_null())
        .order((processes::inserted_at, processes::id))
        .select(ProcessRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Process::from).collect())
}
