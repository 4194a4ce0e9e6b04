//! The fence and what follows it: M15 to M17, M22 (lifecycle 2.4, 5.4; RUL-L-20, RUL-L-25, RUL-L-26, RUL-L-91).

use std::time::Duration;

use crate::world::*;
use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::account::Actor;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{DestroyReason, MachineMode, MachineState, MachineStatus};
use fountain_actors::domain::operation::Outcome;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::machine::messages::*;
use fountain_actors::ports::sandbox::SandboxError;
use fountain_actors::ports::store::conversations::ConversationStore;

const DESTROY: Destroy = Destroy { actor: Actor::Api };

fn down() -> Fault {
    Fault::Refused(SandboxError::Unavailable("down".into()))
}

#[track_caller]
fn code<T: std::fmt::Debug>(answer: Result<T, MachineError>) -> ErrorCode {
    answer.expect_err("it should have been refused").refusal().code()
}

#[actix::test]
async fn m15_m16_a_reset_deletes_the_machine_and_keeps_the_conversation() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.reset(home).await.unwrap();
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.transition, &row.lease),
        (MachineStatus::Terminated, None, &None)
    );
    assert!(sim.fake.machines().is_empty());
    let conversation = sim.store.conversation(home.conversation).await.unwrap().unwrap();
    assert_eq!(conversation.status, ConversationStatus::Idle);
    assert_eq!(sim.stages(home).await.last().unwrap(), "sandbox/done");
    let journal = sim.journal(home).await;
    assert_eq!(
        (journal[0].verb.as_str(), journal[0].outcome),
        ("reset", Some(Outcome::Done))
    );
    assert_eq!(
        journal[0].provider_call.as_deref(),
        Some("destroy,get"),
        "confirmed by a look (RUL-L-91)"
    );
}

#[actix::test]
async fn a_parked_home_is_reset_without_being_woken() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.reset(home).await.unwrap();
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
    assert_eq!(sim.fake.requests(Op::Resume), 0);
}

#[actix::test]
async fn a_reset_is_refused_where_it_makes_no_sense() {
    let sim = Sim::start().await;
    let ephemeral = sim.up(MachineMode::Ephemeral).await;
    assert_eq!(code(sim.reset(ephemeral).await), ErrorCode::SandboxNotResettable);
    let pending = sim.launch(MachineMode::Persistent).await;
    assert_eq!(code(sim.reset(pending).await), ErrorCode::SandboxNotResettable);
    let busy = sim.up(MachineMode::Persistent).await;
    sim.admit(busy).await;
    assert_eq!(code(sim.reset(busy).await), ErrorCode::SandboxMidTurn, "INV-55");
    assert_eq!(sim.row(busy).await.state(sim.now()), MachineState::Up);
    assert_eq!(sim.fake.requests(Op::Destroy), 0);
}

#[actix::test]
async fn m17_inv_51_an_unconfirmed_reset_keeps_fence_and_capacity() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.fake.plan(Op::Destroy, down());
    assert_eq!(code(sim.reset(home).await), ErrorCode::SandboxResetPending);
    let row = sim.row(home).await;
    assert_eq!(row.state(sim.now()), MachineState::Doomed { reset: true });
    assert!(row.is_counted());
    assert_eq!(row.lease, None);
    let journal = sim.journal(home).await;
    assert_eq!(journal[0].outcome, Some(Outcome::Unconfirmed));
    assert_eq!(
        code(sim.reset(home).await),
        ErrorCode::SandboxResetPending,
        "repeating answers 409"
    );
    let done = sim.here.owner(home.machine).send(DESTROY).await.unwrap();
    assert!(matches!(done, Ok(Destroyed::Destroyed(_))));
    assert!(!sim.row(home).await.is_counted());
}

#[actix::test]
async fn rul_l_20_a_terminated_machine_waits_for_its_confirmation_too() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Ephemeral).await;
    let terminated = sim
        .store
        .terminate(sim.account, home.conversation, Actor::Api, None, sim.now());
    assert_eq!(terminated.await.unwrap().value.fenced, Some(home.machine));
    sim.fake.plan(Op::Destroy, down());
    let owner = sim.here.owner(home.machine);
    assert!(matches!(
        owner.send(DESTROY).await.unwrap(),
        Err(MachineError::Unconfirmed)
    ));
    assert_eq!(
        sim.row(home).await.state(sim.now()),
        MachineState::Doomed { reset: false }
    );
    assert!(matches!(
        owner.send(DESTROY).await.unwrap(),
        Ok(Destroyed::Destroyed(_))
    ));
}

#[actix::test]
async fn rul_l_91_a_lost_delete_is_confirmed_by_a_look() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.fake.plan(Op::Destroy, Fault::LostAnswer);
    sim.reset(home).await.unwrap();
    assert_eq!(sim.fake.requests(Op::Destroy), 1);
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
}

#[actix::test]
async fn p1_p22_an_accepted_delete_is_not_a_done_one() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.fake.plan(Op::Destroy, Fault::LateSuccess(Duration::from_secs(40)));
    assert_eq!(code(sim.reset(home).await), ErrorCode::SandboxResetPending);
    assert_eq!(
        code(sim.wake(home).await),
        ErrorCode::SandboxResetPending,
        "only delete may follow"
    );
    tokio::time::sleep(Duration::from_secs(41)).await;
    assert_eq!(
        sim.row(home).await.state(sim.now()),
        MachineState::Doomed { reset: true }
    );
    let done = sim.here.owner(home.machine).send(DESTROY).await.unwrap();
    assert!(matches!(done, Ok(Destroyed::Destroyed(_))), "already gone is gone");
}

#[actix::test]
async fn r_20_inv_50_resets_and_sweeps_together_delete_once() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.fake.plan(Op::Destroy, Fault::Slow(Duration::from_secs(3)));
    let other = sim.node("other/1");
    let sweep = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        other.owner(home.machine).send(DESTROY).await.unwrap()
    };
    let (first, second, third) = tokio::join!(sim.reset(home), sim.reset(home), sweep);
    assert!(first.is_ok());
    assert_eq!(code(second), ErrorCode::SandboxResetPending);
    assert!(matches!(third, Ok(Destroyed::AlreadyTerminal(_))), "{third:?}");
    assert_eq!(sim.fake.requests(Op::Destroy), 1);
}

#[actix::test]
async fn r_21_a_panic_of_the_provider_client_is_an_unknown_answer() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.fake.plan(Op::Destroy, Fault::Panics);
    assert_eq!(code(sim.reset(home).await), ErrorCode::SandboxResetPending);
    assert_eq!(
        sim.row(home).await.state(sim.now()),
        MachineState::Doomed { reset: true }
    );
    let report = sim.here.owner(home.machine).send(Status).await.unwrap().unwrap();
    assert_eq!(report.running, None, "the owner survived");
}

#[actix::test]
async fn rul_l_26_rul_l_25_a_reset_during_a_wake_is_fenced_at_once_answered_503_and_finished() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::Slow(Duration::from_secs(15)));
    let reset = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = tokio::time::Instant::now();
        let answer = sim.reset(home).await;
        (
            answer,
            asked.elapsed().as_secs(),
            sim.row(home).await.state(sim.now()),
            sim.reset(home).await,
        )
    };
    let (woken, (first, waited, state, repeated)) = tokio::join!(sim.wake(home), reset);
    assert_eq!((code(first), waited), (ErrorCode::SandboxUnavailable, 5));
    assert_eq!(state, MachineState::Doomed { reset: true });
    assert_eq!(code(repeated), ErrorCode::SandboxResetPending);
    assert_eq!(
        code(woken),
        ErrorCode::SandboxResetPending,
        "a fence beats the wake under it"
    );
    let row = sim.until(home, |row| row.status.is_terminal()).await;
    assert_eq!(row.status, MachineStatus::Terminated);
    assert!(sim.fake.machines().is_empty());
}

#[actix::test]
async fn a_reset_during_a_wake_whose_answer_is_lost_is_finished_all_the_same() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Get, Fault::Slow(Duration::ZERO));
    sim.fake.plan(Op::Get, Fault::Slow(Duration::from_secs(12)));
    sim.fake.plan(Op::Resume, Fault::LostAnswer);
    let reset = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sim.reset(home).await
    };
    let (woken, reset) = tokio::join!(sim.wake(home), reset);
    assert!(woken.is_err());
    assert_eq!(code(reset), ErrorCode::SandboxUnavailable);
    sim.until(home, |row| row.status == MachineStatus::Terminated).await;
    assert!(sim.fake.machines().is_empty());
    assert!(!sim.row(home).await.is_counted());
}

#[actix::test]
async fn r_15_r_16_an_owner_that_dies_between_fence_and_delete_leaves_a_refused_and_counted_row() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.fake.plan(Op::Destroy, Fault::NoAnswer);
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(reset()), crash);
    let row = sim.row(home).await;
    assert_eq!(row.state(sim.now()), MachineState::Doomed { reset: true });
    assert!(row.is_counted());
    // while its lease lives nobody joins in.
    let early = sim.here.owner(home.machine).send(DESTROY).await.unwrap();
    assert!(matches!(early, Err(MachineError::Busy)));
    assert_eq!(code(sim.wake(home).await), ErrorCode::SandboxResetPending);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let done = sim.here.owner(home.machine).send(DESTROY).await.unwrap();
    assert!(matches!(done, Ok(Destroyed::Destroyed(_))), "{done:?}");
}

#[actix::test]
async fn r_23_m22_a_machine_that_is_gone_is_not_deleted_again() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.reset(home).await.unwrap();
    let stages = sim.stages(home).await;
    let calls = sim.fake.log().len();
    let again = sim.here.owner(home.machine).send(DESTROY).await.unwrap();
    assert!(matches!(again, Ok(Destroyed::AlreadyTerminal(_))));
    assert_eq!(sim.fake.log().len(), calls);
    assert_eq!(sim.stages(home).await, stages, "no second event");
}

#[actix::test]
async fn a_destroy_needs_a_fence() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let answer = sim.here.owner(home.machine).send(DESTROY).await.unwrap();
    assert!(matches!(answer, Err(MachineError::NotFenced)));
    assert_eq!(sim.fake.requests(Op::Destroy), 0);
}

#[actix::test]
async fn inv_56_rul_l_38_turns_end_with_their_machine() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Ephemeral).await;
    let turn = sim.admit(home).await;
    let retire = Retire {
        reason: DestroyReason::MaxLifetime,
        actor: Actor::System("sandbox_reaper"),
    };
    let gone = sim.here.owner(home.machine).send(retire).await.unwrap();
    assert!(matches!(gone, Ok(Destroyed::Destroyed(_))));
    let turns = sim.turns(home).await;
    let ended = turns.iter().find(|of| of.id == turn.id).unwrap();
    assert_eq!(ended.status, TurnStatus::Interrupted);
    assert!(ended.orphaned_at.is_some());
}

#[actix::test]
async fn p32_a_delete_is_legal_from_every_state() {
    let sim = Sim::start().await;
    let retire = Retire {
        reason: DestroyReason::Terminated,
        actor: Actor::Api,
    };
    let launched = sim.launch(MachineMode::Ephemeral).await;
    let up = sim.up(MachineMode::Ephemeral).await;
    let asleep = sim.asleep(MachineMode::Ephemeral).await;
    for home in [launched, up, asleep] {
        let gone = sim.here.owner(home.machine).send(retire.clone()).await.unwrap();
        assert!(matches!(gone, Ok(Destroyed::Destroyed(_))), "{gone:?}");
    }
    assert!(sim.fake.machines().is_empty());
}

/// What stands under the name that a user chose is not ours as long as nothing was built.
#[actix::test]
async fn inv_60_a_row_that_was_never_built_deletes_nothing() {
    let sim = Sim::start().await;
    sim.fake.plant(["box".to_owned()]);
    let home = sim.launch_named(MachineMode::Persistent, Some("box")).await;
    let retire = Retire {
        reason: DestroyReason::AgentDeleted,
        actor: Actor::Api,
    };
    let gone = sim.here.owner(home.machine).send(retire).await.unwrap().unwrap();
    assert!(matches!(gone, Destroyed::Destroyed(_)));
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
    assert_eq!(sim.fake.machines(), ["box"]);
    assert_eq!(sim.fake.requests(Op::Destroy), 0);
}
