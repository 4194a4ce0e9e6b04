//! Several processes: who counts as alive, who takes over, who gives way (lifecycle 3.6 to 3.9; RUL-L-5 to 8, RUL-L-50).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fountain::store::Turnstile;
use fountain::store::backend::Access;
use fountain_actors::directory::{Engine, Placement, ShutdownKind};
use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::{ConversationId, ErrorCode};
use fountain_actors::doors::Doors;
use fountain_actors::fakes::{AgentStep, FakeAgent, Fault, Op};
use fountain_actors::machine::messages::{Abandon, ProvisionError};
use fountain_actors::passes::{Passes, Replica};
use fountain_actors::ports::World;
use fountain_actors::ports::store::replicas::Resident;
use fountain_actors::ports::store::{ReplicaStore, StoreError};
use fountain_actors::runner::RunnerRegistry;
use futures_util::future::LocalBoxFuture;
use tokio::time::Instant;

use crate::conversation_bench::{Bench, text};
use crate::conversation_recovery::on_a_runner;
use crate::world::Sim;

/// Says numbered lines, one a second, then ends its turn.
fn counting(lines: usize) -> FakeAgent {
    FakeAgent::new(move |_| {
        let line = |n: usize| {
            [
                AgentStep::Say(format!("<{n}>")),
                AgentStep::Sleep(Duration::from_secs(1)),
            ]
        };
        let mut steps: Vec<_> = (0..lines).flat_map(line).collect();
        steps.push(AgentStep::Stop("end_turn"));
        steps
    })
}

fn counted(lines: usize) -> String {
    (0..lines).map(|n| format!("<{n}>")).collect()
}

/// Another process over the same rows and provider, with its passes.
struct Other {
    engine: Engine,
    passes: Passes,
}

impl Other {
    async fn boot(bench: &Bench, holder: &str) -> Self {
        Self::of(World {
            holder: holder.into(),
            ..bench.world.clone()
        })
        .await
    }

    async fn of(world: World) -> Self {
        let engine = Engine::start(world, Placement::Current);
        engine.boot().await.unwrap();
        let passes = Passes::of(&engine);
        Self { engine, passes }
    }

    async fn close(self) {
        self.passes.stop().await;
        self.engine.shutdown(ShutdownKind::Drain).await;
        self.engine.freeze();
    }
}

/// Waits for a level, some virtual minutes at most, and answers how long it took.
async fn until(what: &str, level: impl AsyncFn() -> bool) -> Duration {
    let began = Instant::now();
    while !level().await {
        assert!(began.elapsed() < Duration::from_secs(600), "{what} was not reached");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    began.elapsed()
}

async fn holder_of(bench: &Bench, id: ConversationId) -> Option<String> {
    let home = bench.store.home(Resident::Conversation(id), bench.world.now()).await;
    home.unwrap().map(|member| member.holder)
}

#[actix::test]
async fn rul_l_7_r_102_a_process_that_died_without_a_word_is_taken_for_alive_for_twenty_seconds_and_then_replaced() {
    let bench = Bench::with(counting(120)).await;
    bench.engine.boot().await.unwrap();
    let other = Other::boot(&bench, "other/1").await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<5>").await;
    assert_eq!(holder_of(&bench, id).await.as_deref(), Some("replica/1"));
    assert!(
        Replica::is_live(&other.engine, id).await,
        "no local map is asked (INV-110)"
    );
    other.passes.adopt().await;
    assert!(!other.engine.is_live(id), "a server that lives elsewhere is left alone");

    bench.engine.freeze();
    let waited = until("the adoption", async || other.engine.is_live(id)).await;
    // Its last heartbeat may be five seconds old; the pass looks every ten.
    let bounds = Duration::from_secs(15)..=Duration::from_secs(32);
    assert!(bounds.contains(&waited), "adopted after {waited:?}");
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, counted(120));
    assert_eq!(bench.sandbox.requests(Op::Spawn), 1, "the process went on");
    assert_eq!(holder_of(&bench, id).await.as_deref(), Some("other/1"));
    other.close().await;
}

#[actix::test]
async fn rul_l_50_rul_l_5_what_a_process_hands_over_is_adopted_at_once_and_nothing_of_it_stays() {
    let bench = Bench::with(counting(60)).await;
    bench.engine.boot().await.unwrap();
    let other = Other::boot(&bench, "other/1").await;
    tokio::time::sleep(Duration::from_secs(6)).await; // both have seen each other
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<5>").await;
    bench.engine.drain().await;
    bench.engine.shutdown(ShutdownKind::Drain).await;
    let members = bench.store.members(bench.world.now()).await.unwrap();
    let holders: Vec<_> = members.iter().map(|member| member.holder.as_str()).collect();
    assert_eq!(holders, ["other/1"]);
    let machine = bench.view(id).await.machine;
    assert_eq!(machine.lease, None, "its leases are handed back");
    let waited = until("the adoption", async || other.engine.is_live(id)).await;
    assert!(waited <= Duration::from_secs(6), "adopted after {waited:?}");
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(bench.said(id).await, counted(60));
    other.close().await;
}

#[actix::test]
async fn inv_112_r_100_nothing_is_placed_on_a_draining_process_while_another_can_take_it() {
    let bench = Bench::with(counting(600)).await;
    bench.engine.boot().await.unwrap();
    let other = Other::boot(&bench, "other/1").await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<5>").await;
    other.engine.drain().await;
    let refused = other.engine.launch(bench.caller.clone(), bench.request()).await;
    assert_eq!(refused.unwrap_err().code(), ErrorCode::SandboxUnavailable);
    bench.engine.freeze();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!other.engine.is_live(id), "the other one is a member still");
    // Now everybody who is left drains: place anywhere (lifecycle 3.9).
    until("the adoption", async || other.engine.is_live(id)).await;
    other
        .engine
        .launch(bench.caller.clone(), bench.request())
        .await
        .unwrap();
    other.close().await;
}

/// Refuses heartbeats on demand, as a database does that cannot be written.
#[derive(Default)]
struct Mute(AtomicBool);

impl Turnstile for Mute {
    fn enter(&self, op: &'static str) -> LocalBoxFuture<'_, Result<(), StoreError>> {
        let refused = op == "replica.beat" && self.0.load(Ordering::Relaxed);
        Box::pin(std::future::ready(if refused {
            Err(StoreError::Unavailable {
                op,
                detail: "the disk is full".into(),
            })
        } else {
            Ok(())
        }))
    }

    fn leave(&self, _: &'static str, _: Access) -> LocalBoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[actix::test]
async fn rul_l_7_a_process_without_a_heartbeat_for_fifteen_seconds_begins_nothing_until_it_has_one() {
    let bench = Bench::new().await;
    let mute = Arc::new(Mute::default());
    let other = Other::of(World {
        holder: "other/1".into(),
        store: Arc::new(bench.store.through(mute.clone())),
        ..bench.world.clone()
    })
    .await;
    let launch = async || other.engine.launch(bench.caller.clone(), bench.request()).await;
    let id = launch().await.unwrap().view.conversation.id;
    mute.0.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(other.engine.is_member());
    launch().await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(!other.engine.is_member());
    assert_eq!(launch().await.unwrap_err().code(), ErrorCode::StoreUnavailable);
    let refused = other.engine.prompt(bench.caller.clone(), id, text("hello")).await;
    assert_eq!(refused.unwrap_err().code(), ErrorCode::StoreUnavailable);
    assert!(!Replica::may_adopt(&other.engine));
    mute.0.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(other.engine.is_member());
    launch().await.unwrap();
    other.close().await;
}

#[actix::test]
async fn rul_l_50_a_runner_that_registers_elsewhere_takes_its_conversations_with_it_and_they_stay() {
    let (bench, _first, runner) = on_a_runner(counting(90)).await;
    bench.engine.boot().await.unwrap();
    let passes = Passes::of(&bench.engine);
    let second = Arc::new(RunnerRegistry::<()>::default());
    let other = Other::of(World {
        holder: "other/1".into(),
        runners: second.clone(),
        ..bench.world.clone()
    })
    .await;
    let id = bench.launch(Some("count")).await.unwrap().view.conversation.id;
    bench.heard(id, "<5>").await;
    // The old socket is half open: the first process still takes the runner for connected.
    second.register(runner, bench.caller.key_id, ()).unwrap();
    let waited = until("the move", async || {
        holder_of(&bench, id).await.as_deref() == Some("other/1")
    })
    .await;
    assert!(waited <= Duration::from_secs(1), "moved after {waited:?}");
    assert_eq!(bench.ended(id, 1).await.status, TurnStatus::Completed);
    assert_eq!(
        holder_of(&bench, id).await.as_deref(),
        Some("other/1"),
        "the newest connection counts, and nothing goes back and forth"
    );
    assert_eq!(bench.said(id).await, counted(90), "each byte once (INV-120)");
    assert!(!bench.engine.is_live(id), "the older server stood down");
    passes.stop().await;
    other.close().await;
    bench.close().await;
}

#[actix::test]
async fn rul_l_11_a_clock_that_is_set_forward_takes_no_lease_from_an_operation_of_the_same_process() {
    let sim = Sim::start().await;
    let home = sim.launch(MachineMode::Ephemeral).await;
    let ask = sim.provision(home).await;
    sim.fake.plan(Op::Create, Fault::Slow(Duration::from_secs(100)));
    let owner = sim.here.owner(home.machine);
    let crash = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        owner.send(Abandon).await.unwrap();
    };
    let (_, ()) = tokio::join!(owner.send(ask), crash);
    // The provider's log does not know the wall clock, by which the journal is dated.
    sim.excuse("INV-08");
    // An hour passes on the wall, and none here: the create is still on its way.
    sim.clock.jump(Duration::from_secs(3600));
    assert!(!sim.row(home).await.lease_live(sim.now()), "dead by the rows");
    assert!(matches!(sim.build(home).await, Err(ProvisionError::ClaimedElsewhere)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(sim.build(home).await.is_ok(), "once it has lapsed here too");
}
