//! Leases: how long they live, who renews them, and what a dropped operation leaves (lifecycle 3.3; RUL-L-1, RUL-L-5).

use std::time::Duration;

use crate::world::*;
use fountain_actors::domain::machine::{MachineMode, MachineState, MachineStatus};
use fountain_actors::domain::operation::Outcome;
use fountain_actors::fakes::{Fault, Logged, Op};
use fountain_actors::machine::MachineActor;
use fountain_actors::machine::messages::*;
use fountain_actors::ports::sandbox::SandboxError;
use fountain_actors::ports::store::machines::MachineStore;

const LONG: Duration = Duration::from_secs(110);

/// Sends `ask` and kills its owner after `delay`.
async fn killed<M>(sim: &Sim, home: Home, ask: M, delay: Duration)
where
    M: actix::Message + Send + 'static,
    M::Result: Send,
    MachineActor: actix::Handler<M>,
{
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(delay).await;
        abandon(&owner).await;
    };
    let (_, ()) = tokio::join!(owner.send(ask), crash);
}

async fn abandon(owner: &actix::Addr<MachineActor>) {
    owner.send(Abandon).await.unwrap();
}

#[actix::test]
async fn r_08_inv_10_a_call_that_outlives_the_ttl_keeps_its_lease() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::Slow(LONG));
    let other = sim.node("other/1");
    let intruder = async {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let answer = other.owner(home.machine).send(sim.ensure_up(home)).await.unwrap();
            assert!(matches!(answer, Err(MachineError::Busy)), "{answer:?}");
        }
    };
    let (_, ()) = tokio::join!(sim.wake(home), intruder);
    sim.until(home, |row| row.status == MachineStatus::Ready).await;
    assert_eq!(sim.fake.requests(Op::Resume), 1);
}

#[actix::test]
async fn r_09_inv_09_an_operation_that_dies_between_two_calls_gives_its_lease_back() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let ask = sim.provision(home).await;
    // It dies while it waits before the second try.
    sim.fake.plan(
        Op::Create,
        Fault::Refused(SandboxError::RateLimited { retry_after_s: None }),
    );
    killed(&sim, home, ask, Duration::from_millis(50)).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let row = sim.row(home).await;
    assert_eq!((row.state(sim.now()), &row.lease), (MachineState::BuildStale, &None));
    assert!(sim.build(home).await.is_ok(), "claimable again at once");
}

#[actix::test]
async fn rul_l_5_an_operation_that_dies_over_a_call_lets_its_lease_lapse() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let ask = sim.provision(home).await;
    sim.fake.plan(Op::Create, Fault::Slow(LONG));
    killed(&sim, home, ask, Duration::from_secs(30)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let row = sim.row(home).await;
    assert_eq!(
        row.state(sim.now()),
        MachineState::Building,
        "the create may still take effect"
    );
    let until = row.lease.unwrap().until;
    assert!(until - sim.now() <= chrono::TimeDelta::seconds(60));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let row = sim.row(home).await;
    assert_eq!(row.state(sim.now()), MachineState::BuildStale);
    assert_eq!(row.lease.unwrap().until, until, "nobody renews for a dead operation");
}

#[actix::test]
async fn inv_09_no_lease_is_renewed_for_longer_than_ten_ttls() {
    let short = |settings: &mut fountain_actors::domain::settings::Settings| {
        settings.lease_ttl = Duration::from_secs(6);
        settings.guard_headroom = Duration::from_secs(1);
    };
    let sim = Sim::with(short, |fake| fake).await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.fake.plan(Op::Resume, Fault::Slow(LONG));
    let began = tokio::time::Instant::now();
    assert!(sim.wake(home).await.is_err());
    tokio::time::sleep_until(began + Duration::from_secs(55)).await;
    assert!(sim.row(home).await.lease_live(sim.now()));
    tokio::time::sleep_until(began + Duration::from_secs(67)).await;
    assert!(!sim.row(home).await.lease_live(sim.now()));
}

#[actix::test]
async fn inv_15_a_renewal_does_not_move_updated_at() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let ask = sim.provision(home).await;
    sim.fake.plan(Op::Create, Fault::Slow(LONG));
    let owner = sim.here.owner(home.machine);
    let look = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let early = sim.row(home).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        (early, sim.row(home).await)
    };
    let (_, (early, late)) = tokio::join!(owner.send(ask), look);
    assert_eq!(early.updated_at, late.updated_at);
    assert!(late.lease.unwrap().until > early.lease.unwrap().until);
}

#[actix::test]
async fn inv_115_a_holder_that_lost_its_lease_sends_no_further_effect() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let ask = sim.provision(home).await;
    sim.fake.plan(Op::Create, Fault::Slow(Duration::from_secs(25)));
    let lose = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        sim.store.end_dead_leases("other/1".into()).await.unwrap();
    };
    let (built, ()) = tokio::join!(sim.here.owner(home.machine).send(ask), lose);
    assert!(matches!(built.unwrap(), Err(ProvisionError::ClaimedElsewhere)));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let sent: Vec<_> = sim
        .fake
        .log()
        .into_iter()
        .filter(|entry| entry.what == Logged::Requested)
        .collect();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sim.journal(home).await[0].outcome, Some(Outcome::Superseded));
}

#[actix::test]
async fn inv_03_epochs_grow_with_every_claim() {
    let sim = Sim::start().await;
    let home = sim.asleep(MachineMode::Persistent).await;
    sim.wake(home).await.unwrap();
    sim.reset(home).await.unwrap();
    let mut epochs: Vec<_> = sim
        .journal(home)
        .await
        .iter()
        .map(|operation| operation.epoch)
        .collect();
    epochs.reverse();
    assert_eq!(epochs.len(), 4);
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
}

#[actix::test]
async fn an_owner_without_work_stops_and_the_next_one_starts_from_the_row() {
    let sim = Sim::start().await;
    let home = sim.up(MachineMode::Persistent).await;
    let owner = sim.here.owner(home.machine);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert!(owner.connected());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!owner.connected());
    assert!(matches!(sim.wake(home).await, Ok(Usable::AlreadyUp(_))));
}
