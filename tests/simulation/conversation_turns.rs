//! Turns on a machine: the first, the warm one, two at once, and how they end.

use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::MachineStatus;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::fakes::{AgentStep, FakeAgent};

use crate::conversation_bench::Bench;

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
