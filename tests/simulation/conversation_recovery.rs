//! Turns that outlive their server: restarts, lost attachments, windows that run out (walk 8.3).

use std::sync::Arc;
use std::time::Duration;

use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{MachineMode, Provider};
use fountain_actors::domain::runner::{Runner, RunnerDetails};
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::{ErrorCode, RunnerId};
use fountain_actors::fakes::{AgentStep, FakeAgent, Fault, Op};
use fountain_actors::ports::sandbox::SandboxError;
use uuid::Uuid;

use crate::conversation_bench::{Bench, Setup};

/// Says numbered lines, one a second, then ends its turn.
fn counting(lines: usize) -> FakeAgent {
    FakeAgent::new(move |_| {
        let line = |n: usize| {
            [
                AgentStep::Say(format!("<{n}>")),
                AgentStep::Sleep(Duration::from_secs(1)),
            ]
        };
        let mut steps: Vec<_> = (0..lines).flat_map(line).collect();
        steps.push(AgentStep::Stop("end_turn"));
        steps
    })
}

fn counted(lines: usize) -> String {
    (0..lines).map(|n| format!("<{n}>")).collect()
}

#[actix::test]
async fn walk_8_3_r_94_inv_81_a_turn_survives_its_server_and_each_byte_comes_once() {
    let mut bench = Bench::with(counting(30)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<5>").await;
    bench.kill_and_restart().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.engine.boot().await.unwrap(), 1);
    assert_eq!(
        bench.prompt(id, "now?").await.unwrap_err().code(),
        ErrorCode::ConversationBusy
    );
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, counted(30));
    assert_eq!(turn.reply_text, Some(counted(30)));
    assert_eq!(
        bench.stages(id, "reattach").await,
        ["reattach/started", "reattach/done"]
    );
    assert_eq!(bench.stages(id, "turn").await, ["turn/started", "turn/done"]);
    assert_eq!(bench.sandbox.requests(Op::Spawn), 1, "nothing is run again (P56)");
    bench.prompt(id, "again").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn rul_l_40_p51_a_lost_attachment_is_taken_back_in_place_without_a_repeat() {
    let bench = Bench::with(counting(20)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    for line in ["<3>", "<9>", "<15>"] {
        bench.heard(id, line).await;
        bench.sandbox.drop_connections(&bench.view(id).await.machine.name);
    }
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, counted(20));
    assert_eq!(turn.reply_text, Some(counted(20)));
    bench.close().await;
}

#[actix::test]
async fn r_91_a_provider_that_does_not_answer_is_asked_again_and_nothing_is_orphaned() {
    let mut bench = Bench::with(counting(60)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    bench.kill_and_restart().await;
    for _ in 0..5 {
        bench
            .sandbox
            .plan(Op::Attach, Fault::Refused(SandboxError::Unavailable("down".into())));
    }
    bench.engine.boot().await.unwrap();
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, counted(60));
    assert_eq!(
        bench.stages(id, "reattach").await,
        ["reattach/started", "reattach/done"],
        "announced once (R-92)"
    );
    bench.close().await;
}

fn down() -> Fault {
    Fault::Refused(SandboxError::Unavailable("down".into()))
}

#[actix::test]
async fn rul_l_97_at_a_reattach_the_policy_is_tried_for_the_window_and_then_the_agent_is_stopped() {
    let mut bench = Bench::with(counting(600)).await;
    bench.limit_networking().await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    let name = bench.view(id).await.machine.name;
    bench.kill_and_restart().await;
    for _ in 0..500 {
        bench.sandbox.plan(Op::PolicyRead, down());
    }
    let began = tokio::time::Instant::now();
    bench.engine.boot().await.unwrap();
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Failed);
    assert!((115..130).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    let events = bench.events(id).await;
    assert!(
        events
            .iter()
            .any(|event| event.data.contains("network_policy_unverified")),
        "{:?}",
        bench.stages(id, "").await
    );
    assert!(bench.sandbox.requests(Op::PolicyRead) > 10);
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert!(bench.sandbox.live_sessions(&name).is_empty());
    bench.close().await;
}

#[actix::test]
async fn rul_l_97_a_reattach_whose_policy_is_verified_late_goes_on() {
    let mut bench = Bench::with(counting(60)).await;
    bench.limit_networking().await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    bench.kill_and_restart().await;
    for _ in 0..7 {
        bench.sandbox.plan(Op::PolicyRead, down());
    }
    bench.engine.boot().await.unwrap();
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, counted(60));
    assert_eq!(
        bench.stages(id, "reattach").await,
        ["reattach/started", "reattach/done"]
    );
    bench.close().await;
}

#[actix::test]
async fn rul_l_40_a_lost_stream_that_nobody_gives_back_fails_at_the_end_of_the_window() {
    let bench = Bench::with(counting(600)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    for _ in 0..500 {
        bench.sandbox.plan(Op::Attach, down());
    }
    let began = tokio::time::Instant::now();
    bench.sandbox.drop_connections(&bench.view(id).await.machine.name);
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Failed);
    assert!((115..130).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    let events = bench.events(id).await;
    assert!(
        events
            .iter()
            .any(|event| event.data.contains("provider_reconnect_timeout"))
    );
    bench.close().await;
}

#[actix::test]
async fn seed_000_a_provider_that_is_down_mid_turn_costs_the_turn_nothing_inside_the_window() {
    let bench = Bench::with(counting(60)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    bench.sandbox.set_offline(true);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(bench.turns(id).await[0].status, TurnStatus::Running);
    bench.sandbox.set_offline(false);
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, counted(60), "each line once");
    bench.close().await;
}

#[actix::test]
async fn seed_000_a_provider_that_is_down_entirely_fails_builds_by_name_and_leaves_the_rest() {
    let mut bench = Bench::with(counting(2)).await;
    bench.sandbox.set_offline(true);
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Failed);
    assert_eq!(bench.sandbox.requests(Op::Create), 3, "bounded");
    assert!(bench.stages(id, "provision").await.contains(&"provision/failed".into()));
    // Configuration and logs do not ask the provider.
    assert_eq!(bench.view(id).await.conversation.status, ConversationStatus::Failed);
    assert!(!bench.events(id).await.is_empty());
    bench.limit_networking().await;
    bench.close().await;
}

#[actix::test]
async fn rul_35_a_session_that_is_gone_orphans_the_turn() {
    let mut bench = Bench::with(counting(60)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    bench.kill_and_restart().await;
    for _ in 0..3 {
        bench.sandbox.plan(Op::Attach, Fault::Refused(SandboxError::NotFound));
    }
    bench.engine.boot().await.unwrap();
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Interrupted);
    assert!(turn.orphaned_at.is_some());
    assert_eq!(bench.view(id).await.conversation.status, ConversationStatus::Idle);
    assert!(
        bench
            .stages(id, "reattach")
            .await
            .contains(&"reattach/interrupted".into())
    );
    assert!(bench.stages(id, "turn").await.contains(&"turn/interrupted".into()));
    bench.close().await;
}

#[actix::test]
async fn rul_36_a_pending_turn_is_built_for_after_a_crash_and_runs_once() {
    let mut bench = Bench::new().await;
    bench.sandbox.plan(Op::Create, Fault::NoAnswer);
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.kill_and_restart().await;
    assert_eq!(bench.engine.boot().await.unwrap(), 1);
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, "echo: hello");
    assert_eq!(bench.stages(id, "turn/started").await.len(), 1, "INV-119, R-70");
    bench.close().await;
}

/// A bench whose machines live on one runner, which is connected.
pub async fn on_a_runner(agent: FakeAgent) -> (Bench, Arc<fountain_actors::runner::RunnerRegistry<()>>, Runner) {
    let registry = Arc::new(fountain_actors::runner::RunnerRegistry::<()>::default());
    let mut setup = Setup::with(agent);
    setup.provider = Provider::Runner;
    setup.mode = MachineMode::Persistent;
    setup.runners = registry.clone();
    let bench = Bench::of(setup).await;
    let (runner, _) = bench
        .world
        .store
        .dial_runner(
            bench.caller.account_id(),
            RunnerId(Uuid::from_u128(77)),
            "mini".into(),
            RunnerDetails {
                root: Some("/sandboxes".into()), // what makes its not-found evidence (RUL-49)
                ..RunnerDetails::default()
            },
            bench.world.now(),
        )
        .await
        .unwrap();
    registry.register(runner.clone(), bench.caller.key_id, ()).unwrap();
    (bench, registry, runner)
}

#[actix::test]
async fn rul_36_a_build_that_a_crash_cut_waits_for_its_runner_instead_of_failing_for_good() {
    let (mut bench, registry, runner) = on_a_runner(FakeAgent::echo()).await;
    bench.sandbox.plan(Op::Create, Fault::NoAnswer);
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    tokio::time::sleep(Duration::from_secs(2)).await;
    registry.withdraw(runner.id, registry.get(runner.id).unwrap().ticket);
    bench.sandbox.set_offline(true);
    bench.kill_and_restart().await;
    bench.engine.boot().await.unwrap();
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(
        bench.turns(id).await[0].status,
        TurnStatus::Pending,
        "nobody to ask yet"
    );
    bench.sandbox.set_offline(false);
    registry.register(runner, bench.caller.key_id, ()).unwrap();
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed, "{:?}", bench.stages(id, "").await);
    assert_eq!(bench.said(id).await, "echo: hello");
    bench.close().await;
}

#[actix::test]
async fn rul_37_r_95_the_runners_registration_starts_the_reattach() {
    let (mut bench, registry, runner) = on_a_runner(counting(60)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    let ticket = registry.get(runner.id).unwrap().ticket;
    registry.withdraw(runner.id, ticket);
    bench.sandbox.set_offline(true);
    bench.kill_and_restart().await;
    bench.engine.boot().await.unwrap();
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(
        bench.stages(id, "reattach").await.is_empty(),
        "RUL-16: an offline runner publishes nothing"
    );
    bench.sandbox.set_offline(false);
    registry.register(runner, bench.caller.key_id, ()).unwrap();
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, counted(60));
    bench.close().await;
}

#[actix::test]
async fn rul_37_a_runner_that_stays_away_fails_the_turn_at_the_deadline() {
    let (mut bench, registry, runner) = on_a_runner(counting(600)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    registry.withdraw(runner.id, registry.get(runner.id).unwrap().ticket);
    bench.sandbox.set_offline(true);
    bench.kill_and_restart().await;
    let began = tokio::time::Instant::now();
    bench.engine.boot().await.unwrap();
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Failed);
    assert!((115..130).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    let events = bench.events(id).await;
    assert!(
        events
            .iter()
            .any(|event| event.data.contains("runner_reconnect_timeout"))
    );
    assert!(bench.stages(id, "reattach").await.is_empty());
    // The wish to stop its process is kept until the runner is back (RUL-19d).
    bench.sandbox.set_offline(false);
    registry.register(runner, bench.caller.key_id, ()).unwrap();
    tokio::time::sleep(Duration::from_secs(70)).await;
    let name = bench.view(id).await.machine.name;
    assert!(bench.sandbox.live_sessions(&name).is_empty());
    bench.close().await;
}

#[actix::test]
async fn rul_19d_an_interrupt_while_the_runner_is_away_is_kept_over_a_restart() {
    let (mut bench, registry, runner) = on_a_runner(counting(600)).await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<2>").await;
    registry.withdraw(runner.id, registry.get(runner.id).unwrap().ticket);
    bench.sandbox.set_offline(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    bench.interrupt(id).await.unwrap();
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Interrupted);
    bench.kill_and_restart().await;
    bench.engine.boot().await.unwrap();
    bench.sandbox.set_offline(false);
    registry.register(runner, bench.caller.key_id, ()).unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let name = bench.view(id).await.machine.name;
    assert!(
        bench.sandbox.live_sessions(&name).is_empty(),
        "whoever sees the runner register stops it"
    );
    bench.close().await;
}

#[actix::test]
async fn rul_57_a_clean_shutdown_ends_the_turn_and_a_drain_leaves_it() {
    use fountain_actors::directory::{Engine, Placement, ShutdownKind};
    for (kind, status) in [
        (ShutdownKind::Drain, TurnStatus::Completed),
        (ShutdownKind::Clean, TurnStatus::Interrupted),
    ] {
        let mut bench = Bench::with(counting(30)).await;
        let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
        bench.heard(id, "<2>").await;
        bench.engine.shutdown(kind).await;
        assert_eq!(
            bench.prompt(id, "late").await.unwrap_err().code(),
            ErrorCode::SandboxUnavailable
        );
        bench.engine = Engine::start(bench.world.clone(), Placement::Current);
        bench.engine.boot().await.unwrap();
        let turn = bench.ended(id, 1).await;
        assert_eq!(turn.status, status, "{kind:?}");
        if kind == ShutdownKind::Drain {
            assert_eq!(bench.said(id).await, counted(30));
        }
        bench.close().await;
    }
}
