//! From `POST /api/conversations` to the agent's first word, on a machine that is made for it.
//!
//! Baseline: spawning the same agent directly, its handshake, a session and the same prompt. The reader follows the
//! account's stream, which is open before the launch, so no connection is made on the path.

mod common;

use std::time::{Duration, Instant};

use common::acp::Agent;
use common::http::{Client, Events};
use common::stack::{Stack, ends_turn, is_output};
use common::{Options, Table, median, ms, quantile};

const PROMPT: &str = "think about it";

fn main() -> anyhow::Result<()> {
    let options = Options::read();
    let (rounds, launches) = options.pick((5, 10), (2, 2));
    let stack = Stack::dev()?;
    let mut client = stack.client()?;
    let mut events = Events::open(stack.address, &stack.key, "/api/events/stream")?;
    create(&stack, &mut client, &mut events)?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let (mut ours_slow, mut bare_slow) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (mut system, mut direct) = (Vec::new(), Vec::new());
        for _ in 0..launches {
            system.push(ms(create(&stack, &mut client, &mut events)?));
            direct.push(ms(spawn(&stack)?));
        }
        ours.push(median(&system));
        bare.push(median(&direct));
        ours_slow.push(quantile(&system, 0.95));
        bare_slow.push(quantile(&direct, 0.95));
    }
    let mut table = Table::new("create_to_first_output: from launch to first output, SQLite");
    for (part, ours, bare) in [("p50", &ours, &bare), ("p95", &ours_slow, &bare_slow)] {
        let (ours, bare) = (median(ours), median(bare));
        table.row(
            part,
            format!("{ours:.1} ms ({:.1} added)", ours - bare),
            format!("{bare:.1} ms"),
            format!("{:.1} x", ours / bare),
            "none set",
        );
    }
    table.print();
    Ok(())
}

fn create(stack: &Stack, client: &mut Client, events: &mut Events) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let id = stack.launch(client, Some(PROMPT))?;
    let mut first = None;
    loop {
        let frame = events.next()?;
        if !frame.data.contains(&id) {
            continue;
        }
        if first.is_none() && is_output(&frame) {
            first = Some(frame.at.duration_since(started));
        }
        if ends_turn(&frame)? {
            break;
        }
    }
    stack.end(client, &id)?;
    first.ok_or_else(|| anyhow::anyhow!("the turn had no output"))
}

fn spawn(stack: &Stack) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let mut agent = Agent::start(stack.home())?;
    let handshake = started.elapsed();
    Ok(handshake + agent.first_output(PROMPT)?)
}
