//! Commands over the exec socket: run to the end, run and stream, join again (providers 1.3, sandbox-contract 7 and 8).
//!
//! The deadline of `exec` starts when it is entered and holds for everything: the one-time file, the dial, every frame
//! and the exit frame itself. Output that came before a failure is not returned.

use std::sync::Arc;
use std::time::Duration;

use actix_http::{StatusCode, ws};
use bytes::BytesMut;
use fountain_actors::domain::machine::Provider;
use fountain_actors::ports::sandbox::{
    CLOSED_BEFORE_EXIT, Command, ExecOptions, ExecOutput, Frame, FrameStream, SandboxError, SpawnOptions,
};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use crate::address::Target;
use crate::attachments::{self, Attached, Pump};
use crate::call::{Call, Lost};
use crate::environment::{OneTimeFile, Prepared, prepare};
use crate::errors::{refused, unavailable, unclassified};
use crate::frames::{Decoder, Event, Piece};
use crate::wire::{Socket, Upgraded};
use crate::{Core, named};

/// Most bytes of output that `exec` keeps: what a machine prints must not fill this process.
const LONGEST_OUTPUT: usize = 64 * 1024 * 1024;
/// Codes with which a shell says that it could not start the command, or itself could not be started.
const NOT_STARTED: [i64; 2] = [126, 127];

/// Runs a command to its end.
pub(crate) async fn exec(
    core: &Arc<Core>,
    machine: &str,
    command: &str,
    arguments: &[String],
    options: ExecOptions,
) -> Result<ExecOutput, SandboxError> {
    named(machine)?;
    let deadline = Deadline::new(options.timeout);
    deadline.check()?;
    let both = options.stderr_to_stdout;
    let run = async {
        let prepared = prepare(core, machine, command, arguments, options.env, options.epoch).await?;
        let Prepared { argv, shown, file } = prepared;
        deadline.check()?;
        let target = command_target(machine, &argv, &shown, options.dir.as_deref()).pair("stdin", "false");
        let socket = open(core, Call::get(target).epoch(options.epoch)).await?;
        let pump = Pump::new(socket, Decoder::new(false), file, core.limits);
        let (running, mut frames) = attachments::run_alone(pump);
        let output = collect(&mut frames, both, deadline).await;
        drop(running);
        output
    };
    deadline.bound(run).await
}

async fn collect(frames: &mut FrameStream, both: bool, deadline: Deadline) -> Result<ExecOutput, SandboxError> {
    let mut output = BytesMut::new();
    loop {
        deadline.check()?;
        if output.len() > LONGEST_OUTPUT {
            return Err(unclassified("oversized_output"));
        }
        match frames.recv().await {
            Some(Frame::Stdout(held)) => output.extend_from_slice(&held.bytes),
            Some(Frame::Stderr(held)) if both => output.extend_from_slice(&held.bytes),
            Some(Frame::Stderr(_) | Frame::ReplayEnd { .. }) => {}
            Some(Frame::Exit(code)) => {
                // A success that is looked at too late is still too late.
                deadline.check()?;
                return Ok(ExecOutput {
                    output: output.freeze(),
                    code,
                });
            }
            Some(Frame::Error(error)) => return Err(error),
            None => return Err(unavailable(CLOSED_BEFORE_EXIT)),
        }
    }
}

/// Starts a command and streams it.
pub(crate) async fn spawn(
    core: &Arc<Core>,
    machine: &str,
    command: &str,
    arguments: &[String],
    options: SpawnOptions,
) -> Result<(Command, FrameStream), SandboxError> {
    named(machine)?;
    let Prepared { argv, shown, file } = prepare(core, machine, command, arguments, options.env, None).await?;
    let mut target = command_target(machine, &argv, &shown, options.dir.as_deref())
        .pair("stdin", if options.stdin { "true" } else { "false" });
    if options.tty {
        target = target.pair("tty", "true").pair("rows", "24").pair("cols", "80");
    }
    if options.detachable {
        target = target.pair("detachable", "true");
    }
    let socket = open(core, Call::get(target)).await?;
    let pump = Pump::new(socket, Decoder::new(options.tty), file, core.limits);
    join(core, machine, pump, options.stdin).await
}

/// Joins a session: its replay from the first byte, its tail, its verdict.
///
/// A service that says it is a release is asked by path, one that says something else by `?id=`. Where nothing is known
/// yet the path comes first, and its "no such session" is asked again in the old form.
pub(crate) async fn attach(
    core: &Arc<Core>,
    machine: &str,
    session_id: &str,
) -> Result<(Command, FrameStream), SandboxError> {
    named(machine)?;
    if matches!(session_id, "" | "." | "..") {
        return Err(SandboxError::NotFound);
    }
    let base = || Target::sprite(machine).segment("exec");
    let by_path = || Call::get(base().segment(session_id).pair("stdin", "true"));
    let by_query = || Call::get(base().pair("id", session_id).pair("stdin", "true"));
    let socket = match core.facts().is_release {
        Some(true) => open(core, by_path()).await?,
        Some(false) => open(core, by_query()).await?,
        None => match open(core, by_path()).await {
            Err(SandboxError::NotFound) if core.facts().is_release != Some(true) => open(core, by_query()).await?,
            other => other?,
        },
    };
    let mut pump = Pump::new(socket, Decoder::new(false), None, core.limits);
    pump.session_id = session_id.to_owned();
    join(core, machine, pump, true).await
}

/// Waits for the acknowledgement, then hands the socket to its own task.
async fn join(
    core: &Arc<Core>,
    machine: &str,
    mut pump: Pump,
    has_input: bool,
) -> Result<(Command, FrameStream), SandboxError> {
    let first = tokio::time::timeout(core.limits.acknowledge, pump.acknowledged()).await;
    match first {
        Ok(answer) => answer?,
        // The upgrade itself was an acknowledgement, of a server that does not introduce its sessions.
        Err(_) => tracing::debug!(provider = "sprites", "a session did not introduce itself"),
    }
    let session_id = pump.session_id.clone();
    let Attached { reference, frames } = attachments::run(core, pump, has_input);
    let command = Command {
        provider: Provider::Sprites,
        machine: machine.to_owned(),
        session_id,
        reference,
    };
    Ok((command, frames))
}

fn command_target(machine: &str, argv: &[String], shown: &[(String, String)], dir: Option<&str>) -> Target {
    let mut target = Target::sprite(machine).segment("exec");
    for argument in argv {
        target = target.pair("cmd", argument);
    }
    if let Some(path) = argv.first() {
        target = target.pair("path", path);
    }
    for (name, value) in shown {
        target = target.pair("env", &format!("{name}={value}"));
    }
    match dir {
        Some(dir) => target.pair("dir", dir),
        None => target,
    }
}

async fn open(core: &Core, call: Call) -> Result<Socket, SandboxError> {
    let wire = core.wire()?;
    let answer = tokio::time::timeout(core.limits.upgrade, wire.upgrade(&call))
        .await
        .map_err(|_| Lost::Late)??;
    match answer {
        Upgraded::Open(socket, head) => {
            core.learn(&head.headers);
            Ok(*socket)
        }
        Upgraded::Refused(reply) => {
            core.learn(&reply.headers);
            Err(match reply.status {
                // A success without an upgrade is no start.
                StatusCode::OK => unavailable("not_upgraded"),
                _ => refused(&reply),
            })
        }
    }
}

impl Pump {
    /// Waits until the server has said something about this command. What it said is not lost.
    async fn acknowledged(&mut self) -> Result<(), SandboxError> {
        let event = match self.event().await {
            Some(event) => event,
            None => self.decoder.at_close(),
        };
        match event {
            Event::SessionInfo { session_id, .. } => self.session_id = session_id,
            Event::NoVerdict => return Err(unavailable(CLOSED_BEFORE_EXIT)),
            event => self.early.push(event),
        }
        Ok(())
    }

    /// The next event; None when the socket is at its end. Only before the pump runs.
    async fn event(&mut self) -> Option<Event> {
        loop {
            match self.socket.next().await? {
                Ok(ws::Frame::Close(_)) | Err(_) => return None,
                Ok(frame) => match piece(frame).map(|piece| self.decoder.take(piece)) {
                    Some(Ok(Some(event))) => return Some(event),
                    Some(Ok(None)) | None => {}
                    Some(Err(_)) => return None,
                },
            }
        }
    }
}

/// A WebSocket frame as the decoder takes it; None for pings, pongs and closes.
pub(crate) fn piece(frame: ws::Frame) -> Option<Piece> {
    Some(match frame {
        ws::Frame::Text(bytes) => Piece::Text(bytes),
        ws::Frame::Binary(bytes) => Piece::Binary(bytes),
        ws::Frame::Continuation(item) => match item {
            ws::Item::FirstText(bytes) => Piece::FirstText(bytes),
            ws::Item::FirstBinary(bytes) => Piece::FirstBinary(bytes),
            ws::Item::Continue(bytes) => Piece::Continue(bytes),
            ws::Item::Last(bytes) => Piece::Last(bytes),
        },
        ws::Frame::Ping(_) | ws::Frame::Pong(_) | ws::Frame::Close(_) => return None,
    })
}

/// Says what a verdict means for the one-time file: a shell that could not start the command may have left it.
pub(crate) fn settle_file(file: Option<OneTimeFile>, code: i64) {
    if let Some(file) = file
        && !NOT_STARTED.contains(&code)
    {
        file.forget();
    }
}

/// The one deadline of an `exec`, monotonic (sandbox-contract 8).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    limit: Option<(Instant, Duration)>,
}

impl Deadline {
    pub fn new(limit: Option<Duration>) -> Self {
        Self {
            limit: limit.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit))),
        }
    }

    /// # Errors
    /// `unavailable(exec_timeout <original ms>)` when there is no time left.
    pub fn check(self) -> Result<(), SandboxError> {
        match self.limit {
            Some((at, limit)) if Instant::now() >= at => Err(late(limit)),
            _ => Ok(()),
        }
    }

    async fn bound<T>(self, work: impl Future<Output = Result<T, SandboxError>>) -> Result<T, SandboxError> {
        match self.limit {
            Some((at, limit)) => tokio::time::timeout_at(at, work).await.map_err(|_| late(limit))?,
            None => work.await,
        }
    }
}

fn late(limit: Duration) -> SandboxError {
    unavailable(&format!("exec_timeout {}", limit.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fountain_actors::ports::sandbox::Held;
    use tokio::sync::mpsc;

    fn exec_timeout(ms: u64) -> SandboxError {
        unavailable(&format!("exec_timeout {ms}"))
    }

    #[actix_rt::test]
    async fn x01_x02_a_deadline_keeps_its_number_and_zero_is_over() {
        tokio::time::pause();
        let deadline = Deadline::new(Some(Duration::from_millis(40)));
        assert_eq!(deadline.check(), Ok(()));
        tokio::time::advance(Duration::from_millis(40)).await;
        assert_eq!(deadline.check(), Err(exec_timeout(40)));
        assert_eq!(Deadline::new(Some(Duration::ZERO)).check(), Err(exec_timeout(0)));
        assert_eq!(Deadline::new(None).check(), Ok(()));
    }

    #[actix_rt::test]
    async fn x03_steady_output_does_not_extend_the_deadline() {
        for (stderr, both) in [(false, false), (true, false), (true, true)] {
            tokio::time::pause();
            let (frames, mut stream) = mpsc::unbounded_channel();
            let feeder = actix_rt::spawn(async move {
                for _ in 0..12 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    let held = Held::free("x");
                    let frame = if stderr {
                        Frame::Stderr(held)
                    } else {
                        Frame::Stdout(held)
                    };
                    if frames.send(frame).is_err() {
                        return;
                    }
                }
            });
            let deadline = Deadline::new(Some(Duration::from_millis(40)));
            let answer = deadline.bound(collect(&mut stream, both, deadline)).await;
            assert_eq!(answer, Err(exec_timeout(40)));
            feeder.abort();
            tokio::time::resume();
        }
    }

    #[actix_rt::test]
    async fn x05_x06_an_exit_that_is_looked_at_late_is_late() {
        tokio::time::pause();
        let (frames, mut stream) = mpsc::unbounded_channel();
        frames.send(Frame::Exit(0)).unwrap();
        let deadline = Deadline::new(Some(Duration::from_millis(1)));
        tokio::time::advance(Duration::from_millis(20)).await;
        assert_eq!(collect(&mut stream, true, deadline).await, Err(exec_timeout(1)));
        assert!(stream.try_recv().is_ok(), "x04: a queued frame is not even looked at");
    }

    #[actix_rt::test]
    async fn output_without_end_is_refused_at_its_bound() {
        let (frames, mut stream) = mpsc::unbounded_channel();
        let piece = bytes::Bytes::from(vec![0; LONGEST_OUTPUT]);
        frames.send(Frame::Stdout(Held::free(piece))).unwrap();
        frames.send(Frame::Stdout(Held::free("x"))).unwrap();
        frames.send(Frame::Exit(0)).unwrap();
        let answer = collect(&mut stream, false, Deadline::new(None)).await;
        assert_eq!(answer, Err(unclassified("oversized_output")));
    }

    #[actix_rt::test]
    async fn x08_a_timely_end_is_output_and_code() {
        for limit in [None, Some(Duration::from_secs(5))] {
            for (both, wanted) in [(true, "outerr"), (false, "out")] {
                let (frames, mut stream) = mpsc::unbounded_channel();
                frames.send(Frame::Stdout(Held::free("out"))).unwrap();
                frames.send(Frame::Stderr(Held::free("err"))).unwrap();
                frames.send(Frame::Exit(3)).unwrap();
                let answer = collect(&mut stream, both, Deadline::new(limit)).await.unwrap();
                assert_eq!((&answer.output[..], answer.code), (wanted.as_bytes(), 3));
            }
        }
    }
}
