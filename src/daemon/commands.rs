//! Commands in a sandbox: `exec` to its end, `spawn` as a session (runner-protocol 5).
//!
//! What a command did is data, never an error: 127 for one that could not start, 124 for one that ran out of time. An
//! error means that the sandbox is not there, or that the daemon could not do its part.

use std::{
    ffi::OsString,
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::json;

use super::{
    State, paths, sandboxes,
    wire::{self, Answer, Code, Refusal, Request},
};
use crate::process::{Event, Launch, Leftovers, Local, OneShot, Session, Spawner, StartError, Stderr, Stdin, resolve};

/// A program that could not start.
const NOT_STARTED: i32 = 127;
/// A command that ran out of time, or whose output did not end with it.
const TIMED_OUT: i32 = 124;
/// Most output of an `exec`: in base64 it must fit into one message of 64 MiB (RUL-43a).
const OUTPUT_LIMIT: u64 = 45 * 1024 * 1024;
/// A killed command that does not end by then cannot be killed.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// A command as it was asked for, checked.
struct Asked {
    name: String,
    cmd: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    dir: String,
}

/// A command that is ready, or the reason why it cannot start.
type Prepared = Result<(String, Launch), String>;

impl Asked {
    fn from(request: &mut Request, name: &str) -> Result<Self, Refusal> {
        let pairs = request.env.take().unwrap_or_default().into_iter();
        let asked = Self {
            name: name.to_owned(),
            cmd: request.cmd.take().unwrap_or_default(),
            args: request.args.take().unwrap_or_default(),
            env: pairs
                .filter_map(|pair| <[String; 2]>::try_from(pair).ok())
                .map(|[k, v]| (k, v))
                .collect(),
            dir: request.dir.take().unwrap_or_default(),
        };
        let variables = asked.env.iter().flat_map(|(name, value)| [name, value]);
        let mut texts = asked.args.iter().chain([&asked.cmd, &asked.dir]).chain(variables);
        if texts.by_ref().any(|text| text.contains('\0')) {
            return Err(Refusal::new(Code::Invalid, "a command cannot hold a NUL byte"));
        }
        drop(texts);
        if asked.env.iter().any(|(name, _)| name.is_empty() || name.contains('=')) {
            return Err(Refusal::new(Code::Invalid, "a variable needs a name without '='"));
        }
        Ok(asked)
    }

    /// Maps paths, builds the environment and finds the program. Blocks.
    fn prepare(&self, state: &State, stdin: Stdin, stderr: Stderr, leftovers: Leftovers) -> Result<Prepared, Refusal> {
        state.root.check()?;
        let directory = sandboxes::find(&state.root, &self.name)?;
        let wanted = paths::map_path(&directory, &self.dir);
        let cwd = if wanted.is_dir() {
            wanted
        } else {
            directory.clone().into()
        };
        let environment = state.inherited.of_command(&directory, &self.env);
        let program = paths::map_arg(&directory, &self.cmd);
        let program = match resolve(&program, environment.get("PATH")) {
            Ok(program) => program,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let args: Vec<String> = self.args.iter().map(|arg| paths::map_arg(&directory, arg)).collect();
        let shown = std::iter::once(program.to_string_lossy().into_owned()).chain(args.iter().cloned());
        let shown = shown.collect::<Vec<_>>().join(" ");
        let args = args.into_iter().map(OsString::from).collect();
        Ok(Ok((
            shown,
            Launch {
                program,
                args,
                env: environment.into_pairs(),
                cwd,
                stdin,
                stderr,
                leftovers,
                terminal: None,
            },
        )))
    }
}

/// Runs a command to its end and answers its output and code.
pub async fn exec(state: &Arc<State>, name: &str, mut request: Request) -> Answer {
    let asked = Asked::from(&mut request, name)?;
    let requested = asked.cmd.clone();
    let is_merged = request.stderr_to_stdout.unwrap_or(false);
    let stderr = if is_merged { Stderr::WithStdout } else { Stderr::Discard };
    let here = Arc::clone(state);
    let (shown, launch) = match on_pool(move || asked.prepare(&here, Stdin::Null, stderr, Leftovers::ONE_SHOT)).await? {
        Ok(prepared) => prepared,
        Err(reason) => return Ok(result(format!("{reason}\n").as_bytes(), NOT_STARTED)),
    };
    let local = local();
    let starting = Session::start(&local, state.session_id(), shown, launch, &state.ledger);
    let command = match state.registry.start_one_shot(name, starting).await {
        Ok(command) => command,
        Err(StartError::Refused(error)) => {
            return Ok(result(format!("{requested}: {error}\n").as_bytes(), NOT_STARTED));
        }
        Err(StartError::Stopped) => return Err(stopped()),
    };
    let limit = request
        .timeout_ms
        .and_then(|limit| u64::try_from(limit).ok())
        .filter(|limit| *limit > 0);
    finish(&command, limit.map(Duration::from_millis)).await
}

async fn finish(command: &OneShot<'_>, limit: Option<Duration>) -> Answer {
    let session = command.session();
    let out_of_time = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let is_timed_out = tokio::select! {
        biased;
        () = session.growing_beyond(OUTPUT_LIMIT) => false,
        () = out_of_time => true,
    };
    if session.exit().is_none() {
        session.stop(Duration::ZERO).await;
    }
    let exit = tokio::time::timeout(AFTER_KILL, session.ending()).await;
    let exit = exit.map_err(|_| Refusal::new(Code::Unavailable, "the command cannot be killed"))?;
    if session.tail().output() > OUTPUT_LIMIT {
        return Err(Refusal::new(
            Code::Truncated,
            format!("the output is larger than {OUTPUT_LIMIT} bytes"),
        ));
    }
    let mut output = collect(session)
        .await
        .map_err(|error| Refusal::new(Code::Unavailable, error.to_string()))?;
    let code = if is_timed_out {
        output.extend_from_slice(b"\nfountain runner: command timed out\n");
        TIMED_OUT
    } else if !exit.output_ended {
        output.extend_from_slice(b"\nfountain runner: command output did not close\n");
        TIMED_OUT
    } else {
        exit.code
    };
    on_pool(move || Ok(result(&output, code))).await
}

async fn collect(session: &Session) -> io::Result<Vec<u8>> {
    let mut reader = session.reader();
    let mut output = Vec::new();
    while let Event::Output { data, .. } = reader.next().await? {
        output.extend_from_slice(&data);
    }
    Ok(output)
}

fn result(output: &[u8], code: i32) -> serde_json::Value {
    json!({"output": wire::encode(output), "code": code})
}

/// Starts a session. A command that cannot start is one as well: already over, with the reason as its output.
pub async fn spawn(state: &Arc<State>, name: &str, mut request: Request) -> Result<Arc<Session>, Refusal> {
    let asked = Asked::from(&mut request, name)?;
    let requested = asked.cmd.clone();
    let stdin = if request.stdin.unwrap_or(false) {
        Stdin::Pipe
    } else {
        Stdin::Null
    };
    let here = Arc::clone(state);
    let prepared = on_pool(move || asked.prepare(&here, stdin, Stderr::Journal, Leftovers::SESSION)).await?;
    let starting = async {
        let reason = match prepared {
            Ok((shown, launch)) => {
                match Session::start(&local(), state.session_id(), shown, launch, &state.ledger).await {
                    Ok(session) => return Ok(session),
                    Err(error) => format!("{requested}: {error}"),
                }
            }
            Err(reason) => reason,
        };
        let output = format!("fountain runner: {reason}\n");
        Ok(Session::ended(state.session_id(), requested, &output, NOT_STARTED, &state.ledger).await)
    };
    state.registry.start(name, starting).await.map_err(|_| stopped())
}

/// The commands of a runner are processes of this host.
fn local() -> Arc<dyn Spawner> {
    Arc::new(Local)
}

/// The sessions of a sandbox, newest first, as the server reads them.
pub fn listing(sessions: &[Arc<Session>]) -> serde_json::Value {
    let entries = sessions.iter().map(|session| {
        let mut entry = json!({
            "id": session.id(),
            "command": session.command(),
            "created_at": rfc3339(session.created_at()),
            "last_activity_at": rfc3339(session.last_activity_at()),
            "tty": false,
        });
        if let (Some(exit), Some(fields)) = (session.exit(), entry.as_object_mut()) {
            fields.insert("exit_code".to_owned(), exit.code.into());
        }
        entry
    });
    json!({"sessions": entries.collect::<Vec<_>>()})
}

fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0));
    time.unwrap_or_default().format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn stopped() -> Refusal {
    Refusal::new(Code::Unavailable, "the sandbox was stopped meanwhile")
}

/// Runs blocking work on the pool. Its panic is a refusal like any other failure of the machine.
pub async fn on_pool<T, F>(work: F) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, Refusal> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(Refusal::new(
            Code::Unavailable,
            format!("the operation crashed: {error}"),
        ))
    })
}
