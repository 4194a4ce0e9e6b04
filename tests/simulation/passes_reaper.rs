//! The hourly reaper, its dry run, stuck turns, and how sweeps treat rows that will not clear (lifecycle 7; RUL-L-31, 51
//! to 53, 55).

use std::sync::Arc;
use std::time::Duration;

use crate::world::*;
use fountain_actors::domain::account::Actor;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{MachineMode, MachineStatus, Provider};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::machine::messages::*;
use fountain_actors::passes::reaper::plan;
use fountain_actors::passes::{Passes, Replica, Tally};
use fountain_actors::ports::sandbox::SandboxError;
use fountain_actors::ports::store::conversations::ConversationStore;
use fountain_actors::ports::store::machines::MachineStore;
use fountain_actors::ports::store::passes::{PassStore, Rests};

const MINUTE: Duration = Duration::from_secs(60);
const REAPER: Actor = Actor::System("sandbox_reaper");

/// Only the reaper runs, and only when it is asked.
fn alone(settings: &mut Settings) {
    settings.sweep_interval = 100_000 * MINUTE;
    settings.adoption_interval = 100_000 * MINUTE;
    settings.settle_interval = 100_000 * MINUTE;
    settings.stuck_turn_interval = 100_000 * MINUTE;
}

async fn reap(sim: &Sim) -> Tally {
    let passes = start(sim);
    let tally = passes.reap().await;
    passes.stop().await;
    tally
}

fn start(sim: &Sim) -> Passes {
    let replica: Arc<dyn Replica> = Arc::clone(&sim.here) as _;
    Passes::start(sim.world(), &replica)
}

/// A machine whose row ended with its provider's confirmation; its name comes back.
async fn ended(sim: &Sim) -> (Home, String) {
    let home = sim.up(MachineMode::Persistent).await;
    let name = sim.row(home).await.name;
    sim.reset(home).await.unwrap();
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
    (home, name)
}

#[actix::test]
async fn rul_l_31_a_build_that_nobody_carries_is_released_and_its_conversation_lives() {
    let early = |settings: &mut Settings| {
        alone(settings);
        settings.stuck_build_age = 40 * MINUTE;
    };
    let sim = Sim::with(early, |fake| fake).await;
    let home = sim.launch(MachineMode::Persistent).await;
    tokio::time::sleep(39 * MINUTE).await;
    assert_eq!(reap(&sim).await.done, 0, "not yet");
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(reap(&sim).await.done, 1);
    let row = sim.row(home).await;
    assert_eq!((row.status, row.is_counted()), (MachineStatus::Failed, false));
    assert_eq!(sim.turns(home).await[0].status, TurnStatus::Failed);
    assert_eq!(sim.stages(home).await, ["provision/failed", "turn/failed"]);
    let conversation = sim.store.conversation(home.conversation).await.unwrap().unwrap();
    assert_eq!(
        conversation.status,
        ConversationStatus::Idle,
        "not even a first build is final"
    );
}

#[actix::test]
async fn rul_l_12_a_build_is_as_old_as_its_stamp_and_a_fresh_marker_or_a_server_keeps_it() {
    let sim = Sim::with(alone, |fake| fake).await;
    let (marked, served) = (
        sim.launch(MachineMode::Persistent).await,
        sim.launch(MachineMode::Persistent).await,
    );
    sim.end_turn(marked).await;
    sim.end_turn(served).await;
    tokio::time::sleep(61 * MINUTE).await;
    sim.provision(marked).await;
    sim.here
        .servers
        .lock()
        .unwrap()
        .push((served.conversation, served.machine));
    assert_eq!(reap(&sim).await.done, 0);
    assert_eq!(
        sim.status(marked).await,
        MachineStatus::Pending,
        "a server was just started"
    );
    assert_eq!(sim.status(served).await, MachineStatus::Pending);
    tokio::time::sleep(16 * MINUTE).await;
    assert_eq!(reap(&sim).await.done, 1);
    assert_eq!(sim.status(marked).await, MachineStatus::Failed);
}

#[actix::test]
async fn past_a_bound_a_home_is_parked_and_an_ephemeral_machine_is_reclaimed() {
    let aged = |settings: &mut Settings| {
        alone(settings);
        settings.max_lifetime = Some(60 * MINUTE);
        settings.idle_timeout = Some(300 * MINUTE);
    };
    let sim = Sim::with(aged, |fake| fake).await;
    let (guest, home) = (
        sim.up(MachineMode::Ephemeral).await,
        sim.up(MachineMode::Persistent).await,
    );
    tokio::time::sleep(61 * MINUTE).await;
    assert_eq!(reap(&sim).await.done, 2);
    assert_eq!(sim.status(guest).await, MachineStatus::Terminated);
    assert_eq!(sim.status(home).await, MachineStatus::Suspended);
}

#[actix::test]
async fn p1_p29_rul_l_53_a_machine_that_outlived_its_row_is_deleted_and_a_stranger_is_not() {
    let sim = Sim::with(alone, |fake| fake.paging(3)).await;
    let (_, name) = ended(&sim).await;
    let live = sim.up(MachineMode::Persistent).await;
    let live_name = sim.row(live).await.name;
    let strangers = (0..12).map(|n| format!("stranger-{n:02}"));
    sim.fake.plant(strangers.chain([name.clone()]));
    let began = sim.now();
    assert_eq!(reap(&sim).await.done, 1);
    let left = sim.fake.machines();
    assert!(!left.contains(&name) && left.contains(&live_name), "{left:?}");
    assert_eq!(left.len(), 13, "what no row explains is never touched (RUL-L-53)");
    let untracked = sim.store.count_untracked(Provider::Fake, began).await.unwrap();
    assert_eq!(untracked, 12);
    assert_eq!(sim.fake.requests(Op::List), 5, "read in pages, to the end");
    tokio::time::sleep(60 * MINUTE).await;
    let later = sim.now();
    reap(&sim).await;
    assert_eq!(
        sim.store.count_untracked(Provider::Fake, later).await.unwrap(),
        12,
        "seen again, noted once"
    );
}

#[actix::test]
async fn inv_59_p28_a_listing_that_is_partial_failed_or_old_deletes_nothing() {
    let hasty = |settings: &mut Settings| {
        alone(settings);
        settings.listing_lifetime = MINUTE;
    };
    let sim = Sim::with(hasty, |fake| fake.paging(1)).await;
    let (_, name) = ended(&sim).await;
    sim.fake.plant([name.clone(), "stranger".into()]);
    let first_page = || Fault::Slow(Duration::ZERO);
    for faults in [
        vec![Fault::Refused(SandboxError::Truncated)],
        vec![first_page(), Fault::Refused(SandboxError::Truncated)],
        vec![Fault::Refused(SandboxError::Denied("no".into()))],
        vec![
            Fault::Slow(Duration::from_secs(35)),
            Fault::Slow(Duration::from_secs(35)),
        ],
    ] {
        let planned = faults.len();
        for fault in faults {
            sim.fake.plan(Op::List, fault);
        }
        assert_eq!(reap(&sim).await, Tally::default(), "{planned}");
        assert_eq!(sim.fake.unused_faults(), 0);
        assert_eq!(sim.fake.machines().len(), 2);
    }
    assert_eq!(reap(&sim).await.done, 1, "and a good one does");
}

#[actix::test]
async fn inv_114_inv_118_rul_l_52_a_name_that_a_live_row_holds_is_never_deleted() {
    let sim = Sim::with(alone, |fake| fake).await;
    let old = sim.launch_named(MachineMode::Persistent, Some("box")).await;
    sim.build(old).await.unwrap();
    sim.end_turn(old).await;
    sim.reset(old).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    let new = sim.launch_named(MachineMode::Persistent, Some("box")).await;
    sim.build(new).await.unwrap();
    assert_eq!(reap(&sim).await.done, 0);
    // Even one that was chosen before the name was used again.
    let ask = Leftover { actor: REAPER };
    let answer = sim.here.owner(old.machine).send(ask).await.unwrap();
    assert_eq!(answer.unwrap(), Swept::NameTaken);
    let live = sim
        .here
        .owner(new.machine)
        .send(Leftover { actor: REAPER })
        .await
        .unwrap();
    assert!(live.is_err(), "a live row is no leftover");
    assert_eq!(sim.fake.machines(), ["box"]);
}

#[actix::test]
async fn rul_l_21_p31_a_leftover_whose_delete_is_not_confirmed_is_owed_and_counted() {
    let sim = Sim::with(alone, |fake| fake).await;
    let (home, name) = ended(&sim).await;
    sim.fake.plant([name]);
    sim.fake
        .plan(Op::Destroy, Fault::Refused(SandboxError::Unavailable("down".into())));
    assert_eq!(reap(&sim).await.refused, 1);
    let row = sim.row(home).await;
    assert_eq!(
        (row.status, row.cleanup_pending, row.is_counted()),
        (MachineStatus::Terminated, true, true)
    );
    tokio::time::sleep(6 * MINUTE).await;
    let passes = start(&sim);
    passes.sweep().await;
    passes.stop().await;
    assert!(sim.fake.machines().is_empty());
    assert!(!sim.row(home).await.cleanup_pending);
}

#[actix::test]
async fn a_run_of_the_reaper_spends_its_budget_and_leftovers_have_a_floor() {
    let poor = |settings: &mut Settings| {
        alone(settings);
        settings.reaper_deletes = 1;
        settings.leftover_floor = 2;
        settings.max_lifetime = Some(60 * MINUTE);
    };
    let sim = Sim::with(poor, |fake| fake).await;
    // Two planted machines are left for the next hour.
    sim.excuse("INV-117");
    let mut names = Vec::new();
    for _ in 0..3 {
        names.push(ended(&sim).await.1);
    }
    for _ in 0..2 {
        sim.up(MachineMode::Ephemeral).await;
    }
    tokio::time::sleep(61 * MINUTE).await;
    sim.fake.plant(names);
    let tally = reap(&sim).await;
    assert_eq!((tally.done, tally.refused), (3, 0), "one past its bound, two leftovers");
    assert_eq!(tally.candidates, 5, "the others are left as they are");
    assert_eq!(sim.fake.machines().len(), 2);
    reap(&sim).await;
    assert!(sim.fake.machines().is_empty(), "the next run goes on");
}

#[actix::test]
async fn the_reaper_runs_by_itself_seven_minutes_past_the_hour() {
    let sim = Sim::start().await;
    let (_, name) = ended(&sim).await;
    sim.fake.plant([name]);
    let passes = start(&sim);
    // The test began at noon.
    tokio::time::sleep(6 * MINUTE).await;
    assert_eq!(sim.fake.machines().len(), 1);
    tokio::time::sleep(2 * MINUTE).await;
    assert!(sim.fake.machines().is_empty());
    passes.stop().await;
}

#[actix::test]
async fn rul_l_55_rows_rest_longer_and_longer_and_deletes_always_five_minutes() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let rests: Rests = sim.world().settings.rests();
    let mut rested = Vec::new();
    for _ in 0..7 {
        let until = sim.store.defer(home.machine, rests.clone(), sim.now()).await.unwrap();
        rested.push((until - sim.now()).num_minutes());
    }
    assert_eq!(rested, [1, 2, 5, 15, 60, 60, 60]);
    sim.fake
        .plan(Op::Destroy, Fault::Refused(SandboxError::Unavailable("down".into())));
    assert!(sim.reset(home).await.is_err());
    let until = sim.store.defer(home.machine, rests, sim.now()).await.unwrap();
    assert_eq!((until - sim.now()).num_minutes(), 5);
}

#[actix::test]
async fn p38_a_turn_without_server_word_or_question_is_orphaned_and_others_are_not() {
    let sim = Sim::with(alone, |fake| fake).await;
    let (stuck, served, fresh) = (
        sim.up(MachineMode::Persistent).await,
        sim.up(MachineMode::Persistent).await,
        sim.up(MachineMode::Persistent).await,
    );
    let (of_stuck, of_served) = (sim.admit(stuck).await, sim.admit(served).await);
    sim.here
        .servers
        .lock()
        .unwrap()
        .push((served.conversation, served.machine));
    tokio::time::sleep(20 * MINUTE).await;
    let of_fresh = sim.admit(fresh).await;
    let passes = start(&sim);
    assert_eq!(passes.end_stuck().await.done, 0);
    tokio::time::sleep(11 * MINUTE).await;
    assert_eq!(passes.end_stuck().await.done, 1);
    let status = async |home: Home, turn: fountain_actors::domain::TurnId| {
        let turns = sim.turns(home).await;
        turns.into_iter().find(|of| of.id == turn).unwrap()
    };
    let ended = status(stuck, of_stuck.id).await;
    assert_eq!(ended.status, TurnStatus::Interrupted);
    assert!(ended.orphaned_at.is_some());
    assert_eq!(
        status(served, of_served.id).await.status,
        TurnStatus::Running,
        "its server looks after it"
    );
    assert_eq!(status(fresh, of_fresh.id).await.status, TurnStatus::Running);
    passes.stop().await;
}

#[actix::test]
async fn the_dry_run_says_everything_with_its_age_and_changes_nothing() {
    let aged = |settings: &mut Settings| {
        alone(settings);
        settings.max_lifetime = Some(60 * MINUTE);
    };
    let sim = Sim::with(aged, |fake| fake).await;
    let (_, leftover) = ended(&sim).await;
    let old = sim.up(MachineMode::Ephemeral).await;
    let stuck = sim.launch(MachineMode::Persistent).await;
    sim.end_turn(stuck).await;
    sim.fake.plant([leftover.clone(), "stranger".into()]);
    tokio::time::sleep(61 * MINUTE).await;
    let rows = (sim.row(old).await, sim.row(stuck).await);
    let effects = sim.fake.effects(Op::Destroy);
    let said = plan(sim.world()).await.unwrap();
    let verdicts: Vec<_> = said
        .findings
        .iter()
        .map(|of| (of.part, of.verdict, of.name.as_str()))
        .collect();
    assert_eq!(
        verdicts,
        [
            ("stuck builds", "fail the build", rows.1.name.as_str()),
            ("past a bound", "destroy", rows.0.name.as_str()),
            ("leftovers", "delete", leftover.as_str()),
            ("untracked", "report", "stranger"),
        ]
    );
    let ages: Vec<_> = said
        .findings
        .iter()
        .map(|of| of.age(sim.now()).as_secs() / 60)
        .collect();
    assert_eq!(
        ages,
        [61, 61, 0, 0],
        "rows since they are so, listings since they were asked for"
    );
    assert!(said.findings.iter().all(|of| !of.evidence.is_empty()));
    assert_eq!((sim.row(old).await, sim.row(stuck).await), rows);
    assert_eq!(sim.fake.effects(Op::Destroy), effects);
    let noted = sim
        .store
        .count_untracked(Provider::Fake, fountain_actors::domain::Moment::UNIX_EPOCH);
    assert_eq!(noted.await.unwrap(), 0, "not even what it saw is written down");
    let free = sim
        .store
        .take_pass("reaper", "other/1".into(), MINUTE, sim.now())
        .await
        .unwrap();
    assert_eq!(free.map(|epoch| epoch.0), Some(1), "no lease was ever taken");
    sim.fake.plan(Op::List, Fault::Refused(SandboxError::Truncated));
    let partial = plan(sim.world()).await.unwrap();
    assert_eq!(partial.no_listing.len(), 1, "what is not known is said");
    assert!(partial.findings.iter().all(|of| of.part != "leftovers"));
}

#[actix::test]
async fn a_listing_of_a_hundred_thousand_names_is_read_in_pages_and_kept_nowhere() {
    let sim = Sim::with(alone, |fake| fake).await;
    sim.fake.plant((0..100_000).map(|n| format!("somebody-elses-{n:06}")));
    let said = plan(sim.world()).await.unwrap();
    assert_eq!((said.listed, said.untracked), (100_000, 100_000));
    assert_eq!(said.findings.len(), 10, "a sample");
    assert_eq!(sim.fake.requests(Op::List), 100, "a thousand names a page");
    assert!(sim.store.live_names(Provider::Fake).await.unwrap().is_empty());
}

#[actix::test]
async fn r_17_p23_a_delete_whose_terminal_write_was_lost_is_finished_by_the_sweep() {
    let sim = Sim::with(alone, |fake| fake).await;
    let home = sim.up(MachineMode::Persistent).await;
    let owner = sim.here.owner(home.machine);
    // The delete takes effect, and its owner dies before it can say so.
    sim.fake.plan(Op::Destroy, Fault::Slow(Duration::from_secs(30)));
    let crash = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(reset()), crash);
    tokio::time::sleep(2 * MINUTE).await;
    assert!(sim.fake.machines().is_empty());
    assert!(
        sim.row(home).await.is_counted(),
        "refused and counted until somebody knows"
    );
    let passes = start(&sim);
    assert_eq!(passes.sweep().await.done, 1);
    assert_eq!(sim.status(home).await, MachineStatus::Terminated);
    passes.stop().await;
}

#[actix::test]
async fn r_22_a_slow_healthy_delete_is_not_doubled_by_the_sweep() {
    let hasty = |settings: &mut Settings| {
        alone(settings);
        settings.teardown_grace = Duration::from_secs(30);
    };
    let sim = Sim::with(hasty, |fake| fake).await;
    let home = sim.up(MachineMode::Persistent).await;
    sim.fake.plan(Op::Destroy, Fault::Slow(Duration::from_secs(100)));
    let passes = start(&sim);
    let pass = async {
        tokio::time::sleep(MINUTE).await;
        passes.sweep().await
    };
    let (_, tally) = tokio::join!(sim.reset(home), pass);
    assert_eq!(tally.candidates, 0, "its lease lives");
    sim.until(home, |row| row.status == MachineStatus::Terminated).await;
    assert_eq!(sim.fake.requests(Op::Destroy), 1);
    passes.stop().await;
}

#[actix::test]
async fn r_35_an_expiry_that_is_refused_is_counted_as_refused() {
    let aged = |settings: &mut Settings| {
        alone(settings);
        settings.max_lifetime = Some(60 * MINUTE);
    };
    let sim = Sim::with(aged, |fake| fake).await;
    let home = sim.up(MachineMode::Ephemeral).await;
    tokio::time::sleep(61 * MINUTE).await;
    sim.fake
        .plan(Op::Destroy, Fault::Refused(SandboxError::Unavailable("down".into())));
    let tally = reap(&sim).await;
    assert_eq!((tally.done, tally.refused), (0, 1));
    assert!(sim.row(home).await.is_counted());
}

#[actix::test]
async fn p9_rows_that_never_clear_do_not_starve_the_rest() {
    let narrow = |settings: &mut Settings| {
        alone(settings);
        settings.sweep_attempts = 2;
    };
    let sim = Sim::with(narrow, |fake| fake).await;
    let mut homes = Vec::new();
    for _ in 0..3 {
        homes.push(sim.up(MachineMode::Persistent).await);
    }
    let down = || Fault::Refused(SandboxError::Unavailable("down".into()));
    for home in &homes {
        sim.fake.plan(Op::Destroy, down());
        assert!(sim.reset(*home).await.is_err());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(6 * MINUTE).await;
    let passes = start(&sim);
    // The oldest two refuse, and go behind the third.
    sim.fake.plan(Op::Destroy, down());
    sim.fake.plan(Op::Destroy, down());
    assert_eq!(passes.sweep().await.refused, 2);
    assert_eq!(passes.sweep().await.done, 1);
    assert_eq!(sim.status(homes[2]).await, MachineStatus::Terminated);
    passes.stop().await;
}

#[actix::test]
async fn p30_rul_l_51_a_provider_that_lists_nothing_changes_no_row() {
    let sim = Sim::with(alone, |fake| fake).await;
    let asleep = sim.asleep(MachineMode::Persistent).await;
    let homes = [asleep, sim.up(MachineMode::Persistent).await];
    let mut before = Vec::new();
    for home in homes {
        before.push(sim.row(home).await);
        sim.fake.lose(&sim.row(home).await.name);
    }
    let destroys = sim.fake.requests(Op::Destroy);
    assert_eq!(reap(&sim).await, Tally::default());
    for (home, row) in homes.into_iter().zip(before) {
        assert_eq!(sim.row(home).await, row);
    }
    assert_eq!(sim.fake.requests(Op::Destroy), destroys);
}
