//! What happens in a run, drawn from a seed before it begins.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng};

/// Names one of the things that there are: taken modulo their number, so that a shortened plan still means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick(pub u32);

impl Pick {
    /// The one that is meant, of `things`.
    pub fn of<T>(self, things: &[T]) -> Option<&T> {
        let count = u32::try_from(things.len()).ok().filter(|count| *count > 0)?;
        things.get(usize::try_from(self.0 % count).ok()?)
    }
}

/// What an agent does with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Says `words`, one each `gap_ms`, and ends its turn.
    Says { words: u8, gap_ms: u32 },
    /// As `Says`, and loses its connection half-way.
    Drops { words: u8, gap_ms: u32 },
    /// Asks for permission, then goes on.
    Asks,
    /// Ends without an answer, with this code, after some words.
    Exits { words: u8, code: u8 },
    /// Never ends its turn.
    Hangs,
    /// Ends its turn with a refusal.
    Refuses,
}

/// One thing that somebody does, or that befalls somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Launch {
        account: Pick,
        agent: Pick,
        prompt: Option<Script>,
        channel: bool,
        chosen_name: bool,
    },
    Attach {
        machine: Pick,
        prompt: Option<Script>,
    },
    Prompt {
        conversation: Pick,
        script: Script,
    },
    Interrupt {
        conversation: Pick,
    },
    Terminate {
        conversation: Pick,
    },
    Delete {
        conversation: Pick,
    },
    Answer {
        conversation: Pick,
        allow: bool,
    },
    Reset {
        machine: Pick,
    },
    DeleteAgent {
        account: Pick,
        agent: Pick,
    },
    MoveEnvironment {
        account: Pick,
        agent: Pick,
    },
    /// The provider loses a machine.
    Lose {
        machine: Pick,
    },
    /// The provider suspends a machine by itself.
    Stop {
        machine: Pick,
    },
    DropConnections {
        machine: Pick,
    },
    /// The provider says of every machine that it does not exist.
    Blind {
        seconds: u32,
    },
    Offline {
        seconds: u32,
    },
    /// How often calls of the provider go wrong from now on.
    Weather(Level),
    /// How often the database does.
    Database(Level),
    /// How often a node stops for a while at the very point where it is.
    Freezing(Level),
    Kill {
        node: Pick,
    },
    Freeze {
        node: Pick,
        seconds: u32,
    },
    Drain {
        node: Pick,
    },
    /// A second server for a conversation.
    Duplicate {
        node: Pick,
        conversation: Pick,
    },
    /// An owner's operation is dropped where it is.
    Abandon {
        node: Pick,
        machine: Pick,
    },
    Jump {
        seconds: u32,
    },
    /// A file is read inside a machine.
    Read {
        machine: Pick,
    },
    Reapply {
        conversation: Pick,
    },
    DeleteAccount {
        account: Pick,
    },
    Nothing,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    #[default]
    Calm,
    Rough,
    Storm,
}

impl Level {
    /// Of a thousand calls, how many go wrong.
    pub fn per_mille(self, rough: u32, storm: u32) -> u32 {
        match self {
            Self::Calm => 0,
            Self::Rough => rough,
            Self::Storm => storm,
        }
    }
}

/// A step: what happens, what chance is seeded with from then on, and how long nothing else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub op: Op,
    pub salt: u64,
    pub pause: Duration,
}

/// A whole run.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    /// One replica as on SQLite, or two as on PostgreSQL.
    pub replicas: u32,
    /// The provider refuses older epochs, or knows nothing of them.
    pub honours_epochs: bool,
    /// The provider says only that a machine exists (RUL-L-115).
    pub is_vague: bool,
    pub steps: Vec<Step>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            replicas,
            honours_epochs,
            is_vague,
            steps,
        } = self;
        writeln!(
            f,
            "seed {seed}, {replicas} replica(s), epochs honoured: {honours_epochs}, vague: {is_vague}"
        )?;
        for (number, Step { op, salt, pause }) in steps.iter().enumerate() {
            writeln!(f, "{number:5}  {op:?}  (salt {salt:x}) then {pause:?}")?;
        }
        Ok(())
    }
}

/// What a plan may contain. A mutant that needs one kind of fault is found sooner without the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Menu {
    pub two_replicas: bool,
    pub clock_jumps: bool,
}

impl Default for Menu {
    fn default() -> Self {
        Self {
            two_replicas: true,
            clock_jumps: true,
        }
    }
}

fn pick(rng: &mut StdRng) -> Pick {
    Pick(rng.next_u32())
}

fn script(rng: &mut StdRng) -> Script {
    let words = rng.random_range(1..12);
    let gap_ms = *[0, 0, 5, 200, 3_000, 40_000].get(rng.random_range(0..6)).unwrap_or(&0);
    match rng.random_range(0..20) {
        0..=10 => Script::Says { words, gap_ms },
        11..=12 => Script::Drops {
            words,
            gap_ms: gap_ms.max(5),
        },
        13..=15 => Script::Asks,
        16 => Script::Exits { words: 0, code: 1 },
        17 => Script::Exits { words, code: 134 },
        18 => Script::Hangs,
        _ => Script::Refuses,
    }
}

fn level(rng: &mut StdRng) -> Level {
    match rng.random_range(0..4) {
        0 | 1 => Level::Calm,
        2 => Level::Rough,
        _ => Level::Storm,
    }
}

/// From nothing to more than the idle bound; short ones are common, because that is where things meet.
fn pause(rng: &mut StdRng) -> Duration {
    let most_ms: u64 = match rng.random_range(0..20) {
        0..=5 => return Duration::ZERO,
        6..=9 => 50,
        10..=13 => 3_000,
        14..=15 => 20_000,
        16 => 130_000,
        17 => 400_000,
        _ => 1_500_000,
    };
    Duration::from_millis(rng.random_range(0..most_ms))
}

fn op(rng: &mut StdRng, menu: Menu) -> Op {
    let maybe = |rng: &mut StdRng| rng.random_bool(0.85).then(|| script(rng));
    match rng.random_range(0..112) {
        0..=11 => Op::Launch {
            account: pick(rng),
            agent: pick(rng),
            prompt: maybe(rng),
            channel: rng.random_bool(0.2),
            chosen_name: rng.random_bool(0.2),
        },
        12..=15 => Op::Attach {
            machine: pick(rng),
            prompt: maybe(rng),
        },
        16..=43 => Op::Prompt {
            conversation: pick(rng),
            script: script(rng),
        },
        44..=48 => Op::Interrupt {
            conversation: pick(rng),
        },
        49..=52 => Op::Terminate {
            conversation: pick(rng),
        },
        53..=54 => Op::Delete {
            conversation: pick(rng),
        },
        55..=58 => Op::Answer {
            conversation: pick(rng),
            allow: rng.random_bool(0.7),
        },
        59..=61 => Op::Reset { machine: pick(rng) },
        62 => Op::DeleteAgent {
            account: pick(rng),
            agent: pick(rng),
        },
        63 => Op::MoveEnvironment {
            account: pick(rng),
            agent: pick(rng),
        },
        64..=65 => Op::Lose { machine: pick(rng) },
        66..=67 => Op::Stop { machine: pick(rng) },
        68..=69 => Op::DropConnections { machine: pick(rng) },
        70 => Op::Blind {
            seconds: rng.random_range(1..900),
        },
        71..=72 => Op::Offline {
            seconds: rng.random_range(1..300),
        },
        73..=77 => Op::Weather(level(rng)),
        78..=80 => Op::Database(level(rng)),
        81..=83 => Op::Freezing(level(rng)),
        84..=87 => Op::Kill { node: pick(rng) },
        88..=91 => Op::Freeze {
            node: pick(rng),
            seconds: rng.random_range(1..400),
        },
        92..=93 => Op::Drain { node: pick(rng) },
        94..=96 => Op::Duplicate {
            node: pick(rng),
            conversation: pick(rng),
        },
        97..=98 => Op::Abandon {
            node: pick(rng),
            machine: pick(rng),
        },
        99..=100 if menu.clock_jumps => Op::Jump {
            seconds: rng.random_range(1..5_400),
        },
        101..=104 => Op::Read { machine: pick(rng) },
        105..=107 => Op::Reapply {
            conversation: pick(rng),
        },
        108 if rng.random_bool(0.3) => Op::DeleteAccount { account: pick(rng) },
        _ => Op::Nothing,
    }
}

impl Plan {
    /// The run of a seed. A longer run of the same seed begins with the shorter one.
    pub fn drawn(seed: u64, steps: usize, menu: Menu) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let replicas = if menu.two_replicas && rng.random_bool(0.5) {
            2
        } else {
            1
        };
        let (honours_epochs, is_vague) = (rng.random_bool(0.5), rng.random_bool(0.15));
        let steps = (0..steps)
            .map(|_| Step {
                op: op(&mut rng, menu),
                salt: rng.next_u64(),
                pause: pause(&mut rng),
            })
            .collect();
        Self {
            seed,
            replicas,
            honours_epochs,
            is_vague,
            steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_plan_and_a_longer_one_begins_with_it() {
        let (short, long) = (Plan::drawn(7, 50, Menu::default()), Plan::drawn(7, 90, Menu::default()));
        assert_eq!(short.steps[..], long.steps[..50]);
        assert_ne!(short.steps, Plan::drawn(8, 50, Menu::default()).steps);
    }
}
