//! Rows of `sandbox_requests`: read, counted, placed in their line.

use chrono::NaiveDateTime;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Bool, Timestamp};

use fountain_actors::domain::queue::{
    QueuedLaunch, RequestKind, RequestSource, RequestStatus, RequestView, SandboxRequest,
};
use fountain_actors::domain::*;

use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Json, Word, at, inner, key, moment};
use crate::store::schema::{conversations, sandbox_requests, turns};

/// Statuses that count against the depth.
pub const ACTIVE: [Word<RequestStatus>; 2] = [Word(RequestStatus::Queued), Word(RequestStatus::Starting)];

#[derive(Queryable, Selectable)]
#[diesel(table_name = sandbox_requests)]
pub struct RequestRow {
    id: Id<QueueRequestId>,
    account_id: Id<AccountId>,
    agent_id: Id<AgentId>,
    kind: Word<RequestKind>,
    status: Word<RequestStatus>,
    source: Word<RequestSource>,
    schedule_id: Option<Id<ScheduleId>>,
    launch: Option<Json<QueuedLaunch>>,
    conversation_id: Option<Id<ConversationId>>,
    error: Option<String>,
    inserted_at: NaiveDateTime,
    updated_at: NaiveDateTime,
}

impl From<RequestRow> for SandboxRequest {
    fn from(row: RequestRow) -> Self {
        Self {
            id: row.id.0,
            account_id: row.account_id.0,
            agent_id: row.agent_id.0,
            kind: row.kind.0,
            status: row.status.0,
            source: row.source.0,
            schedule_id: inner(row.schedule_id),
            launch: inner(row.launch),
            conversation_id: inner(row.conversation_id),
            error: row.error,
            inserted_at: moment(row.inserted_at),
            updated_at: moment(row.updated_at),
        }
    }
}

pub fn find(db: &mut Db, id: QueueRequestId) -> Result<Option<SandboxRequest>, Fault> {
    let row = sandbox_requests::table
        .find(key(id))
        .select(RequestRow::as_select())
        .first(db)
        .optional()?;
    Ok(row.map(SandboxRequest::from))
}

/// The active request of a schedule.
pub fn of_schedule(db: &mut Db, schedule: ScheduleId) -> Result<Option<SandboxRequest>, Fault> {
    let row = sandbox_requests::table
        .filter(sandbox_requests::schedule_id.eq(key(schedule)))
        .filter(sandbox_requests::status.eq_any(ACTIVE))
        .select(RequestRow::as_select())
        .first(db)
        .optional()?;
    Ok(row.map(SandboxRequest::from))
}

/// How many of an account's requests are active.
pub fn depth(db: &mut Db, account: AccountId) -> Result<i64, Fault> {
    let count = sandbox_requests::table
        .filter(sandbox_requests::account_id.eq(key(account)))
        .filter(sandbox_requests::status.eq_any(ACTIVE))
        .count()
        .get_result(db)?;
    Ok(count)
}

/// A request with its place in the line.
pub fn view(db: &mut Db, request: SandboxRequest) -> Result<RequestView, Fault> {
    if request.status != RequestStatus::Queued {
        return Ok(RequestView {
            request,
            position: None,
        });
    }
    let inserted = at(request.inserted_at);
    let ahead: i64 = sandbox_requests::table
        .filter(sandbox_requests::account_id.eq(key(request.account_id)))
        .filter(sandbox_requests::status.eq(Word(RequestStatus::Queued)))
        .filter(
            sandbox_requests::inserted_at
                .lt(inserted)
                .or(sandbox_requests::inserted_at
                    .eq(inserted)
                    .and(sandbox_requests::id.lt(key(request.id)))),
        )
        .count()
        .get_result(db)?;
    Ok(RequestView {
        request,
        position: Some(ahead + 1),
    })
}

/// The line of an account.
pub fn waiting(db: &mut Db, account: AccountId) -> Result<Vec<RequestView>, Fault> {
    let rows: Vec<RequestRow> = sandbox_requests::table
        .filter(sandbox_requests::account_id.eq(key(account)))
        .filter(sandbox_requests::status.eq(Word(RequestStatus::Queued)))
        .order((sandbox_requests::inserted_at, sandbox_requests::id))
        .select(RequestRow::as_select())
        .load(db)?;
    let placed = rows.into_iter().zip(1..).map(|(row, position)| RequestView {
        request: row.into(),
        position: Some(position),
    });
    Ok(placed.collect())
}

/// All active requests of an account in their order.
pub fn active(db: &mut Db, account: AccountId) -> Result<Vec<SandboxRequest>, Fault> {
    let rows: Vec<RequestRow> = sandbox_requests::table
        .filter(sandbox_requests::account_id.eq(key(account)))
        .filter(sandbox_requests::status.eq_any(ACTIVE))
        .order((sandbox_requests::inserted_at, sandbox_requests::id))
        .select(RequestRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(SandboxRequest::from).collect())
}

/// Accounts with something to start, the longest waiting first.
pub fn accounts(db: &mut Db, stale_before: Moment, limit: i64) -> Result<Vec<AccountId>, Fault> {
    let ripe = sql::<Bool>("(status = 'queued' OR (status = 'starting' AND updated_at < ")
        .bind::<Timestamp, _>(at(stale_before))
        .sql("))");
    let ids: Vec<Id<AccountId>> = sandbox_requests::table
        .filter(ripe)
        .group_by(sandbox_requests::account_id)
        .order((sql::<Timestamp>("min(inserted_at)"), sandbox_requests::account_id))
        .limit(limit)
        .select(sandbox_requests::account_id)
        .load(db)?;
    Ok(ids.into_iter().map(|id| id.0).collect())
}

/// Requests that have waited since before `before`.
pub fn overdue(db: &mut Db, before: Moment, limit: i64) -> Result<Vec<SandboxRequest>, Fault> {
    let rows: Vec<RequestRow> = sandbox_requests::table
        .filter(sandbox_requests::status.eq(Word(RequestStatus::Queued)))
        .filter(sandbox_requests::inserted_at.lt(at(before)))
        .order((sandbox_requests::inserted_at, sandbox_requests::id))
        .limit(limit)
        .select(RequestRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(SandboxRequest::from).collect())
}

/// The conversation that carries a request.
pub fn opened(db: &mut Db, id: QueueRequestId) -> Result<Option<ConversationId>, Fault> {
    let found: Option<Id<ConversationId>> = conversations::table
        .filter(conversations::queue_request_id.eq(key(id)))
        .select(conversations::id)
        .first(db)
        .optional()?;
    Ok(found.map(|id| id.0))
}

/// Whether the prompt of a request is a turn of this conversation: the same words and client id, not older than the
/// request. A client that sends the very same prompt itself in that time is taken at its word.
pub fn delivered(db: &mut Db, request: &SandboxRequest, conversation: ConversationId) -> Result<bool, Fault> {
    let Some(launch) = &request.launch else { return Ok(true) };
    let Some(prompt) = &launch.prompt else { return Ok(true) };
    let ids: Vec<Option<String>> = turns::table
        .filter(turns::conversation_id.eq(key(conversation)))
        .filter(turns::inserted_at.ge(at(request.inserted_at)))
        .filter(turns::prompt.eq(prompt))
        .select(turns::client_request_id)
        .load(db)?;
    Ok(ids.contains(&launch.client_request_id))
}

/// Deletes old requests that are over.
pub fn forget(db: &mut Db, before: Moment, limit: i64) -> Result<u64, Fault> {
    let old: Vec<String> = sandbox_requests::table
        .filter(sandbox_requests::status.ne_all(ACTIVE))
        .filter(sandbox_requests::updated_at.lt(at(before)))
        .order(sandbox_requests::updated_at)
        .limit(limit)
        .select(sandbox_requests::id)
        .load(db)?;
    let gone = diesel::delete(sandbox_requests::table.filter(sandbox_requests::id.eq_any(old))).execute(db)?;
    Ok(gone as u64)
}
