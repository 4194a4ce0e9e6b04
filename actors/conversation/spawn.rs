//! A process for the turn: the idle one, or a fresh one (lifecycle 6.3; R-86, RUL-34, RUL-L-41, RUL-L-42).
//!
//! Order of a fresh spawn: earlier processes of the conversation have ended; secrets are read anew; the process record
//! with its spawn id is committed; the provider is asked; its session id is committed beside the handshake. A crash
//! after the record leaves a spawn that is found by its tag or not at all. An answer that never came is looked for.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use secrecy::SecretString;
use tokio::time::Instant;

use super::connection::Connection;
use super::profile::{Profile, spawn_options};
use super::rows;
use super::stop::tagged;
use super::{ConversationActor, Work};
use crate::acp::{Peer, PeerConfig, PromptRequest};
use crate::domain::process::{Position, Process};
use crate::domain::turn::{Ending, Prompt};
use crate::domain::{Refusal, TurnId};
use crate::ports::World;
use crate::ports::sandbox::{Command, FrameStream, Handle, SandboxAdapter, SandboxError};
use crate::ports::store::StoreError;
use crate::runtimes::{RuntimeError, layout};

/// How long a spawn of unknown fate is looked for (RUL-L-42).
const SEARCH: Duration = Duration::from_secs(10);
/// Between two looks.
const SEARCH_POLL: Duration = Duration::from_secs(1);

/// A process that answered.
struct Spawned {
    process: Process,
    command: Command,
    frames: FrameStream,
    profile: Arc<Profile>,
    /// A key that was minted for it.
    minted: Option<SecretString>,
    cwd: String,
}

/// Why there is no process.
enum NotSpawned {
    /// A newer server acts.
    Superseded,
    /// The turn fails. `process` may exist all the same: it is stopped when it is found.
    Failed {
        reason: &'static str,
        message: String,
        process: Option<Box<Process>>,
    },
}

impl ConversationActor {
    /// Gives the turn to the idle connection, or to a fresh process.
    pub(super) fn open(&mut self, ctx: &mut Context<Self>) {
        let request = self.prompt_request();
        let (Some(request), Some(turn)) = (request, self.turn.as_mut()) else {
            return;
        };
        let idle = self.connection.as_mut().filter(|connection| !connection.input_over);
        if let Some(connection) = idle.filter(|connection| connection.peer.is_idle())
            && let Ok(steps) = connection.peer.prompt(request, Instant::now())
        {
            connection.turns += 1;
            turn.reused = true;
            turn.spawn_id = Some(connection.spawn_id);
            self.perform(steps, ctx);
            self.flush(None, ctx);
            return;
        }
        self.retire_connection(ctx);
        self.spawn_fresh(ctx);
    }

    fn prompt_request(&self) -> Option<PromptRequest> {
        let Prompt { text, images, .. } = self.turn.as_ref()?.prompt.clone()?;
        let profile = self.profile.as_ref();
        Some(PromptRequest {
            text,
            images,
            model: profile.and_then(|profile| profile.model()),
            policy: profile.map(|profile| profile.permissions()).unwrap_or_default(),
            ..PromptRequest::default()
        })
    }

    /// A new process for the open turn, as soon as the conversation's earlier ones have ended (RUL-47).
    pub(super) fn spawn_fresh(&mut self, ctx: &mut Context<Self>) {
        self.work = Some(Work::Opening);
        self.stop_leftovers(ctx);
        self.spawn_when_clear(ctx);
    }

    pub(super) fn spawn_when_clear(&mut self, ctx: &mut Context<Self>) {
        if self.work != Some(Work::Opening) || self.spawning || !self.stopping.is_empty() {
            return; // nobody waits for a process any more, or whoever ends last comes here again
        }
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.ending) else {
            // Interrupted while it waited.
            self.work = None;
            return self.next_prompt(ctx);
        };
        // A process of its own has an id of its own; only the first one is the id that was stored with the turn.
        let spawn_id = match turn.spawn_id.take() {
            Some(stored) if turn.announced && !turn.relaunched => stored,
            _ => self.world.id(),
        };
        turn.spawn_id = Some(spawn_id);
        let turn_id = turn.id;
        if !turn.announced {
            turn.announced = true;
            let row = rows::turn_started(turn.id, turn.number, turn.client_request_id.as_deref());
            self.push_row(row);
            self.flush(None, ctx);
        }
        let Some(bound) = &self.bound else { return };
        let process = Process {
            id: self.world.id(),
            account_id: bound.conversation.account_id,
            conversation_id: self.id,
            machine_id: bound.machine.id,
            spawn_id,
            session_id: None,
            stdout: Position::default(),
            stderr: Position::default(),
            stop_requested: false,
            ended_at: None,
            inserted_at: self.now(),
        };
        let spawn = Spawn {
            world: self.world.clone(),
            conversation: bound.conversation.clone(),
            machine: bound.machine.clone(),
            epoch: bound.epoch,
            callback: self.callback.clone(),
            process,
        };
        self.spawning = true;
        self.run(ctx, spawn.run(), move |actor, answer, ctx| {
            actor.spawned(turn_id, answer, ctx)
        });
    }

    fn spawned(&mut self, turn_id: TurnId, answer: Result<Spawned, NotSpawned>, ctx: &mut Context<Self>) {
        self.spawning = false;
        let is_current = self
            .turn
            .as_ref()
            .is_some_and(|turn| turn.id == turn_id && !turn.ending);
        match answer {
            Ok(spawned) => {
                if let Some(minted) = &spawned.minted {
                    self.callback = Some(minted.clone());
                }
                spawned.profile.register(self.callback.as_ref(), &mut self.redactor);
                self.profile = Some(spawned.profile.clone());
                self.connect(spawned, is_current, ctx);
            }
            Err(NotSpawned::Superseded) => self.superseded(ctx),
            Err(NotSpawned::Failed {
                reason,
                message,
                process,
            }) => {
                if let Some(process) = process {
                    self.abandon(*process, ctx);
                }
                if is_current {
                    self.work = None;
                    let mut ending = Ending::failed(turn_id, reason, self.now());
                    ending.message = Some(self.redactor.clean(&message).into_owned());
                    self.end_turn(ending, ctx);
                } else {
                    self.spawn_when_clear(ctx);
                }
            }
        }
    }

    fn connect(&mut self, spawned: Spawned, is_current: bool, ctx: &mut Context<Self>) {
        let Spawned {
            process,
            command,
            frames,
            profile,
            cwd,
            ..
        } = spawned;
        let (store, process_id, session_id) = (self.world.store.clone(), process.id, command.session_id.clone());
        let bind = async move { store.bind_session(process_id, session_id).await };
        self.run(ctx, bind, |actor, answer, _| {
            if let Err(error) = answer {
                // A reattach finds the session by its tag then.
                tracing::warn!(conversation.id = %actor.id, %error, "a session id was not recorded");
            }
        });
        let config = self.peer_config(&profile, cwd);
        self.connections += 1;
        let peer = Peer::new(config);
        self.connection = Some(Connection::fresh(
            self.connections,
            command,
            frames,
            process.id,
            process.spawn_id,
            peer,
        ));
        if !is_current {
            // Interrupted while it was being spawned; a successor waits for its end.
            return self.retire_connection(ctx);
        }
        self.work = None;
        let request = self.prompt_request();
        if let (Some(connection), Some(request)) = (self.connection.as_mut(), request)
            && let Ok(steps) = connection.peer.prompt(request, Instant::now())
        {
            connection.turns += 1;
            self.perform(steps, ctx);
        }
        self.pump(ctx);
    }

    /// What a peer of this conversation is opened with.
    pub(super) fn peer_config(&self, profile: &Profile, cwd: String) -> PeerConfig {
        let rng = self.world.rng.clone();
        let mut config = PeerConfig::new(cwd, Box::new(move || rng.hex(8)));
        // Servers that cannot be read were refused before the spawn.
        config.mcp_servers = profile.mcp().unwrap_or_else(|_| serde_json::json!([]));
        config.session = self
            .bound
            .as_ref()
            .and_then(|bound| bound.conversation.runtime_session_id.clone());
        config.ask_ceiling = self.world.settings.permission_timeout;
        config.call_limit = self.world.settings.handshake_timeout;
        config
    }
}

/// One fresh spawn.
struct Spawn {
    world: World,
    conversation: crate::domain::conversation::Conversation,
    machine: crate::domain::machine::Machine,
    epoch: crate::domain::ServerEpoch,
    callback: Option<SecretString>,
    process: Process,
}

impl Spawn {
    async fn run(self) -> Result<Spawned, NotSpawned> {
        let Self {
            world,
            conversation,
            machine,
            epoch,
            callback,
            process,
        } = self;
        let profile = Profile::resolve(&world, conversation, machine)
            .await
            .map_err(|refusal| refused(&refusal))?;
        if let Err(error) = profile.mcp() {
            return Err(failed("mcp_servers_invalid", error.to_string()));
        }
        let mut minted = None;
        if callback.is_none()
            && let Some(fresh) = profile.callback(&world)
        {
            let store = &world.store;
            store
                .mint_callback_key(profile.conversation.id, epoch, fresh.row, world.now())
                .await
                .map_err(stored)?;
            minted = Some(fresh.secret);
        }
        let token = minted.as_ref().or(callback.as_ref());
        let (spawn, env) = profile
            .spawn(&world, process.spawn_id, token)
            .map_err(|error| match error {
                RuntimeError::NoCommand => failed("no_runtime_command", error.to_string()),
                RuntimeError::Disabled(_) => failed("runtime_disabled", error.to_string()),
            })?;
        let adapter = world
            .adapters
            .get(profile.machine.provider)
            .map_err(|error| failed("sandbox_provider_disabled", error.to_string()))?
            .clone();
        let handle = adapter.handle(&profile.machine.name);
        let cwd = adapter
            .host_path(&handle, layout::of(profile.conversation.runtime).cwd)
            .await;
        world.store.open_process(process.clone(), epoch).await.map_err(stored)?;
        let options = spawn_options(env, spawn.dir);
        let answer = match adapter.spawn(&handle, &spawn.command, &spawn.arguments, options).await {
            Err(error) if !error.is_refusal() => find(&adapter, &handle, &process).await.ok_or(error),
            answer => answer,
        };
        match answer {
            Ok((command, frames)) => Ok(Spawned {
                process,
                command,
                frames,
                profile: Arc::new(profile),
                minted,
                cwd,
            }),
            Err(error) => Err(NotSpawned::Failed {
                reason: if error.is_runner_offline() {
                    "runner_offline"
                } else {
                    "spawn_failed"
                },
                message: format!("the agent could not be started ({})", error.class()),
                process: (!error.is_refusal()).then(|| Box::new(process)),
            }),
        }
    }
}

/// Looks for a spawn whose answer was lost.
async fn find(adapter: &Arc<dyn SandboxAdapter>, handle: &Handle, process: &Process) -> Option<(Command, FrameStream)> {
    let until = Instant::now() + SEARCH;
    loop {
        if let Ok(sessions) = adapter.list_sessions(handle).await
            && let Some(session) = tagged(&sessions, process.spawn_id)
            && let Ok(attached) = adapter.attach(handle, &session.id).await
        {
            return Some(attached);
        }
        if Instant::now() + SEARCH_POLL > until {
            return None;
        }
        tokio::time::sleep(SEARCH_POLL).await;
    }
}

fn failed(reason: &'static str, message: String) -> NotSpawned {
    NotSpawned::Failed {
        reason,
        message,
        process: None,
    }
}

fn refused(refusal: &Refusal) -> NotSpawned {
    failed("spawn_failed", refusal.to_string())
}

fn stored(error: StoreError) -> NotSpawned {
    match error {
        StoreError::Stale(_) => NotSpawned::Superseded,
        other => refused(&other.refusal()),
    }
}

/// Whether an error of an attach or a listing may go away inside the window.
pub(super) fn is_passing(error: &SandboxError) -> bool {
    !matches!(error, SandboxError::NotFound | SandboxError::NotSupported)
}
