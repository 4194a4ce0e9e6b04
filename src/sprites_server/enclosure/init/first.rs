//! The first process: makes the root directory, locks itself in, and starts commands until the socket ends.
//!
//! It answers one request after the other. A command that has ended stays a zombie, and its number taken, until the
//! server says that it is done with it; orphans are reaped at once.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::super::layout::HOME;
use super::super::wire::{self, Event, Identity, Refusal, Request, Setup};
use super::children::Children;
use super::outer::{map_self, receive_setup};
use super::{Explain, Failure, hung_up, mounts};

pub(super) fn run(socket: &UnixStream) -> Result<(), Failure> {
    // Nothing of the server's may be left open behind a path, and no signal may arrive before it is listened to.
    rustix::stdio::dup2_stdin(fs::File::open("/dev/null").during("/dev/null")?).during("/dev/null")?;
    let children = SigSet::from(Signal::SIGCHLD);
    children.thread_block().during("signals")?;
    let signals = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).during("signals")?;

    let setup = receive_setup(socket)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    nix::unistd::sethostname(&setup.hostname).during("host name")?;
    let sysctl = mounts::enter(&setup)?;
    lock_in(&setup, socket)?;
    sysctl.forbid_control_group_namespaces().during("control groups")?;
    drop(sysctl);
    mounts::furnish(&setup, HOME).during("disk")?;
    let mut children = Children::new(setup.helper_args.clone()).during("/proc")?;
    let root = rustix::fs::openat(
        CWD,
        "/",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    wire::send(socket, &Event::Ready, &[&root.during("root directory")?]).during("socket")?;
    loop {
        let mut ready = [
            PollFd::new(socket, PollFlags::IN),
            PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(&signals), PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.during("poll")?,
        };
        let [asked, died] = ready.map(|each| !each.revents().is_empty());
        if died {
            while let Ok(Some(_)) = signals.read_signal() {}
        }
        if asked {
            match wire::receive::<Request>(socket).during("socket")? {
                Some((request, fds)) => answer(socket, request, fds, &mut children)?,
                // The server is gone, and with this process everything here.
                None => return Ok(()),
            }
        }
        // After a request too: while a command is started, the signal is not seen.
        for (pid, status) in children.ended() {
            wire::send(socket, &Event::Exited(pid, status), &[]).during("socket")?;
        }
    }
}

/// Enters a second user namespace. The mounts made so far belong to the first one, so that nobody here can undo them.
fn lock_in(setup: &Setup, socket: &UnixStream) -> Result<(), Failure> {
    if setup.identity == Identity::Range {
        nix::unistd::setgroups(&[]).during("groups")?;
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).during("user namespace")?;
    match setup.identity {
        Identity::Single => map_self(0, 0).during("user namespace")?,
        Identity::Range => {
            wire::send(socket, &Event::MapMe, &[]).during("socket")?;
            match wire::receive::<Request>(socket).during("socket")? {
                Some((Request::Mapped, _)) => {}
                _ => return Err(hung_up()).during("socket"),
            }
        }
    }
    prctl::set_no_new_privs().during("no_new_privs")?;
    prctl::set_pdeathsig(Signal::SIGKILL).during("parent death signal")?;
    // Root inside shall not trace this process, or reach the server's executable through it.
    prctl::set_dumpable(false).during("dumpable")
}

fn answer(socket: &UnixStream, request: Request, fds: Vec<OwnedFd>, children: &mut Children) -> Result<(), Failure> {
    let sent = match request {
        Request::Spawn(id, spawn) => match children.spawn(*spawn, fds) {
            Ok(born) => {
                let attached: Vec<_> = [&born.handle].into_iter().chain(&born.terminal).collect();
                wire::send(socket, &Event::Spawned(id, born.pid), &attached)
            }
            Err((refusal, message)) => wire::send(socket, &Event::Refused(id, refusal, message), &[]),
        },
        Request::Socket(id) => {
            let made = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
            match made {
                Ok(made) => wire::send(socket, &Event::Socket(id), &[&made]),
                Err(error) => {
                    let message = error.to_string();
                    wire::send(socket, &Event::Refused(id, Refusal::Other, message), &[])
                }
            }
        }
        Request::Release(pid) => {
            children.release(pid);
            Ok(())
        }
        Request::Setup(_) | Request::Mapped => Err(std::io::Error::other("asked twice")),
    };
    sent.during("socket")
}
