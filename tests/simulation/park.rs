//! Parking: M7 to M10 (lifecycle 5.2; RUL-L-4, RUL-L-27, RUL-L-43).

use std::time::Duration;

use crate::world::*;
use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::machine::{MachineMode, MachineState, MachineStatus, Transition};
use fountain_actors::domain::operation::Outcome;
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::machine::messages::*;
use fountain_actors::ports::sandbox::{Capability, Handle, RunState, SandboxAdapter, SandboxError, SpawnOptions};

fn refusal() -> Fault {
    Fault::Refused(SandboxError::Denied("not now".into()))
}

#[actix::test]
async fn m7_m8_an_idle_machine_is_parked_and_gives_its_slot_back() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    assert!(sim.row(home).await.is_counted());
    sim.idle().await;
    assert!(matches!(sim.park(home).await, Ok(Parked::Parked(_))));
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.transition, &row.lease),
        (MachineStatus::Suspended, None, &None)
    );
    assert!(!row.is_counted());
    assert_eq!(sim.fake.run_state(&row.name), Some(RunState::Suspended));
    assert_eq!(sim.stages(home).await.last().unwrap(), "sandbox/done");
}

#[actix::test]
async fn r_02_two_parks_of_one_machine_suspend_once() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    let other = sim.node("other/1");
    sim.fake.plan(Op::Suspend, Fault::Slow(Duration::from_secs(2)));
    let late = async { other.owner(home.machine).send(sim.idle_park(home)).await };
    let (first, second) = tokio::join!(sim.park(home), late);
    assert!(matches!(first, Ok(Parked::Parked(_))));
    assert!(matches!(second.unwrap(), Ok(Parked::AlreadyParked(_))));
    assert_eq!(sim.fake.requests(Op::Suspend), 1);
}

#[actix::test]
async fn a_machine_that_was_used_lately_is_not_parked() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    tokio::time::sleep(Duration::from_secs(30 * 60)).await;
    assert!(matches!(sim.park(home).await, Err(MachineError::NotExpired)));
    assert_eq!(sim.fake.requests(Op::Suspend), 0);
}

#[actix::test]
async fn inv_30_an_open_turn_with_a_live_server_refuses() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.admit(home).await;
    sim.idle().await;
    assert!(matches!(sim.park(home).await, Err(MachineError::Occupied)));
    assert_eq!(sim.fake.requests(Op::Suspend), 0);
}

#[actix::test]
async fn r_31_a_turn_whose_server_is_dead_does_not_keep_a_machine_up() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.admit(home).await;
    sim.idle().await;
    let mut ask = sim.idle_park(home);
    ask.rule.live_servers.clear();
    let parked = sim.here.owner(home.machine).send(ask).await.unwrap();
    assert!(matches!(parked, Ok(Parked::Parked(_))), "{parked:?}");
}

#[actix::test]
async fn rul_l_43_bytes_on_a_session_inside_the_bound_refuse_and_a_silent_one_does_not() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let machine = Handle {
        provider: sim.fake.provider(),
        name: sim.row(home).await.name,
        instance_id: None,
    };
    sim.idle().await;
    let options = SpawnOptions {
        stdin: true,
        ..SpawnOptions::default()
    };
    let words = ["out:working".to_owned(), "stay".to_owned()];
    let _background = sim.fake.spawn(&machine, "build", &words, options).await.unwrap();
    assert!(matches!(sim.park(home).await, Err(MachineError::Occupied)));
    assert_eq!(sim.row(home).await.transition, None, "it stood down");
    sim.idle().await;
    sim.fake.plan(
        Op::ListSessions,
        Fault::Refused(SandboxError::Unavailable("down".into())),
    );
    assert!(
        sim.park(home).await.is_err(),
        "an unreadable answer refuses this attempt"
    );
    assert!(matches!(sim.park(home).await, Ok(Parked::Parked(_))));
}

#[actix::test]
async fn m9_a_refused_suspend_leaves_the_machine_up() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Ephemeral).await;
    sim.idle().await;
    sim.fake.plan(Op::Suspend, refusal());
    assert!(matches!(sim.park(home).await, Err(MachineError::SuspendFailed)));
    let row = sim.row(home).await;
    assert_eq!(row.state(sim.now()), MachineState::Up);
    assert!(row.next_attempt_at.is_some());
    assert_eq!(sim.fake.requests(Op::Destroy), 0, "one refusal deletes no memory");
}

#[actix::test]
async fn rul_l_27_three_refusals_over_a_quarter_of_an_hour_end_an_ephemeral_machine() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Ephemeral).await;
    sim.idle().await;
    for minutes in [5, 5, 6] {
        sim.fake.plan(Op::Suspend, refusal());
        assert!(matches!(sim.park(home).await, Err(MachineError::SuspendFailed)));
        tokio::time::sleep(Duration::from_secs(minutes * 60)).await;
    }
    sim.fake.plan(Op::Suspend, refusal());
    assert!(matches!(sim.park(home).await, Ok(Parked::Destroying(_))));
    let row = sim.until(home, |row| row.status.is_terminal()).await;
    assert_eq!(row.status, MachineStatus::Terminated);
    assert!(sim.fake.machines().is_empty());
}

#[actix::test]
async fn rul_l_27_a_home_that_cannot_be_parked_stays_up() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    for _ in 0..5 {
        sim.fake.plan(Op::Suspend, refusal());
        assert!(matches!(sim.park(home).await, Err(MachineError::SuspendFailed)));
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
    assert_eq!(sim.row(home).await.state(sim.now()), MachineState::Up);
    assert_eq!(sim.fake.requests(Op::Destroy), 0);
}

#[actix::test]
async fn inv_39_a_provider_that_cannot_suspend_makes_a_park_a_destroy() {
    let sim = Sim::with(|_| {}, |fake| fake.without(Capability::Suspend)).await;
    let home = sim.up(MachineMode::Ephemeral).await;
    sim.idle().await;
    assert!(matches!(sim.park(home).await, Ok(Parked::Destroying(_))));
    sim.until(home, |row| row.status == MachineStatus::Terminated).await;
    assert_eq!(sim.fake.requests(Op::Suspend), 0);
    assert!(sim.fake.machines().is_empty());
}

#[actix::test]
async fn rul_l_4_an_unknown_suspend_keeps_its_stamp_and_its_debt() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    sim.fake.plan(Op::Suspend, Fault::LostAnswer);
    sim.fake
        .plan(Op::Get, Fault::Refused(SandboxError::Unavailable("down".into())));
    assert!(matches!(sim.park(home).await, Err(MachineError::SuspendFailed)));
    let row = sim.row(home).await;
    assert_eq!(
        (row.transition, row.state(sim.now())),
        (Some(Transition::Parking), MachineState::ParkStale)
    );
    assert_eq!(sim.journal(home).await[0].outcome, Some(Outcome::Unknown));
    // R-06, M10: the next park finds out, and does nothing else.
    assert!(matches!(sim.park(home).await, Ok(Parked::Recovered(_))));
    assert_eq!(sim.status(home).await, MachineStatus::Suspended);
    assert_eq!(sim.fake.requests(Op::Suspend), 1);
}

#[actix::test]
async fn m10_a_park_that_died_before_the_suspend_is_found_out_to_be_up() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    sim.fake.plan(Op::Suspend, Fault::NoAnswer);
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(sim.idle_park(home)), crash);
    tokio::time::sleep(Duration::from_secs(121)).await;
    assert_eq!(sim.row(home).await.state(sim.now()), MachineState::ParkStale);
    assert!(
        matches!(sim.wake(home).await, Ok(Usable::AlreadyUp(_))),
        "looked at before a turn (RUL-L-45)"
    );
    assert_eq!(sim.row(home).await.transition, None);
    assert_eq!(sim.fake.requests(Op::Resume), 0);
}

#[actix::test]
async fn rul_l_115_a_dead_park_at_a_provider_that_says_only_exists_is_up_and_is_parked_again() {
    let sim = Sim::with(|_| {}, |fake| fake.vague()).await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    sim.fake.plan(Op::Suspend, Fault::NoAnswer);
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(sim.idle_park(home)), crash);
    tokio::time::sleep(Duration::from_secs(121)).await;
    assert_eq!(sim.row(home).await.state(sim.now()), MachineState::ParkStale);
    assert!(matches!(sim.park(home).await, Ok(Parked::Recovered(_))));
    assert_eq!(sim.status(home).await, MachineStatus::Ready);
    assert!(matches!(sim.park(home).await, Ok(Parked::Parked(_))));
    assert_eq!(sim.status(home).await, MachineStatus::Suspended);
}

#[actix::test]
async fn inv_31_suspended_is_written_only_when_the_provider_said_so() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    sim.fake.plan(Op::Suspend, Fault::LateSuccess(Duration::from_secs(300)));
    assert!(
        matches!(sim.park(home).await, Err(MachineError::SuspendFailed)),
        "a look says that it runs"
    );
    assert_eq!(sim.status(home).await, MachineStatus::Ready);
    tokio::time::sleep(Duration::from_secs(301)).await;
    // The late suspend came true. Whoever wants to use the machine looks first.
    assert!(matches!(sim.wake(home).await, Ok(Usable::Resumed(_))));
}

#[actix::test]
async fn a_park_of_what_is_gone_or_not_built_is_no_park() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let refused = sim.park(home).await.unwrap_err();
    assert_eq!(refused.refusal().code(), ErrorCode::SandboxUnavailable);
    let gone = sim.up(MachineMode::Persistent).await;
    sim.reset(gone).await.unwrap();
    assert!(matches!(sim.park(gone).await, Ok(Parked::Gone(_))));
}
