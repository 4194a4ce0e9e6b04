//! Output of one process at one client: through daemon, server, store and event stream.
//!
//! Two workloads of the demo agent: `flood`, lines of 4 KiB, for bytes; and the output of `seq`, one short line an
//! event, for events. Measured: from the prompt until its turn has ended at the reader, and every byte is counted there.
//! Baseline: the same agent and prompt through a bare WebSocket relay that writes and syncs to disk ([`relay`]).

mod common;
#[path = "common/relay.rs"]
mod relay;

use std::path::Path;
use std::time::Duration;

use common::http::Client;
use common::stack::{Stack, ends_turn, is_output};
use common::{Options, Table, median};

/// What one round brought.
struct Round {
    /// Of the agent's lines.
    bytes: usize,
    events: usize,
    took: Duration,
}

impl Round {
    fn megabytes_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.took.as_secs_f64()
    }

    fn events_per_s(&self) -> f64 {
        self.events as f64 / self.took.as_secs_f64()
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::read();
    let rounds = options.pick(5, 2);
    let stack = Stack::dev()?;
    let mut client = stack.client()?;
    let mut table = Table::new("stream_throughput: one process to one client, SQLite");
    let flood = format!("flood {}", options.pick(32_000_000, 1_000_000));
    let lines = format!("run: seq 1 {}", options.pick(40_000, 1_000));
    for (name, prompt) in [("4 KiB lines", flood), ("short lines", lines)] {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(through(&stack, &mut client, &prompt)?);
            bare.push(around(stack.home(), &prompt)?);
        }
        let middle = |rounds: &[Round], of: fn(&Round) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
        let (o, b) = (
            middle(&ours, Round::megabytes_per_s),
            middle(&bare, Round::megabytes_per_s),
        );
        let (oe, be) = (middle(&ours, Round::events_per_s), middle(&bare, Round::events_per_s));
        table.row(
            name,
            format!("{o:.1} MB/s, {oe:.0} events/s"),
            format!("{b:.1} MB/s, {be:.0} events/s"),
            format!("{:.2} x", oe / be),
            ">= 0.5 x",
        );
    }
    table.print();
    Ok(())
}

/// In a fresh conversation each time: its output budget is 50 MB.
fn through(stack: &Stack, client: &mut Client, prompt: &str) -> anyhow::Result<Round> {
    let mut conversation = stack.warm_conversation(client)?;
    let sent = conversation.prompt(client, prompt)?;
    let mut round = Round {
        bytes: 0,
        events: 0,
        took: Duration::ZERO,
    };
    loop {
        let frame = conversation.events.next()?;
        if is_output(&frame) {
            let payload = frame.json();
            let line = payload
                .get("data")
                .and_then(serde_json::Value::as_str)
                .unwrap_or_default();
            round.bytes += line.len();
            round.events += 1;
        } else if ends_turn(&frame)? {
            round.took = frame.at.duration_since(sent);
            break;
        }
    }
    stack.end(client, &conversation.id)?;
    Ok(round)
}

fn around(home: &Path, prompt: &str) -> anyhow::Result<Round> {
    let arrived = relay::run(home, prompt)?;
    Ok(Round {
        bytes: arrived.bytes,
        // All lines but the answer.
        events: arrived.lines.saturating_sub(1),
        took: arrived.took,
    })
}
