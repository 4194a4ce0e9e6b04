//! Answers that never came, two servers at once, secrets in output: what a turn survives and what it must say.

use std::sync::Arc;
use std::time::Duration;

use fountain_actors::directory::{Engine, Placement};
use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::environment::SecretHome;
use fountain_actors::domain::machine::MachineStatus;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::doors::{Doors, LaunchRequest};
use fountain_actors::fakes::{AgentStep, FakeAgent, FakeProcess, Fault, Op, Program, Stdio};
use fountain_actors::ports::sandbox::{Capability, SandboxError};
use fountain_actors::ports::store::catalog::NewVault;

use crate::conversation_bench::{Bench, text};

fn slow_echo() -> FakeAgent {
    FakeAgent::new(|text| {
        vec![
            AgentStep::Sleep(Duration::from_secs(1)),
            AgentStep::Say(format!("<{text}>")),
            AgentStep::Sleep(Duration::from_secs(20)),
            AgentStep::Say("<end>".into()),
            AgentStep::Stop("end_turn"),
        ]
    })
}

#[actix::test]
async fn r_86_a_reused_connection_that_refuses_is_replaced_and_the_turn_starts_once() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    bench
        .sandbox
        .plan(Op::WriteStdin, Fault::Refused(SandboxError::CommandExited));
    bench.prompt(id, "again").await.unwrap();
    let turn = bench.ended(id, 2).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, "echo: firstecho: again");
    assert_eq!(bench.stages(id, "turn/started").await.len(), 2);
    assert_eq!(bench.sandbox.requests(Op::Spawn), 2);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let name = bench.view(id).await.machine.name;
    assert_eq!(
        bench.sandbox.live_sessions(&name).len(),
        1,
        "the older process has ended"
    );
    bench.close().await;
}

#[actix::test]
async fn a_prompt_whose_write_was_doubted_is_believed_when_its_answer_comes() {
    let bench = Bench::new().await;
    let id = bench.warm().await;
    bench.sandbox.plan(Op::WriteStdin, Fault::LostAnswer);
    bench.prompt(id, "again").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, "echo: firstecho: again");
    assert_eq!(bench.stages(id, "turn/started").await.len(), 2);
    bench.close().await;
}

#[actix::test]
async fn rul_34_p56_a_prompt_of_unknown_fate_is_given_to_nobody_else() {
    let bench = Bench::with(slow_echo()).await;
    let id = bench.warm().await;
    bench.sandbox.plan(Op::WriteStdin, Fault::LostAnswer);
    bench.prompt(id, "again").await.unwrap();
    let turn = bench.ended(id, 2).await;
    assert_eq!(turn.status, TurnStatus::Interrupted);
    let events = bench.events(id).await;
    assert!(events.iter().any(|event| event.data.contains("acp_prompt_not_sent")));
    assert_eq!(bench.sandbox.requests(Op::Spawn), 1);
    bench.prompt(id, "third").await.unwrap();
    assert_eq!(bench.ended(id, 3).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn rul_l_42_a_spawn_whose_answer_was_lost_is_found_by_its_tag() {
    let bench = Bench::new().await;
    bench.sandbox.plan(Op::Spawn, Fault::LostAnswer);
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.sandbox.effects(Op::Spawn), 1);
    bench.close().await;
}

#[actix::test]
async fn rul_l_42_a_spawn_that_is_not_found_fails_the_turn() {
    let bench = Bench::new().await;
    bench
        .sandbox
        .plan(Op::Spawn, Fault::Refused(SandboxError::Unavailable("down".into())));
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Failed);
    bench.prompt(id, "again").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn rul_l_8_inv_81_a_server_whose_successor_acts_writes_nothing_more() {
    let bench = Bench::with(slow_echo()).await;
    let id = bench.launch(Some("go")).await.unwrap().view.conversation.id;
    bench.heard(id, "<go>").await;
    // Another replica serves the same rows while this one lives on.
    let other = Engine::start(bench.world.clone(), Placement::Current);
    other.boot().await.unwrap();
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, "<go><end>", "each line once, whoever wrote it");
    assert_eq!(bench.stages(id, "turn").await, ["turn/started", "turn/done"]);
    assert!(!bench.engine.is_live(id), "the older server stood down");
    other.shutdown(fountain_actors::directory::ShutdownKind::Drain).await;
    other.freeze();
    bench.close().await;
}

#[actix::test]
async fn rul_13_a_prompt_on_a_stale_build_is_queued_at_once_and_builds_the_same_row() {
    let mut bench = Bench::new().await;
    bench.sandbox.plan(Op::Create, Fault::NoAnswer);
    let id = bench.launch(None).await.unwrap().view.conversation.id;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = bench.view(id).await.machine;
    assert_eq!(before.status, MachineStatus::Pending);
    bench.kill_and_restart().await;
    let asked = tokio::time::Instant::now();
    bench.prompt(id, "hello").await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(1));
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.view(id).await.machine.id, before.id);
    bench.close().await;
}

#[actix::test]
async fn rul_39_an_agent_that_never_answers_its_handshake_fails_the_turn_and_is_stopped() {
    struct Silent;
    impl FakeProcess for Silent {
        fn start(&mut self, _: &Stdio) {}
        fn stdin(&mut self, _: &[u8], _: &Stdio) {}
        fn eof(&mut self, _: &Stdio) {}
    }
    let silent: Program = Arc::new(|_| Box::new(Silent));
    let bench = Bench::new().await;
    let _ = bench.sandbox.clone().with_program(silent);
    let id = bench.launch(Some("hello")).await.unwrap().view.conversation.id;
    let asked = tokio::time::Instant::now();
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Failed);
    assert!((115..130).contains(&asked.elapsed().as_secs()));
    assert!(
        bench
            .events(id)
            .await
            .iter()
            .any(|event| event.data.contains("acp_timeout"))
    );
    tokio::time::sleep(Duration::from_secs(30)).await;
    let name = bench.view(id).await.machine.name;
    assert!(
        bench.sandbox.live_sessions(&name).is_empty(),
        "it ignored the end of its input and was terminated"
    );
    bench.close().await;
}

#[actix::test]
async fn r_82_without_attach_a_lost_connection_fails_the_turn_and_the_conversation_is_idle() {
    let bench = Bench::with(slow_echo()).await;
    let _ = bench.sandbox.clone().without(Capability::Attach);
    let id = bench.launch(Some("go")).await.unwrap().view.conversation.id;
    bench.heard(id, "<go>").await;
    bench.sandbox.drop_connections(&bench.view(id).await.machine.name);
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Failed);
    assert!(
        bench
            .events(id)
            .await
            .iter()
            .any(|event| event.data.contains("connection_lost"))
    );
    bench.prompt(id, "again").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn r_77_a_machine_that_is_deleted_ends_its_turn_and_says_so() {
    let bench = Bench::with(slow_echo()).await;
    let id = bench.launch(Some("go")).await.unwrap().view.conversation.id;
    bench.heard(id, "<go>").await;
    bench.sandbox.lose(&bench.view(id).await.machine.name);
    let turn = bench.ended(id, 1).await;
    assert!(
        matches!(turn.status, TurnStatus::Interrupted | TurnStatus::Failed),
        "{turn:?}"
    );
    bench.prompt(id, "again").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}

#[actix::test]
async fn rul_53_a_secret_that_the_agent_says_is_in_no_row() {
    const SECRET: &str = "hunter2-hunter2";
    let bench = Bench::with(FakeAgent::new(|_| {
        vec![
            AgentStep::Say(format!("the key is {SECRET}!")),
            AgentStep::Stderr(format!("{SECRET}\n")),
            AgentStep::Raw(format!("plain {SECRET}\n")),
            AgentStep::Stop("end_turn"),
        ]
    }))
    .await;
    let account = bench.caller.account_id();
    let audit = || NewAudit {
        account_id: Some(account),
        action: "test",
        resource_type: "vault",
        resource_id: None,
        actor: Actor::Api,
        request_ip: None,
        metadata: Default::default(),
    };
    let vault = NewVault {
        name: "vault".into(),
        description: String::new(),
        metadata: serde_json::Map::new(),
    };
    let (store, now) = (&bench.world.store, bench.world.now());
    let vault = store
        .create_vault(account, bench.world.id(), vault, audit(), now)
        .await
        .unwrap();
    let home = SecretHome::Vault(vault.id);
    store
        .put_secret(account, home, "KEY".into(), SECRET.into(), None, audit(), now)
        .await
        .unwrap();
    let request = LaunchRequest {
        vault_id: Some(vault.id),
        prompt: Some(text("say it")),
        ..bench.request()
    };
    let id = bench
        .engine
        .launch(bench.caller.clone(), request)
        .await
        .unwrap()
        .view
        .conversation
        .id;
    let turn = bench.ended(id, 1).await;
    assert_eq!(turn.reply_text.as_deref(), Some("the key is [REDACTED]!"));
    let events = bench.events(id).await;
    assert!(events.iter().all(|event| !event.data.contains(SECRET)));
    assert_eq!(
        events.iter().filter(|event| event.data.contains("[REDACTED]")).count(),
        3
    );
    bench.close().await;
}

#[actix::test]
async fn r_75_a_prompt_while_the_machine_is_held_waits_five_seconds_and_is_then_refused() {
    use fountain_actors::ports::store::machines::{Claim, Purpose};
    let bench = Bench::new().await;
    let id = bench.warm().await;
    let claim = Claim {
        machine_id: bench.view(id).await.machine.id,
        holder: "another/1".into(),
        ttl: Duration::from_secs(60),
        purpose: Purpose::Confirm,
        operation_id: bench.world.id(),
        actor: Actor::System("test"),
        stages: Vec::new(),
        now: bench.world.now(),
    };
    bench.world.store.claim(claim).await.unwrap();
    let asked = tokio::time::Instant::now();
    assert_eq!(
        bench.prompt(id, "held").await.unwrap_err().code(),
        ErrorCode::SandboxUnavailable
    );
    assert!(asked.elapsed() <= Duration::from_secs(21));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(bench.turns(id).await.len(), 1, "INV-75");
    bench.prompt(id, "free").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    bench.close().await;
}
