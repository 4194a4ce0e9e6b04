//! The owner of one machine: what happens to it happens here, one verb after another (lifecycle 3.1, 3.10).
//!
//! The actor holds a queue and nothing that its row does not hold; it is started on demand and stops after a minute
//! without work. A verb is a plain async function over the ports, in a file of its own; it runs as a child future, so
//! that the actor keeps answering, refuses what has waited too long, and survives a bug in it.
//!
//! Read [`messages`] for what can be asked, [`lease`] for how a verb is kept from acting on a machine that has another
//! owner by now, and [`facade`] for the only calls of a provider that change something. Then the verbs: [`provision`],
//! [`wake`], [`confirm`], [`park`], [`destroy`], [`reset`].

pub mod breaker;
mod confirm;
mod debts;
mod delete;
mod destroy;
mod evidence;
mod facade;
mod fence;
pub mod groundwork;
mod holdings;
mod lease;
pub mod messages;
pub mod names;
mod outcome;
mod park;
mod provision;
mod reads;
mod reap;
mod reset;
mod settle;
mod verbs;
mod wake;

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use actix::prelude::*;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Instrument;

use crate::domain::{MachineId, account};
use crate::ports::World;
use breaker::Breaker;
use messages::*;
pub(crate) use provision::watchdog::{TOO_LONG, Verdict, watch};

/// Who finishes what an operation left fenced.
const OWNER: account::Actor = account::Actor::System("machine_owner");

/// What every verb gets: the outside, which machine, and a note to the actor.
#[derive(Clone)]
pub(crate) struct Site {
    pub world: World,
    pub machine: MachineId,
    pub breaker: Arc<Breaker>,
    /// Set when an operation found its machine fenced: the destroy runs next, not after the next sweep (RUL-L-25).
    pub doomed: Rc<Cell<bool>>,
}

/// One verb that waits for its turn.
struct Job {
    verb: &'static str,
    /// It is not started after this; its asker has been answered by then.
    deadline: Option<Instant>,
    /// Told when it starts.
    began: oneshot::Sender<()>,
    work: LocalBoxFuture<'static, ()>,
}

/// A verb that was put in line, as its asker sees it. Both channels close when it is never started.
struct Waiting<T> {
    answer: oneshot::Receiver<T>,
    has_begun: oneshot::Receiver<()>,
}

/// The owner of one machine.
pub struct MachineActor {
    site: Site,
    queue: VecDeque<Job>,
    running: Option<&'static str>,
    idle: Option<SpawnHandle>,
    /// Fences that are being committed outside the line; their verbs are not in it yet.
    fencing: usize,
    abandoned: bool,
}

impl MachineActor {
    /// The owner of `machine`. Starts nothing. `breaker` is the replica's one.
    pub fn new(world: World, breaker: Arc<Breaker>, machine: MachineId) -> Self {
        Self {
            site: Site {
                world,
                machine,
                breaker,
                doomed: Rc::default(),
            },
            queue: VecDeque::new(),
            running: None,
            idle: None,
            fencing: 0,
            abandoned: false,
        }
    }

    /// Puts a verb in line; its answer arrives through the returned channel, which closes when it was never started.
    fn enqueue<T: 'static>(
        &mut self,
        ctx: &mut Context<Self>,
        verb: &'static str,
        deadline: Option<Instant>,
        crashed: T,
        work: impl Future<Output = T> + 'static,
    ) -> Waiting<T> {
        let (reply, answer) = oneshot::channel();
        let (began, has_begun) = oneshot::channel();
        let machine = self.site.machine;
        // The epoch is filled in by the claim.
        let span = tracing::info_span!("operation", machine.id = %machine, op = verb, epoch = tracing::field::Empty);
        self.queue.push_back(Job {
            verb,
            deadline,
            began,
            work: async move {
                let done = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
                    tracing::error!(machine.id = %machine, op = verb, "an operation on machine {machine} crashed");
                    crashed
                });
                // The asker may be gone; what was done stands in the row.
                let _ = reply.send(done);
            }
            .instrument(span)
            .boxed_local(),
        });
        self.next(ctx);
        Waiting { answer, has_begun }
    }

    /// The operation that just ended found a fence over it: the destroy goes before everything that waits (RUL-L-25).
    fn destroy_next(&mut self, ctx: &mut Context<Self>) {
        let site = self.site.clone();
        let ask = Destroy { actor: OWNER };
        let crashed = Err(MachineError::Crashed);
        let work = async move {
            let done = destroy::destroy(&site, ask).await;
            if let Err(error) = &done {
                tracing::warn!(machine.id = %site.machine, %error, "machine {} is left to the sweep", site.machine);
            }
            done
        };
        // `running` keeps `enqueue` from starting anything before the destroy stands first.
        self.running = Some("destroy");
        drop(self.enqueue(ctx, "destroy", None, crashed, work));
        self.running = None;
        self.queue.rotate_right(1);
    }

    /// Starts the first verb that may still run, unless one runs.
    fn next(&mut self, ctx: &mut Context<Self>) {
        if self.running.is_some() {
            return;
        }
        if let Some(idle) = self.idle.take() {
            ctx.cancel_future(idle);
        }
        let now = Instant::now();
        while let Some(job) = self.queue.pop_front() {
            // Dropping the job closes its channel, which its asker reads as busy.
            if job.deadline.is_some_and(|deadline| deadline <= now) {
                continue;
            }
            self.running = Some(job.verb);
            let _ = job.began.send(());
            ctx.spawn(job.work.into_actor(self).map(|(), actor, ctx| {
                actor.running = None;
                if actor.site.doomed.take() {
                    actor.destroy_next(ctx);
                }
                actor.next(ctx);
            }));
            return;
        }
        let idle_stop = self.site.world.settings.owner_idle_stop;
        self.idle = Some(ctx.run_later(idle_stop, |_, ctx| ctx.stop()));
    }
}

impl Actor for MachineActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.next(ctx);
    }

    /// A verb may arrive in the very moment in which the idle timer fires; it is not lost to it.
    fn stopping(&mut self, _: &mut Self::Context) -> Running {
        let has_work = self.running.is_some() || !self.queue.is_empty() || self.fencing > 0;
        if has_work && !self.abandoned {
            Running::Continue
        } else {
            Running::Stop
        }
    }
}
