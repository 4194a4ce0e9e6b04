//! Commands inside an enclosure, as the sessions of `fountain-process` want them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use fountain_process::{Input, Launch, MARK, Output, Spawner, Started, Stderr, Stdin, Waiting};
use nix::unistd::Pid;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::sandbox::{Call, Running, Shared, gone};
use super::wire::{Request, Spawn, StderrTo};

/// Starts commands in one enclosure.
pub(super) struct Inside(pub Arc<Shared>);

impl Spawner for Inside {
    fn start(&self, launch: Launch, session: String) -> Waiting<io::Result<Started>> {
        Box::pin(start(Arc::clone(&self.0), launch, session))
    }
}

/// The ends of the pipes that stay here.
#[derive(Default)]
struct Ends {
    stdin: Option<Input>,
    stdout: Option<Output>,
    stderr: Option<Output>,
}

async fn start(shared: Arc<Shared>, launch: Launch, session: String) -> io::Result<Started> {
    let (mut ends, mut fds) = (Ends::default(), Vec::new());
    if launch.terminal.is_none() {
        fds = lay_pipes(&launch, &mut ends)?;
    }
    let spawn = Box::new(request(launch, session));
    let (answer, answered) = oneshot::channel();
    let asking = move || {
        let fds: Vec<_> = fds.iter().collect();
        shared.ask(Call::Spawn(answer), |id| Request::Spawn(id, spawn), &fds)
    };
    tokio::task::spawn_blocking(asking).await.map_err(io::Error::other)??;
    let Running {
        mut held,
        pid,
        terminal,
        exit,
    } = answered.await.map_err(|_| gone())??;
    if let Some(terminal) = &terminal {
        let (input, output) = fountain_process::directions(terminal)?;
        (ends.stdin, ends.stdout) = (Some(input), Some(output));
    }
    held.wanted();
    Ok(Started {
        leader: Pid::from_raw(pid),
        stdin: ends.stdin,
        stdout: ends.stdout,
        stderr: ends.stderr,
        terminal,
        exit: Box::pin(async move {
            // Without an answer everything inside was killed.
            Ok(exit.await.unwrap_or_else(|_| ExitStatus::from_raw(nix::libc::SIGKILL)))
        }),
        release: Some(Box::new(move || drop(held))),
    })
}

/// Makes the pipes; answers the ends that go inside, in the order that `Spawn` says.
fn lay_pipes(launch: &Launch, ends: &mut Ends) -> io::Result<Vec<OwnedFd>> {
    let mut inside = Vec::new();
    if launch.stdin == Stdin::Pipe {
        let (reader, writer) = io::pipe()?;
        ends.stdin = Some(Box::new(pipe::Sender::from_owned_fd(writer.into())?));
        inside.push(reader.into());
    }
    let mut output = || -> io::Result<Output> {
        let (reader, writer) = io::pipe()?;
        inside.push(writer.into());
        fountain_process::widen(&reader);
        Ok(Box::new(pipe::Receiver::from_owned_fd(reader.into())?))
    };
    ends.stdout = Some(output()?);
    if launch.stderr == Stderr::Journal {
        ends.stderr = Some(output()?);
    }
    Ok(inside)
}

fn request(launch: Launch, session: String) -> Spawn {
    let mut env = launch.env;
    env.push((MARK.into(), session.into()));
    Spawn {
        program: launch.program.into_os_string(),
        args: launch.args,
        env,
        cwd: launch.cwd.into_os_string(),
        stdin: launch.stdin == Stdin::Pipe,
        stderr: match launch.stderr {
            Stderr::Journal => StderrTo::Own,
            Stderr::WithStdout => StderrTo::Stdout,
            Stderr::Discard => StderrTo::Null,
        },
        terminal: launch.terminal.map(|size| (size.rows, size.cols)),
    }
}
