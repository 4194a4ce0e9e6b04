//! One server per conversation that has something running: it gates prompts, runs turns and writes their transcript.
//!
//! A server is a generation (RUL-L-8): starting one bumps `server_epoch`, and everything that it writes carries that
//! epoch, so a frozen predecessor can neither append nor end anything. It holds nothing that the rows do not, except a
//! live connection; it may die between any two lines, and the next one starts from the rows. At most one *work* is under
//! way at a time ([`Work`]); prompts wait in front of it with their deadline (RUL-7). Waiting for a port happens in a
//! child future of the actor, never in a handler.
//!
//! Read the files in the order of a turn: `start` (a generation, a build), `prompt` (gates, wake, admission), `spawn`
//! (a process and its peer), `effects` (what the peer wants done), `output` (frames into entries), `finish` and
//! `endings` (how turns end); then the detours: `reattach`, `interrupt`, `stop`, `permission`, `park`, `terminate`.
//! Pure parts: `position`, `replay`, `rows`, `endings`. Follows lifecycle 3.6 to 3.10 and 6, rulings 8.

mod connection;
mod effects;
mod endings;
mod finish;
mod interrupt;
pub mod launch;
pub mod messages;
mod output;
mod park;
mod permission;
mod position;
mod profile;
mod prompt;
mod reattach;
mod replay;
mod rows;
mod spawn;
mod spend;
mod start;
mod stop;
mod terminate;
mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use actix::prelude::*;
use secrecy::SecretString;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Instrument;

use crate::acp::Report;
use crate::directory::{Engine, Home};
use crate::domain::conversation::Conversation;
use crate::domain::machine::Machine;
use crate::domain::process::Process;
use crate::domain::turn::Turn;
use crate::domain::{ConversationId, MachineId, Moment, ProcessId, ServerEpoch};
use crate::ports::World;
use crate::transcript::budget::Budget;
use crate::transcript::redaction::Redactor;
use crate::transcript::writer::Writer;

pub(crate) use stop::stop_process;
pub(crate) use terminate::{destroy_behind, terminate};

use connection::Connection;
use messages::{Ask, Miss};
use output::Draft;
use profile::Profile;
use stop::Stopping;
use turn::LiveTurn;

/// Why a server is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its rows were just made: a machine that is NEW is built even without a prompt.
    Launch,
    /// A request, or a pass that found an open turn.
    Demand,
}

/// The one thing that is under way. Whatever it is, the actor keeps answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The generation is being registered.
    Starting,
    /// The machine is being built, or woken for a pending turn.
    Building,
    /// A prompt is at the gates.
    Admitting,
    /// A process is being spawned for the turn.
    Opening,
    /// The turn of a predecessor, or of a lost connection, is being taken back.
    Reattaching,
    Parking,
    /// The conversation, or this server, ends.
    Ending,
}

/// A prompt in front of the gates.
struct Waiting {
    ask: Ask,
    reply: oneshot::Sender<Result<(), Miss>>,
    /// Tells two waiting prompts apart.
    ticket: u64,
}

/// What this server was registered for (INV-73).
struct Bound {
    conversation: Conversation,
    machine: Machine,
    epoch: ServerEpoch,
}

/// The server of one conversation.
pub struct ConversationActor {
    engine: Engine,
    world: World,
    writer: Writer,
    id: ConversationId,
    /// Tells this actor's seat from its successor's.
    serial: u64,
    cause: Cause,
    work: Option<Work>,
    bound: Option<Bound>,
    /// The row that says where this generation lives, until it is dropped.
    home: Option<Home>,
    /// Lease clock minus wall clock, for deadlines inside transactions (RUL-29).
    lease_offset: chrono::TimeDelta,
    prompts: VecDeque<Waiting>,
    tickets: u64,
    /// Waits for a build (RUL-5).
    pending: Option<Turn>,
    /// Runs, or ends right now.
    turn: Option<LiveTurn>,
    connection: Option<Connection>,
    connections: u64,
    /// A spawn is out.
    spawning: bool,
    /// Processes of this conversation that are being ended; the next spawn waits for them (RUL-47).
    stopping: BTreeMap<u64, Stopping>,
    /// Processes that have to be stopped when the machine can be reached.
    leftovers: Vec<Process>,
    draft: Draft,
    /// Reports behind a permission request that waits for an earlier one.
    backlog: VecDeque<Report>,
    /// Processes that ended while their turn's end was on its way; recorded after it.
    ended: Vec<ProcessId>,
    /// Appends that are not settled.
    unsettled: usize,
    budget: Budget,
    redactor: Redactor,
    profile: Option<Arc<Profile>>,
    /// The key inside the machine, in plain text. Only processes that are spawned from here on get it.
    callback: Option<SecretString>,
    last_active: Moment,
    window: Option<reattach::Window>,
    permission_timer: Option<SpawnHandle>,
    shutdown: Vec<oneshot::Sender<()>>,
}

impl ConversationActor {
    /// A server for a conversation. Nothing is written before [`Actor::started`].
    pub fn new(engine: Engine, id: ConversationId, cause: Cause, serial: u64) -> Self {
        let world = engine.world().clone();
        let writer = engine.writer().clone();
        let now = world.now();
        let budget = Budget::new(world.settings.output_budget, 0);
        Self {
            engine,
            world,
            writer,
            id,
            serial,
            cause,
            work: Some(Work::Starting),
            bound: None,
            home: None,
            lease_offset: chrono::TimeDelta::zero(),
            prompts: VecDeque::new(),
            tickets: 0,
            pending: None,
            turn: None,
            connection: None,
            connections: 0,
            spawning: false,
            stopping: BTreeMap::new(),
            leftovers: Vec::new(),
            draft: Draft::default(),
            backlog: VecDeque::new(),
            ended: Vec::new(),
            unsettled: 0,
            budget,
            redactor: Redactor::new(),
            profile: None,
            callback: None,
            last_active: now,
            window: None,
            permission_timer: None,
            shutdown: Vec::new(),
        }
    }

    /// The server is over: nobody is kept waiting, nothing is announced (RUL-L-8).
    fn stand_down(&mut self, ctx: &mut Context<Self>) {
        self.work = Some(Work::Ending);
        for waiting in self.prompts.drain(..) {
            let _ = waiting.reply.send(Err(Miss::Retry));
        }
        self.drop_attachment(ctx);
        ctx.stop();
    }

    /// Somebody newer acts for this conversation: stop without writing, ending or announcing anything.
    fn superseded(&mut self, ctx: &mut Context<Self>) {
        tracing::info!(conversation.id = %self.id, "a newer server acts for this conversation; standing down");
        self.stand_down(ctx);
    }

    /// Spawns work outside the mailbox and comes back with its answer.
    fn run<T: 'static>(
        &self,
        ctx: &mut Context<Self>,
        work: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut Self, T, &mut Context<Self>) + 'static,
    ) -> SpawnHandle {
        let span = self.span();
        let within = span.clone();
        let then =
            move |actor: &mut Self, answer, ctx: &mut Context<Self>| within.in_scope(|| then(actor, answer, ctx));
        ctx.spawn(work.instrument(span).into_actor(self).map(then_with(then)))
    }

    /// What logs of this server's work stand in: ids, and nothing that anybody wrote. Always a root: work is started
    /// inside the span of what came before, and a chain of parents would grow with every line of output, until its
    /// end overflows the stack.
    fn span(&self) -> tracing::Span {
        let span = tracing::info_span!(
            parent: None,
            "conversation",
            conversation.id = %self.id,
            account.id = tracing::field::Empty,
            machine.id = tracing::field::Empty,
            turn.id = tracing::field::Empty,
        );
        if let Some(bound) = &self.bound {
            span.record("account.id", tracing::field::display(bound.conversation.account_id));
            span.record("machine.id", tracing::field::display(bound.machine.id));
        }
        if let Some(turn) = &self.turn {
            span.record("turn.id", tracing::field::display(turn.id));
        }
        span
    }

    fn machine_id(&self) -> Option<MachineId> {
        self.bound.as_ref().map(|bound| bound.machine.id)
    }

    fn now(&self) -> Moment {
        self.world.now()
    }

    /// A wall moment as the lease clock will show it.
    fn lease_moment(&self, deadline: Instant) -> Moment {
        let left = deadline.saturating_duration_since(Instant::now());
        crate::ports::clock::after(self.now(), left)
            .checked_add_signed(self.lease_offset)
            .unwrap_or(Moment::MAX_UTC)
    }
}

fn then_with<T>(
    then: impl FnOnce(&mut ConversationActor, T, &mut Context<ConversationActor>) + 'static,
) -> impl FnOnce(T, &mut ConversationActor, &mut Context<ConversationActor>) + 'static {
    move |answer, actor, ctx| then(actor, answer, ctx)
}

impl Actor for ConversationActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // Frames are batched before they become work; this bounds how many requests may stand in front of the actor.
        ctx.set_mailbox_capacity(64);
        self.start(ctx);
        ctx.run_interval(self.world.settings.conversation_tick, |actor, ctx| actor.idle_tick(ctx));
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.engine.unseat(self.id, self.serial);
        for done in self.shutdown.drain(..) {
            let _ = done.send(());
        }
    }
}
