//! Lifecycle 2.3 as amended by the rulings, a table a door: status, code and `Retry-After` of every cell.

use std::time::Duration;

use crate::world::{House, STATES, ephemeral};

/// Knocks at `door` once in every state and compares with the row of the table; every cell that differs is named.
async fn row(door: &str, wanted: [&str; 11]) {
    let mut wrong = Vec::new();
    for (state, wanted) in STATES.into_iter().zip(wanted) {
        let house = if door == "prompt" {
            House::quiet(state).await
        } else {
            House::of(state).await
        };
        let said = house.knock(door).await;
        if said.words() != wanted {
            wrong.push(format!("{door} on {state}: {} instead of {wanted}", said.words()));
        }
        house.close().await;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const BUSY: &str = "503 sandbox_unavailable 30";

#[actix::test]
async fn rul_l_39_attach_cell_by_cell() {
    let not_attachable = "409 sandbox_not_attachable";
    row(
        "attach",
        [
            not_attachable, // BUILDING
            not_attachable, // BUILD-STALE
            "201",          // UP
            BUSY,           // UP-BUSY
            BUSY,           // PARKING
            BUSY,           // WAKING
            "201",          // PARK-STALE
            "201",          // WAKE-STALE
            "201",          // ASLEEP
            "409 sandbox_reset_pending",
            not_attachable, // GONE
        ],
    )
    .await;
}

#[actix::test]
async fn rul_6_rul_13_rul_l_45_a_prompt_without_a_server_cell_by_cell() {
    row(
        "prompt",
        [
            "503 provisioning 30", // BUILDING, by another process (RUL-6)
            "200",                 // BUILD-STALE: the same row is rebuilt (RUL-13)
            "200",                 // UP
            BUSY,                  // UP-BUSY
            BUSY,                  // PARKING
            BUSY,                  // WAKING
            "200",                 // PARK-STALE: probed first (RUL-L-45)
            "200",                 // WAKE-STALE: probed, then woken
            "200",                 // ASLEEP (RUL-1)
            "409 sandbox_reset_pending",
            "200", // GONE: a fresh machine
        ],
    )
    .await;
}

#[actix::test]
async fn rul_l_26_reset_cell_by_cell() {
    let not_resettable = "422 sandbox_not_resettable";
    row(
        "reset",
        [
            not_resettable, // BUILDING
            not_resettable, // BUILD-STALE
            "204",          // UP
            BUSY,           // UP-BUSY
            BUSY,           // PARKING
            BUSY,           // WAKING
            "204",          // PARK-STALE
            "204",          // WAKE-STALE
            "204",          // ASLEEP
            "409 sandbox_reset_pending",
            not_resettable, // GONE
        ],
    )
    .await;
}

#[actix::test]
async fn rul_12_rul_l_29_terminate_writes_no_machine_and_is_done_in_every_state() {
    row("terminate", ["204"; 11]).await;
}

#[actix::test]
async fn rul_5_interrupt_without_a_server_cell_by_cell() {
    let none = "409 no_turn_running";
    row(
        "interrupt",
        [
            "204", // BUILDING: the prompt that waits is ended (RUL-5)
            "204", // BUILD-STALE: as well
            none, none, none, none, none, none, none, none, none,
        ],
    )
    .await;
}

#[actix::test]
async fn rul_l_47_admin_reap_cell_by_cell() {
    row(
        "reap",
        [
            BUSY,  // BUILDING: the lease is claimed like by every terminal write
            "200", // BUILD-STALE
            "200", // UP
            BUSY,  // UP-BUSY
            BUSY,  // PARKING
            BUSY,  // WAKING
            "200", // PARK-STALE
            "200", // WAKE-STALE
            "200", // ASLEEP
            "200", // DOOMED: it passes the fence
            "200", // GONE
        ],
    )
    .await;
}

#[actix::test]
async fn rul_l_47_a_reap_waits_five_seconds_and_its_machine_is_left_to_the_operator() {
    let house = House::of("UP-BUSY").await;
    let said = house.knock("reap").await;
    assert_eq!(said.words(), BUSY);
    let waited = Duration::from_millis(4500)..=Duration::from_millis(5500);
    assert!(waited.contains(&said.took), "{:?}", said.took);
    house.close().await;

    let house = House::of("DOOMED").await;
    let name = house.row().await.name;
    let said = house.knock("reap").await;
    assert_eq!(said.body["data"]["outcome"], "terminated");
    assert_eq!(house.bench.sandbox.machines(), [name], "nothing was deleted");
    let told = house.knock("why").await.body["data"].clone();
    assert_eq!(told["state"], "gone");
    assert_eq!(told["operations"][0]["receipt"]["verdict"], "handed_over");
    assert_eq!(told["debts"], serde_json::json!([]));
    let again = house.knock("reap").await;
    assert_eq!(again.body["data"]["outcome"], "already_terminal");
    let ledger = house.call("GET", "/api/admin/ledger", serde_json::json!({})).await;
    let fake = &ledger.body["data"]["providers"][0];
    assert_eq!(fake["unreserved"][0]["reason"], "handed_over", "{fake}");
    assert_eq!(ledger.body["data"]["unexplained"], 0);
    house.close().await;
}

#[actix::test]
async fn rul_l_26_a_reset_under_a_lease_fences_waits_five_seconds_and_says_pending_when_repeated() {
    let house = House::of("WAKING").await;
    let first = house.knock("reset").await;
    assert_eq!(first.words(), BUSY);
    assert!(first.took >= Duration::from_millis(4500), "{:?}", first.took);
    assert_eq!(house.knock("reset").await.words(), "409 sandbox_reset_pending");
    assert_eq!(house.knock("prompt").await.words(), "409 sandbox_reset_pending");
    house.close().await;
}

#[actix::test]
async fn rul_6_a_prompt_during_a_build_waits_twenty_seconds() {
    // Built by this process, whose server takes the prompt.
    let house = House::building(Default::default(), None).await;
    let said = house.knock("prompt").await;
    assert_eq!(said.words(), "503 provisioning 30");
    assert!(
        said.took >= Duration::from_secs(19) && said.took <= Duration::from_secs(21),
        "{:?}",
        said.took
    );
    house.close().await;
}

#[actix::test]
async fn rul_12_terminate_during_a_build_fences_an_ephemeral_machine_at_once() {
    let house = House::with("BUILDING", ephemeral(), Some("first")).await;
    let said = house.knock("terminate").await;
    assert_eq!(said.words(), "204");
    assert!(said.took < Duration::from_secs(1), "{:?}", said.took);
    let told = house.knock("why").await.body["data"].clone();
    assert_eq!(told["state"], "doomed");
    assert_eq!(told["counted"], true, "until its absence is confirmed (RUL-L-20)");
    house.close().await;
}

#[actix::test]
async fn a_prompt_to_a_live_server_waits_five_seconds_for_another_process() {
    let house = House::up(Default::default()).await;
    assert_eq!(house.knock("prompt").await.words(), "200");
    house.bench.ended(house.conversation, 2).await;
    house
        .claim(
            fountain_actors::ports::store::machines::Purpose::Confirm,
            Duration::from_secs(600),
        )
        .await;
    let said = house.knock("prompt").await;
    assert_eq!(said.words(), BUSY);
    assert!(said.took <= Duration::from_secs(21), "{:?}", said.took);
    assert_eq!(
        house.bench.turns(house.conversation).await.len(),
        2,
        "RUL-3: nothing is left behind"
    );
    house.close().await;
}
