//! The worked cases of rulings-lifecycle 9 over HTTP, each by name.

use std::time::Duration;

use fountain_actors::domain::ConversationId;
use fountain_actors::domain::machine::{DestroyReason, MachineEvent, MachineStatus};
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::passes::reaper::{Finding, plan};
use fountain_actors::ports::sandbox::SandboxError;
use serde_json::json;

use crate::world::{House, park};

async fn until(house: &House, level: &str, reached: impl Fn(&fountain_actors::domain::machine::Machine) -> bool) {
    for _ in 0..36_000 {
        if reached(&house.row().await) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{level} was not reached: {:?}", house.row().await);
}

#[actix::test]
async fn case_1_reset_during_a_wake_with_a_lost_answer() {
    let house = House::of("ASLEEP").await;
    // The resume happens, but its answer and the look after it are late: the wake does not know for a while.
    house.bench.sandbox.plan(Op::Resume, Fault::LostAnswer);
    house.bench.sandbox.plan(Op::Get, Fault::Slow(Duration::from_secs(9)));
    let (prompt, reset) = tokio::join!(house.knock("prompt"), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        house.knock("reset").await
    });
    assert_eq!(reset.words(), "503 sandbox_unavailable 30");
    assert_eq!(prompt.words(), "409 sandbox_reset_pending");
    // The owner destroys next, without the sweep (RUL-L-25).
    until(&house, "terminated", |row| row.status == MachineStatus::Terminated).await;
    assert!(house.bench.sandbox.machines().is_empty());
    assert_eq!(house.bench.sandbox.requests(Op::Spawn), 1, "no server starts anything");
    let told = house.knock("why").await.body["data"].clone();
    assert_eq!((&told["state"], &told["counted"]), (&json!("gone"), &json!(false)));
    house.close().await;
}

#[actix::test]
async fn case_2_an_owner_frozen_between_checkpoint_and_suspend() {
    // The park of a process that froze: its lease lapses with the stamp on the row, and no suspend was sent.
    let house = House::of("UP").await;
    let held = house.claim(park(), Duration::from_secs(1)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Woken here: claimed under the next epoch, probed running, the turn runs.
    assert_eq!(house.knock("prompt").await.words(), "200");
    house.bench.ended(house.conversation, 2).await;
    assert_eq!(house.bench.sandbox.requests(Op::Suspend), 0);
    // The frozen owner thaws: what it writes is refused, and its journal row says that it was superseded.
    let epoch = held.claimed.epoch.0;
    house.finish_late(held, MachineEvent::ParkConfirmed).await;
    assert_eq!(house.row().await.status, MachineStatus::Ready);
    let journal = format!("/api/sandboxes/{}/operations", house.machine);
    let rows = house.call("GET", &journal, json!({})).await.body["data"].clone();
    let frozen = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["epoch"] == epoch)
        .cloned();
    assert_eq!(frozen.unwrap()["outcome"], "superseded");
    house.close().await;
}

#[actix::test]
async fn case_3_a_server_killed_after_create_before_starting() {
    let mut house = House::building(Default::default(), Some("first")).await;
    let old = house.row().await.name;
    house.bench.kill_and_restart().await;
    let found = house.bench.engine.boot().await.unwrap();
    assert_eq!(found, 1, "the waiting prompt is adopted");
    let turn = house.bench.ended(house.conversation, 1).await;
    assert_eq!(turn.status, TurnStatus::Completed);
    let row = house.row().await;
    assert_eq!(row.status, MachineStatus::Ready);
    assert_ne!(row.name, old, "a name that nobody uses (RUL-L-22)");
    assert_eq!(house.bench.turns(house.conversation).await.len(), 1, "one turn, once");
    house.close().await;
}

#[actix::test]
async fn case_4_a_guest_attaches_while_the_owners_conversation_ends() {
    let house = House::of("UP").await;
    let (guest, ended) = tokio::join!(house.knock("attach"), house.knock("terminate"));
    assert_eq!((guest.words().as_str(), ended.words().as_str()), ("201", "204"));
    assert_eq!(house.row().await.status, MachineStatus::Ready);
    let guest = guest.body["data"]["id"].as_str().unwrap().to_owned();
    let path = format!("/api/conversations/{guest}/prompts");
    let said = house.call("POST", &path, json!({"prompt": "hello"})).await;
    assert_eq!(said.words(), "200", "the guest keeps the machine (RUL-L-80)");
    house.close().await;
}

#[actix::test]
async fn case_6_a_complete_listing_that_is_older_than_a_create() {
    let house = House::of("UP").await;
    let launch = json!({"agent_id": house.bench.agent.id, "sprite_name": "mine", "sandbox_mode": "ephemeral", "prompt": "hello"});
    let mut rows = Vec::new();
    for _ in 0..2 {
        let said = house.call("POST", "/api/conversations", launch.clone()).await;
        assert_eq!(said.words(), "201");
        let id: ConversationId = said.body["data"]["id"].as_str().unwrap().parse().unwrap();
        house.bench.ended(id, 1).await;
        rows.push(house.bench.view(id).await.machine.id);
        if rows.len() == 1 {
            let ended = house
                .call("POST", &format!("/api/conversations/{id}/terminate"), json!({}))
                .await;
            assert_eq!(ended.words(), "204");
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
    }
    // The name is listed and an ended row had it, but a live row has it again (RUL-L-51, RUL-L-52).
    let judged = plan(&house.bench.world).await.unwrap();
    let about = |findings: &[Finding]| findings.iter().filter(|finding| finding.name == "mine").count();
    assert_eq!(about(&judged.findings), 0, "{:?}", judged.findings);
    // A listing without it, as one from before its create is: nothing follows from absence.
    house.bench.sandbox.lose("mine");
    let judged = plan(&house.bench.world).await.unwrap();
    assert_eq!(about(&judged.findings), 0, "{:?}", judged.findings);
    let row = house.bench.world.store.machine(rows[1]).await.unwrap().unwrap();
    assert_eq!(row.status, MachineStatus::Ready);
    house.close().await;
}

#[actix::test]
async fn case_7_a_machine_of_a_fenced_epoch_is_never_adopted() {
    let mut house = House::building(Default::default(), Some("first")).await;
    house.bench.kill_and_restart().await;
    // What the dead build asked for came to be; its delete is refused, so the build must fail and hold name and slot.
    let name = house.row().await.name;
    house.bench.sandbox.plant([name.clone()]);
    for _ in 0..50 {
        let refused = SandboxError::Denied("not now".into());
        house.bench.sandbox.plan(Op::Destroy, Fault::Refused(refused));
    }
    house.bench.engine.boot().await.unwrap();
    until(&house, "failed", |row| row.status == MachineStatus::Failed).await;
    let row = house.row().await;
    assert!(row.cleanup_pending && row.name == name);
    let told = house.knock("why").await.body["data"].clone();
    assert_eq!((&told["state"], &told["counted"]), (&json!("gone"), &json!(true)));
    let mut next = told["next"].as_array().unwrap().iter();
    assert!(next.any(|step| step["by"] == "teardown_pass"), "{told}");
    house.close().await;
}

#[actix::test]
async fn rul_l_20_a_reset_that_is_not_confirmed_stays_pending_and_is_retried_by_an_operator() {
    let house = House::of("UP").await;
    for _ in 0..3 {
        let refused = SandboxError::Denied("not now".into());
        house.bench.sandbox.plan(Op::Destroy, Fault::Refused(refused));
    }
    assert_eq!(house.knock("reset").await.words(), "409 sandbox_reset_pending");
    let row = house.row().await;
    assert_eq!(row.transition_reason.as_deref(), Some(DestroyReason::Reset.as_str()));
    let retry = format!("/api/admin/sandboxes/{}/retry-reset", house.machine);
    let again = house.call("POST", &retry, json!({})).await;
    assert_eq!(again.words(), "409 sandbox_reset_pending");
    let journal = format!("/api/sandboxes/{}/operations?limit=1", house.machine);
    let told = house.call("GET", &journal, json!({})).await.body["data"][0].clone();
    assert_eq!(told["receipt"]["verdict"], "unconfirmed");
    assert!(told["receipt"]["next_try"].is_string());
    assert_eq!(house.call("POST", &retry, json!({})).await.status, 409);
    let done = house.call("POST", &retry, json!({})).await;
    assert_eq!(done.status, 200, "{done:?}");
    assert_eq!(house.row().await.status, MachineStatus::Terminated);
    let events = house.call("GET", "/api/admin/events", json!({})).await;
    assert_eq!(events.body["data"][0]["event_type"], "admin.sandbox.reset_retried");
    house.close().await;
}
