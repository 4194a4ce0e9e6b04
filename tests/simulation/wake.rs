//! Waking and confirming: M11 to M14, M18 to M20 (lifecycle 5.3, 6.8; RUL-1, RUL-L-4, RUL-L-24, RUL-L-45).

use std::time::Duration;

use crate::world::*;
use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::machine::{MachineMode, MachineState, MachineStatus, Transition};
use fountain_actors::domain::operation::Outcome;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::machine::messages::*;
use fountain_actors::ports::sandbox::{NetworkPolicy, RunState, SandboxError};
use fountain_actors::ports::store::conversations::Limits;
use fountain_actors::ports::store::turns::TurnStore;

#[track_caller]
fn code<T: std::fmt::Debug>(answer: Result<T, MachineError>) -> ErrorCode {
    answer.expect_err("it should have been refused").refusal().code()
}

/// A look that is answered as it should be, before one that is not.
fn second_look_fails(sim: &Sim) {
    sim.fake.plan(Op::Get, Fault::Slow(Duration::ZERO));
    sim.fake
        .plan(Op::Get, Fault::Refused(SandboxError::Unavailable("down".into())));
}

#[actix::test]
async fn m11_m12_inv_35_a_parked_machine_wakes_with_its_disk() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    let before = sim.row(home).await;
    let disk = sim.fake.disk(&before.name);
    assert!(matches!(sim.wake(home).await, Ok(Usable::Resumed(_))));
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.transition, &row.lease),
        (MachineStatus::Ready, None, &None)
    );
    assert_eq!(row.last_resumed_at, Some(sim.now()));
    assert_eq!(sim.fake.disk(&row.name), disk);
    // A second one finds it up, and that is no resume.
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(matches!(sim.wake(home).await, Ok(Usable::AlreadyUp(_))));
    assert_eq!(sim.row(home).await.last_resumed_at, row.last_resumed_at);
    assert_eq!(sim.fake.requests(Op::Resume), 1);
}

#[actix::test]
async fn inv_33_r_03_two_wakes_together_resume_once_and_the_second_waits() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::Slow(Duration::from_secs(3)));
    let (first, second) = tokio::join!(sim.wake(home), sim.wake(home));
    assert!(matches!(first, Ok(Usable::Resumed(_))));
    assert!(matches!(second, Ok(Usable::AlreadyUp(_))));
    assert_eq!(sim.fake.requests(Op::Resume), 1);
}

#[actix::test]
async fn rul_1_a_foreign_lease_is_answered_at_once() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::Slow(Duration::from_secs(10)));
    let other = sim.node("other/1");
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = tokio::time::Instant::now();
        let answer = other.owner(home.machine).send(sim.ensure_up(home)).await.unwrap();
        (answer, asked.elapsed())
    };
    let (first, (second, waited)) = tokio::join!(sim.wake(home), late);
    assert!(matches!(first, Ok(Usable::Resumed(_))));
    assert_eq!(code(second), ErrorCode::SandboxUnavailable);
    assert!(waited < Duration::from_millis(100), "{waited:?}");
}

#[actix::test]
async fn rul_1_rul_3_a_slow_wake_is_answered_in_20_s_and_goes_on() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::Slow(Duration::from_secs(50)));
    let asked = tokio::time::Instant::now();
    assert_eq!(code(sim.wake(home).await), ErrorCode::SandboxUnavailable);
    assert_eq!(asked.elapsed().as_secs(), 20);
    assert_eq!(sim.row(home).await.state(sim.now()), MachineState::Waking);
    sim.until(home, |row| row.status == MachineStatus::Ready).await;
    assert_eq!(asked.elapsed().as_secs(), 50);
    assert!(
        sim.turns(home).await.iter().all(|turn| turn.status.is_terminal()),
        "no turn opens later"
    );
}

#[actix::test]
async fn r_26_a_wake_that_waited_past_its_deadline_is_refused_before_it_runs() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake
        .plan(Op::Resume, Fault::Refused(SandboxError::Denied("no".into())));
    sim.fake.plan(Op::Get, Fault::Slow(Duration::from_secs(8)));
    let mut hasty = sim.ensure_up(home);
    hasty.deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    let hasty = async { sim.here.owner(home.machine).send(hasty).await };
    let (first, second) = tokio::join!(sim.wake(home), hasty);
    assert_eq!(code(first), ErrorCode::SandboxResumeFailed);
    assert_eq!(code(second.unwrap()), ErrorCode::SandboxUnavailable);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((sim.fake.requests(Op::Get), sim.fake.requests(Op::Resume)), (1, 1));
}

#[actix::test]
async fn m13_inv_34_a_refused_resume_leaves_the_machine_parked_and_says_so() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    let name = sim.row(home).await.name;
    let disk = sim.fake.disk(&name);
    sim.fake.plan(
        Op::Resume,
        Fault::Refused(SandboxError::RateLimited { retry_after_s: None }),
    );
    assert_eq!(code(sim.wake(home).await), ErrorCode::SandboxResumeFailed);
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.transition, &row.lease),
        (MachineStatus::Suspended, None, &None)
    );
    assert!(!row.is_counted());
    assert_eq!(sim.fake.disk(&name), disk);
    assert_eq!(sim.stages(home).await.last().unwrap(), "wake/failed");
    assert!(
        matches!(sim.wake(home).await, Ok(Usable::Resumed(_))),
        "its disk is intact, try again"
    );
}

#[actix::test]
async fn rul_l_4_a_lost_answer_is_looked_after() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::LostAnswer);
    assert!(matches!(sim.wake(home).await, Ok(Usable::Resumed(_))));
    assert_eq!(sim.fake.requests(Op::Resume), 1);
}

#[actix::test]
async fn rul_l_4_m14_inv_32_an_unknown_wake_keeps_its_stamp_and_is_settled_by_looking() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::LostAnswer);
    second_look_fails(&sim);
    assert_eq!(code(sim.wake(home).await), ErrorCode::SandboxUnavailable);
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.transition),
        (MachineStatus::Suspended, Some(Transition::Resuming))
    );
    assert_eq!(row.lease, None, "the lease is given back");
    assert!(row.is_counted(), "it may run, so it is counted (RUL-L-70)");
    assert_eq!(sim.journal(home).await[0].outcome, Some(Outcome::Unknown));
    assert!(
        !sim.stages(home).await.contains(&"wake/failed".to_owned()),
        "only a refusal is one"
    );
    assert!(matches!(sim.wake(home).await, Ok(Usable::AlreadyUp(_))));
    assert_eq!(sim.fake.requests(Op::Resume), 1, "a takeover looks and never resumes");
}

#[actix::test]
async fn m14_r_14_a_dead_wake_that_did_nothing_is_settled_and_then_a_new_one_wakes() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::NoAnswer);
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(sim.ensure_up(home)), crash);
    assert_eq!(
        sim.row(home).await.state(sim.now()),
        MachineState::Waking,
        "a call was in flight (RUL-L-5)"
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(sim.row(home).await.state(sim.now()), MachineState::WakeStale);
    assert!(matches!(sim.wake(home).await, Ok(Usable::Resumed(_))));
    let verbs: Vec<_> = sim
        .journal(home)
        .await
        .iter()
        .map(|operation| operation.verb.as_str())
        .collect();
    assert_eq!(verbs[..3], ["wake", "confirm", "wake"]);
}

#[actix::test]
async fn r_07_a_machine_that_its_provider_stopped_is_resumed() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let name = sim.row(home).await.name;
    sim.fake.stop(&name);
    assert!(matches!(sim.wake(home).await, Ok(Usable::Resumed(_))));
    assert_eq!(sim.fake.run_state(&name), Some(RunState::Running));
    assert_eq!(
        sim.row(home).await.last_resumed_at,
        None,
        "it was never parked (INV-35)"
    );
}

#[actix::test]
async fn m18_a_lost_machine_is_retired_with_its_turns() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let turn = sim.admit(home).await;
    sim.fake.lose(&sim.row(home).await.name);
    assert!(matches!(sim.wake(home).await, Ok(Usable::Lost(_))));
    let row = sim.row(home).await;
    assert_eq!((row.status, row.cleanup_pending), (MachineStatus::Terminated, false));
    let turns = sim.turns(home).await;
    let ended = turns.iter().find(|of| of.id == turn.id).unwrap();
    assert_eq!(ended.status, TurnStatus::Interrupted);
    assert_eq!(sim.fake.requests(Op::Destroy), 0);
    assert!(matches!(sim.wake(home).await, Ok(Usable::Gone(_))));
}

#[actix::test]
async fn inv_37_no_other_answer_than_not_found_retires_a_row() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    for error in [
        SandboxError::Unavailable("down".into()),
        SandboxError::Denied("token".into()),
        SandboxError::RateLimited { retry_after_s: None },
        SandboxError::Invalid("what".into()),
    ] {
        sim.fake.plan(Op::Get, Fault::Refused(error));
        assert_eq!(code(sim.wake(home).await), ErrorCode::SandboxProbeFailed);
        assert_eq!(sim.status(home).await, MachineStatus::Ready);
    }
    sim.fake.set_offline(true);
    assert_eq!(code(sim.wake(home).await), ErrorCode::RunnerOffline);
    assert_eq!(sim.status(home).await, MachineStatus::Ready);
}

#[actix::test]
async fn inv_100_a_wake_at_the_cap_is_refused_before_the_provider_is_asked_to_resume() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    let mut ask = sim.ensure_up(home);
    ask.limits = Limits::flat(100, 0);
    let answer = sim.here.owner(home.machine).send(ask).await.unwrap();
    assert_eq!(code(answer), ErrorCode::SandboxQuotaExceeded);
    assert_eq!(sim.fake.requests(Op::Resume), 0);
    assert_eq!(sim.row(home).await.transition, None);
}

#[actix::test]
async fn rul_l_97_a_policy_that_cannot_be_verified_parks_the_machine_again() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    let name = sim.row(home).await.name;
    let mut ask = sim.ensure_up(home);
    ask.policy = Some(NetworkPolicy { allow: Vec::new() });
    for _ in 0..3 {
        sim.fake
            .plan(Op::PolicyRead, Fault::Refused(SandboxError::Unavailable("down".into())));
    }
    let answer = sim.here.owner(home.machine).send(ask.clone()).await.unwrap();
    assert_eq!(code(answer), ErrorCode::SandboxResumeFailed);
    assert_eq!(sim.status(home).await, MachineStatus::Suspended);
    assert_eq!(sim.fake.run_state(&name), Some(RunState::Suspended));
    ask.deadline += Duration::from_secs(60);
    assert!(sim.here.owner(home.machine).send(ask).await.unwrap().is_ok());
}

#[actix::test]
async fn a_machine_that_is_not_built_yet_is_said_to_be_so() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    assert!(matches!(sim.wake(home).await, Ok(Usable::NotBuilt(_))));
    sim.fake.plan(Op::Create, Fault::Slow(Duration::from_secs(30)));
    let ask = sim.provision(home).await;
    let other = sim.node("other/1");
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        other.owner(home.machine).send(sim.ensure_up(home)).await.unwrap()
    };
    let (_, answer) = tokio::join!(sim.here.owner(home.machine).send(ask), meanwhile);
    assert_eq!(code(answer), ErrorCode::Provisioning);
}

#[actix::test]
async fn m20_a_reattach_confirms_writes_its_files_and_announces_itself() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let before = sim.row(home).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let confirmed = sim.here.owner(home.machine).send(sim.confirm_up(home)).await.unwrap();
    assert!(matches!(confirmed, Ok(Confirmed::Up(_))));
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.last_resumed_at, &row.lease),
        (MachineStatus::Ready, None, &None)
    );
    assert!(row.updated_at > before.updated_at, "a sign of life");
    assert_eq!(sim.fake.requests(Op::WriteFile), 2);
    assert_eq!(sim.stages(home).await.last().unwrap(), "reattach/started");
}

#[actix::test]
async fn rul_16_a_provider_that_does_not_answer_leaves_no_trace_of_a_reattach() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let before = (sim.stages(home).await, sim.journal(home).await.len());
    sim.fake.set_offline(true);
    let answer = sim.here.owner(home.machine).send(sim.confirm_up(home)).await.unwrap();
    assert_eq!(code(answer), ErrorCode::RunnerOffline);
    assert_eq!((sim.stages(home).await, sim.journal(home).await.len()), before);
}

#[actix::test]
async fn m19_a_reattach_that_finds_a_parked_machine_running_writes_that() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    let name = sim.row(home).await.name;
    fountain_actors::ports::SandboxAdapter::resume(&sim.fake, &handle(&name), None)
        .await
        .unwrap();
    let confirmed = sim.here.owner(home.machine).send(sim.confirm_up(home)).await.unwrap();
    assert!(matches!(confirmed, Ok(Confirmed::Up(_))));
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.last_resumed_at),
        (MachineStatus::Ready, Some(sim.now()))
    );
}

#[actix::test]
async fn rul_l_24_a_machine_that_stopped_under_its_turn_is_asleep_and_the_turn_has_ended() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let turn = sim.admit(home).await;
    sim.fake.stop(&sim.row(home).await.name);
    let confirmed = sim.here.owner(home.machine).send(sim.confirm_up(home)).await.unwrap();
    assert!(matches!(confirmed, Ok(Confirmed::Asleep(_))));
    let turns = sim.turns(home).await;
    let ended = turns.iter().find(|of| of.id == turn.id).unwrap();
    assert_eq!(ended.status, TurnStatus::Interrupted);
    assert!(ended.orphaned_at.is_some());
    assert_eq!(sim.fake.requests(Op::Resume), 0);
    assert!(sim.store.adoptable(10).await.unwrap().is_empty());
}

#[actix::test]
async fn inv_53_after_a_fence_nobody_wakes_or_confirms() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake
        .plan(Op::Destroy, Fault::Refused(SandboxError::Unavailable("down".into())));
    assert_eq!(code(sim.reset(home).await), ErrorCode::SandboxResetPending);
    assert_eq!(code(sim.wake(home).await), ErrorCode::SandboxResetPending);
    let confirmed = sim.here.owner(home.machine).send(sim.confirm_up(home)).await.unwrap();
    assert_eq!(code(confirmed), ErrorCode::SandboxResetPending);
    assert!(sim.park(home).await.is_err());
    assert_eq!(sim.fake.requests(Op::Resume), 0);
}

fn handle(name: &str) -> fountain_actors::ports::sandbox::Handle {
    fountain_actors::ports::sandbox::Handle {
        provider: fountain_actors::domain::machine::Provider::Fake,
        name: name.into(),
        instance_id: None,
    }
}
