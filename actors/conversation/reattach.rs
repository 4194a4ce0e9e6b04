//! Taking a running turn back: after a restart, and after a lost attachment (lifecycle 6.8; RUL-16, 37, 40 to 42a,
//! RUL-L-40, RUL-L-41; walk 8.3).
//!
//! A window is opened in the rows first. Inside it: the runner registers; the machine is confirmed under its lease, which
//! publishes `reattach/started` once; the stored session is attached, or found by its tag; the replay is skipped by
//! position and digest. What is transient is tried again until the window ends, and nothing is orphaned for it.
//! A crash at any step leaves the turn `running` with its window, and the next server begins here again.

use std::sync::Arc;

use actix::prelude::*;
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::connection::Connection;
use super::position::Track;
use super::profile::Profile;
use super::replay::Replay;
use super::rows;
use super::spawn::is_passing;
use super::stop::tagged;
use super::{ConversationActor, Work};
use crate::acp::{Attach, HeldPermission, Peer};
use crate::domain::event::{LogEvent, RawStream, StageState};
use crate::domain::machine::{Machine, Provider};
use crate::domain::process::Process;
use crate::domain::turn::{Ending, OrphanReason};
use crate::domain::{Moment, ServerEpoch, TurnId};
use crate::machine::messages::{ConfirmUp, Confirmed, MachineError};
use crate::ports::World;
use crate::ports::clock::after;
use crate::ports::sandbox::{Command, FrameStream, Handle, SandboxAdapter, SandboxError};
use crate::ports::store::StoreError;
use crate::ports::store::transcript::Effect;
use crate::retry::{Jitter, Policy};
use crate::runtimes::layout;

/// The time in which a turn may be taken back.
pub(super) struct Window {
    turn_id: TurnId,
    /// None: the rows know no process, so nothing ever ran.
    process: Option<Process>,
    began: Instant,
    /// `reattach/started` is published.
    announced: bool,
    /// An attempt is out.
    trying: bool,
    /// Attempts in a row that came to nothing.
    failures: u32,
    /// The last one failed because nobody can say what the machine may reach.
    is_unguarded: bool,
}

/// The reason of a turn whose machine may reach nobody knows what (RUL-L-97).
const POLICY: &str = "network_policy_unverified";

/// How attempts follow each other inside the window: twice the first wait each time, eight times it at most.
fn cadence(first: std::time::Duration) -> Policy {
    Policy {
        base: first,
        cap: first * 8,
        attempts: None,
        jitter: Jitter::UpperHalf,
    }
}

/// What one attempt came to.
enum Attempt {
    Attached(Box<Attached>),
    /// Nothing to attach to.
    Orphan(OrphanReason),
    /// The machine was parked or lost, and ended its turns itself.
    MachineGone(Box<Machine>),
    /// Try again inside the window.
    Later(&'static str),
    Superseded,
}

struct Attached {
    process: Process,
    command: Command,
    frames: FrameStream,
    machine: Machine,
    profile: Arc<Profile>,
    minted: Option<SecretString>,
    cwd: String,
    /// What the turn had said before, for its reply text.
    said: Vec<LogEvent>,
}

impl ConversationActor {
    /// Opens the window for the running turn, and tries.
    pub(super) fn take_back(&mut self, process: Option<Process>, ctx: &mut Context<Self>) {
        let Some(turn) = self.turn.as_ref() else { return };
        self.work = Some(Work::Reattaching);
        let (turn_id, now) = (turn.id, self.now());
        self.window = Some(Window {
            turn_id,
            process,
            began: Instant::now(),
            announced: false,
            trying: false,
            failures: 0,
            is_unguarded: false,
        });
        self.rearm_permission(ctx);
        let (store, settings) = (self.world.store.clone(), self.world.settings.clone());
        let open = async move {
            let until = after(now, settings.reconnect_window);
            store
                .open_reconnect_window(turn_id, now, until, settings.reconnect_hard_limit)
                .await
        };
        self.run(ctx, open, move |actor, answer, ctx| {
            if actor.window.as_ref().is_none_or(|window| window.turn_id != turn_id) {
                return;
            }
            let deadline = answer.unwrap_or_else(|error| {
                // The attempt needs the store too; the window is at least kept here.
                tracing::warn!(conversation.id = %actor.id, %error, "the reconnect window was not recorded");
                after(now, actor.world.settings.reconnect_window)
            });
            actor.end_window_at(turn_id, deadline, ctx);
            actor.try_attach(ctx);
        });
    }

    fn end_window_at(&mut self, turn_id: TurnId, deadline: Moment, ctx: &mut Context<Self>) {
        let left = (deadline - self.now()).to_std().unwrap_or_default();
        ctx.run_later(left, move |actor, ctx| {
            if actor
                .window
                .as_ref()
                .is_some_and(|window| window.turn_id == turn_id && window.began.elapsed() >= left)
            {
                actor.window_over(ctx);
            }
        });
    }

    /// One attempt, or a wait for the runner: its registration starts the attempt, not a poll (RUL-37).
    pub(super) fn try_attach(&mut self, ctx: &mut Context<Self>) {
        // Subscribed before it is looked at, or a registration could fall in between.
        let mut changes = self.world.runners.changes();
        if !self.runner_is_here() {
            let came = async move { changes.changed().await.is_ok() };
            self.run(ctx, came, |actor, ticks, ctx| {
                if ticks && actor.work == Some(Work::Reattaching) {
                    actor.try_attach(ctx);
                }
            });
            return;
        }
        let (Some(bound), Some(turn)) = (&self.bound, &self.turn) else {
            return;
        };
        let Some(window) = self.window.as_mut().filter(|window| !window.trying) else {
            return;
        };
        window.trying = true;
        let turn_id = window.turn_id;
        let attempt = Attempting {
            world: self.world.clone(),
            engine: self.engine.clone(),
            conversation: bound.conversation.clone(),
            machine: bound.machine.clone(),
            epoch: bound.epoch,
            announce: !window.announced,
            process: window.process.clone(),
            turn_id,
            prompt_sent: turn.acp_prompt_id.is_some(),
            is_taken_back: turn.began.is_none(),
        };
        self.run(ctx, attempt.run(), move |actor, (started, attempt), ctx| {
            actor.attempted(turn_id, started, attempt, ctx);
        });
    }

    fn attempted(&mut self, turn_id: TurnId, started: bool, attempt: Attempt, ctx: &mut Context<Self>) {
        let Some(window) = self.window.as_mut().filter(|window| window.turn_id == turn_id) else {
            // Interrupted, terminated or timed out meanwhile: what was attached must not stay.
            if let Attempt::Attached(attached) = attempt {
                let Attached { process, command, .. } = *attached;
                if let Ok(adapter) = self.world.adapters.get(command.provider).cloned() {
                    self.run(ctx, async move { adapter.stop_command(&command).await }, |_, (), _| {});
                }
                self.abandon(process, ctx);
            }
            return;
        };
        window.trying = false;
        window.announced |= started;
        let announced = window.announced;
        match attempt {
            Attempt::Attached(attached) => self.attached(*attached, ctx),
            Attempt::Orphan(reason) => self.orphan(reason, ctx),
            Attempt::Superseded => self.superseded(ctx),
            Attempt::MachineGone(machine) => {
                tracing::info!(conversation.id = %self.id, machine.id = %machine.id, "the machine took its turn with it");
                self.turn = None;
                self.window = None;
                self.work = None;
                self.restart(ctx);
            }
            Attempt::Later(why) => {
                tracing::debug!(conversation.id = %self.id, why, announced, "the turn is not taken back yet");
                window.failures += 1;
                window.is_unguarded = why == POLICY;
                let wait =
                    cadence(self.world.settings.reconnect_retry).delay(window.failures, &mut || self.world.rng.unit());
                ctx.run_later(wait, |actor, ctx| {
                    if actor.work == Some(Work::Reattaching) {
                        actor.try_attach(ctx);
                    }
                });
            }
        }
    }

    fn attached(&mut self, attached: Attached, ctx: &mut Context<Self>) {
        let Attached {
            process,
            command,
            frames,
            machine,
            profile,
            minted,
            cwd,
            said,
        } = attached;
        let Some(window) = self.window.take() else { return };
        if let Some(bound) = self.bound.as_mut() {
            bound.machine = machine;
        }
        if minted.is_some() {
            self.callback = minted; // for later processes; the running one holds the old key
        }
        profile.register(self.callback.as_ref(), &mut self.redactor);
        let config = self.peer_config(&profile, cwd);
        let policy = profile.permissions();
        self.profile = Some(profile);
        let Some(turn) = self.turn.as_mut() else { return };
        for row in &said {
            turn.reply.push(&row.data);
        }
        let attach = Attach {
            prompt_id: turn.acp_prompt_id.unwrap_or_default(),
            held: turn.permission.iter().map(HeldPermission::from).collect(),
            from: process.stdout.consumed,
            has_record: true,
            policy,
        };
        self.connections += 1;
        let peer = Peer::attach(config, attach);
        let mut connection = Connection::fresh(self.connections, command, frames, process.id, process.spawn_id, peer);
        connection.stdout = Track::resumed(RawStream::Stdout, process.stdout.consumed, Sha256::new());
        connection.stderr = Track::resumed(RawStream::Stderr, process.stderr.consumed, Sha256::new());
        connection.arrived = [process.stdout.consumed, process.stderr.consumed];
        connection.replays = Some([
            Replay::against(RawStream::Stdout, &process.stdout),
            Replay::against(RawStream::Stderr, &process.stderr),
        ]);
        connection.has_spoken = process.stdout.consumed > 0;
        connection.turns = 1;
        let (turn_id, number) = (turn.id, turn.number);
        self.connection = Some(connection);
        self.work = None;
        self.world
            .meter
            .record(crate::ports::meter::Measure::Reattach(window.began.elapsed()));
        self.push_row(
            rows::reattach(turn_id, number, StageState::Done)
                .took(window.began.elapsed())
                .into(),
        );
        self.effect(Effect::Reattached { turn_id }, ctx);
        self.flush(None, ctx);
        self.resume_permission(ctx);
        self.pump(ctx);
    }

    /// The turn cannot be taken back: it is over, for our reason and not the agent's (T5).
    fn orphan(&mut self, reason: OrphanReason, ctx: &mut Context<Self>) {
        let window = self.window.take();
        let Some(turn_id) = self.turn.as_ref().map(|turn| turn.id) else {
            return;
        };
        if let Some(process) = window.and_then(|window| window.process) {
            self.abandon(process, ctx);
        }
        // The transaction that orphans publishes `reattach/interrupted` with it.
        let ending = Ending::orphaned(turn_id, reason, self.now());
        self.end_turn(ending, ctx);
    }

    /// The window is over and nobody came back (RUL-37).
    fn window_over(&mut self, ctx: &mut Context<Self>) {
        let Some(window) = self.window.take() else { return };
        let Some((turn_id, number)) = self.turn.as_ref().map(|turn| (turn.id, turn.number)) else {
            return;
        };
        let is_runner = self
            .bound
            .as_ref()
            .is_some_and(|bound| bound.machine.provider == Provider::Runner);
        let reason = if window.is_unguarded {
            POLICY
        } else if is_runner {
            "runner_reconnect_timeout"
        } else {
            "provider_reconnect_timeout"
        };
        if window.announced {
            let stage = rows::reattach(turn_id, number, StageState::Failed)
                .with("reason", reason)
                .with("retryable", false);
            self.push_row(stage.into());
        }
        if let Some(process) = window.process {
            self.abandon(process, ctx);
        }
        let mut ending = Ending::failed(turn_id, reason, self.now());
        ending.message = Some("the sandbox did not come back in time; the agent is stopped when it does".into());
        self.end_turn(ending, ctx);
    }
}

/// One attempt, outside the actor.
struct Attempting {
    world: World,
    engine: crate::directory::Engine,
    conversation: crate::domain::conversation::Conversation,
    machine: Machine,
    epoch: ServerEpoch,
    announce: bool,
    process: Option<Process>,
    turn_id: TurnId,
    prompt_sent: bool,
    is_taken_back: bool,
}

impl Attempting {
    /// Whether `reattach/started` was published, and what came of it.
    async fn run(self) -> (bool, Attempt) {
        let profile = Profile::resolve(&self.world, self.conversation.clone(), self.machine.clone()).await;
        let Ok(mut profile) = profile else {
            return (false, Attempt::Later("store"));
        };
        let callback = profile.callback(&self.world);
        let (row, minted) = callback.map(|callback| (callback.row, callback.secret)).unzip();
        let plan = profile.plan(&self.world, row, minted.as_ref());
        let confirm = ConfirmUp {
            conversation: self.conversation.id,
            server_epoch: self.epoch,
            announce: self.announce,
            policy: plan.policy,
            callback_key: plan.callback_key,
            files: plan.files,
        };
        let machine = match self.engine.ask_machine(self.machine.id, confirm).await {
            Ok(Confirmed::Up(machine)) => machine,
            Ok(Confirmed::Asleep(machine) | Confirmed::Lost(machine) | Confirmed::Gone(machine)) => {
                return (false, Attempt::MachineGone(Box::new(machine)));
            }
            Ok(Confirmed::NotBuilt(_)) => return (false, Attempt::Orphan(OrphanReason::NoActiveSession)),
            Err(MachineError::Store(StoreError::Stale(_))) => return (false, Attempt::Superseded),
            // The machine answered and was claimed, so the reattach was announced with that.
            Err(MachineError::PolicyUnverified) => return (self.announce, Attempt::Later(POLICY)),
            Err(_) => return (false, Attempt::Later("machine")),
        };
        profile.machine = machine.clone();
        (true, self.attach(machine, profile, minted).await)
    }

    async fn attach(self, machine: Machine, profile: Profile, minted: Option<SecretString>) -> Attempt {
        let Some(process) = self.process else {
            return Attempt::Orphan(OrphanReason::NoActiveSession);
        };
        let Ok(adapter) = self.world.adapters.get(machine.provider).cloned() else {
            return Attempt::Later("provider");
        };
        let handle = adapter.handle(&machine.name);
        if !self.prompt_sent {
            // Nobody knows whether the agent was asked (RUL-34). The process is stopped with the orphaning.
            return Attempt::Orphan(OrphanReason::AcpPromptNotSent);
        }
        let (command, frames) = match find(&adapter, &handle, &process).await {
            Ok(found) => found,
            Err(SandboxError::NotFound) => return Attempt::Orphan(OrphanReason::NoActiveSession),
            Err(SandboxError::NotSupported) => return Attempt::Orphan(OrphanReason::AttachFailed),
            Err(_) => return Attempt::Later("session"),
        };
        let said = match self.is_taken_back {
            true => self.world.store.turn_output(self.turn_id).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let cwd = adapter
            .host_path(&handle, layout::of(self.conversation.runtime).cwd)
            .await;
        Attempt::Attached(Box::new(Attached {
            process,
            command,
            frames,
            machine,
            profile: Arc::new(profile),
            minted,
            cwd,
            said,
        }))
    }
}

/// The stored session first, listed or not; then the tag (RUL-L-41). `NotFound` is definitive.
async fn find(
    adapter: &Arc<dyn SandboxAdapter>,
    handle: &Handle,
    process: &Process,
) -> Result<(Command, FrameStream), SandboxError> {
    if let Some(session_id) = &process.session_id {
        match adapter.attach(handle, session_id).await {
            Err(SandboxError::NotFound) => {}
            Err(error) if is_passing(&error) => return Err(error),
            answer => return answer,
        }
    }
    let sessions = adapter.list_sessions(handle).await?;
    let session = tagged(&sessions, process.spawn_id).ok_or(SandboxError::NotFound)?;
    adapter.attach(handle, &session.id).await
}
