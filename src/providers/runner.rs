//! Machines on connected runners (runner-protocol 8, sandbox-contract 3).
//!
//! The runner's id rides in the machine's name, so a handle needs nothing else. A runner that is not connected is
//! `unavailable(runner_offline)`, never `not_found`: a parked directory on a machine somebody switched off is still the
//! agent's memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use fountain_actors::domain::machine::Provider;
use fountain_actors::domain::runner::runner_of;
use fountain_actors::domain::{Epoch, Moment};
use fountain_actors::ports::sandbox::{
    Answer, Capability, Command, Created, ExecOptions, ExecOutput, FrameStream, Handle, Info, RUNNER_DISCONNECTED,
    RUNNER_OFFLINE, RunState, SandboxAdapter, SandboxError, Session, SpawnOptions, Terminate, TerminateMode,
};
use fountain_actors::runner::{Call, CallAnswer, Connections, Presence, RunnerConnection, Unsubscribe, wire};
use futures_util::future::LocalBoxFuture;
use serde_json::{Map, Value, json};

/// Limit of every call but `exec` (runner-protocol 8).
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Beyond a command's own limit (runner-protocol 5.1).
const EXEC_MARGIN: Duration = Duration::from_secs(10);
const HOME: &str = "/home/sprite";

pub struct RunnerAdapter {
    connections: Arc<Connections>,
}

impl RunnerAdapter {
    pub fn new(connections: Arc<Connections>) -> Self {
        Self { connections }
    }

    fn presence(&self, machine: &str) -> Result<Presence<Addr<RunnerConnection>>, SandboxError> {
        let runner = runner_of(machine).ok_or_else(|| SandboxError::Invalid("not_a_runner_sandbox_name".to_owned()))?;
        self.connections
            .get(runner)
            .ok_or_else(|| SandboxError::Unavailable(RUNNER_OFFLINE.to_owned()))
    }

    async fn ask(&self, machine: &str, op: &'static str, arguments: Value) -> Result<Value, SandboxError> {
        let presence = self.presence(machine)?;
        call(&presence.connection, op, arguments, false, Some(CALL_LIMIT))
            .await
            .map(|answer| answer.result)
    }

    /// A request about a machine; absent values are left out.
    async fn about(
        &self,
        handle: &Handle,
        op: &'static str,
        epoch: Option<Epoch>,
        more: Value,
    ) -> Result<Value, SandboxError> {
        let mut arguments = object(more);
        arguments.insert("name".into(), handle.name.clone().into());
        if let Some(Epoch(epoch)) = epoch {
            arguments.insert("epoch".into(), epoch.into());
        }
        self.ask(&handle.name, op, Value::Object(arguments)).await
    }

    /// `spawn` and `attach`: a session and its frames.
    async fn open(
        &self,
        handle: &Handle,
        op: &'static str,
        arguments: Value,
    ) -> Result<(Command, FrameStream), SandboxError> {
        let presence = self.presence(&handle.name)?;
        let answer = call(&presence.connection, op, arguments, true, Some(CALL_LIMIT)).await?;
        let (reference, frames) = answer.stream.ok_or_else(|| malformed(op))?;
        let session_id = answer
            .result
            .get("session_id")
            .and_then(Value::as_str)
            .ok_or_else(|| malformed(op))?;
        let command = Command {
            provider: Provider::Runner,
            machine: handle.name.clone(),
            session_id: session_id.to_owned(),
            reference,
        };
        Ok((command, frames))
    }
}

/// One request, bounded by `limit`. The late reply of a call that ran out finds nobody and is dropped.
async fn call(
    connection: &Addr<RunnerConnection>,
    op: &'static str,
    arguments: Value,
    subscribe: bool,
    limit: Option<Duration>,
) -> Result<CallAnswer, SandboxError> {
    let sent = connection.send(Call {
        op,
        arguments: object(arguments),
        subscribe,
    });
    let answer = match limit {
        Some(limit) => tokio::time::timeout(limit, sent)
            .await
            .map_err(|_| SandboxError::Unavailable("runner_timeout".to_owned()))?,
        None => sent.await,
    };
    // A mailbox that is closed is a connection that ended under the call.
    answer.map_err(|_| SandboxError::Unavailable(RUNNER_DISCONNECTED.to_owned()))?
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn malformed(op: &str) -> SandboxError {
    SandboxError::Provider {
        provider: Provider::Runner,
        detail: format!("malformed_{op}"),
    }
}

fn pairs(env: &fountain_actors::ports::sandbox::Env) -> Value {
    env.0.iter().map(|(name, value)| json!([name, value])).collect()
}

fn moment(value: Option<&Value>) -> Option<Moment> {
    let text = value?.as_str()?;
    chrono::DateTime::parse_from_rfc3339(text)
        .ok()
        .map(|time| time.to_utc())
}

fn session(value: &Value) -> Option<Session> {
    Some(Session {
        id: value.get("id")?.as_str()?.to_owned(),
        command: value.get("command").and_then(Value::as_str).map(str::to_owned),
        created_at: moment(value.get("created_at")),
        last_activity_at: moment(value.get("last_activity_at")),
        exit_code: value.get("exit_code").and_then(Value::as_i64),
    })
}

impl SandboxAdapter for RunnerAdapter {
    fn provider(&self) -> Provider {
        Provider::Runner
    }

    fn capabilities(&self) -> BTreeSet<Capability> {
        BTreeSet::from([Capability::Suspend, Capability::Attach])
    }

    fn create<'a>(&'a self, name: &'a str, epoch: Option<Epoch>) -> Answer<'a, Created> {
        Box::pin(async move {
            let handle = self.handle(name);
            let details = self.presence(name)?.runner.details;
            let result = self.about(&handle, "create", epoch, json!({})).await?;
            // Absent means false: the name was minted for this row (RUL-L-90).
            let adopted = result.get("existed").and_then(Value::as_bool).unwrap_or(false);
            let meta = [("root", details.root), ("root_id", details.root_id)]
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), Value::from(value?))))
                .collect::<BTreeMap<_, _>>();
            Ok(Created { handle, adopted, meta })
        })
    }

    fn get<'a>(&'a self, handle: &'a Handle) -> Answer<'a, Info> {
        Box::pin(async move {
            let result = self.about(handle, "get", None, json!({})).await?;
            let state = match result.get("status").and_then(Value::as_str) {
                Some("running") => RunState::Running,
                Some("suspended") => RunState::Suspended,
                Some(_) => RunState::Unknown,
                None => return Err(malformed("get")),
            };
            Ok(Info {
                state,
                path: result.get("path").and_then(Value::as_str).map(str::to_owned),
            })
        })
    }

    fn destroy<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(async move {
            match self.about(handle, "destroy", epoch, json!({})).await {
                Ok(_) | Err(SandboxError::NotFound) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn list_all_names(&self) -> Answer<'_, BTreeSet<String>> {
        Box::pin(async move {
            let mut names = BTreeSet::new();
            for presence in self.connections.all() {
                let answer = call(&presence.connection, "list", json!({}), false, Some(CALL_LIMIT)).await?;
                let listed = answer
                    .result
                    .get("names")
                    .and_then(Value::as_array)
                    .ok_or_else(|| malformed("list"))?;
                for name in listed {
                    let name = name.as_str().ok_or_else(|| malformed("list"))?;
                    // Only what this runner's id is in: two daemons may share a folder (RUL-L-94).
                    if runner_of(name) == Some(presence.runner.id) {
                        names.insert(name.to_owned());
                    }
                }
            }
            Ok(names)
        })
    }

    fn suspend<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(async move { self.about(handle, "suspend", epoch, json!({})).await.map(drop) })
    }

    fn resume<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(async move { self.about(handle, "resume", epoch, json!({})).await.map(drop) })
    }

    fn write_file<'a>(
        &'a self,
        handle: &'a Handle,
        path: &'a str,
        bytes: Bytes,
        mode: Option<u32>,
        epoch: Option<Epoch>,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let more = json!({"path": path, "data": wire::encode(&bytes), "mode": mode});
            self.about(handle, "write_file", epoch, more).await.map(drop)
        })
    }

    fn exec<'a>(
        &'a self,
        handle: &'a Handle,
        command: &'a str,
        arguments: &'a [String],
        options: ExecOptions,
    ) -> Answer<'a, ExecOutput> {
        Box::pin(async move {
            if options.timeout == Some(Duration::ZERO) {
                // Nothing is sent when there is no time for it (sandbox-contract 8).
                return Err(SandboxError::Unavailable("exec_timeout 0".to_owned()));
            }
            let presence = self.presence(&handle.name)?;
            let mut request = json!({
                "name": handle.name, "cmd": command, "args": arguments, "env": pairs(&options.env),
                "dir": options.dir, "stderr_to_stdout": options.stderr_to_stdout,
                "timeout_ms": options.timeout.map(|limit| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX)),
            });
            if let (Some(Epoch(epoch)), Some(object)) = (options.epoch, request.as_object_mut()) {
                object.insert("epoch".into(), epoch.into());
            }
            let limit = options.timeout.map(|limit| limit + EXEC_MARGIN);
            let result = call(&presence.connection, "exec", request, false, limit).await?.result;
            let output = result
                .get("output")
                .and_then(Value::as_str)
                .ok_or_else(|| malformed("exec"))?;
            let output = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, output)
                .map_err(|_| malformed("exec"))?;
            let code = result
                .get("code")
                .and_then(Value::as_i64)
                .ok_or_else(|| malformed("exec"))?;
            Ok(ExecOutput {
                output: output.into(),
                code,
            })
        })
    }

    fn spawn<'a>(
        &'a self,
        handle: &'a Handle,
        command: &'a str,
        arguments: &'a [String],
        options: SpawnOptions,
    ) -> Answer<'a, (Command, FrameStream)> {
        Box::pin(async move {
            let request = json!({
                "name": handle.name, "cmd": command, "args": arguments, "env": pairs(&options.env),
                "dir": options.dir, "stdin": options.stdin, "tty": options.tty, "detachable": options.detachable,
            });
            self.open(handle, "spawn", request).await
        })
    }

    fn write_stdin<'a>(&'a self, command: &'a Command, bytes: Bytes) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = json!({
                "name": command.machine, "session_id": command.session_id, "data": wire::encode(&bytes),
            });
            match self.ask(&command.machine, "stdin", request).await {
                Ok(_) => Ok(()),
                Err(SandboxError::NotFound) => Err(SandboxError::CommandExited),
                Err(SandboxError::Unavailable(why)) => Err(SandboxError::WriteFailed(why)),
                Err(error) => Err(error),
            }
        })
    }

    fn close_stdin<'a>(&'a self, command: &'a Command) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = json!({"name": command.machine, "session_id": command.session_id});
            match self.ask(&command.machine, "stdin_close", request).await {
                Ok(_) | Err(SandboxError::NotFound | SandboxError::CommandExited) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn stop_command<'a>(&'a self, command: &'a Command) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            // Nobody connected: there is no attachment to drop.
            if let Ok(presence) = self.presence(&command.machine) {
                let gone = Unsubscribe {
                    session_id: command.session_id.clone(),
                    reference: command.reference,
                };
                let _ = presence.connection.send(gone).await;
            }
        })
    }

    fn list_sessions<'a>(&'a self, handle: &'a Handle) -> Answer<'a, Vec<Session>> {
        Box::pin(async move {
            let result = self.about(handle, "list_sessions", None, json!({})).await?;
            let listed = result
                .get("sessions")
                .and_then(Value::as_array)
                .ok_or_else(|| malformed("list_sessions"))?;
            listed
                .iter()
                .map(|value| session(value).ok_or_else(|| malformed("list_sessions")))
                .collect()
        })
    }

    fn attach<'a>(&'a self, handle: &'a Handle, session_id: &'a str) -> Answer<'a, (Command, FrameStream)> {
        Box::pin(async move {
            let request = json!({"name": handle.name, "session_id": session_id, "stdin": true});
            self.open(handle, "attach", request).await
        })
    }

    fn terminate_session<'a>(&'a self, handle: &'a Handle, session_id: &'a str, how: Terminate) -> Answer<'a, ()> {
        Box::pin(async move {
            let presence = self.presence(&handle.name)?;
            if !presence.runner.details.offers("terminate") {
                return Err(SandboxError::NotSupported);
            }
            let grace = match how.mode {
                TerminateMode::Graceful => Duration::from_millis(how.timeout_ms.unsigned_abs()),
                // The protocol has no proof to give.
                TerminateMode::Force => return Err(SandboxError::NotSupported),
            };
            let request = json!({"name": handle.name, "session_id": session_id, "grace_ms": how.timeout_ms});
            call(
                &presence.connection,
                "terminate",
                request,
                false,
                Some(CALL_LIMIT + grace),
            )
            .await
            .map(drop)
        })
    }

    fn host_path<'a>(&'a self, handle: &'a Handle, path: &'a str) -> LocalBoxFuture<'a, String> {
        Box::pin(async move {
            let Some(rest) = path
                .strip_prefix(HOME)
                .filter(|rest| rest.is_empty() || rest.starts_with('/'))
            else {
                return path.to_owned();
            };
            match self.get(handle).await {
                Ok(Info { path: Some(root), .. }) => format!("{root}{rest}"),
                _ => path.to_owned(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter() -> RunnerAdapter {
        RunnerAdapter::new(Arc::new(Connections::default()))
    }

    #[actix::test]
    async fn rp_v02_a_name_of_another_provider_is_invalid() {
        let adapter = adapter();
        for name in ["runner-xyz", "fountain-a-b"] {
            let error = adapter.get(&adapter.handle(name)).await.unwrap_err();
            assert_eq!(
                error,
                SandboxError::Invalid("not_a_runner_sandbox_name".into()),
                "{name}"
            );
        }
    }

    #[actix::test]
    async fn a_runner_that_is_away_is_unavailable_and_never_not_found() {
        let adapter = adapter();
        let handle = adapter.handle("runner-0f0e0d0c0b0a49088706050403020100-1a2b3c4d");
        assert!(adapter.get(&handle).await.unwrap_err().is_runner_offline());
        assert!(adapter.destroy(&handle, None).await.unwrap_err().is_runner_offline());
        assert_eq!(
            adapter.host_path(&handle, "/home/sprite/work").await,
            "/home/sprite/work"
        );
        assert_eq!(adapter.list_all_names().await.unwrap(), BTreeSet::new());
    }
}
