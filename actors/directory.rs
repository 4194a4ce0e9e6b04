//! Who owns what on this replica: id to actor, started on demand, found again, restarted when it died (DESIGN 4).
//!
//! [`Engine`] is the one handle of the domain. It may be cloned and used from every thread; it decides nothing about
//! machines or turns, it only finds who does. An actor that died is noticed by its closed mailbox: the request that met
//! it is given to a new actor, which starts from the rows, once. A miss here is never proof that nobody else acts: that
//! is what epochs are for (lifecycle 3.6). A machine and its conversations live on one thread.

mod admin;
mod boot;
mod detached;
mod doors;
mod homes;
mod membership;
mod queue;
mod schedules;
mod seats;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::prelude::*;
use actix_rt::ArbiterHandle;

use crate::conversation::{Cause, ConversationActor};
use crate::domain::account::Actor as By;
use crate::domain::{AccountId, ConversationId, ErrorCode, MachineId, Refusal};
use crate::machine::MachineActor;
use crate::machine::breaker::Breaker;
use crate::machine::messages::{Destroy, MachineError, ProvisionError};
use crate::ports::World;
use crate::ports::store::conversations::Limits;
use crate::transcript::writer::Writer;

pub use crate::conversation::messages::ShutdownKind;
pub(crate) use homes::Home;
use homes::Movers;
use membership::Membership;
pub use queue::Replayed;
use seats::Seats;

/// On which threads the actors live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All on the thread that starts the engine: tests under virtual time, and `dev`.
    Current,
    /// On this many threads of their own, and one for the transcript writer.
    Threads(usize),
}

/// The domain, as the shell holds it.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    world: World,
    writer: Writer,
    breaker: Arc<Breaker>,
    /// Empty: everything lives on the thread that asks.
    arbiters: Vec<ArbiterHandle>,
    seats: Seats,
    stopping: AtomicBool,
    /// Told about every home that a server leaves.
    movers: Movers,
    membership: Membership,
}

/// What an asker hears when an actor died twice under its question.
pub trait Crashed {
    fn crashed() -> Self;
}

impl<T> Crashed for Result<T, MachineError> {
    fn crashed() -> Self {
        Err(MachineError::Crashed)
    }
}

impl<T> Crashed for Result<T, ProvisionError> {
    fn crashed() -> Self {
        Err(ProvisionError::Crashed)
    }
}

impl Engine {
    /// Starts the writer and makes room for actors. Nothing is read or written before [`Engine::boot`] or a request.
    ///
    /// Must be called inside an actix system.
    pub fn start(world: World, placement: Placement) -> Self {
        let (writer, task) = Writer::new(world.store.clone(), world.bus.clone(), world.rng.clone());
        let (movers, moving) = Movers::new(&world);
        let arbiters = match placement {
            Placement::Current => {
                actix::spawn(task.run());
                actix::spawn(moving.run());
                Vec::new()
            }
            Placement::Threads(count) => {
                let scribe = Arbiter::new();
                scribe.spawn_fn(move || {
                    actix::spawn(task.run());
                    actix::spawn(moving.run());
                });
                (0..count.max(1)).map(|_| Arbiter::new().handle()).collect()
            }
        };
        Self {
            inner: Arc::new(Inner {
                world,
                writer,
                breaker: Arc::default(),
                arbiters,
                seats: Seats::default(),
                stopping: AtomicBool::new(false),
                movers,
                membership: Membership::default(),
            }),
        }
    }

    pub fn world(&self) -> &World {
        &self.inner.world
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.inner.writer
    }

    /// The replica's not-found breaker (RUL-L-28), for operators who confirm.
    pub fn breaker(&self) -> &Arc<Breaker> {
        &self.inner.breaker
    }

    /// The numbers of the quota transaction.
    pub fn limits(&self) -> Limits {
        let settings = &self.inner.world.settings;
        Limits {
            fleet: settings.fleet_ceiling,
            cap: settings.cap_ceiling,
            credits: settings.credits.as_ref().map(|credits| credits.terms),
        }
    }

    fn is_stopping(&self) -> bool {
        self.inner.stopping.load(Ordering::Acquire)
    }

    /// Where the actors of a machine live; None is the thread that asks.
    fn arbiter(&self, machine: MachineId) -> Option<&ArbiterHandle> {
        let count = self.inner.arbiters.len();
        // A random id is its own hash.
        let place = usize::try_from(machine.0.as_u128() % u128::try_from(count.max(1)).unwrap_or(1)).unwrap_or(0);
        self.inner.arbiters.get(place)
    }

    fn launch_actor<A, F>(&self, machine: MachineId, make: F) -> Addr<A>
    where
        A: Actor<Context = Context<A>>,
        F: FnOnce() -> A + Send + 'static,
    {
        match self.arbiter(machine) {
            Some(arbiter) => A::start_in_arbiter(arbiter, move |_| make()),
            None => make().start(),
        }
    }

    /// The owner of a machine, started if it is not there.
    pub fn machine(&self, machine: MachineId) -> Addr<MachineActor> {
        self.inner.seats.machine(machine, || {
            let (world, breaker) = (self.inner.world.clone(), self.inner.breaker.clone());
            self.launch_actor(machine, move || MachineActor::new(world, breaker, machine))
        })
    }

    /// Asks the owner of a machine; a dead one is replaced, once.
    pub async fn ask_machine<M>(&self, machine: MachineId, message: M) -> M::Result
    where
        M: Message + Clone + Send + 'static,
        M::Result: Crashed + Send,
        MachineActor: Handler<M>,
    {
        for _ in 0..2 {
            match self.machine(machine).send(message.clone()).await {
                Ok(answer) => return answer,
                Err(_) => self.inner.seats.forget_machine(machine),
            }
        }
        M::Result::crashed()
    }

    /// Has a fenced machine destroyed, behind whatever is being answered. The sweep finishes what this does not.
    pub fn destroy_behind(&self, machine: MachineId, actor: By) {
        self.machine(machine).do_send(Destroy { actor });
    }

    /// The server of a conversation, started if it is not there.
    pub(crate) fn server(&self, id: ConversationId, machine: MachineId, cause: Cause) -> Addr<ConversationActor> {
        self.inner.seats.server(id, machine, |serial| {
            let engine = self.clone();
            self.launch_actor(machine, move || ConversationActor::new(engine, id, cause, serial))
        })
    }

    /// A server moved to another machine.
    pub(crate) fn seat(&self, id: ConversationId, machine: MachineId) {
        self.inner.seats.move_to(id, machine);
    }

    /// A server stopped.
    pub(crate) fn unseat(&self, id: ConversationId, serial: u64) {
        self.inner.seats.forget_server(id, Some(serial));
    }

    /// Conversations with a live server on this machine.
    pub(crate) fn live_on(&self, machine: MachineId) -> Vec<ConversationId> {
        self.inner.seats.live_on(machine)
    }

    /// Starts a server for a conversation that has something to do: an open turn, or a process to stop.
    pub fn serve(&self, id: ConversationId, machine: MachineId) {
        if self.may_begin() {
            self.server(id, machine, Cause::Demand);
        }
    }

    /// A server of this conversation is alive here.
    pub fn is_live(&self, id: ConversationId) -> bool {
        self.inner.seats.live_server(id).is_some()
    }

    /// The row of a conversation that is this account's.
    async fn owned(
        &self,
        account: AccountId,
        id: ConversationId,
    ) -> Result<crate::domain::conversation::Conversation, Refusal> {
        let row = self.inner.world.store.conversation(id).await;
        let row = row.map_err(|error| error.refusal())?;
        row.filter(|row| row.account_id == account)
            .ok_or_else(|| ErrorCode::NotFound.into())
    }
}
