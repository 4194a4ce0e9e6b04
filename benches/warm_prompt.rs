//! From a prompt to the agent's first word, on a warm machine with a reused connection: what the control plane adds.
//!
//! Measured: a client's `POST …/prompts` until the first `acp` row is at the reader of the event stream. Baseline: the
//! same agent on its own pipes, `session/prompt` until the first `session/update`. Commits are counted on a prompt whose
//! turn is still open when its first output is read (RUL-33): in SQLite's log, or by PostgreSQL's transaction numbers.
//! Other work of the server (levels, stamps of keys) commits too now and then, so several prompts are counted and the
//! most frequent number is the answer.
//!
//! A second reference is printed beside: what three syncs to this disk take, one after the other, in the same rounds.
//! No server that keeps what it acknowledged can be quicker than that.

mod common;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use common::acp::Agent;
use common::http::Client;
use common::stack::{Conversation, Stack};
use common::{Options, Table, median, ms, postgres, quantile, rest, wal};

/// Answers at once.
const PROMPT: &str = "think about it";
/// Answers at once, and goes on for long enough to count in.
const LONG_PROMPT: &str = "think about it\nslow 1 400";

fn main() -> anyhow::Result<()> {
    let options = Options::read();
    let mut table = Table::new("warm_prompt: from prompt to first output");
    let stack = Stack::dev()?;
    let counter = || Ok(wal::commits(&stack.database)?.count);
    measure(&mut table, "SQLite", options, &stack, counter)?;
    drop(stack);
    if let Some(database) = postgres::Database::create()? {
        let stack = Stack::on_postgres(&database.url)?;
        measure(&mut table, "PostgreSQL", options, &stack, || database.written())?;
    }
    table.print();
    Ok(())
}

fn measure(
    table: &mut Table,
    name: &str,
    options: Options,
    stack: &Stack,
    counter: impl Fn() -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    let (rounds, prompts) = options.pick((5, 60), (2, 5));
    let mut client = stack.client()?;
    let mut conversation = stack.warm_conversation(&mut client)?;
    let mut agent = Agent::start(stack.home())?;
    for _ in 0..3 {
        through(&mut conversation, &mut client)?;
        agent.first_output(PROMPT)?;
    }
    let (mut ours, mut bare) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut syncs = [Vec::new(), Vec::new()];
    let mut file = tempfile::tempfile_in(stack.home())?;
    for _ in 0..rounds {
        let (mut system, mut direct) = (Vec::new(), Vec::new());
        let mut disk = Vec::new();
        for _ in 0..prompts {
            system.push(ms(through(&mut conversation, &mut client)?));
            direct.push(ms(agent.first_output(PROMPT)?));
            disk.push(ms(three_syncs(&mut file)?));
        }
        for (all, values) in [(&mut ours, system), (&mut bare, direct), (&mut syncs, disk)] {
            for (all, part) in all.iter_mut().zip([0.5, 0.95]) {
                all.push(quantile(&values, part));
            }
        }
    }
    let [p50, p95] = [("p50", "<= 15 ms added"), ("p95", "")];
    for (((ours, bare), disk), (part, aim)) in ours.iter().zip(&bare).zip(&syncs).zip([p50, p95]) {
        let (ours, bare): (f64, f64) = (median(ours), median(bare));
        common::say(&format!(
            "{name}, {part}: three syncs to this disk {:.2} ms",
            median(disk)
        ));
        table.row(
            &format!("{name}, {part}"),
            format!("{ours:.2} ms ({:.2} added)", ours - bare),
            format!("{bare:.2} ms"),
            format!("{:.1} x", ours / bare),
            aim,
        );
    }
    count(table, name, options, stack, &mut conversation, &mut client, counter)?;
    stack.end(&mut client, &conversation.id)
}

fn three_syncs(file: &mut std::fs::File) -> anyhow::Result<Duration> {
    let started = Instant::now();
    for _ in 0..3 {
        file.write_all(&[b'x'; 8192])?;
        file.sync_data()?;
    }
    Ok(started.elapsed())
}

/// One prompt through everything; waits for the turn's end, so that the next one finds the conversation idle.
fn through(conversation: &mut Conversation, client: &mut Client) -> anyhow::Result<Duration> {
    let sent = conversation.prompt(client, PROMPT)?;
    let first = conversation.output()?;
    conversation.until_turn_ends()?;
    Ok(first.at.duration_since(sent))
}

fn count(
    table: &mut Table,
    name: &str,
    options: Options,
    stack: &Stack,
    conversation: &mut Conversation,
    client: &mut Client,
    counter: impl Fn() -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    let mut verbs: BTreeMap<String, u64> = BTreeMap::new();
    let turns = options.pick(15, 3);
    for _ in 0..turns {
        let (verbs_before, before) = (stack.verbs()?, counter()?);
        conversation.prompt(client, LONG_PROMPT)?;
        conversation.output()?;
        // Whatever is on the path is committed by now; this lets what is off it show as well.
        rest(Duration::from_millis(150));
        let after = counter()?;
        for (verb, calls) in stack.verbs()? {
            *verbs.entry(verb.clone()).or_default() += calls - verbs_before.get(&verb).copied().unwrap_or(0);
        }
        // The log starts again after a checkpoint: then the difference says nothing.
        if let Some(commits) = after.checked_sub(before) {
            *seen.entry(commits).or_default() += 1;
        }
        conversation.until_turn_ends()?;
    }
    let most = seen
        .iter()
        .max_by_key(|(_, times)| **times)
        .map_or(0, |(commits, _)| *commits);
    let calls = verbs.iter().filter(|(_, calls)| **calls > 0);
    let calls: Vec<String> = calls
        .map(|(verb, calls)| format!("{verb} {:.1}", *calls as f64 / f64::from(turns)))
        .collect();
    common::say(&format!(
        "{name}: commits to first output {seen:?}; store verbs a prompt: {}",
        calls.join(", ")
    ));
    table.row(
        &format!("{name}, commits"),
        most.to_string(),
        "0".into(),
        String::new(),
        "exactly 3",
    );
    Ok(())
}
