//! Building: M1 to M6, adoption, remnants, fences and the ceiling (lifecycle 4.4, RUL-L-21, RUL-L-22).

use std::time::Duration;

use crate::world::*;
use fountain_actors::domain::account::Actor;
use fountain_actors::domain::event::Stage;
use fountain_actors::domain::machine::{DestroyReason, MachineMode, MachineState, MachineStatus};
use fountain_actors::domain::operation::Outcome;
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::machine::messages::*;
use fountain_actors::ports::sandbox::{Capability, NetworkPolicy, SandboxError};
use fountain_actors::ports::store::machines::{Fence, MachineStore};

fn failure(answer: Result<Provisioned, ProvisionError>) -> ProvisionFailure {
    match answer {
        Err(ProvisionError::Failed(failure)) => failure,
        other => panic!("the build should have failed: {other:?}"),
    }
}

fn down() -> Fault {
    Fault::Refused(SandboxError::Unavailable("down".into()))
}

#[actix::test]
async fn m2_m3_m4_a_build_ends_ready_with_its_fingerprint_and_no_lease() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let built = sim.build(home).await.unwrap();
    assert!(built.built);
    let row = sim.row(home).await;
    assert_eq!(row.status, MachineStatus::Ready);
    assert_eq!(row.build_fingerprint.as_deref(), Some("fingerprint"));
    assert_eq!((row.transition, &row.lease), (None, &None));
    assert_eq!(sim.stages(home).await, ["provision/started", "provision/done"]);
    let (content, mode) = sim.fake.file(&row.name, ENV_FILE).unwrap();
    assert_eq!((content.as_ref(), mode), (b"A='1'\n".as_slice(), Some(0o600)));
    let journal = sim.journal(home).await;
    assert_eq!(journal.len(), 1);
    assert_eq!(journal[0].outcome, Some(Outcome::Done));
    assert_eq!(journal[0].provider_call.as_deref(), Some("create,write_file"));
}

#[actix::test]
async fn inv_08_every_effect_carries_the_epoch_of_the_lease() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let epoch = sim.row(home).await.lease_epoch;
    let effects: Vec<_> = sim
        .fake
        .log()
        .into_iter()
        .filter(|entry| entry.epoch.is_some())
        .collect();
    assert!(
        effects.iter().any(|entry| entry.op == Op::Create) && effects.iter().any(|entry| entry.op == Op::WriteFile)
    );
    assert!(effects.iter().all(|entry| entry.epoch == Some(epoch)), "{effects:?}");
}

#[actix::test]
async fn a_machine_that_is_ready_is_not_built_again() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    assert!(!sim.build(home).await.unwrap().built);
    assert_eq!(sim.fake.requests(Op::Create), 1);
}

#[actix::test]
async fn rul_14_inv_28_limited_networking_without_policy_support_calls_no_provider() {
    let sim = Sim::with(|_| {}, |fake| fake.without(Capability::NetworkPolicy)).await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let mut ask = sim.provision(home).await;
    ask.plan.policy = Some(NetworkPolicy { allow: Vec::new() });
    let failure = failure(sim.here.owner(home.machine).send(ask).await.unwrap());
    assert_eq!(
        (failure.stage, failure.reason.as_str()),
        (Stage::Network, "backend_lacks_network_policy")
    );
    assert_eq!(
        sim.stages(home).await,
        ["provision/started", "network/failed", "provision/failed"]
    );
    assert!(sim.fake.log().is_empty());
    let row = sim.row(home).await;
    assert_eq!((row.status, row.cleanup_pending), (MachineStatus::Failed, false));
}

#[actix::test]
async fn rul_52_a_part_that_cannot_be_built_yet_fails_its_own_stage_before_anything_is_created() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let mut ask = sim.provision(home).await;
    ask.plan.unsupported = vec![Unsupported {
        stage: Stage::Packages,
        message: "packages cannot be installed yet".into(),
    }];
    let failure = failure(sim.here.owner(home.machine).send(ask).await.unwrap());
    assert_eq!(
        (failure.stage, failure.reason.as_str()),
        (Stage::Packages, "not_supported")
    );
    assert_eq!(
        sim.stages(home).await,
        ["provision/started", "packages/failed", "provision/failed"]
    );
    assert!(sim.fake.log().is_empty());
}

#[actix::test]
async fn inv_29_an_empty_allow_list_is_applied_and_read_back() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let mut ask = sim.provision(home).await;
    let nothing = NetworkPolicy { allow: Vec::new() };
    ask.plan.policy = Some(nothing.clone());
    sim.here.owner(home.machine).send(ask).await.unwrap().unwrap();
    assert_eq!(sim.fake.policy(&sim.row(home).await.name), Some(nothing));
    assert_eq!(sim.fake.requests(Op::PolicyRead), 1);
    let stages = sim.stages(home).await;
    assert_eq!(
        stages,
        ["provision/started", "network/started", "network/done", "provision/done"]
    );
}

#[actix::test]
async fn m5_a_failed_step_deletes_what_was_made() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    sim.fake
        .plan(Op::WriteFile, Fault::Refused(SandboxError::Denied("read-only".into())));
    let failure = failure(sim.build(home).await);
    assert_eq!(failure.reason, "write_failed");
    let row = sim.row(home).await;
    assert_eq!((row.status, row.cleanup_pending), (MachineStatus::Failed, false));
    assert!(sim.fake.machines().is_empty());
    assert_eq!(sim.stages(home).await, ["provision/started", "provision/failed"]);
}

#[actix::test]
async fn rul_l_21_a_delete_that_is_not_confirmed_is_owed_counted_and_paid_by_the_sweep() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    sim.fake
        .plan(Op::WriteFile, Fault::Refused(SandboxError::Denied("read-only".into())));
    sim.fake.plan(Op::Destroy, down());
    failure(sim.build(home).await);
    let row = sim.row(home).await;
    assert_eq!((row.status, row.cleanup_pending), (MachineStatus::Failed, true));
    assert!(row.is_counted());
    assert_eq!(sim.fake.machines(), std::slice::from_ref(&row.name));
    let paid = sim
        .here
        .owner(home.machine)
        .send(Destroy { actor: Actor::Api })
        .await
        .unwrap();
    assert!(matches!(paid, Ok(Destroyed::Destroyed(row)) if !row.cleanup_pending && !row.is_counted()));
    assert!(sim.fake.machines().is_empty());
}

#[actix::test]
async fn rul_l_21_a_create_that_was_refused_owes_nothing() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    sim.fake
        .plan(Op::Create, Fault::Refused(SandboxError::Denied("no money".into())));
    assert_eq!(failure(sim.build(home).await).reason, "create_failed");
    assert!(!sim.row(home).await.cleanup_pending);
    assert_eq!((sim.fake.requests(Op::Create), sim.fake.requests(Op::Destroy)), (1, 0));
}

#[actix::test]
async fn r_40_inv_20_a_second_builder_stands_down_without_one_provider_call() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    sim.fake.plan(Op::Create, Fault::Slow(Duration::from_secs(30)));
    let (first, second) = (sim.provision(home).await, sim.provision(home).await);
    let other = sim.node("other/1");
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answer = other.owner(home.machine).send(second).await.unwrap();
        (answer, sim.fake.log().len())
    };
    let (first, (second, calls)) = tokio::join!(sim.here.owner(home.machine).send(first), late);
    assert!(matches!(second, Err(ProvisionError::ClaimedElsewhere)));
    assert_eq!(calls, 1, "only the first builder's create was on its way");
    assert!(first.unwrap().is_ok());
    assert_eq!(sim.stages(home).await, ["provision/started", "provision/done"]);
}

#[actix::test]
async fn rul_l_22_what_this_build_made_before_its_answer_was_lost_is_taken() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let name = sim.row(home).await.name;
    sim.fake.plan(Op::Create, Fault::LostAnswer);
    sim.build(home).await.unwrap();
    assert_eq!(sim.fake.machines(), [name]);
    assert_eq!((sim.fake.requests(Op::Create), sim.fake.requests(Op::Destroy)), (2, 0));
}

#[actix::test]
async fn rul_l_22_inv_60_a_stranger_with_a_minted_name_is_left_alone() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let minted = sim.row(home).await.name;
    sim.fake.plan(Op::Create, Fault::Exists);
    // The stranger costs somebody money; a listing is what tells operators of it (RUL-L-53), and none runs here.
    // The journal row follows the rename, so the first create stands under a name that it does not have any more.
    sim.excuse("INV-08");
    sim.excuse("INV-117");
    sim.build(home).await.unwrap();
    let row = sim.row(home).await;
    assert_ne!(row.name, minted);
    assert_eq!(sim.fake.machines().len(), 2);
    assert_eq!(sim.fake.requests(Op::Destroy), 0);
}

#[actix::test]
async fn rul_l_22_a_name_that_the_user_chose_means_the_machine_that_has_it() {
    let sim = Sim::start().await;
    let home = sim
        .launch_named(MachineMode::Persistent, Some("fountain-mine-box"))
        .await;
    sim.fake.plan(Op::Create, Fault::Exists);
    sim.build(home).await.unwrap();
    assert_eq!(sim.row(home).await.name, "fountain-mine-box");
    assert_eq!(sim.fake.machines(), ["fountain-mine-box"]);
}

#[actix::test]
async fn r_41_r_42_inv_21_a_rebuild_deletes_the_remnant_and_gives_up_its_name() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let old = sim.row(home).await.name;
    let ask = sim.provision(home).await;
    // Dies with the create on its way: the row never became `starting`, and the machine comes into being all the same.
    sim.fake.plan(Op::Create, Fault::Slow(Duration::from_secs(20)));
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (died, ()) = tokio::join!(owner.send(ask), crash);
    assert!(!matches!(died, Ok(Ok(_))));
    tokio::time::sleep(Duration::from_secs(61)).await;
    let row = sim.row(home).await;
    assert_eq!(row.state(sim.now()), MachineState::BuildStale);
    assert_eq!(sim.fake.machines(), std::slice::from_ref(&old));
    sim.build(home).await.unwrap();
    let row = sim.row(home).await;
    assert_eq!(row.status, MachineStatus::Ready);
    assert_ne!(
        row.name, old,
        "a late call of the old build must hit a name that nobody uses"
    );
    assert_eq!(sim.fake.machines(), [row.name]);
    assert_eq!(sim.fake.requests(Op::Destroy), 1);
}

#[actix::test]
async fn rul_l_22_a_remnant_that_cannot_be_deleted_fails_the_build_and_is_owed() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let owner = sim.here.owner(home.machine);
    let ask = sim.provision(home).await;
    sim.fake.plan(Op::WriteFile, Fault::Slow(Duration::from_secs(20)));
    let crash = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(ask), crash);
    tokio::time::sleep(Duration::from_secs(61)).await;
    sim.fake.plan(Op::Destroy, down());
    sim.fake.plan(Op::Destroy, down());
    assert_eq!(failure(sim.build(home).await).reason, "remnant_not_deleted");
    let row = sim.row(home).await;
    assert_eq!((row.status, row.cleanup_pending), (MachineStatus::Failed, true));
    assert_eq!(sim.fake.requests(Op::Create), 1, "never two machines for one row");
}

#[actix::test]
async fn inv_23_r_43_a_fence_during_a_build_wins_and_the_machine_goes() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    sim.fake.plan(Op::Create, Fault::Slow(Duration::from_secs(10)));
    let ask = sim.provision(home).await;
    let fence = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let fence = Fence {
            machine_id: home.machine,
            reason: DestroyReason::Terminated,
            actor: Actor::Api,
            request_ip: None,
            reset: false,
            now: sim.now(),
        };
        sim.store.fence(fence).await.unwrap();
    };
    let (built, ()) = tokio::join!(sim.here.owner(home.machine).send(ask), fence);
    assert!(matches!(built.unwrap(), Err(ProvisionError::Doomed)));
    // The owner goes on by itself (RUL-L-25).
    let row = sim.until(home, |row| row.status.is_terminal()).await;
    assert_eq!(row.status, MachineStatus::Terminated);
    assert!(sim.fake.machines().is_empty());
    assert!(!sim.stages(home).await.contains(&"provision/done".to_owned()));
}

#[actix::test]
async fn p34_rul_l_31_the_ceiling_ends_a_build_that_hangs() {
    let sim = Sim::with(
        |settings| settings.provision_ceiling = Duration::from_secs(90),
        |fake| fake,
    )
    .await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    sim.fake.plan(Op::WriteFile, Fault::NoAnswer);
    let failure = failure(sim.build(home).await);
    assert!(failure.at_ceiling);
    assert_eq!(failure.reason, "deadline_exceeded");
    assert_eq!(sim.status(home).await, MachineStatus::Failed);
    assert!(sim.fake.machines().is_empty());
}

#[actix::test]
async fn inv_24_a_superseded_builder_writes_nothing_and_deletes_nothing() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Persistent).await;
    let ask = sim.provision(home).await;
    sim.fake.plan(Op::Create, Fault::Slow(Duration::from_secs(30)));
    let other = sim.node("other/1");
    let takeover = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        // As a boot that has the file's lock does: no other holder can live. It does not wait for what the other sent.
        sim.excuse("RUL-L-5");
        sim.store.end_dead_leases("other/1".into()).await.unwrap();
        let ask = sim.provision(home).await;
        other.owner(home.machine).send(ask).await.unwrap()
    };
    let (first, second) = tokio::join!(sim.here.owner(home.machine).send(ask), takeover);
    assert!(matches!(first.unwrap(), Err(ProvisionError::ClaimedElsewhere)));
    let built = second.unwrap();
    let row = sim.row(home).await;
    assert_eq!((row.status, &row.name), (MachineStatus::Ready, &built.machine.name));
    assert_eq!(
        sim.fake.requests(Op::Destroy),
        1,
        "the taker deleted the remnant, the loser nothing"
    );
    let journal = sim.journal(home).await;
    assert!(
        journal
            .iter()
            .any(|operation| operation.outcome == Some(Outcome::Superseded)),
        "{journal:?}"
    );
}

#[actix::test]
async fn m6_a_build_that_nobody_carries_is_ended_once() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let fail = FailBuild {
        conversation: Some(home.conversation),
        reason: "start_failed".into(),
        message: "no server could be started".into(),
        actor: Actor::System("launch"),
    };
    let owner = sim.here.owner(home.machine);
    let row = owner.send(fail.clone()).await.unwrap().unwrap();
    assert_eq!((row.status, row.cleanup_pending), (MachineStatus::Failed, false));
    assert_eq!(owner.send(fail).await.unwrap().unwrap().status, MachineStatus::Failed);
    assert!(sim.fake.log().is_empty(), "nothing was ever created");
    assert_eq!(sim.stages(home).await, ["provision/failed"]);
}
