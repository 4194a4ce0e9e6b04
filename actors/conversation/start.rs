//! A generation: registering the server, and building its machine when it has to (lifecycle 4.2, 4.3; RUL-5, RUL-36).
//!
//! Registering is one transaction (RUL-L-8). What it answers decides the rest: a `running` turn is taken back, a
//! `pending` one is built for, and without either the server waits for prompts. A pending turn becomes `running` by
//! compare-and-set, once (INV-119); a crash before that leaves it pending, and the next server builds again.

use std::sync::Arc;

use actix::prelude::*;
use tokio::sync::watch;
use tokio::time::Instant;

use super::profile::Profile;
use super::turn::LiveTurn;
use super::{Bound, Cause, ConversationActor, Work};
use crate::domain::account::Actor as By;
use crate::domain::conversation::ConversationStatus;
use crate::domain::machine::{Machine, MachineState, MachineStatus};
use crate::domain::turn::{Ending, PromptImage, Turn, TurnStatus};
use crate::domain::{ErrorCode, Refusal};
use crate::machine::messages::{EnsureUp, MachineError, Provision, ProvisionError, Provisioned, Usable};
use crate::ports::clock::after;
use crate::ports::store::StoreError;
use crate::ports::store::turns::Serving;
use crate::transcript::budget::Budget;

/// How long to leave a build alone whose transaction the store did not answer.
const BUILD_RETRY: std::time::Duration = std::time::Duration::from_secs(2);

/// What a build, or a wake for a pending turn, came to.
enum Built {
    Up(Box<Machine>, Freshness),
    Failed(ProvisionError),
    Wake(MachineError),
    /// The machine ended before: the turn that waited for it ends too.
    Gone,
    Refused(Refusal),
}

/// Whether the disk is new.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    New,
    Old,
}

impl ConversationActor {
    /// Registers this server, or the next generation of it.
    pub(super) fn start(&mut self, ctx: &mut Context<Self>) {
        self.work = Some(Work::Starting);
        let (store, id, now) = (self.world.store.clone(), self.id, self.now());
        let holder = self.world.holder.to_string();
        let work = async move {
            let serving = store.register_server(id, holder, now).await?;
            let lease_clock = store.lease_clock(now).await?;
            Ok::<_, StoreError>((serving, lease_clock - now))
        };
        self.run(ctx, work, |actor, answer, ctx| match answer {
            Ok((serving, offset)) => {
                actor.lease_offset = offset;
                actor.serve(serving, ctx);
            }
            Err(error) => {
                tracing::info!(conversation.id = %actor.id, %error, "no server was started");
                let refusal = error.refusal();
                actor.refuse_all(&refusal);
                actor.stand_down(ctx);
            }
        });
    }

    fn serve(&mut self, serving: Serving, ctx: &mut Context<Self>) {
        let Serving {
            conversation,
            machine,
            open_turn,
            processes,
        } = serving;
        self.engine.seat(self.id, machine.id);
        self.home = Some(self.engine.home(self.id, conversation.server_epoch));
        self.budget = Budget::new(self.world.settings.output_budget, conversation.output_bytes);
        self.bound = Some(Bound {
            epoch: conversation.server_epoch,
            conversation,
            machine,
        });
        // The newest process that nobody wished to stop runs the turn: a reused connection that refused it was replaced
        // by a fresh spawn, whose record is newer than the id on the turn (R-86, RUL-L-41).
        let here = self.machine_id();
        let processes = processes.into_iter().filter(|process| Some(process.machine_id) == here);
        let processes: Vec<_> = processes.collect();
        let is_running = open_turn
            .as_ref()
            .is_some_and(|turn| turn.status == TurnStatus::Running);
        let own = processes
            .iter()
            .find(|process| is_running && !process.stop_requested)
            .cloned();
        let own_id = own.as_ref().map(|process| process.id);
        self.leftovers = processes
            .into_iter()
            .filter(|process| Some(process.id) != own_id)
            .collect();
        self.work = None;
        match open_turn {
            Some(turn) if turn.status == TurnStatus::Running => {
                self.turn = Some(LiveTurn::taken_back(&turn));
                self.take_back(own, ctx);
            }
            Some(turn) => {
                self.pending = Some(turn);
                self.build(ctx);
            }
            None if self.cause == Cause::Launch && self.machine_is(MachineState::New) => self.build(ctx),
            None => self.stop_leftovers(ctx),
        }
        self.next_prompt(ctx); // whoever asked meanwhile hears `conversation_busy` now, or is admitted
        // Only the first generation of a launch builds without being asked.
        self.cause = Cause::Demand;
    }

    fn machine_is(&self, state: MachineState) -> bool {
        let now = self.now().checked_add_signed(self.lease_offset);
        self.bound
            .as_ref()
            .zip(now)
            .is_some_and(|(bound, now)| bound.machine.state(now) == state)
    }

    /// Makes the machine usable for the pending turn, or builds a new one without a prompt.
    pub(super) fn build(&mut self, ctx: &mut Context<Self>) {
        // Subscribed before it is looked at, or a registration could fall in between.
        let changes = self.world.runners.changes();
        let Some(bound) = &self.bound else { return };
        self.work = Some(Work::Building);
        let builds = matches!(bound.machine.status, MachineStatus::Pending | MachineStatus::Starting);
        if builds && !self.runner_is_here() {
            return self.build_when_the_runner_comes(changes, ctx);
        }
        let (world, engine) = (self.world.clone(), self.engine.clone());
        let (conversation, machine, epoch) = (bound.conversation.clone(), bound.machine.clone(), bound.epoch);
        let watched = builds.then(|| engine.watch_build(conversation.id, machine.id));
        let work = async move {
            let _watched = watched; // until the build is over, or this server is
            let profile = match Profile::resolve(&world, conversation, machine.clone()).await {
                Ok(profile) => Arc::new(profile),
                Err(refusal) => return (None, None, Built::Refused(refusal)),
            };
            let callback = profile.callback(&world);
            let (row, secret) = callback.map(|callback| (callback.row, callback.secret)).unzip();
            let built = match machine.status {
                MachineStatus::Ready | MachineStatus::Suspended => wake(&engine, &world, &profile).await,
                MachineStatus::Pending | MachineStatus::Starting => {
                    let provision = Provision {
                        conversation: profile.conversation.id,
                        server_epoch: epoch,
                        plan: profile.plan(&world, row, secret.as_ref()),
                    };
                    match engine.ask_machine(machine.id, provision).await {
                        Ok(Provisioned { machine, built: true }) => Built::Up(Box::new(machine), Freshness::New),
                        Ok(Provisioned { machine, built: false }) => Built::Up(Box::new(machine), Freshness::Old),
                        Err(error) => Built::Failed(error),
                    }
                }
                MachineStatus::Failed | MachineStatus::Terminated => Built::Gone,
            };
            // A key that the build did not store is no key.
            let secret = secret.filter(|_| matches!(built, Built::Up(_, Freshness::New)));
            (Some(profile), secret, built)
        };
        self.run(ctx, work, |actor, (profile, secret, built), ctx| {
            if let Some(profile) = profile {
                profile.register(secret.as_ref(), &mut actor.redactor);
                actor.profile = Some(profile);
            }
            if secret.is_some() {
                actor.callback = secret;
            }
            actor.built(built, ctx);
        });
    }

    /// After a restart the runner dials in a moment later than the boot starts the servers of turns that wait: a build
    /// begun before would fail for good with what only a moment's patience was needed for. The turn's own deadline, or
    /// whoever interrupts or ends it, bounds the wait (RUL-36, RUL-L-23).
    fn build_when_the_runner_comes(&mut self, mut changes: watch::Receiver<u64>, ctx: &mut Context<Self>) {
        tracing::info!(conversation.id = %self.id, "the build waits for its runner");
        let came = async move { changes.changed().await.is_ok() };
        self.run(ctx, came, |actor, ticks, ctx| {
            if ticks && actor.work == Some(Work::Building) {
                actor.build(ctx);
            }
        });
    }

    fn built(&mut self, built: Built, ctx: &mut Context<Self>) {
        match built {
            Built::Up(machine, freshness) => self.machine_up(*machine, freshness, ctx),
            Built::Failed(ProvisionError::Failed(failure)) => {
                let first = self
                    .bound
                    .as_ref()
                    .is_some_and(|bound| bound.conversation.status == ConversationStatus::Pending);
                self.build_failed(&failure.message, first && !failure.at_ceiling, ctx);
            }
            Built::Failed(ProvisionError::ClaimedElsewhere) => {
                self.refuse_all(&ErrorCode::Provisioning.into());
                self.stand_down(ctx);
            }
            Built::Failed(ProvisionError::Doomed) => {
                self.refuse_all(&ErrorCode::SandboxResetPending.into());
                self.stand_down(ctx);
            }
            Built::Failed(ProvisionError::Store(StoreError::Stale(_))) => self.superseded(ctx),
            Built::Failed(ProvisionError::NotBuildable(_)) => self.restart(ctx),
            Built::Failed(error @ ProvisionError::Store(_)) => self.build_later(&error.refusal(), ctx),
            Built::Failed(error @ ProvisionError::Crashed) => {
                self.refuse_all(&error.refusal());
                self.stand_down(ctx); // the adoption pass starts the next server for the turn (RUL-L-50)
            }
            Built::Wake(error) => self.build_later(&error.refusal(), ctx),
            Built::Refused(refusal) => self.build_later(&refusal, ctx),
            Built::Gone => self.build_failed("the sandbox ended before the prompt could run", false, ctx),
        }
    }

    /// Nothing was decided. A turn that waits keeps its server; without one the next prompt decides.
    fn build_later(&mut self, refusal: &Refusal, ctx: &mut Context<Self>) {
        tracing::warn!(conversation.id = %self.id, code = %refusal.code(), "the machine is not usable yet");
        self.refuse_all(refusal);
        if self.pending.is_none() {
            self.work = None;
            return;
        }
        ctx.run_later(BUILD_RETRY, |actor, ctx| {
            if actor.work == Some(Work::Building) {
                actor.restart(ctx);
            }
        });
    }

    /// The next generation of this server, from the rows.
    pub(super) fn restart(&mut self, ctx: &mut Context<Self>) {
        self.pending = None;
        self.profile = None;
        self.start(ctx);
    }

    fn machine_up(&mut self, machine: Machine, freshness: Freshness, ctx: &mut Context<Self>) {
        if let Some(bound) = self.bound.as_mut() {
            bound.machine = machine;
        }
        let knew_a_session = self
            .bound
            .as_ref()
            .is_some_and(|bound| bound.conversation.runtime_session_id.is_some());
        if freshness == Freshness::New {
            self.leftovers.clear(); // their machine is gone, and they with it
            if knew_a_session {
                self.forget_session("fresh_sandbox", None, ctx);
                self.flush(None, ctx);
            }
        }
        self.open_pending(ctx);
    }

    /// The pending turn starts to run, once (RUL-5); without one the conversation is idle (C9).
    fn open_pending(&mut self, ctx: &mut Context<Self>) {
        let Some(bound) = &self.bound else { return };
        let (machine, epoch) = (bound.machine.id, bound.epoch);
        let (store, id, now, spawn_id) = (self.world.store.clone(), self.id, self.now(), self.world.id());
        let pending = self.pending.take();
        let work = async move {
            let Some(turn) = pending else {
                store.settle_idle(id, machine, now).await?;
                return Ok(None);
            };
            let images = match turn.image_count {
                0 => Vec::new(),
                _ => store.prompt_images(turn.id).await?,
            };
            let opened = store
                .open_pending_turn(id, epoch, machine, turn.id, spawn_id, now)
                .await?;
            Ok(Some((opened, images)))
        };
        self.run(ctx, work, |actor, answer: Result<_, StoreError>, ctx| match answer {
            Ok(None) => {
                if let Some(bound) = actor.bound.as_mut() {
                    bound.conversation.status = ConversationStatus::Idle;
                }
                actor.work = None;
                actor.next_prompt(ctx);
            }
            Ok(Some((opened, images))) => {
                let turn = opened.announce(&*actor.world.bus);
                if turn.status.is_terminal() {
                    // The machine carries no more turns of this runtime (INV-77): it failed in the rows already.
                    if let Some(bound) = actor.bound.as_mut() {
                        bound.conversation.status = ConversationStatus::Idle;
                    }
                    actor.work = None;
                    return actor.next_prompt(ctx);
                }
                actor.run_turn(&turn, images, true, ctx);
            }
            Err(StoreError::Stale(_)) => actor.superseded(ctx),
            // Interrupted or terminated meanwhile, or the store does not answer: the rows say what is next.
            Err(error) => {
                tracing::info!(conversation.id = %actor.id, %error, "the pending turn was not opened");
                actor.refuse_all(&error.refusal());
                ctx.run_later(BUILD_RETRY, |actor, ctx| actor.restart(ctx));
            }
        });
    }

    /// A turn is `running` in the rows: give it to a process.
    pub(super) fn run_turn(&mut self, turn: &Turn, images: Vec<PromptImage>, announced: bool, ctx: &mut Context<Self>) {
        if let Some(bound) = self.bound.as_mut() {
            bound.conversation.status = ConversationStatus::Running;
        }
        self.last_active = self.now();
        self.turn = Some(LiveTurn::admitted(turn, images, Instant::now(), announced));
        self.open(ctx);
        self.next_prompt(ctx); // whoever waited behind this prompt hears `conversation_busy` now (RUL-7)
    }

    fn build_failed(&mut self, message: &str, fail_conversation: bool, ctx: &mut Context<Self>) {
        self.refuse_all(&Refusal::because(ErrorCode::SandboxUnavailable, message));
        let Some(bound) = &self.bound else {
            return self.stand_down(ctx);
        };
        let Some(turn) = self.pending.take() else {
            let (store, id, machine, now) = (self.world.store.clone(), self.id, bound.machine.id, self.now());
            let settle = async move {
                if fail_conversation {
                    store.fail_pending(id, machine, now).await
                } else {
                    store.settle_idle(id, machine, now).await
                }
            };
            self.run(ctx, settle, |actor, answer, ctx| {
                if let Err(error) = answer {
                    // Its next prompt builds anew, whatever the status says.
                    tracing::warn!(conversation.id = %actor.id, %error, "a failed build is not on its conversation yet");
                }
                actor.stand_down(ctx);
            });
            return;
        };
        let mut ending = Ending::failed(turn.id, "provision_failed", self.now());
        ending.message = Some(self.redactor.clean(message).into_owned());
        let (store, id, machine) = (self.world.store.clone(), self.id, bound.machine.id);
        let close = async move { store.close_turn(id, ending, Some(machine), fail_conversation).await };
        self.run(ctx, close, |actor, answer, ctx| match answer {
            Ok(closed) => {
                closed.announce(&*actor.world.bus);
                actor.stand_down(ctx);
            }
            Err(error) => {
                // The overdue pass ends it at its deadline (RUL-L-23); sooner when the store answers again.
                tracing::warn!(conversation.id = %actor.id, %error, "a turn whose build failed is not closed yet");
                ctx.run_later(BUILD_RETRY, |actor, ctx| actor.restart(ctx));
            }
        });
    }
}

/// Wakes a machine that is built, for a turn that waits.
async fn wake(engine: &crate::directory::Engine, world: &crate::ports::World, profile: &Profile) -> Built {
    let ensure = EnsureUp {
        conversation: profile.conversation.id,
        limits: engine.limits(),
        policy: profile.network(),
        actor: By::System("conversation"),
        deadline: Instant::now() + world.settings.wake_wait,
    };
    match engine.ask_machine(profile.machine.id, ensure).await {
        Ok(Usable::AlreadyUp(machine) | Usable::Resumed(machine)) => Built::Up(Box::new(machine), Freshness::Old),
        Ok(Usable::Lost(_) | Usable::Gone(_)) => Built::Gone,
        Ok(Usable::NotBuilt(machine)) => Built::Failed(ProvisionError::NotBuildable(
            machine.state(after(world.now(), std::time::Duration::ZERO)),
        )),
        Err(error) => Built::Wake(error),
    }
}
