//! Permission requests that outlive their turn (lifecycle 6.7, 6.10; RUL-L-57).

use std::time::Duration;

use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::{ConversationId, ErrorCode};
use fountain_actors::doors::Doors;
use fountain_actors::fakes::{AgentStep, FakeAgent};
use fountain_actors::passes::Passes;
use serde_json::{Value, json};

use crate::conversation_bench::{Bench, Setup};

/// An agent that asks, goes on, and ends its turn without the answer; the answer's turn is said back.
fn leaving() -> Setup {
    let agent = FakeAgent::new(|text| match text {
        "ask" => vec![
            AgentStep::Leave(vec!["allow_once".into(), "reject_once".into()]),
            AgentStep::Stop("waiting"),
        ],
        "slow" => vec![AgentStep::Sleep(Duration::from_secs(60)), AgentStep::Stop("end_turn")],
        other => vec![AgentStep::Say(format!("heard {other}")), AgentStep::Stop("end_turn")],
    });
    let mut setup = Setup::with(agent);
    setup.policy = json!({ "default": "ask" }).as_object().unwrap().clone();
    setup
}

async fn waiting(bench: &Bench) -> (ConversationId, String) {
    let id = bench.launch(Some("ask")).await.unwrap().view.conversation.id;
    let turn = bench.ended(id, 1).await;
    assert_eq!((turn.status, turn.waiting), (TurnStatus::Completed, true));
    (id, turn.pending_permission.unwrap().request_id)
}

async fn answer(bench: &Bench, id: ConversationId, request: &str, option: &str) -> Result<(), ErrorCode> {
    let caller = bench.caller.clone();
    let answered = bench
        .engine
        .answer_permission(caller, id, request.into(), option.into())
        .await;
    answered.map_err(|refusal| refusal.code())
}

fn carried(prompt: &str) -> Value {
    let line: Value = serde_json::from_str(prompt).unwrap();
    line["fountain/permission_answer"].clone()
}

#[actix::test]
async fn r_88_an_answer_to_a_detached_request_is_a_turn_on_a_fresh_process() {
    let bench = Bench::of(leaving()).await;
    let (id, request) = waiting(&bench).await;
    assert_eq!(
        answer(&bench, id, &request, "nonsense").await,
        Err(ErrorCode::UnknownOption)
    );
    assert_eq!(answer(&bench, id, &request, "allow_once").await, Ok(()));
    let turn = bench.ended(id, 2).await;
    let told = carried(&turn.prompt);
    assert_eq!(
        (&told["request_id"], &told["outcome"], &told["option_id"]),
        (&json!(request), &json!("answered"), &json!("allow_once"))
    );
    assert!(bench.said(id).await.contains("heard {\"fountain/permission_answer\""));
    assert_eq!(bench.stages(id, "request").await, ["request/started", "request/done"]);
    assert_eq!(
        answer(&bench, id, &request, "allow_once").await,
        Err(ErrorCode::PermissionRequestResolved)
    );
    // The same request id again is a new question, not a replay of the old one.
    bench.prompt(id, "ask").await.unwrap();
    assert!(bench.ended(id, 3).await.waiting);
    bench.close().await;
}

#[actix::test]
async fn r_89_an_answer_whose_turn_is_refused_leaves_the_request_open() {
    let bench = Bench::of(leaving()).await;
    let (id, request) = waiting(&bench).await;
    bench.prompt(id, "slow").await.unwrap();
    assert_eq!(
        answer(&bench, id, &request, "allow_once").await,
        Err(ErrorCode::ConversationBusy)
    );
    let first = bench.turns(id).await.remove(0);
    assert_eq!(first.pending_permission.unwrap().request_id, request);
    assert_eq!(bench.stages(id, "request").await, ["request/started"]);
    bench.ended(id, 2).await;
    assert_eq!(answer(&bench, id, &request, "reject_once").await, Ok(()));
    bench.ended(id, 3).await;
    bench.close().await;
}

#[actix::test]
async fn rul_l_57_a_detached_request_past_its_deadline_is_denied_in_a_turn_of_its_own() {
    let bench = Bench::of(leaving()).await;
    let (id, request) = waiting(&bench).await;
    let passes = Passes::of(&bench.engine);
    passes.expire_permissions().await;
    assert_eq!(bench.turns(id).await.len(), 1, "not yet");
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert_eq!(
        answer(&bench, id, &request, "allow_once").await,
        Err(ErrorCode::PermissionRequestResolved)
    );
    passes.expire_permissions().await;
    let turn = bench.ended(id, 2).await;
    let told = carried(&turn.prompt);
    assert_eq!(
        (&told["outcome"], &told["option_id"]),
        (&json!("timeout"), &Value::Null)
    );
    passes.expire_permissions().await;
    assert_eq!(bench.turns(id).await.len(), 2, "once");
    assert_eq!(bench.view(id).await.conversation.status, ConversationStatus::Idle);
    bench.close().await;
}
