//! Canaries of the auditor's provider half: each law sees the log that breaks it, and an honest one passes. The canaries
//! of the rows stand beside the store's tests (`tests/store/audit.rs`).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test fails as the test does"
)]

mod provider;

use std::time::Duration;

use fountain::store::audit::{Facts, facts::Entry};
use fountain_actors::domain::machine::{Machine, MachineMode, MachineStatus, Provider};
use fountain_actors::domain::operation::{Outcome, Verb};
use fountain_actors::domain::{Epoch, MachineId, Moment};
use fountain_actors::fakes::{LogEntry, Logged, Op, SeededRng};
use fountain_actors::ports::Rng;

const NAME: &str = "fountain-1";

fn at(second: u64) -> Moment {
    Moment::from_timestamp(1_790_000_000 + i64::try_from(second).unwrap(), 0).unwrap()
}

fn machine(id: MachineId, status: MachineStatus) -> Machine {
    Machine {
        id,
        account_id: None,
        name: NAME.into(),
        status,
        mode: MachineMode::Ephemeral,
        runtime: None,
        provider: Provider::Fake,
        provider_meta: serde_json::json!({}),
        transition: None,
        transition_reason: None,
        transition_at: None,
        lease_epoch: Epoch(1),
        lease: None,
        woken_at: None,
        cleanup_pending: false,
        next_attempt_at: None,
        build_fingerprint: None,
        agent_id: None,
        environment_id: None,
        vault_id: None,
        last_resumed_at: None,
        terminated_at: status.is_terminal().then(|| at(1000)),
        inserted_at: at(0),
        updated_at: at(0),
    }
}

/// The two sides of a small history.
struct History {
    facts: Facts,
    log: Vec<LogEntry>,
    running: Vec<String>,
    id: MachineId,
}

impl History {
    /// A machine that was built under epoch 1, with a file on it.
    fn built() -> Self {
        let id = MachineId(SeededRng::new(1).uuid());
        let mut history = Self {
            facts: Facts {
                machines: vec![machine(id, MachineStatus::Ready)],
                ..Facts::default()
            },
            log: Vec::new(),
            running: vec![NAME.into()],
            id,
        };
        history.operation(Verb::Provision, 1, 1, Some(Outcome::Done));
        history.call(Op::Create, 1, 2, Some(3), true);
        history.call(Op::WriteFile, 1, 4, Some(5), true);
        history
    }

    fn operation(&mut self, verb: Verb, epoch: i64, second: u64, outcome: Option<Outcome>) {
        self.facts.journal.push(Entry {
            machine: self.id,
            name: NAME.into(),
            verb,
            epoch: Epoch(epoch),
            started_at: at(second),
            finished_at: outcome.map(|_| at(second + 5)),
            outcome,
            is_debt: outcome.is_none(),
        });
    }

    fn call(&mut self, op: Op, epoch: i64, sent: u64, answered: Option<u64>, effect: bool) {
        let entry = |what, second| LogEntry {
            at: Duration::from_secs(second),
            op,
            what,
            machine: NAME.into(),
            epoch: Some(Epoch(epoch)),
            answer: "",
        };
        self.log.push(entry(Logged::Requested, sent));
        if effect {
            self.log.push(entry(Logged::Effect, answered.unwrap_or(sent)));
        }
        self.log.extend(answered.map(|second| entry(Logged::Answered, second)));
    }

    /// The laws that do not hold.
    fn found(&self) -> Vec<&'static str> {
        let account = provider::Account {
            provider: Provider::Fake,
            log: &self.log,
            running: &self.running,
            began: at(0),
            lease: Duration::from_secs(60),
        };
        provider::compare(&self.facts, &account)
            .into_iter()
            .map(|violation| violation.law)
            .collect()
    }
}

#[test]
fn an_honest_history_passes() {
    let mut history = History::built();
    history.operation(Verb::Park, 2, 20, Some(Outcome::Done));
    history.call(Op::Suspend, 2, 21, Some(22), true);
    history.operation(Verb::Wake, 3, 30, Some(Outcome::Done));
    history.call(Op::Resume, 3, 31, Some(32), true);
    history.operation(Verb::Destroy, 4, 40, Some(Outcome::Done));
    history.call(Op::Destroy, 4, 41, Some(42), true);
    assert_eq!(history.found(), Vec::<&str>::new());
}

#[test]
fn inv_117_a_machine_that_runs_while_nothing_counts_it() {
    let mut history = History::built();
    history.facts.machines[0] = machine(history.id, MachineStatus::Terminated);
    assert_eq!(history.found(), ["INV-117"]);
    // A debt stands for it.
    history.operation(Verb::Destroy, 2, 10, None);
    assert_eq!(history.found(), Vec::<&str>::new());
}

#[test]
fn inv_117_what_operators_were_told_of_is_excepted() {
    let mut history = History::built();
    history.facts.machines[0] = machine(history.id, MachineStatus::Terminated);
    history.facts.untracked.push((Provider::Fake, NAME.into()));
    assert_eq!(history.found(), Vec::<&str>::new());
}

#[test]
fn inv_08_an_effect_that_no_operation_stands_for() {
    let mut history = History::built();
    history.call(Op::Suspend, 9, 20, Some(21), true);
    assert_eq!(history.found(), ["INV-08"]);
}

#[test]
fn inv_08_an_effect_of_another_verb() {
    let mut history = History::built();
    history.operation(Verb::Confirm, 2, 20, Some(Outcome::Done));
    history.call(Op::Create, 2, 21, Some(22), true);
    assert_eq!(history.found(), ["INV-08"]);
}

#[test]
fn inv_32_a_look_that_resumes() {
    let mut history = History::built();
    history.operation(Verb::Confirm, 2, 20, Some(Outcome::Done));
    history.call(Op::Resume, 2, 21, Some(22), true);
    assert_eq!(history.found(), ["INV-32"]);
}

#[test]
fn inv_33_two_resumes_under_one_epoch() {
    let mut history = History::built();
    history.operation(Verb::Wake, 2, 20, Some(Outcome::Done));
    history.call(Op::Resume, 2, 21, Some(22), true);
    history.call(Op::Resume, 2, 23, Some(24), true);
    assert_eq!(history.found(), ["INV-33"]);
}

#[test]
fn inv_115_an_owner_that_acts_after_its_successor_has_begun() {
    let mut history = History::built();
    history.operation(Verb::Park, 2, 20, Some(Outcome::Superseded));
    history.operation(Verb::Wake, 3, 100, Some(Outcome::Done));
    history.call(Op::Suspend, 2, 110, Some(111), true);
    assert_eq!(history.found(), ["INV-115"]);
}

#[test]
fn rul_l_5_two_epochs_meet_before_a_lease_ran_out() {
    let meet = |second| {
        let mut history = History::built();
        history.operation(Verb::Park, 2, 20, None);
        history.call(Op::Suspend, 2, 21, None, false);
        history.operation(Verb::Wake, 3, second, Some(Outcome::Done));
        history.call(Op::Resume, 3, second + 1, Some(second + 2), true);
        history.found()
    };
    assert_eq!(meet(30), ["RUL-L-5"]);
    assert_eq!(meet(80), Vec::<&str>::new(), "its lease ran out");
}

#[test]
fn inv_50_two_deletes_at_once() {
    let mut history = History::built();
    history.operation(Verb::Destroy, 2, 20, None);
    history.call(Op::Destroy, 2, 21, None, false);
    history.operation(Verb::Destroy, 3, 25, Some(Outcome::Done));
    history.call(Op::Destroy, 3, 26, Some(27), true);
    assert_eq!(history.found(), ["INV-50"]);
}

#[test]
fn inv_60_a_delete_of_a_machine_that_no_row_ever_had() {
    let mut history = History::built();
    history.log.push(LogEntry {
        at: Duration::from_secs(9),
        op: Op::Destroy,
        what: Logged::Effect,
        machine: "somebody-else".into(),
        epoch: None,
        answer: "",
    });
    assert_eq!(history.found(), ["INV-60"]);
}

#[test]
fn inv_118_a_delete_that_reaches_another_row_s_name() {
    let mut history = History::built();
    let other = MachineId(SeededRng::new(2).uuid());
    history.facts.machines[0] = machine(history.id, MachineStatus::Terminated);
    history.facts.machines[0].terminated_at = Some(at(20));
    let mut heir = machine(other, MachineStatus::Ready);
    heir.inserted_at = at(25);
    history.facts.machines.push(heir);
    history.operation(Verb::Destroy, 2, 10, Some(Outcome::Unknown));
    history.call(Op::Destroy, 2, 11, Some(30), true);
    assert_eq!(history.found(), ["INV-118"]);
}

#[test]
fn inv_21_a_build_on_what_an_earlier_one_left() {
    let mut history = History::built();
    history.operation(Verb::Provision, 2, 100, Some(Outcome::Done));
    history.call(Op::WriteFile, 2, 101, Some(102), true);
    assert_eq!(history.found(), ["INV-21"]);
    let mut clean = History::built();
    clean.operation(Verb::Provision, 2, 100, Some(Outcome::Done));
    clean.call(Op::Destroy, 2, 101, Some(102), true);
    clean.call(Op::Create, 2, 103, Some(104), true);
    clean.call(Op::WriteFile, 2, 105, Some(106), true);
    assert_eq!(clean.found(), Vec::<&str>::new());
}
