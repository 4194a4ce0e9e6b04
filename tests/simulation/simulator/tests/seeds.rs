//! A fixed set of seeds for every build, and what longer runs have found, as the few steps that it was shrunk to.

use std::time::Duration;

use fountain_simulator::plan::{Level, Menu, Op, Pick, Plan, Script, Step};
use fountain_simulator::run::run;

/// What has been run long enough to be trusted: one replica, and a wall clock that does not jump.
const MENU: Menu = Menu {
    two_replicas: false,
    clock_jumps: false,
};

fn step(op: Op, salt: u64, pause_ms: u64) -> Step {
    Step {
        op,
        salt,
        pause: Duration::from_millis(pause_ms),
    }
}

fn plan(steps: Vec<Step>) -> Plan {
    Plan {
        seed: 1,
        replicas: 1,
        honours_epochs: true,
        is_vague: false,
        steps,
    }
}

#[track_caller]
fn comes_to_rest(plan: &Plan) {
    let outcome = run(plan);
    assert!(
        outcome.violations.is_empty(),
        "{plan:?}\n{:?}\n{:#?}",
        outcome.violations,
        outcome.history
    );
}

#[test]
fn fixed_seeds_come_to_rest() {
    for seed in 1..=8 {
        comes_to_rest(&Plan::drawn(seed, 60, MENU));
    }
}

#[test]
fn a_seed_is_a_run() {
    let plan = Plan::drawn(5, 60, MENU);
    assert_eq!(run(&plan).log, run(&plan).log);
}

/// Whatever the database did not answer while a launch without a prompt began, its machine is released in the end.
#[test]
fn inv_121_a_server_whose_build_never_began_gives_its_machine_up() {
    for salt in 0..16 {
        let launch = Op::Launch {
            account: Pick(0),
            agent: Pick(0),
            prompt: None,
            channel: false,
            chosen_name: false,
        };
        let storm = step(Op::Database(Level::Storm), salt, 0);
        comes_to_rest(&plan(vec![storm, step(launch, salt * 7919 + 13, 45)]));
    }
}

/// A park whose answer is lost may stop the machine ten minutes later; somebody has to look (RUL-L-3).
#[test]
fn rul_l_3_a_wake_that_acts_late_is_found() {
    for salt in 0..8 {
        let launch = Op::Launch {
            account: Pick(0),
            agent: Pick(1),
            prompt: Some(Script::Says { words: 2, gap_ms: 0 }),
            channel: false,
            chosen_name: false,
        };
        let prompt = Op::Prompt {
            conversation: Pick(0),
            script: Script::Says { words: 3, gap_ms: 5 },
        };
        let steps = vec![
            step(launch, 1, 3_000),
            step(Op::Stop { machine: Pick(0) }, 2, 0),
            step(Op::Weather(Level::Storm), 3, 0),
            step(prompt, salt * 104_729 + 7, 30_000),
        ];
        comes_to_rest(&plan(steps));
    }
}
