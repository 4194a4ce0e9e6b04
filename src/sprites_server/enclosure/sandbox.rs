//! A running enclosure, seen from the server: the conversation with the first process, and the end.
//!
//! A thread per enclosure reads what the first process says; requests are written by whoever asks, on the blocking pool.
//! The thread ends when the socket does; it then kills what is left, waits for the outer process, removes the control
//! group, and only then is the enclosure closed. Whatever comes over the socket may be a lie of the sprite: it can cost
//! the sprite its own commands and nothing else.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fountain_process::{Spawner, Waiting};
use rustix::process::Signal;
use tokio::sync::{oneshot, watch};

use super::birth::{Made, Outer};
use super::settings::UplinkHandle;
use super::spawn::Inside;
use super::wire::{self, Event, Refusal, Request};
use super::{Enclosure, EnclosureError, Stream, layout};
use crate::policy::Policy;

/// What the reader of one socket needs.
const STACK: usize = 256 * 1024;

/// One running enclosure. Dropping it ends it.
pub(super) struct Sandbox(pub Arc<Shared>);

/// What the doors and the reading thread share.
pub(super) struct Shared {
    writer: Mutex<UnixStream>,
    next: AtomicU64,
    calls: Mutex<Option<HashMap<u64, Call>>>,
    exits: Mutex<HashMap<i32, oneshot::Sender<ExitStatus>>>,
    /// The first process.
    first: OwnedFd,
    root: Mutex<Option<OwnedFd>>,
    uplink: Mutex<Option<Arc<dyn UplinkHandle>>>,
    closed: watch::Sender<bool>,
}

/// What was asked for and is not answered.
pub(super) enum Call {
    Spawn(oneshot::Sender<io::Result<Running>>),
    Socket(oneshot::Sender<io::Result<OwnedFd>>),
}

/// A command that was started.
pub(super) struct Running {
    pub held: Held,
    /// Its number outside.
    pub pid: i32,
    pub terminal: Option<OwnedFd>,
    pub exit: oneshot::Receiver<ExitStatus>,
}

impl Sandbox {
    /// Listens to a first process that is ready. Called inside a tokio runtime.
    pub fn run(made: Made, uplink: Option<Box<dyn UplinkHandle>>) -> io::Result<Self> {
        let Made {
            socket,
            outer,
            first,
            root,
            device: _,
        } = made;
        let shared = Arc::new(Shared {
            writer: Mutex::new(socket.try_clone()?),
            next: AtomicU64::new(1),
            calls: Mutex::new(Some(HashMap::new())),
            exits: Mutex::default(),
            first,
            root: Mutex::new(Some(root)),
            uplink: Mutex::new(uplink.map(Arc::from)),
            closed: watch::channel(false).0,
        });
        let (listener, runtime) = (Arc::clone(&shared), tokio::runtime::Handle::current());
        let thread = std::thread::Builder::new()
            .name("enclosure".to_owned())
            .stack_size(STACK);
        thread.spawn(move || {
            let _entered = runtime.enter();
            listener.listen(&socket);
            listener.end(outer);
        })?;
        Ok(Self(shared))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Shared {
    fn listen(self: &Arc<Self>, socket: &UnixStream) {
        loop {
            match wire::receive::<Event>(socket) {
                Ok(Some((event, fds))) => self.hear(event, fds),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the first process of a sandbox is not understood; the sandbox ends");
                    return;
                }
            }
        }
    }

    fn hear(self: &Arc<Self>, event: Event, fds: Vec<OwnedFd>) {
        match event {
            Event::Spawned(id, inner) => {
                let Some(Call::Spawn(answer)) = self.take(id) else {
                    return;
                };
                // Where the one who asked is gone, the process is killed.
                let _ = answer.send(self.running(inner, fds));
            }
            Event::Socket(id) => {
                let Some(Call::Socket(answer)) = self.take(id) else {
                    return;
                };
                let _ = answer.send(fds.into_iter().next().ok_or_else(missing));
            }
            Event::Refused(id, refusal, message) => {
                let error = io::Error::new(kind(refusal), message);
                match self.take(id) {
                    Some(Call::Spawn(answer)) => drop(answer.send(Err(error))),
                    Some(Call::Socket(answer)) => drop(answer.send(Err(error))),
                    None => {}
                }
            }
            Event::Exited(inner, status) => {
                if let Some(exit) = locked(&self.exits).remove(&inner) {
                    let _ = exit.send(ExitStatus::from_raw(status));
                }
            }
            Event::Failed(why) => tracing::warn!(why, "a sandbox failed"),
            Event::Born(_) | Event::MapMe | Event::Ready => {}
        }
    }

    fn running(self: &Arc<Self>, inner: i32, fds: Vec<OwnedFd>) -> io::Result<Running> {
        let mut fds = fds.into_iter();
        let handle = fds.next().ok_or_else(missing)?;
        let pid = number_outside(&handle)?;
        let (exited, exit) = oneshot::channel();
        locked(&self.exits).insert(inner, exited);
        Ok(Running {
            held: Held {
                shared: Arc::clone(self),
                inner,
                unwanted: Some(pid),
            },
            pid,
            terminal: fds.next(),
            exit,
        })
    }

    /// The socket has ended: so has everything else.
    fn end(&self, outer: Outer) {
        self.kill();
        drop(outer);
        drop(locked(&self.root).take());
        drop(locked(&self.uplink).take());
        drop(locked(&self.calls).take());
        for (_, exit) in locked(&self.exits).drain() {
            // The end of the first process kills the rest.
            let _ = exit.send(ExitStatus::from_raw(Signal::KILL.as_raw()));
        }
        self.closed.send_replace(true);
    }

    /// Kills the first process, and with it all others.
    fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.first, Signal::KILL);
    }

    fn take(&self, id: u64) -> Option<Call> {
        locked(&self.calls).as_mut()?.remove(&id)
    }

    /// Asks for something; the answer comes to `call`. Blocks.
    pub fn ask(&self, call: Call, request: impl FnOnce(u64) -> Request, fds: &[&OwnedFd]) -> io::Result<()> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        match locked(&self.calls).as_mut() {
            Some(calls) => calls.insert(id, call),
            None => return Err(gone()),
        };
        self.write(&request(id), fds).inspect_err(|_| drop(self.take(id)))
    }

    /// Blocks.
    pub fn write(&self, request: &Request, fds: &[&OwnedFd]) -> io::Result<()> {
        wire::send(&locked(&self.writer), request, fds).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => gone(),
            _ => error,
        })
    }

    async fn socket(self: Arc<Self>) -> io::Result<OwnedFd> {
        let (answer, answered) = oneshot::channel();
        let asking = move || self.ask(Call::Socket(answer), Request::Socket, &[]);
        tokio::task::spawn_blocking(asking).await.map_err(io::Error::other)??;
        answered.await.map_err(|_| gone())?
    }
}

/// The first process keeps the number of a command taken for as long as this lives.
pub(super) struct Held {
    shared: Arc<Shared>,
    inner: i32,
    /// Its number outside, while nobody else knows of it.
    unwanted: Option<i32>,
}

impl Held {
    /// Somebody looks after the command now.
    pub fn wanted(&mut self) {
        self.unwanted = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(pid) = self.unwanted {
            // It is not released, so the number is its own.
            let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
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

/// The enclosure is not there any more.
pub(super) fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, EnclosureError::Closed)
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer has no file descriptor")
}

fn kind(refusal: Refusal) -> io::ErrorKind {
    match refusal {
        Refusal::ProgramNotFound => io::ErrorKind::NotFound,
        Refusal::NoDirectory => io::ErrorKind::NotADirectory,
        Refusal::NotPermitted => io::ErrorKind::PermissionDenied,
        Refusal::Other => io::ErrorKind::Other,
    }
}

/// The process behind a pidfd, in this process's own PID namespace.
fn number_outside(handle: &OwnedFd) -> io::Result<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_fd().as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    let number = number.and_then(|number| number.trim().parse().ok());
    number
        .filter(|pid| *pid > 1)
        .ok_or_else(|| io::Error::other("a process has no number here"))
}

/// No code panics while it holds one of these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Enclosure for Sandbox {
    fn spawner(&self) -> Arc<dyn Spawner> {
        Arc::new(Inside(Arc::clone(&self.0)))
    }

    fn root(&self) -> Result<OwnedFd, EnclosureError> {
        let root = locked(&self.0.root);
        Ok(root.as_ref().ok_or(EnclosureError::Closed)?.try_clone()?)
    }

    fn home(&self) -> &str {
        layout::HOME
    }

    fn set_policy(&self, policy: Policy) -> Waiting<Result<(), EnclosureError>> {
        let uplink = locked(&self.0.uplink).clone();
        let is_closed = *self.0.closed.borrow();
        Box::pin(async move {
            match uplink {
                _ if is_closed => Err(EnclosureError::Closed),
                Some(uplink) => Ok(uplink.set_policy(policy).await?),
                // There is no way out that could be opened or shut.
                None => Ok(()),
            }
        })
    }

    fn connect(&self, port: u16) -> Waiting<Result<Box<dyn Stream>, EnclosureError>> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            if *shared.closed.borrow() {
                return Err(EnclosureError::Closed);
            }
            let socket = std::net::TcpStream::from(shared.socket().await?);
            socket.set_nonblocking(true)?;
            let socket = tokio::net::TcpSocket::from_std_stream(socket);
            let stream = socket.connect(([127, 0, 0, 1], port).into()).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn close(&self) -> Waiting<()> {
        self.0.kill();
        self.closed()
    }

    fn closed(&self) -> Waiting<()> {
        let mut closed = self.0.closed.subscribe();
        // The sender lives as long as the thread that ends everything.
        Box::pin(async move {
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }
}
