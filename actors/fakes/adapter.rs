//! The contract's operations over the fake's state.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

use super::faults::Op;
use super::process::Spawn;
use super::sandbox::{FakeMachine, FakeSandbox};
use super::sessions::Replay;
use crate::domain::Epoch;
use crate::domain::machine::Provider;
use crate::ports::sandbox::*;

impl SandboxAdapter for FakeSandbox {
    fn provider(&self) -> Provider {
        self.provider
    }

    fn capabilities(&self) -> BTreeSet<Capability> {
        self.state.lock().capabilities.clone()
    }

    fn create<'a>(&'a self, name: &'a str, epoch: Option<Epoch>) -> Answer<'a, Created> {
        let handle = self.handle(name);
        Box::pin(self.perform(Op::Create, name, epoch, move |state| {
            let mut inner = state.lock();
            let adopted = inner.machines.contains_key(&handle.name);
            if !adopted {
                let disk = inner.draw();
                inner.machines.insert(handle.name.clone(), FakeMachine::new(disk));
            }
            Ok(Created {
                handle,
                adopted,
                meta: BTreeMap::new(),
            })
        }))
    }

    fn get<'a>(&'a self, handle: &'a Handle) -> Answer<'a, Info> {
        let name = handle.name.clone();
        Box::pin(self.perform(Op::Get, &handle.name, None, move |state| {
            let mut inner = state.lock();
            let vague = inner.is_vague.then_some(RunState::Unknown);
            let state = vague.unwrap_or(inner.machine(&name)?.state);
            inner.machine(&name)?;
            Ok(Info { state, path: None })
        }))
    }

    fn destroy<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()> {
        let name = handle.name.clone();
        Box::pin(self.perform(Op::Destroy, &handle.name, epoch, move |state| {
            if let Some(mut machine) = state.lock().machines.remove(&name) {
                machine.stop_processes();
            }
            Ok(())
        }))
    }

    fn list_all_names(&self) -> Answer<'_, BTreeSet<String>> {
        Box::pin(self.perform(Op::List, "", None, |state| {
            Ok(state.lock().machines.keys().cloned().collect())
        }))
    }

    fn list_names<'a>(&'a self, after: Option<&'a str>) -> Answer<'a, NamePage> {
        let after = after.map(str::to_owned);
        Box::pin(self.perform(Op::List, "", None, move |state| {
            let inner = state.lock();
            let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
            let mut rest = inner.machines.range::<String, _>((begin, Bound::Unbounded));
            let names: Vec<String> = rest
                .by_ref()
                .take(inner.page_size)
                .map(|(name, _)| name.clone())
                .collect();
            let next = rest.next().and_then(|_| names.last().cloned());
            Ok(NamePage { names, next })
        }))
    }

    fn suspend<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()> {
        let name = handle.name.clone();
        Box::pin(self.perform(Op::Suspend, &handle.name, epoch, move |state| {
            let mut inner = state.lock();
            inner.offers(Capability::Suspend)?;
            let machine = inner.machine(&name)?;
            machine.state = RunState::Suspended;
            machine.stop_processes();
            Ok(())
        }))
    }

    fn resume<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()> {
        let name = handle.name.clone();
        Box::pin(self.perform(Op::Resume, &handle.name, epoch, move |state| {
            state.lock().machine(&name)?.state = RunState::Running;
            Ok(())
        }))
    }

    fn write_file<'a>(
        &'a self,
        handle: &'a Handle,
        path: &'a str,
        bytes: Bytes,
        mode: Option<u32>,
        epoch: Option<Epoch>,
    ) -> Answer<'a, ()> {
        let (name, path) = (handle.name.clone(), path.to_owned());
        Box::pin(self.perform(Op::WriteFile, &handle.name, epoch, move |state| {
            state.lock().running(&name)?.files.insert(path, (bytes, mode));
            Ok(())
        }))
    }

    fn exec<'a>(
        &'a self,
        handle: &'a Handle,
        command: &'a str,
        arguments: &'a [String],
        options: ExecOptions,
    ) -> Answer<'a, ExecOutput> {
        let mut spawn = self.spawned(handle, command, arguments, options.env, options.dir);
        Box::pin(async move {
            let limit = options.timeout;
            if limit == Some(Duration::ZERO) {
                // There is no time for it, so nothing is sent (sandbox-contract 8).
                return Err(exec_timeout(Duration::ZERO));
            }
            let shared = Arc::clone(&self.state);
            let started = self.perform(Op::Exec, &handle.name, options.epoch, move |state| {
                let seen = state
                    .lock()
                    .running(&spawn.machine)?
                    .looked_at(&spawn.command, &spawn.arguments);
                match seen {
                    Some(output) => Ok(Started::Looked(output)),
                    None => Self::launch_without_input(&shared, &mut spawn).map(Started::Runs),
                }
            });
            let run = async {
                match started.await? {
                    Started::Looked(output) => Ok(output),
                    Started::Runs(frames) => collect(frames, options.stderr_to_stdout).await,
                }
            };
            match limit {
                None => run.await,
                Some(limit) => tokio::time::timeout(limit, run)
                    .await
                    .unwrap_or_else(|_| Err(exec_timeout(limit))),
            }
        })
    }

    fn spawn<'a>(
        &'a self,
        handle: &'a Handle,
        command: &'a str,
        arguments: &'a [String],
        options: SpawnOptions,
    ) -> Answer<'a, (Command, FrameStream)> {
        let mut spawn = self.spawned(handle, command, arguments, options.env, options.dir);
        let shared = Arc::clone(&self.state);
        let provider = self.provider;
        Box::pin(self.perform(Op::Spawn, &handle.name, None, move |state| {
            if options.tty {
                state.lock().offers(Capability::Tty)?;
            }
            let (reference, frames) = Self::launch(&shared, &mut spawn, options.stdin)?;
            let command = Command {
                provider,
                machine: spawn.machine,
                session_id: spawn.session_id,
                reference,
            };
            Ok((command, frames))
        }))
    }

    fn write_stdin<'a>(&'a self, command: &'a Command, bytes: Bytes) -> Answer<'a, ()> {
        let (shared, target) = (Arc::clone(&self.state), command.clone());
        Box::pin(self.perform(Op::WriteStdin, &command.machine, None, move |_| {
            let (stdio, process) = Self::process(&shared, &target)?;
            process
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .stdin(&bytes, &stdio);
            Ok(())
        }))
    }

    fn close_stdin<'a>(&'a self, command: &'a Command) -> Answer<'a, ()> {
        Box::pin(async move {
            // Fine after the exit, and twice.
            let Ok((stdio, process)) = Self::process(&self.state, command) else {
                return Ok(());
            };
            if let Ok(session) = self.state.lock().session(&command.machine, &command.session_id) {
                session.stdin_open = false;
            }
            process.lock().unwrap_or_else(PoisonError::into_inner).eof(&stdio);
            Ok(())
        })
    }

    fn stop_command<'a>(&'a self, command: &'a Command) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            if let Ok(session) = self.state.lock().session(&command.machine, &command.session_id) {
                session.detach(command.reference);
            }
        })
    }

    fn list_sessions<'a>(&'a self, handle: &'a Handle) -> Answer<'a, Vec<Session>> {
        let name = handle.name.clone();
        Box::pin(self.perform(Op::ListSessions, &handle.name, None, move |state| {
            let mut inner = state.lock();
            Ok(inner
                .machine(&name)?
                .sessions
                .iter()
                .rev()
                .map(|session| session.listed())
                .collect())
        }))
    }

    fn attach<'a>(&'a self, handle: &'a Handle, session_id: &'a str) -> Answer<'a, (Command, FrameStream)> {
        let (name, session_id, provider) = (handle.name.clone(), session_id.to_owned(), self.provider);
        Box::pin(self.perform(Op::Attach, &handle.name, None, move |state| {
            let mut inner = state.lock();
            let reference = inner.draw();
            let replay = if inner.marks_replay {
                Replay::Marked
            } else {
                Replay::Plain
            };
            let frames = inner.session(&name, &session_id)?.attach(reference, replay);
            let command = Command {
                provider,
                machine: name,
                session_id,
                reference,
            };
            Ok((command, frames))
        }))
    }

    fn terminate_session<'a>(&'a self, handle: &'a Handle, session_id: &'a str, how: Terminate) -> Answer<'a, ()> {
        let (name, session_id) = (handle.name.clone(), session_id.to_owned());
        Box::pin(async move {
            how.check(&session_id)?;
            self.perform(Op::Terminate, &handle.name, None, move |state| {
                let mut inner = state.lock();
                inner.offers(Capability::TerminateSession)?;
                let is_forced = how.mode == TerminateMode::Force;
                if is_forced {
                    inner.offers(Capability::ForceTerminateSession)?;
                    inner.machine(&name)?;
                }
                match inner.session(&name, &session_id) {
                    Ok(session) => session.exit(137),
                    // There is no proof that a process was killed which nobody knows.
                    Err(_) if is_forced => return Err(SandboxError::Unavailable("termination_unconfirmed".into())),
                    // Ending what is not there is done.
                    Err(_) => {}
                }
                Ok(())
            })
            .await
        })
    }

    fn apply_network_policy<'a>(
        &'a self,
        handle: &'a Handle,
        policy: &'a NetworkPolicy,
        epoch: Option<Epoch>,
    ) -> Answer<'a, ()> {
        let (name, policy) = (handle.name.clone(), policy.clone());
        Box::pin(self.perform(Op::Policy, &handle.name, epoch, move |state| {
            let mut inner = state.lock();
            inner.offers(Capability::NetworkPolicy)?;
            inner.machine(&name)?.policy = Some(policy);
            Ok(())
        }))
    }

    fn network_policy<'a>(&'a self, handle: &'a Handle) -> Answer<'a, NetworkPolicy> {
        let name = handle.name.clone();
        Box::pin(self.perform(Op::PolicyRead, &handle.name, None, move |state| {
            let mut inner = state.lock();
            inner.offers(Capability::NetworkPolicy)?;
            // Nothing applied means that everything is allowed.
            Ok(inner.machine(&name)?.policy.clone().unwrap_or_else(|| NetworkPolicy {
                allow: vec!["*".into()],
            }))
        }))
    }

    fn create_checkpoint<'a>(&'a self, handle: &'a Handle, _: &'a str, epoch: Option<Epoch>) -> Answer<'a, String> {
        Box::pin(self.checkpoint(handle, Capability::Checkpoint, epoch))
    }

    fn create_checkpoint_once<'a>(&'a self, handle: &'a Handle, how: &'a CheckpointOnce) -> Answer<'a, String> {
        Box::pin(async move {
            how.check()?;
            self.checkpoint(handle, Capability::CreateCheckpointOnce, how.epoch)
                .await
        })
    }

    fn restore_checkpoint<'a>(&'a self, handle: &'a Handle, id: &'a str, epoch: Option<Epoch>) -> Answer<'a, ()> {
        let (name, id) = (handle.name.clone(), id.to_owned());
        Box::pin(self.perform(Op::Restore, &handle.name, epoch, move |state| {
            let mut inner = state.lock();
            inner.offers(Capability::Checkpoint)?;
            inner.running(&name)?;
            let disk = inner.checkpoints.get(&id).cloned().ok_or(SandboxError::NotFound)?;
            let machine = inner.running(&name)?;
            machine.files = disk;
            machine.stop_processes();
            Ok(())
        }))
    }

    fn delete_checkpoint<'a>(&'a self, handle: &'a Handle, id: &'a str, epoch: Option<Epoch>) -> Answer<'a, ()> {
        let id = id.to_owned();
        Box::pin(self.perform(Op::DeleteCheckpoint, &handle.name, epoch, move |state| {
            let mut inner = state.lock();
            inner.offers(Capability::Checkpoint)?;
            // Already gone is success.
            inner.checkpoints.remove(&id);
            Ok(())
        }))
    }

    fn create_new<'a>(&'a self, name: &'a str, how: CreateNew) -> Answer<'a, Handle> {
        let mut handle = self.handle(name);
        Box::pin(async move {
            how.check()?;
            self.perform(Op::Create, name, how.epoch, move |state| {
                let mut inner = state.lock();
                inner.offers(Capability::CreateNew)?;
                if inner.machines.contains_key(&handle.name) {
                    return Err(SandboxError::AlreadyExists);
                }
                let disk = inner.draw();
                inner.machines.insert(handle.name.clone(), FakeMachine::new(disk));
                handle.instance_id = Some(format!("instance-{disk}"));
                Ok(handle)
            })
            .await
        })
    }

    fn destroy_once<'a>(&'a self, handle: &'a Handle, how: DestroyOnce) -> Answer<'a, ()> {
        Box::pin(async move {
            how.check()?;
            self.state.lock().offers(Capability::DestroyOnce)?;
            self.destroy(handle, how.epoch).await
        })
    }

    fn public_url<'a>(&'a self, handle: &'a Handle) -> LocalBoxFuture<'a, Result<String, PublicUrlError>> {
        Box::pin(async move {
            let mut inner = self.state.lock();
            if inner.offers(Capability::PublicUrl).is_err() {
                return Err(PublicUrlError::Unsupported);
            }
            inner.machine(&handle.name).map_err(PublicUrlError::Failed)?;
            Ok(format!("https://{}.fake.test", handle.name))
        })
    }
}

impl FakeSandbox {
    /// Keeps a copy of the disk under an id that every machine can restore.
    async fn checkpoint(
        &self,
        handle: &Handle,
        needed: Capability,
        epoch: Option<Epoch>,
    ) -> Result<String, SandboxError> {
        let name = handle.name.clone();
        self.perform(Op::Checkpoint, &handle.name, epoch, move |state| {
            let mut inner = state.lock();
            inner.offers(needed)?;
            let files = inner.running(&name)?.files.clone();
            let id = format!("{name}.v{}", inner.draw());
            inner.checkpoints.insert(id.clone(), files);
            Ok(id)
        })
        .await
    }

    fn spawned(&self, handle: &Handle, command: &str, arguments: &[String], env: Env, dir: Option<String>) -> Spawn {
        Spawn {
            machine: handle.name.clone(),
            // Drawn when it starts.
            session_id: String::new(),
            command: command.to_owned(),
            arguments: arguments.to_vec(),
            env,
            dir,
        }
    }
}

/// What an `exec` came to at once.
enum Started {
    Looked(ExecOutput),
    Runs(FrameStream),
}

/// Waits for a command's verdict. One that ended without one gives no output.
async fn collect(mut frames: FrameStream, stderr_too: bool) -> Result<ExecOutput, SandboxError> {
    let mut output = Vec::new();
    while let Some(frame) = frames.recv().await {
        match frame {
            Frame::Stdout(held) => output.extend_from_slice(&held.bytes),
            Frame::Stderr(held) if stderr_too => output.extend_from_slice(&held.bytes),
            Frame::Stderr(_) | Frame::ReplayEnd { .. } => {}
            Frame::Exit(code) => {
                let output = output.into();
                return Ok(ExecOutput { output, code });
            }
            Frame::Error(error) => return Err(error),
        }
    }
    Err(super::sessions::closed())
}

fn exec_timeout(limit: Duration) -> SandboxError {
    SandboxError::Unavailable(format!("exec_timeout {}", limit.as_millis()))
}
