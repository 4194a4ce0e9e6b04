//! The clocks over a build that is stuck (lifecycle 4.6, RUL-L-31, RUL-L-59).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fountain::store::Turnstile;
use fountain::store::backend::Access;
use fountain_actors::directory::{Engine, Placement};
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{Machine, MachineStatus};
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::*;
use fountain_actors::doors::{Doors, LaunchRequest};
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::ports::World;
use fountain_actors::ports::store::machines::{Claim, ClaimAnswer, MachineStore, Purpose};
use fountain_actors::ports::store::{StoreError, TurnStore};
use futures_util::future::LocalBoxFuture;
use tokio::time::Instant;

use crate::conversation_bench::{Bench, text};

/// Keeps the first call of one verb for ever.
struct Swallow {
    op: &'static str,
    has_eaten: AtomicBool,
}

impl Swallow {
    fn first(op: &'static str) -> Arc<Self> {
        Arc::new(Self {
            op,
            has_eaten: AtomicBool::new(false),
        })
    }
}

impl Turnstile for Swallow {
    fn enter(&self, op: &'static str) -> LocalBoxFuture<'_, Result<(), StoreError>> {
        if op == self.op && !self.has_eaten.swap(true, Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn leave(&self, _: &'static str, _: Access) -> LocalBoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A process whose builds get stuck in this verb.
fn stuck_in(bench: &Bench, op: &'static str) -> Engine {
    let world = World {
        store: Arc::new(bench.store.through(Swallow::first(op))),
        holder: "stuck/1".into(),
        ..bench.world.clone()
    };
    Engine::start(world, Placement::Current)
}

async fn launch(bench: &Bench, engine: &Engine) -> (ConversationId, MachineId) {
    let request = LaunchRequest {
        prompt: Some(text("hello")),
        ..bench.request()
    };
    let view = engine.launch(bench.caller.clone(), request).await.unwrap().view;
    (view.conversation.id, view.machine.id)
}

async fn row(bench: &Bench, machine: MachineId) -> Machine {
    bench.store.machine(machine).await.unwrap().unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);

#[actix::test]
async fn inv_26_rul_l_31_a_build_that_is_stuck_at_its_ceiling_fails_first_and_is_stopped_then() {
    let bench = Bench::new().await;
    let engine = stuck_in(&bench, "machine.finish");
    bench.sandbox.plan(Op::Create, Fault::NoAnswer);
    bench.sandbox.plan(Op::Create, Fault::NoAnswer);
    bench.sandbox.plan(Op::Create, Fault::NoAnswer);
    let began = Instant::now();
    let (id, machine) = launch(&bench, &engine).await;
    tokio::time::sleep_until(began + 31 * MINUTE).await;
    assert!(!row(&bench, machine).await.status.is_terminal());
    assert!(engine.is_live(id), "not before the row is terminal (R-45)");
    while engine.is_live(id) {
        assert!(began.elapsed() < 60 * MINUTE, "the server was never stopped");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The ceiling, the grace, and at most the wait for the lease.
    let took = began.elapsed();
    assert!((31 * MINUTE..=35 * MINUTE).contains(&took), "after {took:?}");
    assert_eq!(row(&bench, machine).await.status, MachineStatus::Failed);
    let turns = bench.store.turns(bench.caller.account_id(), id).await.unwrap();
    assert_eq!(turns[0].status, TurnStatus::Failed);
    assert_eq!(bench.view(id).await.conversation.status, ConversationStatus::Idle);
    assert_eq!(
        bench.stages(id, "").await,
        ["provision/started", "provision/failed", "turn/failed"]
    );
    // Nothing was final: the next prompt builds anew.
    bench.prompt(id, "again").await.unwrap();
    assert_eq!(bench.ended(id, 2).await.status, TurnStatus::Completed);
    engine.freeze();
    bench.close().await;
}

#[actix::test]
async fn inv_25_rul_l_59_a_lease_that_is_not_to_be_had_ends_the_watch_after_a_quarter_of_an_hour() {
    let bench = Bench::new().await;
    let engine = stuck_in(&bench, "machine.claim");
    let began = Instant::now();
    let (id, machine) = launch(&bench, &engine).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let claim = Claim {
        machine_id: machine,
        holder: "foreign/1".into(),
        ttl: 120 * MINUTE,
        purpose: Purpose::Provision,
        operation_id: bench.world.id(),
        actor: fountain_actors::domain::account::Actor::System("test"),
        stages: Vec::new(),
        now: bench.world.now(),
    };
    let answer = bench.store.claim(claim).await.unwrap().value;
    assert!(matches!(answer, ClaimAnswer::Claimed(_)));
    let limit = 30 * MINUTE + Duration::from_secs(90 + 150) + 15 * MINUTE;
    tokio::time::sleep_until(began + limit - MINUTE).await;
    assert!(engine.is_live(id));
    tokio::time::sleep_until(began + limit + MINUTE).await;
    assert!(!engine.is_live(id), "stopped anyway");
    let left = row(&bench, machine).await;
    assert_eq!(
        left.status,
        MachineStatus::Pending,
        "the row is left to the hourly pass"
    );
    assert_eq!(left.lease.unwrap().holder, "foreign/1");
    engine.freeze();
}

#[actix::test]
async fn r_45_a_build_that_settled_meanwhile_is_left_alone() {
    let bench = Bench::new().await;
    let (id, machine) = launch(&bench, &bench.engine).await;
    bench.ended(id, 1).await;
    let before = row(&bench, machine).await;
    tokio::time::sleep(50 * MINUTE).await;
    let after = row(&bench, machine).await;
    assert_eq!(
        (after.status, after.lease_epoch),
        (MachineStatus::Ready, before.lease_epoch)
    );
    assert!(bench.engine.is_live(id));
    bench.close().await;
}
