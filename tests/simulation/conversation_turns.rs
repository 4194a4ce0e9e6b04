//! Turns on a machine: the first, the warm one, two at once, and how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::event::Stream;
use fountain_actors::domain::machine::{MachineMode, MachineStatus};
use fountain_actors::domain::turn::{PromptImage, TurnStatus};
use fountain_actors::doors::{Doors, LaunchRequest};
use fountain_actors::fakes::{AgentStep, FakeAgent, FakeProcess, Fault, Op, Program, Stdio};
use fountain_actors::ports::sandbox::SandboxError;

use crate::conversation_bench::{Bench, Setup, text};

#[actix::test]
async fn walk_8_1_a_launch_answers_before_it_builds_and_its_first_turn_runs_behind() {
    let bench = Bench::new().await;
    let launched = bench.launch(Some("hello")).await.unwrap();
    let id = launched.view.conversation.id;
    assert_eq!(launched.view.conversation.status, ConversationStatus::Pending);
    assert_eq!(launched.view.turn_count, 1);
    assert!(
        bench.sandbox.machines().is_empty(),
        "nothing was built when the answer left"
    );
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(turn.reply_text.as_deref(), Some("echo: hello"));
    let view = bench.view(id).await;
    assert_eq!(view.conversation.status, ConversationStatus::Idle);
    assert_eq!(view.machine.status, MachineStatus::Ready);
    assert_eq!(bench.said(id).await, "echo: hello");
    assert_eq!(bench.stages(id, "turn").await, ["turn/started", "turn/done"]);
    assert_eq!(
        bench.stages(id, "provision").await,
        ["provision/started", "provision/done"]
    );
    bench.close().await;
}

#[actix::test]
async fn rul_33_walk_8_2_a_warm_prompt_is_three_commits_to_its_first_byte() {
    let bench = Bench::with(FakeAgent::new(|text| {
        let pause = AgentStep::Sleep(std::time::Duration::from_secs(1));
        vec![
            pause.clone(),
            AgentStep::Say(format!("echo: {text}")),
            pause,
            AgentStep::Stop("end_turn"),
        ]
    }))
    .await;
    let id = bench.warm().await;
    bench.verbs.lock().unwrap().clear();
    bench.prompt(id, "again").await.unwrap();
    bench.heard(id, "echo: again").await;
    assert_eq!(
        bench.commits(),
        ["turn.admit", "transcript.append", "transcript.append"]
    );
    bench.ended(id, 2).await;
    bench.close().await;
}

#[actix::test]
async fn rul_7_walk_8_4_the_second_prompt_hears_busy_as_soon_as_the_first_is_in() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    let (one, two) = tokio::join!(bench.prompt(id, "one"), bench.prompt(id, "two"));
    assert_eq!(one, Ok(()));
    assert_eq!(two.unwrap_err().code(), ErrorCode::ConversationBusy);
    bench.ended(id, 2).await;
    assert_eq!(bench.turns(id).await.len(), 2);
    bench.close().await;
}

#[actix::test]
async fn rul_25_t2_the_end_carries_reply_position_and_idle_in_one_commit() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    bench.verbs.lock().unwrap().clear();
    bench.prompt(id, "again").await.unwrap();
    let turn = bench.ended(id, 2).await;
    assert_eq!(turn.reply_text.as_deref(), Some("echo: again"));
    assert_eq!(bench.view(id).await.conversation.status, ConversationStatus::Idle);
    assert!(bench.commits().len() <= 3, "{:?}", bench.commits());
    assert_eq!(bench.sandbox.requests(Op::Spawn), 1, "the connection outlives its turn");
    bench.close().await;
}

#[actix::test]
async fn t3_exit_codes_and_stop_reasons_end_turns_as_the_table_says() {
    let bench = Bench::with(FakeAgent::new(|text| {
        vec![match text {
            "zero" => AgentStep::Exit(0),
            "three" => AgentStep::Exit(3),
            "refuse" => AgentStep::Stop("refusal"),
            _ => AgentStep::Stop("end_turn"),
        }]
    }))
    .await;
    let id = bench.warm().await;
    for (number, words, status, code) in [
        (2, "zero", TurnStatus::Completed, Some(0)),
        (3, "three", TurnStatus::Failed, Some(3)),
        (4, "refuse", TurnStatus::Failed, None),
        (5, "fine", TurnStatus::Completed, None),
    ] {
        bench.prompt(id, words).await.unwrap();
        let turn = bench.ended(id, number).await;
        assert_eq!((turn.status, turn.exit_code), (status, code), "{words}");
    }
    assert_eq!(bench.sandbox.requests(Op::Spawn), 3);
    bench.close().await;
}

#[actix::test]
async fn r_83_a_process_that_ends_between_turns_fails_no_turn() {
    let bench = Bench::with(FakeAgent::new(|_| {
        vec![
            AgentStep::Stop("end_turn"),
            AgentStep::Sleep(Duration::from_secs(5)),
            AgentStep::Exit(1),
        ]
    }))
    .await;
    let id = bench.warm().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.turns(id).await[0].status, TurnStatus::Completed);
    assert_eq!(bench.stages(id, "sandbox").await, ["sandbox/done"]);
    bench.prompt(id, "next").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

/// Ends at once, a few times; then it is an agent.
fn crashing(times: usize, code: i64) -> Program {
    struct Crash(i64);
    impl FakeProcess for Crash {
        fn start(&mut self, stdio: &Stdio) {
            stdio.exit(self.0);
        }
        fn stdin(&mut self, _: &[u8], _: &Stdio) {}
        fn eof(&mut self, _: &Stdio) {}
    }
    let (left, agent) = (AtomicUsize::new(times), FakeAgent::echo().program());
    Arc::new(move |spawn| {
        let crashes = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        if crashes { Box::new(Crash(code)) } else { agent(spawn) }
    })
}

#[actix::test]
async fn r_96_a_crash_at_the_start_is_relaunched_once_on_the_same_turn() {
    for (times, status) in [(1, TurnStatus::Completed), (2, TurnStatus::Failed)] {
        let bench = Bench::new().await;
        let _ = bench.sandbox.clone().with_program(crashing(times, 139));
        let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
        let turn = bench.ended(id, 1).await;
        assert_eq!(turn.status, status);
        assert_eq!(bench.sandbox.requests(Op::Spawn), 2);
        assert_eq!(bench.stages(id, "turn/started").await.len(), 1);
        assert!(bench.stages(id, "session").await.contains(&"session/done".to_owned()));
        bench.close().await;
    }
}

#[actix::test]
async fn rul_39_an_agent_that_exits_0_before_the_prompt_fails_the_turn() {
    let bench = Bench::new().await;
    let _ = bench.sandbox.clone().with_program(crashing(1, 0));
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Failed);
    let events = bench.events(id).await;
    assert!(
        events
            .iter()
            .any(|event| event.data.contains("agent_exited_before_prompt"))
    );
    bench.prompt(id, "next").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn r_93_a_session_that_is_gone_is_forgotten_and_started_anew_once() {
    let bench = Bench::with(FakeAgent::echo().forgetting()).await;
    let id = bench.warm().await;
    bench.prompt(id, "two").await.unwrap();
    bench.ended(id, 2).await;
    // The next process is asked to continue the session, which it does not know.
    let name = bench.view(id).await.machine.name;
    bench.sandbox.stop(&name);
    tokio::time::sleep(Duration::from_secs(1)).await;
    bench.prompt(id, "three").await.unwrap();
    assert_eq!(bench.ended(id, 3).await.status, TurnStatus::Completed);
    assert!(
        bench
            .events(id)
            .await
            .iter()
            .any(|event| event.data.contains("session_gone"))
    );
    bench.close().await;
}

#[actix::test]
async fn lifecycle_6_4_output_over_the_budget_becomes_one_marker_and_the_turn_goes_on() {
    let mut setup = Setup::with(FakeAgent::new(|_| {
        let mut steps: Vec<_> = (0..20)
            .map(|n| AgentStep::Say(format!("{n:03}-{}", "x".repeat(100))))
            .collect();
        steps.push(AgentStep::Stop("end_turn"));
        steps
    }));
    setup.settings.output_budget = 2_000;
    let bench = Bench::of(setup).await;
    let id = bench.warm().await;
    assert_eq!(bench.turns(id).await[0].status, TurnStatus::Completed);
    let events = bench.events(id).await;
    let markers = events
        .iter()
        .filter(|event| event.data.contains("output limit reached"))
        .count();
    assert_eq!(markers, 1);
    assert!(!bench.said(id).await.contains("019-"));
    bench.close().await;
}

#[actix::test]
async fn p67_stderr_keeps_characters_whole_and_nul_is_replaced() {
    let bench = Bench::with(FakeAgent::new(|_| {
        vec![
            AgentStep::Stderr("größe \0 €\n".replace("\\0", "\0")),
            AgentStep::Raw("plain words\n".into()),
            AgentStep::Stop("end_turn"),
        ]
    }))
    .await;
    let id = bench.warm().await;
    let events = bench.events(id).await;
    let text: String = events
        .iter()
        .filter(|event| event.stream == Some(Stream::Stderr))
        .map(|event| event.data.as_str())
        .collect();
    assert_eq!(text, "größe \u{fffd} €\n");
    assert!(
        events
            .iter()
            .any(|event| event.stream == Some(Stream::Stdout) && event.data == "plain words\n")
    );
    bench.close().await;
}

#[actix::test]
async fn rul_18_r_72_images_reach_the_agent_also_through_a_build() {
    let bench = Bench::new().await;
    let mut prompt = text("look");
    prompt.images.push(PromptImage {
        media_type: "image/png".into(),
        bytes: Bytes::from_static(b"png"),
    });
    let request = LaunchRequest {
        prompt: Some(prompt),
        ..bench.request()
    };
    let launched = bench.engine.launch(bench.caller.clone(), request).await.unwrap();
    let id = launched.view.conversation.id;
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.turns(id).await[0].image_count, 1);
    bench.close().await;
}

#[actix::test]
async fn c9_a_launch_without_a_prompt_builds_and_becomes_idle() {
    let bench = Bench::new().await;
    let id = bench.launch(None).await.unwrap().view.conversation.id;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let view = bench.view(id).await;
    assert_eq!(view.conversation.status, ConversationStatus::Idle);
    assert_eq!(view.machine.status, MachineStatus::Ready);
    bench.prompt(id, "hello").await.unwrap();
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn rul_6_a_prompt_during_a_build_waits_for_it_and_is_busy_behind_a_pending_turn() {
    let bench = Bench::new().await;
    bench.sandbox.plan(Op::Create, Fault::Slow(Duration::from_secs(8)));
    let id = bench.launch(None).await.unwrap().view.conversation.id;
    let asked = tokio::time::Instant::now();
    bench.prompt(id, "early").await.unwrap();
    assert!(asked.elapsed() >= Duration::from_secs(7));
    bench.ended(id, 1).await;

    bench.sandbox.plan(Op::Create, Fault::Slow(Duration::from_secs(60)));
    let request = LaunchRequest {
        prompt: Some(text("first")),
        sandbox_mode: Some(MachineMode::Ephemeral),
        ..bench.request()
    };
    let other = bench
        .engine
        .launch(bench.caller.clone(), request)
        .await
        .unwrap()
        .view
        .conversation
        .id;
    let asked = tokio::time::Instant::now();
    assert_eq!(
        bench.prompt(other, "second").await.unwrap_err().code(),
        ErrorCode::ConversationBusy
    );
    assert!(asked.elapsed() < Duration::from_secs(1));
    bench.ended(other, 1).await;
    bench.close().await;
}

#[actix::test]
async fn rul_6_r_26_a_prompt_whose_build_is_slow_is_refused_and_opens_no_turn_later() {
    let bench = Bench::new().await;
    bench.sandbox.plan(Op::Create, Fault::Slow(Duration::from_secs(90)));
    let id = bench.launch(None).await.unwrap().view.conversation.id;
    let asked = tokio::time::Instant::now();
    assert_eq!(
        bench.prompt(id, "early").await.unwrap_err().code(),
        ErrorCode::Provisioning
    );
    assert!(asked.elapsed() <= Duration::from_secs(21));
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(bench.turns(id).await.is_empty(), "INV-75");
    bench.close().await;
}

#[actix::test]
async fn rul_11_c4_a_first_build_that_fails_is_final_and_both_failures_are_published() {
    let bench = Bench::new().await;
    for _ in 0..8 {
        bench
            .sandbox
            .plan(Op::Create, Fault::Refused(SandboxError::Denied("no".into())));
    }
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Failed);
    assert_eq!(bench.view(id).await.conversation.status, ConversationStatus::Failed);
    let stages = bench.stages(id, "").await;
    assert!(
        stages.contains(&"provision/failed".into()) && stages.contains(&"turn/failed".into()),
        "{stages:?}"
    );
    assert_eq!(
        bench.prompt(id, "again").await.unwrap_err().code(),
        ErrorCode::ConversationTerminated
    );
    bench.close().await;
}

#[actix::test]
async fn rul_11_c4_a_first_build_that_fails_without_a_prompt_fails_the_conversation() {
    let bench = Bench::new().await;
    for _ in 0..8 {
        bench
            .sandbox
            .plan(Op::Create, Fault::Refused(SandboxError::Denied("no".into())));
    }
    let id = bench.launch(None).await.unwrap().view.conversation.id;
    let failed = async {
        while bench.view(id).await.conversation.status != ConversationStatus::Failed {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), failed)
        .await
        .expect("the conversation is failed, not pending for ever");
    bench.close().await;
}

#[actix::test]
async fn r_59_two_launches_of_one_identity_share_the_winners_home() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    let second = bench.launch(Some("second")).await.unwrap().view;
    assert_eq!(second.machine.id, bench.view(id).await.machine.id);
    bench.ended(second.conversation.id, 1).await;
    assert_eq!(bench.sandbox.machines().len(), 1);
    bench.close().await;
}
