//! What readers get: pages of rows after a cursor, oldest first (http-api 3.3, 3.6).
//!
//! `reached` is read before the page. Ids of one stream commit in order (RUL-23), so every row up to it is visible to
//! the page that is read next, and a reader that goes on from it skips nothing, filtered rows included.

use chrono::NaiveDateTime;
use diesel::dsl::{max, sql};
use diesel::prelude::*;
use diesel::sql_types::Bool;

use fountain_actors::domain::event::{
    ByteRange, EventKind, LogEvent, RawStream, Stage, StageState, Stream, StreamFilter,
};
use fountain_actors::domain::*;
use fountain_actors::ports::store::transcript::{EventPage, EventQuery};

use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Word, inner, key, moment};
use crate::store::conversations::rows as conversations;
use crate::store::schema::log_events;

/// Bounds of a page (http-api 3.6).
const PAGE: std::ops::RangeInclusive<i64> = 1..=1000;

#[derive(Queryable, Selectable)]
#[diesel(table_name = log_events)]
struct EventRow {
    id: i64,
    conversation_id: Id<ConversationId>,
    turn_id: Option<Id<TurnId>>,
    kind: Word<EventKind>,
    stream: Option<Word<Stream>>,
    data: String,
    stage: Option<Word<Stage>>,
    state: Option<Word<StageState>>,
    duration_ms: Option<i64>,
    gap_stream: Option<Word<RawStream>>,
    gap_from: Option<i64>,
    gap_to: Option<i64>,
    inserted_at: NaiveDateTime,
}

impl From<EventRow> for LogEvent {
    fn from(row: EventRow) -> Self {
        let range = row.gap_from.zip(row.gap_to).map(|(from, to)| ByteRange { from, to });
        Self {
            id: EventId(row.id),
            conversation_id: row.conversation_id.0,
            turn_id: inner(row.turn_id),
            kind: row.kind.0,
            stream: inner(row.stream),
            data: row.data,
            stage: inner(row.stage),
            state: inner(row.state),
            duration_ms: row.duration_ms,
            gap: inner(row.gap_stream).zip(range),
            at: moment(row.inserted_at),
        }
    }
}

/// A page of one conversation.
pub fn of_conversation(
    db: &mut Db,
    account: AccountId,
    id: ConversationId,
    query: EventQuery,
) -> Result<EventPage, Fault> {
    let reached = last(db, account, id)?;
    let rows = page(
        db,
        log_events::table
            .filter(log_events::conversation_id.eq(key(id)))
            .into_boxed(),
        &query,
        reached,
    )?;
    Ok(cut(rows, query, reached))
}

/// A page across all conversations of an account.
pub fn of_account(db: &mut Db, account: AccountId, query: EventQuery) -> Result<EventPage, Fault> {
    let reached: Option<i64> = log_events::table
        .filter(log_events::account_id.eq(key(account)))
        .select(max(log_events::id))
        .first(db)?;
    let reached = EventId(reached.unwrap_or(0));
    let rows = page(
        db,
        log_events::table
            .filter(log_events::account_id.eq(key(account)))
            .into_boxed(),
        &query,
        reached,
    )?;
    Ok(cut(rows, query, reached))
}

/// The newest event of a conversation, 0 without one.
pub fn last(db: &mut Db, account: AccountId, id: ConversationId) -> Result<EventId, Fault> {
    conversations::of_account(db, account, id)?;
    let newest: Option<i64> = log_events::table
        .filter(log_events::conversation_id.eq(key(id)))
        .select(max(log_events::id))
        .first(db)?;
    Ok(EventId(newest.unwrap_or(0)))
}

type Stored<'a> = log_events::BoxedQuery<'a, <Db as Connection>::Backend>;

/// One row more than was asked for, to see whether there is more.
fn page(db: &mut Db, stream: Stored<'_>, query: &EventQuery, reached: EventId) -> Result<Vec<LogEvent>, Fault> {
    let rows = stream
        .filter(log_events::id.gt(query.after.0))
        .filter(log_events::id.le(reached.0))
        .filter(sql::<Bool>(&admitted(&query.filter)))
        .order(log_events::id)
        .limit(clamped(query.limit) + 1)
        .select(EventRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(LogEvent::from).collect())
}

fn clamped(limit: i64) -> i64 {
    limit.clamp(*PAGE.start(), *PAGE.end())
}

fn cut(mut events: Vec<LogEvent>, query: EventQuery, reached: EventId) -> EventPage {
    let limit = usize::try_from(clamped(query.limit)).unwrap_or(usize::MAX);
    let has_more = events.len() > limit;
    events.truncate(limit);
    let reached = match (has_more, events.last()) {
        (true, Some(last)) => last.id,
        // Never behind the cursor that the reader came with.
        _ => reached.max(query.after),
    };
    EventPage {
        events,
        reached,
        has_more,
    }
}

/// `StreamFilter::admits` as a condition. Words of our own, so nothing is bound.
fn admitted(filter: &StreamFilter) -> String {
    let Some(set) = filter.only else {
        return "TRUE".to_owned();
    };
    let streams = [
        (set.stdout, Stream::Stdout),
        (set.stderr, Stream::Stderr),
        (set.acp, Stream::Acp),
    ];
    let mut wanted: Vec<String> = streams
        .iter()
        .filter(|(wanted, _)| *wanted)
        .map(|(_, stream)| format!("(kind = 'output' AND stream = '{stream}')"))
        .collect();
    if set.stage {
        wanted.push("kind = 'stage'".to_owned());
    }
    match wanted.is_empty() {
        true => "FALSE".to_owned(),
        false => format!("({})", wanted.join(" OR ")),
    }
}

/// Acp lines of one turn, in order.
pub fn turn_output(db: &mut Db, turn: TurnId) -> Result<Vec<LogEvent>, Fault> {
    let rows = log_events::table
        .filter(log_events::turn_id.eq(key(turn)))
        .filter(log_events::kind.eq(Word(EventKind::Output)))
        .filter(log_events::stream.eq(Word(Stream::Acp)))
        .order(log_events::id)
        .select(EventRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(LogEvent::from).collect())
}
