//! Ending a process for sure (RUL-19d, RUL-47, RUL-L-93, P46, P47).
//!
//! The wish stands in the process record first. Then: what is left to write, end of input, ten seconds, and the session
//! is terminated; where a provider cannot, a command inside the machine signals the process group that carries the spawn
//! id. The conversation's next spawn waits for that end, its admission does not. What cannot be reached now stays in
//! [`ConversationActor::leftovers`] and in its record, and is stopped when the machine answers again.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{ConversationActor, Work};
use crate::domain::SpawnId;
use crate::domain::machine::{MachineStatus, Provider};
use crate::domain::process::Process;
use crate::domain::runner::runner_of;
use crate::ports::World;
use crate::ports::sandbox::{
    ExecOptions, Frame, FrameStream, Handle, SandboxAdapter, SandboxError, Session, Terminate,
};
use crate::runtimes::is_spawn;

/// TERM to KILL inside a machine (RUL-L-93).
const KILL_GRACE: Duration = Duration::from_secs(5);
/// Bound of the command that signals inside a machine, its grace included.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Signals every process that inherited the spawn id: TERM, five seconds, KILL; 0 when none is left.
const SIGNAL_SCRIPT: &str = r#"
holders() { for d in /proc/[0-9]*; do
  tr '\0' '\n' <"$d/environ" 2>/dev/null | grep -qx "FOUNTAIN_SPAWN_ID=$1" && echo "${d#/proc/}"; done; }
kill -TERM $(holders "$1") 2>/dev/null
for _ in 1 2 3 4 5; do [ -z "$(holders "$1")" ] && exit 0; sleep 1; done
kill -KILL $(holders "$1") 2>/dev/null
sleep 0.2; [ -z "$(holders "$1")" ]"#;

/// A process on its way out. The sender is told how its stream ended.
pub(super) struct Stopping {
    ended: Option<oneshot::Sender<Gone>>,
}

/// What a stream said of a process that is being stopped.
enum Gone {
    Exited,
    /// The attachment ended; the process may live.
    Lost,
}

impl ConversationActor {
    /// Gives up the connection: the process is told to end, and made to.
    pub(super) fn retire_connection(&mut self, ctx: &mut Context<Self>) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if let Some(alarm) = connection.alarm.take() {
            ctx.cancel_future(alarm);
        }
        self.backlog.clear();
        let (Some(bound), Ok(adapter)) = (&self.bound, self.world.adapters.get(connection.command.provider)) else {
            return;
        };
        let (ended, end) = oneshot::channel();
        let number = connection.number;
        self.stopping.insert(number, Stopping { ended: Some(ended) });
        let lines: Vec<Bytes> = connection.outbox.drain(..).map(|out| Bytes::from(out.line)).collect();
        let (adapter, command) = (adapter.clone(), connection.command.clone());
        let (store, clock, grace) = (
            self.world.store.clone(),
            self.world.clock.clone(),
            self.world.settings.stop_grace,
        );
        let process = Process {
            id: connection.process_id,
            account_id: bound.conversation.account_id,
            conversation_id: self.id,
            machine_id: bound.machine.id,
            spawn_id: connection.spawn_id,
            session_id: Some(command.session_id.clone()),
            stdout: connection.stdout.position(),
            stderr: connection.stderr.position(),
            stop_requested: true,
            ended_at: None,
            inserted_at: self.now(),
        };
        let handle = adapter.handle(&command.machine);
        let work = async move {
            let recorded = store.request_stop(process.id).await;
            for line in lines {
                if adapter.write_stdin(&command, line).await.is_err() {
                    break;
                }
            }
            let _ = adapter.close_stdin(&command).await; // whatever it answers: the stream tells, or the grace ends
            let exited = matches!(tokio::time::timeout(grace, end).await, Ok(Ok(Gone::Exited)));
            let ended = if exited {
                Ok(())
            } else {
                end_session(&adapter, &handle, &process, grace).await
            };
            adapter.stop_command(&command).await;
            let ended = match ended {
                Ok(()) => store.end_process(process.id, clock.now()).await.map_err(|_| process),
                Err(error) => {
                    tracing::info!(
                        class = error.class(),
                        recorded = recorded.is_ok(),
                        "a process could not be stopped yet"
                    );
                    Err(process)
                }
            };
            ended.err()
        };
        if let Some(frames) = connection.frames.take() {
            self.read(number, frames, ctx);
        }
        self.run(ctx, work, move |actor, left, ctx| {
            actor.stopping.remove(&number);
            actor.leftovers.extend(left);
            actor.process_stopped(ctx);
        });
    }

    /// Frames of an attachment that is no longer the connection: only its end counts.
    pub(super) fn drain_stopping(
        &mut self,
        number: u64,
        frames: FrameStream,
        batch: &[Frame],
        ctx: &mut Context<Self>,
    ) {
        let Some(stopping) = self.stopping.get_mut(&number) else {
            return;
        };
        let verdict = batch.iter().find_map(|frame| match frame {
            Frame::Exit(_) => Some(Gone::Exited),
            Frame::Error(_) => Some(Gone::Lost),
            _ => None,
        });
        match verdict {
            Some(verdict) => {
                if let Some(ended) = stopping.ended.take() {
                    let _ = ended.send(verdict); // the stopper may have moved on to terminate it
                }
            }
            None => self.read(number, frames, ctx),
        }
    }

    /// A process that nobody is attached to any more has to end: durably wished, and done when it can be.
    pub(super) fn abandon(&mut self, process: Process, ctx: &mut Context<Self>) {
        let (store, id) = (self.world.store.clone(), process.id);
        self.leftovers.push(process);
        let wish = async move { store.request_stop(id).await };
        self.run(ctx, wish, |actor, answer, ctx| {
            if let Err(error) = answer {
                tracing::warn!(conversation.id = %actor.id, %error, "the wish to stop a process was not recorded");
            }
            actor.stop_leftovers(ctx);
        });
    }

    /// Stops what is left over, if the machine can be reached.
    pub(super) fn stop_leftovers(&mut self, ctx: &mut Context<Self>) {
        if self.leftovers.is_empty() || !self.is_reachable() {
            return;
        }
        let Some(bound) = &self.bound else { return };
        let Ok(adapter) = self.world.adapters.get(bound.machine.provider).cloned() else {
            return;
        };
        let handle = adapter.handle(&bound.machine.name);
        for process in std::mem::take(&mut self.leftovers) {
            self.connections += 1;
            let number = self.connections;
            self.stopping.insert(number, Stopping { ended: None });
            let (adapter, handle) = (adapter.clone(), handle.clone());
            let (store, clock, grace) = (
                self.world.store.clone(),
                self.world.clock.clone(),
                self.world.settings.stop_grace,
            );
            let work = async move {
                let ended = end_session(&adapter, &handle, &process, grace).await;
                let recorded = match ended {
                    Ok(()) => store.end_process(process.id, clock.now()).await.is_ok(),
                    Err(_) => false,
                };
                (!recorded).then_some(process)
            };
            self.run(ctx, work, move |actor, left, ctx| {
                actor.stopping.remove(&number);
                actor.leftovers.extend(left);
                actor.process_stopped(ctx);
            });
        }
    }

    fn process_stopped(&mut self, ctx: &mut Context<Self>) {
        if !self.stopping.is_empty() {
            return;
        }
        match self.work {
            Some(Work::Opening) => self.spawn_when_clear(ctx),
            Some(Work::Parking) => self.park_now(ctx),
            Some(Work::Ending) => self.all_stopped(ctx),
            _ => {}
        }
    }

    /// The machine is up, as far as this server knows, and its runner is connected here.
    pub(super) fn is_reachable(&self) -> bool {
        let Some(bound) = &self.bound else { return false };
        bound.machine.status == MachineStatus::Ready && self.runner_is_here()
    }

    /// The machine's runner is connected here; true where there is none.
    pub(super) fn runner_is_here(&self) -> bool {
        let Some(bound) = &self.bound else { return false };
        bound.machine.provider != Provider::Runner
            || runner_of(&bound.machine.name).is_some_and(|runner| self.world.runners.is_online(runner))
    }
}

/// Ends one session: by its id, else by the tag of its spawn. Ok when it is certainly gone.
async fn end_session(
    adapter: &Arc<dyn SandboxAdapter>,
    handle: &Handle,
    process: &Process,
    grace: Duration,
) -> Result<(), SandboxError> {
    let session_id = match &process.session_id {
        Some(id) => id.clone(),
        None => match tagged(&adapter.list_sessions(handle).await?, process.spawn_id) {
            Some(session) => session.id.clone(),
            None => return Ok(()), // the spawn never took effect
        },
    };
    match adapter
        .terminate_session(handle, &session_id, Terminate::within(grace))
        .await
    {
        Ok(()) | Err(SandboxError::NotFound) => Ok(()),
        Err(SandboxError::NotSupported) => signal_inside(adapter, handle, process.spawn_id).await,
        Err(error) => Err(error),
    }
}

/// The session whose command line carries this spawn id (RUL-L-41). Sessions without a tag are nobody's to take.
pub(super) fn tagged(sessions: &[Session], spawn_id: SpawnId) -> Option<&Session> {
    sessions.iter().find(|session| {
        session
            .command
            .as_deref()
            .is_some_and(|command| is_spawn(command, spawn_id))
    })
}

async fn signal_inside(
    adapter: &Arc<dyn SandboxAdapter>,
    handle: &Handle,
    spawn_id: SpawnId,
) -> Result<(), SandboxError> {
    let options = ExecOptions {
        timeout: Some(SIGNAL_TIMEOUT + KILL_GRACE),
        stderr_to_stdout: true,
        ..ExecOptions::default()
    };
    let arguments = [
        "-c".to_owned(),
        SIGNAL_SCRIPT.to_owned(),
        "sh".to_owned(),
        spawn_id.to_string(),
    ];
    let output = adapter.exec(handle, "sh", &arguments, options).await?;
    match output.code {
        0 => Ok(()),
        code => Err(SandboxError::Unavailable(format!("signalling ended with code {code}"))),
    }
}

/// Stops a process that no live server owns, if its machine is up: what a runner is asked when it registers, and what
/// follows the end of a conversation whose machine stays. Unreachable now means again at the next registration.
pub(crate) async fn stop_process(world: &World, process: Process) {
    if let Err(error) = try_stop(world, &process).await {
        tracing::info!(conversation.id = %process.conversation_id, %error, "a process could not be stopped yet");
    }
}

async fn try_stop(world: &World, process: &Process) -> Result<(), Box<dyn std::error::Error>> {
    let Some(machine) = world.store.machine(process.machine_id).await? else {
        return Ok(());
    };
    if machine.status != MachineStatus::Ready {
        return Ok(()); // parked or gone: nothing runs there
    }
    let adapter = world.adapters.get(machine.provider)?.clone();
    let handle = adapter.handle(&machine.name);
    end_session(&adapter, &handle, process, world.settings.stop_grace).await?;
    world.store.end_process(process.id, world.now()).await?;
    Ok(())
}
