//! Rows of `log_events`, many in one statement.
//!
//! PostgreSQL takes whole columns as arrays: 17 binds however many rows there are. SQLite takes multi-row `VALUES` of
//! 64, 32, … 1 rows: at most 1,088 binds of the 32,766 that it allows (RUL-26), and seven texts in all, so that every
//! one stays prepared. Both texts are constant per size, which is what the statement cache needs.

use chrono::NaiveDateTime;
use diesel::pg::{Pg, PgConnection};
use diesel::prelude::*;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{Array, BigInt, Nullable, Text, Timestamp};
use diesel::sqlite::{Sqlite, SqliteConnection};

use fountain_actors::domain::event::NewEvent;
use fountain_actors::domain::*;

use super::storable;
use crate::store::backend::Db;
use crate::store::columns::{at, json, key, maybe_key};

/// Most rows of one SQLite statement.
const SQLITE_CHUNK: usize = 64;

const COLUMNS: &str = "account_id, conversation_id, turn_id, kind, stream, data, stage, state, duration_ms, \
     process_id, raw_stream, raw_from, raw_to, gap_stream, gap_from, gap_to, inserted_at";

/// One event as its columns hold it; the id is drawn by the database.
pub struct Columns {
    pub account: AccountId,
    pub conversation: ConversationId,
    account_id: String,
    conversation_id: String,
    turn_id: Option<String>,
    kind: &'static str,
    stream: Option<&'static str>,
    data: String,
    stage: &'static str,
    state: Option<&'static str>,
    duration_ms: Option<i64>,
    process_id: Option<String>,
    raw_stream: Option<&'static str>,
    raw_from: Option<i64>,
    raw_to: Option<i64>,
    gap_stream: Option<&'static str>,
    gap_from: Option<i64>,
    gap_to: Option<i64>,
    inserted_at: NaiveDateTime,
}

impl Columns {
    pub fn of(account: AccountId, conversation: ConversationId, event: NewEvent, when: Moment) -> Self {
        let bare = Self {
            account,
            conversation,
            account_id: key(account),
            conversation_id: key(conversation),
            turn_id: None,
            kind: "stage",
            stream: None,
            data: String::new(),
            stage: "turn",
            state: None,
            duration_ms: None,
            process_id: None,
            raw_stream: None,
            raw_from: None,
            raw_to: None,
            gap_stream: None,
            gap_from: None,
            gap_to: None,
            inserted_at: at(when),
        };
        match event {
            NewEvent::Stage(stage) => Self {
                turn_id: maybe_key(stage.turn_id),
                data: storable(json(&stage.meta)),
                stage: stage.stage.as_str(),
                state: Some(stage.state.as_str()),
                duration_ms: stage.duration_ms,
                ..bare
            },
            // Everything that the runtime writes stands on the stage `turn` (http-api 3.2).
            NewEvent::Output(output) => Self {
                turn_id: maybe_key(output.turn_id),
                kind: "output",
                stream: Some(output.stream.as_str()),
                data: storable(output.data),
                process_id: output.source.map(|(process, _, _)| key(process)),
                raw_stream: output.source.map(|(_, stream, _)| stream.as_str()),
                raw_from: output.source.map(|(_, _, range)| range.from),
                raw_to: output.source.map(|(_, _, range)| range.to),
                gap_stream: output.gap.map(|(stream, _)| stream.as_str()),
                gap_from: output.gap.map(|(_, range)| range.from),
                gap_to: output.gap.map(|(_, range)| range.to),
                ..bare
            },
        }
    }
}

/// Inserts `rows` and answers their ids, in order.
pub fn insert(db: &mut Db, rows: &[Columns]) -> QueryResult<Vec<i64>> {
    match db {
        Db::Postgres(conn) => postgres(conn, rows),
        Db::Sqlite(conn) => sqlite(conn, rows),
    }
}

fn postgres(conn: &mut PgConnection, rows: &[Columns]) -> QueryResult<Vec<i64>> {
    let ids: Vec<i64> = ColumnArrays::of(rows).load(conn)?;
    Ok(ids)
}

/// One writer and AUTOINCREMENT: the ids of a transaction follow each other without a gap.
fn sqlite(conn: &mut SqliteConnection, rows: &[Columns]) -> QueryResult<Vec<i64>> {
    let mut rest = rows;
    let mut size = SQLITE_CHUNK;
    while !rest.is_empty() {
        while size > rest.len() {
            size /= 2;
        }
        let (chunk, tail) = rest.split_at(size);
        MultiRow(chunk).execute(conn)?;
        rest = tail;
    }
    let last: i64 = diesel::select(diesel::dsl::sql::<BigInt>("last_insert_rowid()")).get_result(conn)?;
    let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    Ok((last - count + 1..=last).collect())
}

/// `INSERT … VALUES (…), (…)`.
struct MultiRow<'a>(&'a [Columns]);

impl QueryFragment<Sqlite> for MultiRow<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        out.push_sql("INSERT INTO log_events (");
        out.push_sql(COLUMNS);
        out.push_sql(") VALUES ");
        for (index, row) in self.0.iter().enumerate() {
            out.push_sql(if index == 0 { "(" } else { "), (" });
            out.push_bind_param::<Text, _>(&row.account_id)?;
            out.push_sql(",");
            out.push_bind_param::<Text, _>(&row.conversation_id)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<Text>, _>(&row.turn_id)?;
            out.push_sql(",");
            out.push_bind_param::<Text, _>(row.kind)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<Text>, _>(&row.stream)?;
            out.push_sql(",");
            out.push_bind_param::<Text, _>(&row.data)?;
            out.push_sql(",");
            out.push_bind_param::<Text, _>(row.stage)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<Text>, _>(&row.state)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<BigInt>, _>(&row.duration_ms)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<Text>, _>(&row.process_id)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<Text>, _>(&row.raw_stream)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<BigInt>, _>(&row.raw_from)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<BigInt>, _>(&row.raw_to)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<Text>, _>(&row.gap_stream)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<BigInt>, _>(&row.gap_from)?;
            out.push_sql(",");
            out.push_bind_param::<Nullable<BigInt>, _>(&row.gap_to)?;
            out.push_sql(",");
            out.push_bind_param::<Timestamp, _>(&row.inserted_at)?;
        }
        out.push_sql(")");
        Ok(())
    }
}

impl QueryId for MultiRow<'_> {
    type QueryId = ();
    // The text depends on the number of rows, so the text itself is the cache's key.
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl RunQueryDsl<SqliteConnection> for MultiRow<'_> {}

/// `INSERT … SELECT … FROM unnest(…) RETURNING id`: rows and ids in the order of the arrays.
struct ColumnArrays<'a> {
    account_id: Vec<&'a str>,
    conversation_id: Vec<&'a str>,
    turn_id: Vec<Option<&'a str>>,
    kind: Vec<&'static str>,
    stream: Vec<Option<&'static str>>,
    data: Vec<&'a str>,
    stage: Vec<&'static str>,
    state: Vec<Option<&'static str>>,
    duration_ms: Vec<Option<i64>>,
    process_id: Vec<Option<&'a str>>,
    raw_stream: Vec<Option<&'static str>>,
    raw_from: Vec<Option<i64>>,
    raw_to: Vec<Option<i64>>,
    gap_stream: Vec<Option<&'static str>>,
    gap_from: Vec<Option<i64>>,
    gap_to: Vec<Option<i64>>,
    inserted_at: Vec<NaiveDateTime>,
}

impl<'a> ColumnArrays<'a> {
    fn of(rows: &'a [Columns]) -> Self {
        fn column<'a, T>(rows: &'a [Columns], of: impl Fn(&'a Columns) -> T) -> Vec<T> {
            rows.iter().map(of).collect()
        }
        Self {
            account_id: column(rows, |row| row.account_id.as_str()),
            conversation_id: column(rows, |row| row.conversation_id.as_str()),
            turn_id: column(rows, |row| row.turn_id.as_deref()),
            kind: column(rows, |row| row.kind),
            stream: column(rows, |row| row.stream),
            data: column(rows, |row| row.data.as_str()),
            stage: column(rows, |row| row.stage),
            state: column(rows, |row| row.state),
            duration_ms: column(rows, |row| row.duration_ms),
            process_id: column(rows, |row| row.process_id.as_deref()),
            raw_stream: column(rows, |row| row.raw_stream),
            raw_from: column(rows, |row| row.raw_from),
            raw_to: column(rows, |row| row.raw_to),
            gap_stream: column(rows, |row| row.gap_stream),
            gap_from: column(rows, |row| row.gap_from),
            gap_to: column(rows, |row| row.gap_to),
            inserted_at: column(rows, |row| row.inserted_at),
        }
    }
}

impl QueryFragment<Pg> for ColumnArrays<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("INSERT INTO log_events (");
        out.push_sql(COLUMNS);
        out.push_sql(") SELECT * FROM unnest(");
        out.push_bind_param::<Array<Text>, _>(&self.account_id)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Text>, _>(&self.conversation_id)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<Text>>, _>(&self.turn_id)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Text>, _>(&self.kind)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<Text>>, _>(&self.stream)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Text>, _>(&self.data)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Text>, _>(&self.stage)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<Text>>, _>(&self.state)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<BigInt>>, _>(&self.duration_ms)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<Text>>, _>(&self.process_id)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<Text>>, _>(&self.raw_stream)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<BigInt>>, _>(&self.raw_from)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<BigInt>>, _>(&self.raw_to)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<Text>>, _>(&self.gap_stream)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<BigInt>>, _>(&self.gap_from)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Nullable<BigInt>>, _>(&self.gap_to)?;
        out.push_sql(",");
        out.push_bind_param::<Array<Timestamp>, _>(&self.inserted_at)?;
        out.push_sql(") RETURNING id");
        Ok(())
    }
}

impl QueryId for ColumnArrays<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for ColumnArrays<'_> {
    type SqlType = BigInt;
}

impl RunQueryDsl<PgConnection> for ColumnArrays<'_> {}
