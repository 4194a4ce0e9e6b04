//! The passes: adoption, the five-minute sweep, overdue turns (lifecycle 7; RUL-36, RUL-L-23, RUL-L-50, RUL-L-54).

use std::sync::Arc;
use std::time::Duration;

use crate::world::*;
use fountain_actors::domain::account::Actor;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{DestroyReason, MachineMode, MachineStatus};
use fountain_actors::domain::turn::{Ending, TurnStatus};
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::machine::messages::*;
use fountain_actors::passes::{Passes, Replica};
use fountain_actors::ports::sandbox::SandboxError;
use fountain_actors::ports::store::conversations::ConversationStore;
use fountain_actors::ports::store::turns::TurnStore;

fn passes(sim: &Sim) -> Passes {
    let replica: Arc<dyn Replica> = Arc::clone(&sim.here) as _;
    Passes::start(sim.world(), &replica)
}

#[actix::test]
async fn rul_36_a_conversation_whose_turn_waits_gets_a_server() {
    let sim = Sim::start().await;
    let waits = sim.launch(MachineMode::Persistent).await;
    let served = sim.launch(MachineMode::Persistent).await;
    let idle = sim.up(MachineMode::Persistent).await;
    sim.here
        .servers
        .lock()
        .unwrap()
        .push((served.conversation, served.machine));
    let passes = passes(&sim);
    assert_eq!(passes.adopt().await.done, 1);
    let adopted = sim.here.adopted.lock().unwrap().clone();
    assert_eq!(adopted, [waits.conversation]);
    assert!(
        !adopted.contains(&idle.conversation),
        "an idle conversation costs nothing"
    );
    passes.stop().await;
}

#[actix::test]
async fn rul_l_50_adoption_runs_by_itself_every_ten_seconds() {
    let sim = Sim::start().await;
    let passes = passes(&sim);
    let home = sim.launch(MachineMode::Persistent).await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(*sim.here.adopted.lock().unwrap(), [home.conversation]);
    passes.stop().await;
    sim.here.adopted.lock().unwrap().clear();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(sim.here.adopted.lock().unwrap().is_empty(), "a stopped pass is still");
}

#[actix::test]
async fn the_sweep_parks_an_idle_machine_that_has_no_server() {
    let sim = Sim::start().await;
    let idle = sim.up(MachineMode::Persistent).await;
    let served = sim.up(MachineMode::Persistent).await;
    sim.here
        .servers
        .lock()
        .unwrap()
        .push((served.conversation, served.machine));
    let passes = passes(&sim);
    assert_eq!(passes.sweep().await.done, 0, "nothing is idle yet");
    sim.idle().await;
    passes.sweep().await;
    assert_eq!(sim.status(idle).await, MachineStatus::Suspended);
    assert_eq!(
        sim.status(served).await,
        MachineStatus::Ready,
        "its server looks after it"
    );
    passes.stop().await;
}

#[actix::test]
async fn inv_36_a_server_that_was_just_started_keeps_the_sweep_away() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.idle().await;
    sim.store.start_server(home.conversation, sim.now()).await.unwrap();
    let passes = passes(&sim);
    passes.sweep().await;
    assert_eq!(sim.status(home).await, MachineStatus::Ready);
    passes.stop().await;
}

#[actix::test]
async fn inv_54_r_15_a_doomed_machine_is_finished_once_its_provider_answers() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    for _ in 0..3 {
        sim.fake
            .plan(Op::Destroy, Fault::Refused(SandboxError::Unavailable("down".into())));
    }
    assert!(sim.reset(home).await.is_err());
    let passes = passes(&sim);
    tokio::time::sleep(Duration::from_secs(16 * 60)).await;
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
    assert_eq!(sim.fake.requests(Op::Destroy), 4, "tried again every five minutes");
    assert!(sim.fake.machines().is_empty());
    passes.stop().await;
}

#[actix::test]
async fn r_19_one_row_that_refuses_does_not_keep_the_others() {
    let sim = Sim::start().await;
    let (stuck, fine) = (
        sim.up(MachineMode::Persistent).await,
        sim.up(MachineMode::Persistent).await,
    );
    let down = || Fault::Refused(SandboxError::Unavailable("down".into()));
    sim.fake.plan(Op::Destroy, down());
    sim.fake.plan(Op::Destroy, down());
    assert!(sim.reset(stuck).await.is_err());
    assert!(sim.reset(fine).await.is_err());
    tokio::time::sleep(Duration::from_secs(301)).await;
    sim.fake.plan(Op::Destroy, down());
    let passes = passes(&sim);
    let tally = passes.sweep().await;
    assert_eq!((tally.done, tally.refused), (1, 1));
    passes.stop().await;
}

#[actix::test]
async fn rul_l_54_nobodys_machine_goes_after_a_quarter_of_an_hour() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    sim.build(home).await.unwrap();
    let failed = Ending::failed(home.turn, "broken", sim.now());
    sim.store
        .close_turn(home.conversation, failed, None, true)
        .await
        .unwrap();
    let passes = passes(&sim);
    passes.sweep().await;
    assert_eq!(sim.status(home).await, MachineStatus::Ready);
    tokio::time::sleep(Duration::from_secs(16 * 60)).await;
    passes.sweep().await;
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
    assert!(sim.fake.machines().is_empty());
    passes.stop().await;
}

#[actix::test]
async fn rul_l_23_rul_l_31_a_prompt_that_was_never_built_for_fails_and_its_conversation_lives() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let passes = passes(&sim);
    assert_eq!(passes.end_overdue().await.done, 0);
    tokio::time::sleep(Duration::from_secs(61 * 60)).await;
    assert_eq!(sim.turns(home).await[0].status, TurnStatus::Failed);
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.is_counted()),
        (MachineStatus::Failed, false),
        "machine first, slot freed"
    );
    assert_eq!(sim.stages(home).await, ["provision/failed", "turn/failed"]);
    let conversation = sim.store.conversation(home.conversation).await.unwrap().unwrap();
    assert_eq!(conversation.status, ConversationStatus::Idle, "not final (RUL-L-31)");
    passes.stop().await;
}

#[actix::test]
async fn rul_l_23_a_build_that_is_under_way_is_not_overdue() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let ask = sim.provision(home).await;
    let passes = passes(&sim);
    tokio::time::sleep(Duration::from_secs(60 * 60 - 30)).await;
    sim.fake.plan(Op::Create, Fault::Slow(Duration::from_secs(100)));
    assert!(sim.here.owner(home.machine).send(ask).await.unwrap().is_ok());
    assert_eq!(sim.status(home).await, MachineStatus::Ready);
    passes.stop().await;
}

#[actix::test]
async fn rul_37_a_turn_whose_machine_never_came_back_fails_at_its_deadline() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let turn = sim.admit(home).await;
    let until = sim.now() + chrono::TimeDelta::seconds(120);
    let window = sim
        .store
        .open_reconnect_window(turn.id, sim.now(), until, Duration::from_secs(600));
    assert_eq!(window.await.unwrap(), until);
    let passes = passes(&sim);
    tokio::time::sleep(Duration::from_secs(110)).await;
    let status = async || {
        sim.turns(home)
            .await
            .into_iter()
            .find(|of| of.id == turn.id)
            .unwrap()
            .status
    };
    assert_eq!(status().await, TurnStatus::Running);
    tokio::time::sleep(Duration::from_secs(21)).await;
    assert_eq!(status().await, TurnStatus::Failed);
    passes.stop().await;
}

#[actix::test]
async fn a_machine_past_its_lifetime_goes_if_it_is_ephemeral_and_is_parked_if_it_is_a_home() {
    let hour = Duration::from_secs(3600);
    let aged = move |settings: &mut fountain_actors::domain::settings::Settings| {
        settings.max_lifetime = Some(hour);
        settings.idle_timeout = Some(2 * hour);
    };
    let sim = Sim::with(aged, |fake| fake).await;
    let (guest, home) = (
        sim.up(MachineMode::Ephemeral).await,
        sim.up(MachineMode::Persistent).await,
    );
    let passes = passes(&sim);
    tokio::time::sleep(hour + Duration::from_secs(600)).await;
    assert_eq!(sim.status(guest).await, MachineStatus::Terminated);
    assert_eq!(sim.status(home).await, MachineStatus::Suspended);
    passes.stop().await;
}

#[actix::test]
async fn activations_during_a_run_become_one_more_run() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let retire = Retire {
        reason: DestroyReason::Terminated,
        actor: Actor::Api,
    };
    sim.fake
        .plan(Op::Destroy, Fault::Refused(SandboxError::Unavailable("down".into())));
    assert!(sim.here.owner(home.machine).send(retire).await.unwrap().is_err());
    tokio::time::sleep(Duration::from_secs(16 * 60)).await;
    sim.fake.plan(Op::Destroy, Fault::Slow(Duration::from_secs(5)));
    let passes = passes(&sim);
    let (one, two, three) = tokio::join!(passes.sweep(), passes.sweep(), passes.sweep());
    assert_eq!((one.done, two.done, three.done), (1, 0, 0));
    assert_eq!(two.candidates, three.candidates);
    passes.stop().await;
}
