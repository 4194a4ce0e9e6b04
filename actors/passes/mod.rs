//! What sweeps up after everyone: a timer, an activation without input, and the rows (lifecycle 7, RUL-63).
//!
//! A pass holds nothing but its lease ([`lease`]): one process of a deployment runs it at a time (RUL-L-56). Its
//! activation carries no input, so that a lost one, a doubled one and one from another incarnation mean the same: look at
//! the rows and do what is due. It never acts on a machine itself; it asks the machine's owner, who claims, re-reads and
//! may refuse. One run at a time; activations during a run become one more.

mod adoption;
mod credits;
mod debts;
mod expiry;
mod lease;
mod overdue;
mod permissions;
mod queue;
pub mod reaper;
mod retention;
mod schedules;
mod stuck_turns;
mod sweep;

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

use crate::directory::Engine;
use crate::domain::{ConversationId, MachineId, Moment};
use crate::machine::MachineActor;
use crate::ports::World;
use lease::PassLease;

/// What a pass needs from its replica. Implemented by the directory.
///
/// Whether a server lives is judged from the rows of the whole deployment, never from one process's memory (INV-110); a
/// server that lives here counts at once. Where the rows cannot be read the answer is yes: nothing is done about it.
pub trait Replica: Send + Sync {
    /// Starts a server for a conversation with an open turn on this machine, unless one lives.
    fn adopt(&self, conversation: ConversationId, machine: MachineId);
    /// A server of this conversation lives, in this process or in another that is a member (RUL-L-7).
    fn is_live(&self, conversation: ConversationId) -> LocalBoxFuture<'_, bool>;
    /// A server of some conversation on this machine lives.
    fn is_occupied(&self, machine: MachineId) -> LocalBoxFuture<'_, bool>;
    /// Whether servers may be started here now (RUL-L-7, INV-112).
    fn may_adopt(&self) -> bool {
        true
    }
    /// Ticks when another process went or hands over. None: there are no others.
    fn handovers(&self) -> Option<watch::Receiver<u64>> {
        None
    }
    /// The machine's owner, started if there is none.
    fn owner(&self, machine: MachineId) -> Addr<MachineActor>;
    /// The doors, for passes that launch and prompt. None: those passes only tidy up.
    fn engine(&self) -> Option<Engine> {
        None
    }
}

impl Replica for Engine {
    fn adopt(&self, conversation: ConversationId, machine: MachineId) {
        self.serve(conversation, machine);
    }

    fn is_live(&self, conversation: ConversationId) -> LocalBoxFuture<'_, bool> {
        Box::pin(self.lives_anywhere(conversation))
    }

    fn is_occupied(&self, machine: MachineId) -> LocalBoxFuture<'_, bool> {
        Box::pin(self.is_occupied_anywhere(machine))
    }

    fn may_adopt(&self) -> bool {
        self.may_begin()
    }

    fn handovers(&self) -> Option<watch::Receiver<u64>> {
        Some(Self::handovers(self))
    }

    fn owner(&self, machine: MachineId) -> Addr<MachineActor> {
        self.machine(machine)
    }

    fn engine(&self) -> Option<Engine> {
        Some(self.clone())
    }
}

/// Owners that are asked side by side: a slow provider must not hold up the rest.
const SIDE_BY_SIDE: usize = 8;

/// What a run did. Of the rows it looked at, the rest was left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub candidates: u64,
    /// Things that are done now.
    pub done: u64,
    /// Things that were tried and have to be tried again.
    pub refused: u64,
}

impl Tally {
    fn add(&mut self, step: Step) {
        match step {
            Step::Done => self.done += 1,
            Step::Refused => self.refused += 1,
            Step::Skipped => {}
        }
    }
}

/// What became of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Done,
    Refused,
    /// Not ours to touch now.
    Skipped,
}

/// One kind of sweeping.
trait Pass: 'static {
    const NAME: &'static str;

    /// Every process may run it, at once: its rows are claimed one by one, and what makes it run may be known in one
    /// process only.
    const SHARED: bool = false;

    /// How often it runs by itself.
    fn every(&self) -> Duration;

    /// How long after `now` the timer runs it next. For passes that run at a time of day.
    fn rest(&self, _now: Moment) -> Duration {
        self.every()
    }

    /// One run over all that is due. `lease` is asked before each call of a provider that the run causes.
    fn run(self: Rc<Self>, lease: Rc<PassLease>) -> LocalBoxFuture<'static, Tally>;
}

/// Activates a pass; answered when a run that began after this message has ended.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "Tally")]
pub struct Run;

/// Drives one pass.
struct Driver<P: Pass> {
    pass: Rc<P>,
    world: World,
    lease: Rc<PassLease>,
    running: bool,
    waiting: Vec<oneshot::Sender<Tally>>,
}

impl<P: Pass> Driver<P> {
    fn start(pass: P, world: &World) -> Addr<Self> {
        Self {
            pass: Rc::new(pass),
            world: world.clone(),
            lease: Rc::new(PassLease::new(world.clone(), P::NAME)),
            running: false,
            waiting: Vec::new(),
        }
        .start()
    }

    /// Runs once for everybody who asked so far.
    fn next(&mut self, ctx: &mut Context<Self>) {
        if self.running || self.waiting.is_empty() {
            return;
        }
        self.running = true;
        let askers = std::mem::take(&mut self.waiting);
        let span = tracing::info_span!("pass", pass = P::NAME);
        let rest = self.pass.rest(self.world.now());
        let run = AssertUnwindSafe(under_lease(Rc::clone(&self.pass), Rc::clone(&self.lease), rest))
            .catch_unwind()
            .instrument(span);
        ctx.spawn(run.into_actor(self).map(move |done, driver, ctx| {
            let tally = done.unwrap_or_else(|_| {
                tracing::error!(
                    pass = P::NAME,
                    "a run of pass {} crashed; the next one begins anew",
                    P::NAME
                );
                Tally::default()
            });
            if tally.done > 0 || tally.refused > 0 {
                let Tally {
                    candidates,
                    done,
                    refused,
                } = tally;
                tracing::info!(pass = P::NAME, candidates, done, refused, "pass {} ran", P::NAME);
            }
            for asker in askers {
                let _ = asker.send(tally);
            }
            driver.running = false;
            driver.next(ctx);
        }));
    }
}

/// One run, if no other process has the pass.
async fn under_lease<P: Pass>(pass: Rc<P>, lease: Rc<PassLease>, rest: Duration) -> Tally {
    if P::SHARED {
        return pass.run(lease).await;
    }
    let began = Instant::now();
    if !lease.take().await {
        tracing::debug!(pass = P::NAME, "pass {} is run by another process", P::NAME);
        return Tally::default();
    }
    let tally = tokio::select! {
        biased;
        tally = pass.run(Rc::clone(&lease)) => tally,
        never = lease.keep() => match never {},
    };
    lease.hold(rest, began.elapsed()).await;
    tally
}

impl<P: Pass> Driver<P> {
    /// Sets the timer for the run after this one.
    fn wind(&self, ctx: &mut Context<Self>) {
        ctx.run_later(self.pass.rest(self.world.now()), |driver, ctx| {
            driver.wind(ctx);
            // Nobody waits for this one; the closed channel is no asker that has to be told.
            if driver.waiting.is_empty() {
                driver.waiting.push(oneshot::channel().0);
            }
            driver.next(ctx);
        });
    }
}

impl<P: Pass> Actor for Driver<P> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.wind(ctx);
    }
}

impl<P: Pass> Handler<Run> for Driver<P> {
    type Result = ResponseFuture<Tally>;

    fn handle(&mut self, _: Run, ctx: &mut Context<Self>) -> Self::Result {
        let (asker, answer) = oneshot::channel();
        self.waiting.push(asker);
        self.next(ctx);
        Box::pin(answer.map(Result::unwrap_or_default))
    }
}

/// Ends a pass between two runs' steps; rows that it did not reach are due again.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
struct Halt;

impl<P: Pass> Handler<Halt> for Driver<P> {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Halt, ctx: &mut Context<Self>) -> Self::Result {
        ctx.stop();
        // The run, if there is one, is dropped with the actor; whoever runs the pass next need not wait.
        let lease = Rc::clone(&self.lease);
        Box::pin(async move { lease.give_back().await })
    }
}

/// The passes of this replica, running until they are stopped.
#[derive(Clone)]
pub struct Passes {
    adoption: Recipients,
    sweep: Recipients,
    permissions: Recipients,
    overdue: Recipients,
    debts: Recipients,
    reaper: Recipients,
    stuck_turns: Recipients,
    retention: Recipients,
    queue: Recipients,
    schedules: Recipients,
    credits: Recipients,
}

#[derive(Clone)]
struct Recipients {
    run: Recipient<Run>,
    halt: Recipient<Halt>,
}

impl Recipients {
    fn of<P: Pass>(pass: P, world: &World) -> Self {
        let driver = Driver::start(pass, world);
        Self {
            run: driver.clone().recipient(),
            halt: driver.recipient(),
        }
    }

    async fn run(&self) -> Tally {
        self.run.send(Run).await.unwrap_or_default()
    }
}

impl Passes {
    /// The passes of an engine's replica, on the thread that asks.
    pub fn of(engine: &Engine) -> Self {
        let replica: Arc<dyn Replica> = Arc::new(engine.clone());
        Self::start(engine.world(), &replica)
    }

    /// Starts all passes on the current arbiter. Nothing runs before its interval has passed or it is asked to.
    pub fn start(world: &World, replica: &Arc<dyn Replica>) -> Self {
        let parts = || (world.clone(), Arc::clone(replica));
        let adoption = Recipients::of(adoption::Adoption::new(parts()), world);
        adoption::follow_runners(world, Arc::clone(replica), adoption.run.clone());
        adoption::follow_handovers(&**replica, adoption.run.clone());
        let queue = Recipients::of(queue::Queue::new(parts()), world);
        queue::follow_slots(world, queue.run.clone());
        Self {
            adoption,
            sweep: Recipients::of(sweep::Sweep::new(parts()), world),
            permissions: Recipients::of(permissions::Permissions::new(parts()), world),
            overdue: Recipients::of(overdue::Overdue::new(parts()), world),
            debts: Recipients::of(debts::Debts::new(parts()), world),
            reaper: Recipients::of(reaper::Reaper::new(parts()), world),
            stuck_turns: Recipients::of(stuck_turns::StuckTurns::new(parts()), world),
            retention: Recipients::of(retention::Retention::new(world.clone()), world),
            queue,
            schedules: Recipients::of(schedules::Schedules::new(parts()), world),
            credits: Recipients::of(credits::Credits::new(parts()), world),
        }
    }

    /// Starts servers for conversations whose turn waits for one. Once at boot, then every ten seconds (RUL-L-50).
    pub async fn adopt(&self) -> Tally {
        self.adoption.run().await
    }

    /// Finishes what is fenced, parks what is idle, retires what is nobody's. Every five minutes.
    pub async fn sweep(&self) -> Tally {
        self.sweep.run().await
    }

    /// Denies permission requests past their deadline. Every minute (RUL-L-57).
    pub async fn expire_permissions(&self) -> Tally {
        self.permissions.run().await
    }

    /// Ends turns that nobody came for in time. Every ten seconds (RUL-L-23, RUL-37).
    pub async fn end_overdue(&self) -> Tally {
        self.overdue.run().await
    }

    /// Looks after what dead and superseded operations did. Every minute (RUL-L-3).
    pub async fn settle_debts(&self) -> Tally {
        self.debts.run().await
    }

    /// Releases stuck builds, reclaims what is past a bound, deletes what outlived its row. Seven minutes past the hour.
    pub async fn reap(&self) -> Tally {
        self.reaper.run().await
    }

    /// Ends turns that run without a server and without a word. Every five minutes.
    pub async fn end_stuck(&self) -> Tally {
        self.stuck_turns.run().await
    }

    /// Forgets what is old enough. Every night.
    pub async fn forget(&self) -> Tally {
        self.retention.run().await
    }

    /// Starts launches that waited for a slot. When one became free, and every five minutes (lifecycle 2.7).
    pub async fn drain_queue(&self) -> Tally {
        self.queue.run().await
    }

    /// Sends the prompts of schedules that are due. Every half minute (RUL-L-59).
    pub async fn tick_schedules(&self) -> Tally {
        self.schedules.run().await
    }

    /// Bills closed turns and ends grants. Every ten minutes.
    pub async fn bill(&self) -> Tally {
        self.credits.run().await
    }

    /// Stops all passes.
    pub async fn stop(&self) {
        let passes = [
            &self.adoption,
            &self.sweep,
            &self.permissions,
            &self.overdue,
            &self.debts,
            &self.reaper,
            &self.stuck_turns,
            &self.retention,
            &self.queue,
            &self.schedules,
            &self.credits,
        ];
        // Side by side: each gives its lease back, and a database that hangs must not be waited for once for each.
        let halts = passes.map(|pass| pass.halt.send(Halt));
        // One that is gone has stopped.
        drop(futures_util::future::join_all(halts).await);
    }
}
