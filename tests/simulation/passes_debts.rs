//! Debts and the settle pass: what a dead or lost operation did is found and made true (RUL-L-3, 24, 45, 56, 70).

use std::sync::Arc;
use std::time::Duration;

use crate::world::*;
use fountain_actors::domain::machine::{MachineMode, MachineState, MachineStatus, Transition};
use fountain_actors::domain::operation::{Operation, Outcome, Verb};
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::{Epoch, ErrorCode};
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::machine::messages::*;
use fountain_actors::passes::{Passes, Replica};
use fountain_actors::ports::sandbox::{RunState, SandboxError};
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::passes::PassStore;

const MINUTE: Duration = Duration::from_secs(60);
/// An effect that does not come within a test.
const NEVER: Duration = Duration::from_secs(10_000_000);

/// Passes of a node whose own timers are asleep for the length of a test, so that each run is the test's.
async fn quiet() -> Sim {
    quiet_with(|fake| fake).await
}

async fn quiet_with(
    shape: impl FnOnce(fountain_actors::fakes::FakeSandbox) -> fountain_actors::fakes::FakeSandbox,
) -> Sim {
    let still = |settings: &mut fountain_actors::domain::settings::Settings| {
        settings.settle_interval = 1000 * MINUTE;
        settings.sweep_interval = 1000 * MINUTE;
        settings.adoption_interval = 1000 * MINUTE;
    };
    Sim::with(still, shape).await
}

fn passes(node: &Arc<Node>) -> Passes {
    let replica: Arc<dyn Replica> = Arc::clone(node) as _;
    Passes::start(&node.world, &replica)
}

fn down() -> Fault {
    Fault::Refused(SandboxError::Unavailable("down".into()))
}

fn name(row: &fountain_actors::domain::machine::Machine) -> String {
    row.name.clone()
}

/// The oldest journal row of this verb whose outcome nobody knew.
async fn debt(sim: &Sim, home: Home, verb: Verb) -> Operation {
    let journal = sim.journal(home).await;
    let unknown = |operation: &&Operation| {
        operation.verb == verb && matches!(operation.outcome, None | Some(Outcome::Unknown | Outcome::Superseded))
    };
    journal.iter().rev().find(unknown).expect("it left a debt").clone()
}

/// A wake whose resume comes after `late`, and about which nobody learned anything.
async fn lost_wake(sim: &Sim, home: Home, late: Duration) {
    sim.fake.plan(Op::Resume, Fault::LateSuccess(late));
    // The look before the wake, and the one after its answer was lost.
    sim.fake.plan(Op::Get, Fault::Slow(Duration::ZERO));
    sim.fake.plan(Op::Get, down());
    assert!(sim.wake(home).await.is_err());
    assert_eq!(sim.row(home).await.state(sim.now()), MachineState::WakeStale);
}

#[actix::test]
async fn rul_l_3_m23_a_suspend_that_came_late_is_found_and_its_turn_ends_with_a_reason() {
    let sim = quiet().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    sim.fake.plan(Op::Suspend, Fault::LateSuccess(Duration::from_secs(100)));
    sim.fake.plan(Op::Get, down());
    assert!(matches!(sim.park(home).await, Err(MachineError::SuspendFailed)));
    assert_eq!(debt(&sim, home, Verb::Park).await.probed_at, None);
    // The next prompt looks, finds it running and is admitted (RUL-L-45).
    assert!(matches!(sim.wake(home).await, Ok(Usable::AlreadyUp(_))));
    let looked = debt(&sim, home, Verb::Park).await;
    assert!(looked.probed_at.is_some() && looked.settled_at.is_none(), "{looked:?}");
    let turn = sim.admit(home).await;
    let passes = passes(&sim.here);
    assert_eq!(
        passes.settle_debts().await.candidates,
        0,
        "a second look is due after 120 s"
    );
    tokio::time::sleep(Duration::from_secs(121)).await;
    assert_eq!(
        sim.fake.run_state(&name(&sim.row(home).await)),
        Some(RunState::Suspended)
    );
    assert_eq!(sim.status(home).await, MachineStatus::Ready, "nobody knows yet");
    assert_eq!(passes.settle_debts().await.done, 1);
    assert_eq!(sim.status(home).await, MachineStatus::Suspended);
    let ended = sim.turns(home).await.into_iter().find(|of| of.id == turn.id).unwrap();
    assert_eq!(ended.status, TurnStatus::Interrupted);
    assert!(ended.orphaned_at.is_some());
    let settled = debt(&sim, home, Verb::Park).await;
    assert!(
        settled.settled_at.is_some() && settled.closed_at.is_none(),
        "{settled:?}"
    );
    // The last look closes it, and then it is no debt.
    tokio::time::sleep(15 * MINUTE).await;
    assert_eq!(passes.settle_debts().await.done, 1);
    assert!(debt(&sim, home, Verb::Park).await.closed_at.is_some());
    assert_eq!(passes.settle_debts().await.candidates, 0);
    assert!(
        matches!(sim.wake(home).await, Ok(Usable::Resumed(_))),
        "the next prompt wakes"
    );
    passes.stop().await;
}

#[actix::test]
async fn rul_l_24_inv_32_a_resume_that_came_late_is_parked_again() {
    let sim = quiet().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    lost_wake(&sim, home, MINUTE).await;
    let passes = passes(&sim.here);
    assert_eq!(passes.settle_debts().await.done, 1, "it is looked after at once");
    let row = sim.row(home).await;
    assert_eq!((row.status, row.transition), (MachineStatus::Suspended, None));
    tokio::time::sleep(2 * MINUTE + Duration::from_secs(1)).await;
    assert_eq!(sim.fake.run_state(&row.name), Some(RunState::Running), "it came late");
    let (resumes, suspends) = (sim.fake.requests(Op::Resume), sim.fake.effects(Op::Suspend));
    assert_eq!(passes.settle_debts().await.done, 1);
    assert_eq!(sim.fake.run_state(&row.name), Some(RunState::Suspended));
    assert_eq!(sim.status(home).await, MachineStatus::Suspended);
    assert_eq!(
        (sim.fake.requests(Op::Resume), sim.fake.effects(Op::Suspend)),
        (resumes, suspends + 1),
        "a settlement never starts compute"
    );
    assert!(debt(&sim, home, Verb::Wake).await.settled_at.is_some());
    passes.stop().await;
}

#[actix::test]
async fn rul_l_24_rul_l_72_what_will_not_be_parked_again_is_up_whatever_the_cap() {
    let sim = quiet().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    lost_wake(&sim, home, MINUTE).await;
    let passes = passes(&sim.here);
    passes.settle_debts().await;
    tokio::time::sleep(2 * MINUTE + Duration::from_secs(1)).await;
    sim.fake
        .plan(Op::Suspend, Fault::Refused(SandboxError::Denied("no".into())));
    assert_eq!(passes.settle_debts().await.done, 1);
    let row = sim.row(home).await;
    assert_eq!((row.status, row.transition), (MachineStatus::Ready, None));
    assert!(
        row.last_resumed_at.is_some(),
        "it runs, and from when on is written down"
    );
    passes.stop().await;
}

#[actix::test]
async fn rul_l_115_a_provider_that_says_only_exists_settles_by_it() {
    let sim = quiet_with(|fake| fake.vague()).await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    sim.fake.plan(Op::Suspend, Fault::LostAnswer);
    sim.fake.plan(Op::Get, down());
    assert!(sim.park(home).await.is_err());
    assert_eq!(sim.row(home).await.state(sim.now()), MachineState::ParkStale);
    let passes = passes(&sim.here);
    passes.settle_debts().await;
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.transition),
        (MachineStatus::Ready, None),
        "a stamp goes to UP"
    );
    tokio::time::sleep(2 * MINUTE + Duration::from_secs(1)).await;
    assert_eq!(passes.settle_debts().await.done, 1);
    assert!(debt(&sim, home, Verb::Park).await.settled_at.is_some());
    assert_eq!(sim.status(home).await, MachineStatus::Ready, "and stays as it is");
    passes.stop().await;
}

#[actix::test]
async fn rul_l_24_m18_a_machine_that_is_gone_is_retired() {
    let sim = quiet().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    lost_wake(&sim, home, NEVER).await;
    sim.fake.lose(&name(&sim.row(home).await));
    let passes = passes(&sim.here);
    assert_eq!(passes.settle_debts().await.done, 1);
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
    passes.stop().await;
}

#[actix::test]
async fn inv_116_a_debt_is_settled_within_two_intervals_once_the_provider_answers() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    let passes = passes(&sim.here);
    lost_wake(&sim, home, MINUTE).await;
    for _ in 0..30 {
        sim.fake.plan(Op::Get, down());
    }
    tokio::time::sleep(20 * MINUTE).await;
    let row = sim.row(home).await;
    assert_eq!(row.transition, Some(Transition::Resuming), "an error changes nothing");
    assert_eq!(debt(&sim, home, Verb::Wake).await.probed_at, None);
    while sim.fake.unused_faults() > 0 {
        tokio::time::sleep(MINUTE).await;
    }
    tokio::time::sleep(2 * MINUTE).await;
    let settled = debt(&sim, home, Verb::Wake).await;
    assert!(
        settled.settled_at.is_some() && settled.closed_at.is_some(),
        "{settled:?}"
    );
    passes.stop().await;
}

#[actix::test]
async fn rul_l_3_a_create_that_came_after_its_row_had_ended_is_deleted_by_the_last_look() {
    let sim = quiet().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let ask = sim.provision(home).await;
    sim.fake.plan(Op::Create, Fault::Slow(8 * MINUTE));
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(ask), crash);
    tokio::time::sleep(MINUTE).await;
    let fail = FailBuild {
        conversation: None,
        reason: "deadline_exceeded".into(),
        message: "over".into(),
        actor: fountain_actors::domain::account::Actor::System("test"),
    };
    sim.here.owner(home.machine).send(fail).await.unwrap().unwrap();
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.cleanup_pending),
        (MachineStatus::Failed, false),
        "it was not there"
    );
    let passes = passes(&sim.here);
    tokio::time::sleep(3 * MINUTE).await;
    assert_eq!(passes.settle_debts().await.done, 1);
    assert!(debt(&sim, home, Verb::Provision).await.settled_at.is_some());
    tokio::time::sleep(6 * MINUTE).await;
    assert_eq!(sim.fake.machines(), std::slice::from_ref(&row.name), "it came late");
    tokio::time::sleep(7 * MINUTE).await;
    assert_eq!(passes.settle_debts().await.done, 1);
    assert!(
        sim.fake.machines().is_empty(),
        "and was found by the row that had ended"
    );
    assert!(debt(&sim, home, Verb::Provision).await.closed_at.is_some());
    passes.stop().await;
}

#[actix::test]
async fn rul_l_3_rul_l_22_a_create_under_a_name_that_a_rebuild_gave_up_is_deleted_and_the_new_machine_is_not() {
    let sim = quiet().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let old = name(&sim.row(home).await);
    let ask = sim.provision(home).await;
    sim.fake.plan(Op::Create, Fault::Slow(5 * MINUTE));
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(ask), crash);
    tokio::time::sleep(MINUTE).await;
    sim.build(home).await.unwrap();
    let new = name(&sim.row(home).await);
    assert_ne!(old, new, "a minted name is replaced");
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(sim.fake.machines().len(), 2, "it came late");
    let passes = passes(&sim.here);
    assert_eq!(passes.settle_debts().await.done, 1);
    assert_eq!(sim.fake.machines(), [new]);
    assert_eq!(sim.status(home).await, MachineStatus::Ready);
    passes.stop().await;
}

#[actix::test]
async fn rul_l_3_a_doomed_row_with_a_debt_goes_the_way_of_every_delete() {
    let sim = quiet().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    lost_wake(&sim, home, MINUTE).await;
    sim.fake.plan(Op::Destroy, down());
    assert!(sim.reset(home).await.is_err());
    let passes = passes(&sim.here);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(
        passes.settle_debts().await.candidates,
        0,
        "deletes are tried every five minutes"
    );
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(passes.settle_debts().await.done, 1);
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
    assert!(sim.fake.machines().is_empty());
    passes.stop().await;
}

#[actix::test]
async fn rul_l_45_no_turn_is_admitted_before_somebody_has_looked() {
    let sim = quiet().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    let owner = sim.here.owner(home.machine);
    sim.fake.plan(Op::Suspend, Fault::NoAnswer);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(sim.idle_park(home)), crash);
    tokio::time::sleep(3 * MINUTE).await;
    assert_eq!(sim.row(home).await.state(sim.now()), MachineState::ParkStale);
    let refused = sim.try_admit(home).await;
    assert!(
        matches!(&refused, Err(StoreError::Refused(refusal)) if refusal.code() == ErrorCode::SandboxUnavailable),
        "{refused:?}"
    );
    // A look that does not come within the caller's five seconds is no look.
    sim.fake.plan(Op::Get, Fault::Slow(Duration::from_secs(7)));
    let asked = tokio::time::Instant::now();
    let error = sim.wake(home).await.unwrap_err();
    assert_eq!(error.refusal().code(), ErrorCode::SandboxUnavailable);
    assert!(asked.elapsed() <= Duration::from_secs(6), "{:?}", asked.elapsed());
    assert!(sim.wake(home).await.is_ok());
    sim.try_admit(home).await.unwrap();
}

#[actix::test]
async fn rul_l_45_a_settled_debt_that_awaits_its_last_look_is_not_probed_again() {
    let sim = quiet().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    lost_wake(&sim, home, NEVER).await;
    let passes = passes(&sim.here);
    tokio::time::sleep(3 * MINUTE).await;
    passes.settle_debts().await;
    assert!(debt(&sim, home, Verb::Wake).await.settled_at.is_some());
    assert!(!sim.store.owes_look(home.machine, sim.now()).await.unwrap());
    let confirms = |journal: Vec<Operation>| journal.iter().filter(|of| of.verb == Verb::Confirm).count();
    let before = confirms(sim.journal(home).await);
    assert!(matches!(sim.wake(home).await, Ok(Usable::Resumed(_))));
    assert_eq!(confirms(sim.journal(home).await), before);
    passes.stop().await;
}

#[actix::test]
async fn rul_l_56_one_process_runs_a_pass_and_the_other_takes_over() {
    let sim = quiet().await;
    // The wake acts later than any provider does.
    sim.excuse("INV-117");
    let home = sim.asleep(MachineMode::Persistent).await;
    lost_wake(&sim, home, NEVER).await;
    let there = sim.node("there/1");
    let (mine, theirs) = (passes(&sim.here), passes(&there));
    sim.fake.plan(Op::Get, down());
    assert_eq!(mine.settle_debts().await.refused, 1);
    assert_eq!(theirs.settle_debts().await.candidates, 0, "another process runs it");
    mine.stop().await;
    tokio::time::sleep(1000 * MINUTE).await;
    assert_eq!(theirs.settle_debts().await.done, 1, "given back with the process");
    theirs.stop().await;
    // A holder that died is waited for until its lease is over, and its epoch never comes back.
    let ttl = Duration::from_secs(60);
    let take = |holder: &str| sim.store.take_pass("test", holder.into(), ttl, sim.now());
    assert_eq!(take("a/1").await.unwrap(), Some(Epoch(1)));
    assert_eq!(take("a/1").await.unwrap(), Some(Epoch(1)), "the same holder keeps it");
    assert_eq!(take("b/1").await.unwrap(), None);
    tokio::time::sleep(ttl + Duration::from_secs(1)).await;
    assert_eq!(take("b/1").await.unwrap(), Some(Epoch(2)));
    let late = sim
        .store
        .renew_pass("test", "a/1".into(), Epoch(1), ttl, sim.now())
        .await;
    assert!(matches!(late, Err(StoreError::Stale(_))));
}

#[actix::test]
async fn rul_l_56_a_run_stops_before_the_next_call_when_its_lease_is_gone() {
    let sim = quiet().await;
    let (one, two) = (
        sim.asleep(MachineMode::Persistent).await,
        sim.asleep(MachineMode::Persistent).await,
    );
    lost_wake(&sim, one, NEVER).await;
    lost_wake(&sim, two, NEVER).await;
    let passes = passes(&sim.here);
    // Somebody else took the pass while this process was frozen.
    let ttl = 10_000 * MINUTE;
    assert_eq!(passes.settle_debts().await.done, 2);
    tokio::time::sleep(1000 * MINUTE).await;
    let stolen = sim
        .store
        .take_pass("settle", "thief/1".into(), ttl, sim.now())
        .await
        .unwrap();
    assert!(stolen.is_some());
    let looks = sim.fake.requests(Op::Get);
    assert_eq!(passes.settle_debts().await.done, 0);
    assert_eq!(sim.fake.requests(Op::Get), looks);
    passes.stop().await;
    let still = sim
        .store
        .renew_pass("settle", "thief/1".into(), stolen.unwrap(), ttl, sim.now())
        .await;
    assert!(still.is_ok(), "a stopped process gives back only what is its own");
}
