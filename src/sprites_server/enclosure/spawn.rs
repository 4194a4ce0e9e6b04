//! Commands inside an enclosure, as the sessions of `fountain-process` want them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fountain_process::{Input, Launch, MARK, Output, Spawner, Started, Stderr, Stdin, Waiting};
use nix::unistd::Pid;
use rustix::fs::OFlags;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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
    let asked = Arc::clone(&shared);
    let asking = move || {
        let fds: Vec<_> = fds.iter().collect();
        asked.ask(Call::Spawn(answer), |id| Request::Spawn(id, spawn), &fds)
    };
    tokio::task::spawn_blocking(asking).await.map_err(io::Error::other)??;
    let Running {
        inner,
        pid,
        terminal,
        exit,
    } = answered.await.map_err(|_| gone())??;
    let held = Held { shared, inner };
    if let Some(terminal) = &terminal {
        rustix::fs::fcntl_setfl(terminal, OFlags::RDWR | OFlags::NONBLOCK)?;
        ends.stdin = Some(Box::new(Terminal::new(terminal.try_clone()?)?));
        ends.stdout = Some(Box::new(Terminal::new(terminal.try_clone()?)?));
    }
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

/// The first process keeps the number of a command taken for as long as this lives.
struct Held {
    shared: Arc<Shared>,
    inner: i32,
}

impl Drop for Held {
    fn drop(&mut self) {
        let (shared, inner) = (Arc::clone(&self.shared), self.inner);
        let release = move || {
            // An enclosure that is gone holds no numbers.
            let _ = shared.write(&Request::Release(inner), &[]);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(release)),
            Err(_) => release(),
        }
    }
}

/// One direction of the master side of a terminal.
struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    #[expect(
        deprecated,
        reason = "what replaces it is unsafe; an owned descriptor that is never replaced is the harmless case"
    )]
    fn new(master: OwnedFd) -> io::Result<Self> {
        Ok(Self(AsyncFd::new(master)?))
    }
}

impl AsyncRead for Terminal {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let unfilled = buffer.initialize_unfilled();
            let read = guard.try_io(|master| match rustix::io::read(master, &mut *unfilled) {
                // The last process that had it open is gone.
                Err(rustix::io::Errno::IO) => Ok(0),
                other => Ok(other?),
            });
            match read {
                Ok(Ok(length)) => {
                    buffer.advance(length);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            match guard.try_io(|master| Ok(rustix::io::write(master, data)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) => return Poll::Ready(written),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
