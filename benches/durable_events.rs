//! Durable output events a second: `TranscriptStore::append` with group commits of many conversations.
//!
//! SQLite in a file with `synchronous = FULL`, PostgreSQL with `fsync` on. Baseline: the same rows into the same table
//! with the same durability by plain multi-row inserts of diesel, one transaction a group, without guards, positions,
//! or ids for the caller. Databases of their own, so that neither grows the other's table.

mod common;
#[path = "common/seed.rs"]
mod seed;

use std::time::{Duration, Instant};

use chrono::NaiveDateTime;
use common::{Options, Table, median, postgres};
use diesel::connection::SimpleConnection as _;
use diesel::prelude::*;
use fountain::store::SqlStore;
use fountain::store::schema::log_events;
use fountain_actors::domain::EventId;
use fountain_actors::domain::event::{ByteRange, NewOutput, RawStream, Stream, StreamFilter};
use fountain_actors::domain::process::Advance;
use fountain_actors::ports::store::TranscriptStore;
use fountain_actors::ports::store::transcript::{Entry, EventQuery};
use seed::Target;

/// Conversations that talk at once.
const CONVERSATIONS: usize = 64;
/// Rows of one conversation in a group: 64 of them stay below the bound of 5,000 rows (RUL-26).
const ROWS: usize = 75;
/// One short update, as the demo agent writes it.
const LINE: &str = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"0f4c2a9e-6a53-4a0e-9a5e-6b1f1d0b7a11","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"word17 "}}}}"#;
/// Of 64 hex digits; what it says is checked by nobody here.
const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn main() -> anyhow::Result<()> {
    let options = Options::read();
    let mut table = Table::new("durable_events: events a second, 64 conversations, groups of 4,800");
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| format!("{}/{name}.db", folder.path().display());
        let (ours, bare) = (
            format!("sqlite://{}", path("ours")),
            format!("sqlite://{}", path("bare")),
        );
        let connect = || sqlite(&path("bare"));
        compare(&mut table, "SQLite", options, &ours, &bare, connect).await?;
        if let Some(first) = postgres::Database::create()? {
            let second = first.sibling()?;
            let connect = || Ok(PgConnection::establish(&second.url)?);
            compare(&mut table, "PostgreSQL", options, &first.url, &second.url, connect).await?;
        }
        anyhow::Ok(())
    })?;
    table.print();
    Ok(())
}

fn sqlite(path: &str) -> anyhow::Result<SqliteConnection> {
    let mut conn = SqliteConnection::establish(path)?;
    conn.batch_execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")?;
    Ok(conn)
}

async fn compare<C: Bare>(
    table: &mut Table,
    name: &str,
    options: Options,
    ours_url: &str,
    bare_url: &str,
    connect: impl Fn() -> anyhow::Result<C>,
) -> anyhow::Result<()> {
    let (rounds, groups) = options.pick((5, 10), (2, 2));
    let (store, rng) = seed::open(ours_url, 1).await?;
    let mut writer = Writer::new(store.clone(), seed::targets(&store, rng.as_ref(), CONVERSATIONS).await?);
    let (other, rng) = seed::open(bare_url, 2).await?;
    let targets = seed::targets(&other, rng.as_ref(), CONVERSATIONS).await?;
    let mut conn = connect()?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    writer.groups(1).await?;
    for _ in 0..rounds {
        let events = (groups * CONVERSATIONS * ROWS) as f64;
        ours.push(events / writer.groups(groups).await?.as_secs_f64());
        bare.push(events / plain(&mut conn, &targets, groups)?.as_secs_f64());
    }
    writer.check(rounds * groups + 1).await?;
    let (ours, bare) = (median(&ours), median(&bare));
    table.row(
        name,
        format!("{ours:.0}/s"),
        format!("{bare:.0}/s"),
        format!("{:.2} x", ours / bare),
        ">= 50,000/s",
    );
    Ok(())
}

/// The replica's writer, without its queue: one group after the other.
struct Writer {
    store: SqlStore,
    targets: Vec<Target>,
    /// Where the processes' positions stand; all alike.
    position: i64,
}

impl Writer {
    fn new(store: SqlStore, targets: Vec<Target>) -> Self {
        Self {
            store,
            targets,
            position: 0,
        }
    }

    /// Appends groups and answers how long the store took. Making the entries is the server's work and not counted.
    async fn groups(&mut self, groups: usize) -> anyhow::Result<Duration> {
        let mut took = Duration::ZERO;
        for _ in 0..groups {
            let entries = self.entries();
            let started = Instant::now();
            for written in self.store.append(entries).await? {
                anyhow::ensure!(written?.cursor.is_some(), "an entry wrote no row");
            }
            took += started.elapsed();
        }
        Ok(took)
    }

    fn entries(&mut self) -> Vec<Entry> {
        let (length, start) = (LINE.len() as i64 + 1, self.position);
        let now = seed::now();
        self.position += length * ROWS as i64;
        let entry = |target: &Target| Entry {
            account_id: target.account,
            conversation_id: target.conversation,
            server_epoch: target.epoch,
            rows: (0..ROWS as i64)
                .map(|row| {
                    let from = start + row * length;
                    let range = ByteRange {
                        from,
                        to: from + length,
                    };
                    NewOutput {
                        turn_id: None,
                        stream: Stream::Acp,
                        data: LINE.to_owned(),
                        source: Some((target.process, RawStream::Stdout, range)),
                        gap: None,
                    }
                    .into()
                })
                .collect(),
            advances: vec![Advance {
                process_id: target.process,
                stream: RawStream::Stdout,
                from: start,
                to: self.position,
                digest: DIGEST.to_owned(),
            }],
            effect: None,
            now,
        };
        self.targets.iter().map(entry).collect()
    }

    /// Every row is there: a figure of rows that were lost would be no figure.
    async fn check(&self, groups: usize) -> anyhow::Result<()> {
        for target in &self.targets {
            let (mut after, mut count) = (EventId(0), 0);
            loop {
                let query = EventQuery {
                    after,
                    filter: StreamFilter::parse(Some("acp")),
                    limit: 1000,
                };
                let page = self.store.events(target.account, target.conversation, query).await?;
                count += page.events.len();
                after = page.reached;
                if !page.has_more {
                    break;
                }
            }
            anyhow::ensure!(count == groups * ROWS, "{count} rows instead of {}", groups * ROWS);
        }
        Ok(())
    }
}

/// A group as a plain program writes it.
fn plain<C: Bare>(conn: &mut C, targets: &[Target], groups: usize) -> anyhow::Result<Duration> {
    let mut took = Duration::ZERO;
    for _ in 0..groups {
        let now = seed::now().naive_utc();
        let rows: Vec<Row> = targets
            .iter()
            .flat_map(|target| (0..ROWS).map(|row| Row::of(target, row as i64, now)))
            .collect();
        let started = Instant::now();
        conn.write(&rows)?;
        took += started.elapsed();
    }
    Ok(took)
}

#[derive(Insertable)]
#[diesel(table_name = log_events)]
struct Row {
    account_id: String,
    conversation_id: String,
    kind: &'static str,
    stream: &'static str,
    data: &'static str,
    stage: &'static str,
    process_id: String,
    raw_stream: &'static str,
    raw_from: i64,
    raw_to: i64,
    inserted_at: NaiveDateTime,
}

impl Row {
    fn of(target: &Target, row: i64, now: NaiveDateTime) -> Self {
        let length = LINE.len() as i64 + 1;
        Self {
            account_id: target.account.to_string(),
            conversation_id: target.conversation.to_string(),
            kind: "output",
            stream: "acp",
            data: LINE,
            stage: "turn",
            process_id: target.process.to_string(),
            raw_stream: "stdout",
            raw_from: row * length,
            raw_to: (row + 1) * length,
            inserted_at: now,
        }
    }
}

/// A connection that writes rows in one transaction.
trait Bare {
    fn write(&mut self, rows: &[Row]) -> QueryResult<()>;
}

impl Bare for SqliteConnection {
    fn write(&mut self, rows: &[Row]) -> QueryResult<()> {
        self.immediate_transaction(|conn| {
            for chunk in rows.chunks(64) {
                diesel::insert_into(log_events::table).values(chunk).execute(conn)?;
            }
            Ok(())
        })
    }
}

impl Bare for PgConnection {
    fn write(&mut self, rows: &[Row]) -> QueryResult<()> {
        self.transaction(|conn| {
            for chunk in rows.chunks(1000) {
                diesel::insert_into(log_events::table).values(chunk).execute(conn)?;
            }
            Ok(())
        })
    }
}
