//! Pseudo terminals: one is opened, becomes the controlling terminal of a child, and changes its size.
//!
//! The two calls that no safe interface offers are here and nowhere else in this crate. The master is read and written
//! without blocking; the end of output on it is an `EIO`, and input has no end.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    libc,
    pty::{Winsize, openpty},
};
use tokio::{net::unix::pipe, process::Command};

use super::launch::{Input, Output, WindowSize};

/// A new terminal: its master and the side for the command. Neither is inherited by other children.
pub(super) fn open(size: WindowSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let pair = openpty(&window(size), None)?;
    fcntl(&pair.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&pair.slave, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok((pair.master, pair.slave))
}

/// The two directions of a master, for [`super::Started`]. Must run inside a tokio runtime.
///
/// # Errors
/// The descriptor is not a terminal's, or there are too many.
pub fn directions(master: &OwnedFd) -> io::Result<(Input, Output)> {
    fcntl(master, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
    // These types look after any descriptor that can be polled; "unchecked" leaves out that it must be a pipe.
    let input = pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?;
    let output = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
    Ok((Box::new(input), Box::new(output)))
}

/// Makes the child leader of a session of its own, with its standard input as controlling terminal.
#[allow(unsafe_code)]
pub(super) fn lead_session(command: &mut Command) {
    // SAFETY: between fork and exec only two system calls are made, both async-signal-safe; nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            nix::errno::Errno::result(libc::ioctl(0, libc::TIOCSCTTY as _, 0))?;
            Ok(())
        });
    }
}

/// Tells the terminal, and with it the foreground processes, its new size.
#[allow(unsafe_code)]
pub(super) fn resize(master: &OwnedFd, size: WindowSize) -> io::Result<()> {
    let window = window(size);
    // SAFETY: the descriptor is open and the pointer is to a whole `winsize`, which is all this request reads.
    let answer = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ as _, &raw const window) };
    nix::errno::Errno::result(answer)?;
    Ok(())
}

fn window(size: WindowSize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
