//! Memory of a server per idle conversation, with 10,000 of them.
//!
//! Two readings. *Rows*: a server that was restarted on a database with that many idle conversations; none of them has
//! an actor. Baseline: the same server on the same database with one. *Actors*: conversations whose turn has ended and
//! whose agent is still connected, in a process with the real actors and store over a provider in memory. Baseline: that
//! provider alone with as many agents after the same exchange, because its machines would live elsewhere.
//!
//! What counts is memory of the process's own (anonymous pages). Every reading is a process of its own, and what the
//! actors cost is the slope between a tenth of the conversations and all of them, so that pools and caches drop out.

mod common;
#[path = "common/live.rs"]
mod live;
#[path = "common/seed.rs"]
mod seed;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use common::http::Client;
use common::process::{Process, fountain, own_memory_bytes};
use common::stack::{self, Stack};
use common::{Options, Table, median, rest};
use diesel::connection::SimpleConnection as _;
use diesel::prelude::*;
use diesel::sql_types::Text;

/// Gauges are counted from the rows every ten seconds: a reading comes after the first time.
const SETTLE: Duration = Duration::from_secs(12);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--child") {
        let [role, count] = arguments.get(at + 1..).context("--child ROLE COUNT")? else {
            anyhow::bail!("--child ROLE COUNT");
        };
        return live::child(role, count.parse()?);
    }
    let options = Options::read();
    let (count, rounds) = options.pick((10_000, 2), (300, 1));
    let mut table = Table::new("idle_memory: kB of a server per idle conversation");
    rows(&mut table, count, rounds)?;
    // Minutes each, and the same to a few bytes: once is enough.
    actors(&mut table, count)?;
    table.print();
    Ok(())
}

fn kb(bytes: f64) -> String {
    format!("{:.2} kB", bytes / 1e3)
}

fn rows(table: &mut Table, count: usize, rounds: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (few, many) = (folder.path().join("few"), folder.path().join("many"));
    for data in [&few, &many] {
        let stack = Stack::dev_in(tempfile::tempdir()?, data)?;
        let mut client = stack.client()?;
        stack.warm_conversation(&mut client)?;
    }
    multiply(&many.join("fountain.db"), count - 1)?;
    let (mut base, mut full) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        base.push(served(folder.path(), &few, 1)?);
        full.push(served(folder.path(), &many, count)?);
    }
    let (base, full) = (median(&base), median(&full));
    let each = (full - base) / (count as f64 - 1.0);
    table.row(
        &format!("rows only, {count}"),
        format!("{} each ({:.1} MB in all)", kb(each), full / 1e6),
        format!("{:.1} MB with one", base / 1e6),
        format!("{:.2} x", full / base),
        "<= 12 kB each",
    );
    Ok(())
}

/// Memory of a server on this directory, once it is at rest.
fn served(home: &Path, data: &Path, expected: usize) -> anyhow::Result<f64> {
    let mut command = fountain(home);
    command
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data);
    let mut server = Process::start("serve", home, command)?;
    let greeting = server.greeting()?;
    let remembered: serde_json::Value = serde_json::from_slice(&std::fs::read(data.join("dev.json"))?)?;
    let key = remembered
        .get("api_key")
        .and_then(serde_json::Value::as_str)
        .context("dev remembers its key")?;
    let mut client = Client::new(stack::address(&greeting)?, key)?;
    let page = client.done("GET", "/api/conversations?limit=100", None)?;
    let listed = page
        .pointer("/data")
        .and_then(serde_json::Value::as_array)
        .map_or(0, Vec::len);
    anyhow::ensure!(listed == expected.min(100), "{listed} conversations are listed");
    rest(SETTLE);
    Ok(own_memory_bytes(server.id())? as f64)
}

#[derive(QueryableByName)]
struct Column {
    #[diesel(sql_type = Text)]
    name: String,
}

/// Copies the one conversation of a database, with its machine and turns, under new ids.
fn multiply(database: &Path, copies: usize) -> anyhow::Result<()> {
    let path = database.to_str().context("the path is UTF-8")?;
    let mut conn = SqliteConnection::establish(path)?;
    let id = |kind: u32| format!("printf('{kind:08x}-0000-4000-8000-%012x', n.i)");
    let (machine, conversation, turn) = (id(1), id(2), id(3));
    let mut script = String::from("PRAGMA foreign_keys = ON; BEGIN;");
    let replaced: [(&str, &[(&str, &str)]); 3] = [
        ("machines", &[("id", &machine), ("name", "'bench-' || n.i")]),
        ("conversations", &[("id", &conversation), ("machine_id", &machine)]),
        (
            "turns",
            &[
                ("id", &turn),
                ("conversation_id", &conversation),
                ("machine_id", &machine),
            ],
        ),
    ];
    for (table, changes) in replaced {
        let query = format!("SELECT name FROM pragma_table_info('{table}')");
        let columns: Vec<Column> = diesel::sql_query(query).load(&mut conn)?;
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let values: Vec<&str> = names
            .iter()
            .map(|name| {
                changes
                    .iter()
                    .find(|(changed, _)| changed == name)
                    .map_or(*name, |(_, value)| *value)
            })
            .collect();
        // The originals are few and the copies come after: only rows that were there before are copied.
        script.push_str(&format!(
            "INSERT INTO {table} ({}) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {copies}) \
             SELECT {} FROM n, (SELECT * FROM {table} LIMIT 1);",
            names.join(", "),
            values.join(", ")
        ));
    }
    script.push_str("COMMIT; PRAGMA wal_checkpoint(TRUNCATE);");
    conn.batch_execute(&script)?;
    Ok(())
}

fn actors(table: &mut Table, count: usize) -> anyhow::Result<()> {
    let (each, alone) = (slope("actors", count)?, slope("provider", count)?);
    table.row(
        &format!("live actors, {count}"),
        format!("{} each ({} with the provider)", kb(each - alone), kb(each)),
        format!("{} (the provider)", kb(alone)),
        format!("{:.1} x", each / alone),
        "<= 12 kB each",
    );
    Ok(())
}

fn slope(role: &str, count: usize) -> anyhow::Result<f64> {
    let few = count / 10;
    Ok((child(role, count)? - child(role, few)?) / (count - few) as f64)
}

/// Runs a reading in a process of its own.
fn child(role: &str, count: usize) -> anyhow::Result<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--child", role, &count.to_string()])
        .env_clear()
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(output.status.success(), "the reading {role} of {count} failed");
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().last().context("the reading said nothing")?;
    Ok(last.parse::<u64>()? as f64)
}
