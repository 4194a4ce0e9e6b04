//! The user says stop, answers, or ends it: interrupts, permissions, terminate, delete; and machines that park and wake.

use std::time::Duration;

use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{MachineMode, MachineStatus};
use fountain_actors::domain::turn::{AnswerOutcome, TurnStatus};
use fountain_actors::doors::{Doors, LaunchRequest};
use fountain_actors::fakes::{AgentStep, FakeAgent, Fault, Op};
use fountain_actors::ports::sandbox::{RunState, SandboxError};
use serde_json::json;

use crate::conversation_bench::{Bench, Setup, text};

fn endless() -> FakeAgent {
    FakeAgent::new(|text| match text {
        "quick" | "first" => vec![AgentStep::Say("done".into()), AgentStep::Stop("end_turn")],
        _ => vec![
            AgentStep::Say("begun".into()),
            AgentStep::Sleep(Duration::from_secs(86_400)),
        ],
    })
}

#[actix::test]
async fn rul_47_an_interrupt_ends_the_row_at_once_and_the_process_for_sure() {
    let bench = Bench::with(endless()).await;
    let id = bench.warm().await;
    bench.prompt(id, "work").await.unwrap();
    bench.heard(id, "begun").await;
    let asked = tokio::time::Instant::now();
    bench.interrupt(id).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(1));
    let turn = bench.ended(id, 2).await;
    assert_eq!((turn.status, turn.orphaned_at), (TurnStatus::Interrupted, None));
    assert_eq!(bench.view(id).await.conversation.status, ConversationStatus::Idle);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let name = bench.view(id).await.machine.name;
    assert!(bench.sandbox.live_sessions(&name).is_empty());
    assert_eq!(bench.stages(id, "turn").await.last().unwrap(), "turn/interrupted");
    bench.prompt(id, "quick").await.unwrap();
    assert_eq!(bench.ended(id, 3).await.status, TurnStatus::Completed);
    assert_eq!(bench.interrupt(id).await.unwrap_err().code(), ErrorCode::NoTurnRunning);
    bench.close().await;
}

#[actix::test]
async fn rul_5_inv_80_an_interrupt_of_a_pending_turn_leaves_the_build_alone() {
    let bench = Bench::new().await;
    bench.sandbox.plan(Op::Create, Fault::Slow(Duration::from_secs(30)));
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.interrupt(id).await.unwrap();
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Interrupted);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let view = bench.view(id).await;
    assert_eq!(view.machine.status, MachineStatus::Ready);
    assert_eq!(bench.sandbox.requests(Op::Spawn), 0);
    bench.prompt(id, "now").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn rul_l_29_terminate_keeps_a_home_and_destroys_an_ephemeral_machine() {
    for (mode, left) in [(MachineMode::Persistent, 1), (MachineMode::Ephemeral, 0)] {
        let bench = Bench::of(Setup {
            mode,
            ..Setup::with(endless())
        })
        .await;
        let id = bench.warm().await;
        bench.prompt(id, "work").await.unwrap();
        bench.heard(id, "begun").await;
        bench.terminate(id).await.unwrap();
        bench.terminate(id).await.unwrap();
        let view = bench.view(id).await;
        assert_eq!(view.conversation.status, ConversationStatus::Terminated);
        assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Interrupted);
        assert_eq!(
            bench.prompt(id, "more").await.unwrap_err().code(),
            ErrorCode::ConversationTerminated
        );
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(bench.sandbox.machines().len(), left, "{mode}");
        assert!(bench.sandbox.live_sessions(&view.machine.name).is_empty());
        assert!(!bench.engine.is_live(id));
        let caller = bench.caller.clone();
        bench.engine.delete_conversation(caller.clone(), id).await.unwrap();
        assert_eq!(
            bench.engine.prompt(caller, id, text("x")).await.unwrap_err().code(),
            ErrorCode::NotFound
        );
        bench.close().await;
    }
}

#[actix::test]
async fn rul_12_r_43_terminate_during_a_build_answers_at_once_and_nothing_is_left() {
    let bench = Bench::of(Setup {
        mode: MachineMode::Ephemeral,
        ..Setup::default()
    })
    .await;
    bench.sandbox.plan(Op::Create, Fault::Slow(Duration::from_secs(30)));
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = tokio::time::Instant::now();
    bench.terminate(id).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(1));
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Interrupted);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(bench.sandbox.machines().is_empty());
    assert_eq!(bench.sandbox.requests(Op::Spawn), 0);
    bench.close().await;
}

fn asking(setup_policy: &str) -> Setup {
    let agent = FakeAgent::new(|_| {
        vec![
            AgentStep::Ask(vec!["allow_once".into(), "reject_once".into()]),
            AgentStep::Say(" and on".into()),
            AgentStep::Stop("end_turn"),
        ]
    });
    let mut setup = Setup::with(agent);
    setup.policy = json!({ "default": setup_policy }).as_object().unwrap().clone();
    setup
}

async fn open_request(bench: &Bench, id: fountain_actors::domain::ConversationId) -> String {
    bench
        .until(id, "a request is open", |turns| {
            turns
                .last()?
                .pending_permission
                .as_ref()
                .map(|open| open.request_id.clone())
        })
        .await
}

async fn answer(
    bench: &Bench,
    id: fountain_actors::domain::ConversationId,
    request: &str,
    option: &str,
) -> Result<(), ErrorCode> {
    let caller = bench.caller.clone();
    let answered = bench
        .engine
        .answer_permission(caller, id, request.into(), option.into())
        .await;
    answered.map_err(|refusal| refusal.code())
}

#[actix::test]
async fn rul_56_rul_10_the_first_answer_wins_and_reaches_the_agent() {
    let bench = Bench::of(asking("ask")).await;
    let id = bench.launch(Some("go")).await.unwrap().view.conversation.id;
    let request = open_request(&bench, id).await;
    assert_eq!(request.split('.').next_back().unwrap().len(), 16);
    assert_eq!(
        answer(&bench, id, "1.0000000000000000", "allow_once").await,
        Err(ErrorCode::PermissionRequestResolved)
    );
    assert_eq!(
        answer(&bench, id, &request, "nonsense").await,
        Err(ErrorCode::UnknownOption)
    );
    assert_eq!(answer(&bench, id, &request, "allow_once").await, Ok(()));
    assert_eq!(
        answer(&bench, id, &request, "reject_once").await,
        Err(ErrorCode::PermissionRequestResolved)
    );
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, "allow_once and on");
    assert_eq!(bench.stages(id, "request").await, ["request/started", "request/done"]);
    bench.close().await;
}

#[actix::test]
async fn lifecycle_6_10_a_request_that_nobody_answers_is_denied() {
    let bench = Bench::of(asking("ask")).await;
    let id = bench.launch(Some("go")).await.unwrap().view.conversation.id;
    open_request(&bench, id).await;
    let asked = tokio::time::Instant::now();
    let turn = bench.ended(id, 1).await;
    assert!(asked.elapsed() >= Duration::from_secs(299));
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, "reject_once and on");
    let events = bench.events(id).await;
    assert!(
        events
            .iter()
            .any(|event| event.data.contains(AnswerOutcome::Timeout.as_str()))
    );
    bench.close().await;
}

#[actix::test]
async fn walk_8_5_r_87_a_permission_is_answered_while_the_server_restarts() {
    let mut bench = Bench::of(asking("ask")).await;
    let id = bench.launch(Some("go")).await.unwrap().view.conversation.id;
    let request = open_request(&bench, id).await;
    bench.kill_and_restart().await;
    assert_eq!(answer(&bench, id, &request, "allow_once").await, Ok(()));
    assert_eq!(
        answer(&bench, id, &request, "allow_once").await,
        Err(ErrorCode::PermissionRequestResolved)
    );
    bench.engine.boot().await.unwrap();
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, "allow_once and on");
    assert_eq!(bench.stages(id, "request").await, ["request/started", "request/done"]);
    bench.close().await;
}

#[actix::test]
async fn rul_1_r_03_an_idle_home_is_parked_and_one_prompt_wakes_it() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    let name = bench.view(id).await.machine.name;
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert_eq!(bench.view(id).await.machine.status, MachineStatus::Suspended);
    assert_eq!(bench.sandbox.run_state(&name), Some(RunState::Suspended));
    assert!(!bench.engine.is_live(id), "a parked machine costs no actor");
    let (one, two) = tokio::join!(bench.prompt(id, "one"), bench.prompt(id, "two"));
    assert_eq!(one, Ok(()));
    assert_eq!(two.unwrap_err().code(), ErrorCode::ConversationBusy);
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    assert_eq!(bench.sandbox.effects(Op::Resume), 1);
    assert_eq!(bench.said(id).await, "echo: firstecho: one");
    bench.close().await;
}

#[actix::test]
async fn rul_1_a_refused_wake_answers_503_opens_no_turn_and_keeps_the_machine() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    bench
        .sandbox
        .plan(Op::Resume, Fault::Refused(SandboxError::Denied("no".into())));
    assert_eq!(
        bench.prompt(id, "one").await.unwrap_err().code(),
        ErrorCode::SandboxResumeFailed
    );
    assert_eq!(bench.turns(id).await.len(), 1);
    assert_eq!(bench.view(id).await.machine.status, MachineStatus::Suspended);
    bench.prompt(id, "two").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn rul_1_rul_3_a_slow_wake_answers_503_and_leaves_no_turn_behind() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    bench.sandbox.plan(Op::Resume, Fault::Slow(Duration::from_secs(40)));
    let asked = tokio::time::Instant::now();
    assert_eq!(
        bench.prompt(id, "one").await.unwrap_err().code(),
        ErrorCode::SandboxUnavailable
    );
    assert!(asked.elapsed() <= Duration::from_secs(21));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.turns(id).await.len(), 1, "INV-75");
    bench.prompt(id, "two").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn rul_6_a_prompt_to_a_lost_machine_is_queued_at_once_on_a_fresh_one() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    let before = bench.view(id).await.machine;
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    bench.sandbox.lose(&before.name);
    bench.prompt(id, "anew").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    let after = bench.view(id).await;
    assert_ne!(after.machine.id, before.id);
    assert_eq!(after.conversation.status, ConversationStatus::Idle);
    assert_eq!(bench.stages(id, "turn/started").await.len(), 2);
    bench.close().await;
}

#[actix::test]
async fn reset_keeps_the_conversation_and_its_next_prompt_builds_anew() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    let before = bench.view(id).await.machine;
    bench.engine.reset(bench.caller.clone(), before.id).await.unwrap();
    assert!(bench.sandbox.machines().is_empty());
    bench.prompt(id, "anew").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    assert_ne!(bench.view(id).await.machine.id, before.id);
    bench.close().await;
}

#[actix::test]
async fn lifecycle_4_1_gates_refuse_in_their_order_and_write_nothing() {
    let bench = Bench::new().await;
    let ask = async |change: fn(&mut LaunchRequest)| {
        let mut request = bench.request();
        change(&mut request);
        let answer = bench.engine.launch(bench.caller.clone(), request).await;
        answer.unwrap_err().code()
    };
    assert_eq!(ask(|r| r.prompt = Some(text(" \n"))).await, ErrorCode::InvalidPrompt);
    assert_eq!(ask(|r| r.agent_id.0 = uuid::Uuid::nil()).await, ErrorCode::NotFound);
    assert_eq!(
        ask(|r| r.model = Some("nonsense".into())).await,
        ErrorCode::ModelInvalid
    );
    assert_eq!(
        ask(|r| r.vault_id = Some(uuid::Uuid::nil().into())).await,
        ErrorCode::VaultNotFound
    );
    assert_eq!(
        ask(|r| r.environment_id = Some(uuid::Uuid::nil().into())).await,
        ErrorCode::EnvironmentNotFound
    );
    assert_eq!(
        ask(|r| r.sprite_name = Some("-x".into())).await,
        ErrorCode::InvalidSpriteName
    );
    assert_eq!(
        ask(|r| r.parent = Some("x".into())).await,
        ErrorCode::ParentConversationNotFound
    );
    assert_eq!(
        ask(|r| r.sandbox_id = Some(uuid::Uuid::nil().into())).await,
        ErrorCode::SandboxNotFound
    );
    let policy = |r: &mut LaunchRequest| r.permission_policy = json!({"default": "maybe"}).as_object().cloned();
    assert_eq!(ask(policy).await, ErrorCode::PermissionPolicyUnbuilt);
    assert!(bench.sandbox.log().is_empty());
    bench.close().await;
}
