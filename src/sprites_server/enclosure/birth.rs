//! How an enclosure comes to be: the processes, the control group, the handshake.
//!
//! The outer process reports the number of the first one; that one makes its root directory, has its ids mapped, and hands
//! its root over. Nothing that a sprite brought runs before this is over. Whatever fails, what was started is ended.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};

use super::cgroup::Group;
use super::wire::{self, Event, Identity, OnDisk, Request, Setup};
use super::{EnclosureError, layout};

/// A step of the handshake takes milliseconds; a disk under load, longer.
const STEP: Duration = Duration::from_secs(20);
/// Ids of a sprite, when the host can map them.
const RANGE: &str = "0 0 65536";
/// An enclosure whose first process is ready, before anybody listens to it.
pub(super) struct Made {
    pub socket: UnixStream,
    pub outer: Outer,
    /// A handle of the first process.
    pub first: OwnedFd,
    /// Its root directory.
    pub root: OwnedFd,
    /// The tun device, if there is to be a way out.
    pub device: Option<OwnedFd>,
}

/// The outer process and its control group; ended and reaped when dropped, the group after that.
pub(super) struct Outer {
    child: Child,
    first: Option<OwnedFd>,
    /// Of the overlay.
    work: Option<PathBuf>,
    group: Option<Group>,
}

impl Drop for Outer {
    fn drop(&mut self) {
        if let Some(first) = &self.first {
            let _ = rustix::process::pidfd_send_signal(first, Signal::KILL);
        } else {
            let _ = self.child.kill();
        }
        if let Err(error) = self.child.wait() {
            tracing::error!(%error, "the outer process of a sandbox could not be waited for");
        }
        if let Some(work) = &self.work
            && let Err(error) = layout::open_work(work)
        {
            tracing::warn!(%error, "what a sandbox leaves cannot be removed");
        }
        drop(self.group.take());
    }
}

/// Starts the processes and waits until the first one is ready. Blocks.
pub(super) fn make(setup: &Setup, group: Group) -> Result<Made, EnclosureError> {
    let (socket, theirs) = UnixStream::pair()?;
    socket.set_read_timeout(Some(STEP))?;
    socket.set_write_timeout(Some(STEP))?;
    let child = Command::new(&setup.helper)
        .args(&setup.helper_args)
        .arg(super::init::OUTER)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed("the helper cannot be started", &error))?;
    let mut outer = Outer {
        child,
        first: None,
        work: match &setup.disk {
            OnDisk::Overlay { work, .. } => Some(work.clone()),
            OnDisk::Copy { .. } => None,
        },
        group: None,
    };
    let request = Request::Setup(Box::new(setup.clone()));
    wire::send(&socket, &request, &[])?;
    let (pid, device) = match next(&socket)? {
        (Event::Born(pid), fds) => (pid, fds.into_iter().next()),
        _ => return Err(confused()),
    };
    let number = Pid::from_raw(pid).ok_or_else(confused)?;
    // The outer process does not reap it before it has ended, and it waits for what follows.
    let first = rustix::process::pidfd_open(number, PidfdFlags::empty()).map_err(io::Error::from)?;
    outer.first = Some(first.try_clone()?);
    wire::send(&socket, &request, &[])?;
    // Joining a control group waits for every processor; the mounts are made meanwhile. There are no commands yet.
    let (grouped, root) = std::thread::scope(|scope| {
        let grouping = scope.spawn(|| group.add(pid));
        let root = until_ready(&socket, setup.identity, pid);
        (grouping.join(), root)
    });
    outer.group = Some(group);
    let grouped = grouped.unwrap_or_else(|_| Err(io::Error::other("it panicked")));
    grouped.map_err(|error| failed("the control group", &error))?;
    let root = root?;
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)?;
    Ok(Made {
        socket,
        outer,
        first,
        root,
        device,
    })
}

/// Maps the ids of the first process when it asks, and answers its root directory.
fn until_ready(socket: &UnixStream, identity: Identity, pid: i32) -> Result<OwnedFd, EnclosureError> {
    loop {
        match next(socket)? {
            (Event::MapMe, _) if identity == Identity::Range => {
                for map in ["uid_map", "gid_map"] {
                    fs::write(format!("/proc/{pid}/{map}"), RANGE)
                        .map_err(|error| failed("the ids cannot be mapped", &error))?;
                }
                wire::send(socket, &Request::Mapped, &[])?;
            }
            (Event::Ready, fds) => return fds.into_iter().next().ok_or_else(confused),
            _ => return Err(confused()),
        }
    }
}

fn next(socket: &UnixStream) -> Result<(Event, Vec<OwnedFd>), EnclosureError> {
    match wire::receive(socket) {
        Ok(Some((Event::Failed(why), _))) => Err(EnclosureError::Failed(why)),
        Ok(Some(event)) => Ok(event),
        Ok(None) => Err(EnclosureError::Failed("its first process ended".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(EnclosureError::Failed("its first process does not answer".to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

fn confused() -> EnclosureError {
    EnclosureError::Failed("its first process said something unexpected".to_owned())
}

fn failed(what: &str, error: &io::Error) -> EnclosureError {
    EnclosureError::Failed(format!("{what}: {error}"))
}
