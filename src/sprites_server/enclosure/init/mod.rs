//! The processes that make an enclosure from within: `fountain sprite-init`, hidden, never run by people.
//!
//! The server starts the *outer* process with a socket as its standard input. It leaves the host's namespaces, starts the
//! *first* process (number 1 inside) and waits for it; its only other task is to be a parent outside. The first process
//! makes the root directory, enters a second user namespace in which every mount is locked, and then starts commands for
//! the server. A *terminal* process is a command on its way: it takes its terminal and becomes the program.
//!
//! All of them are single-threaded and block; none may share a process with the server. The end of the socket is their
//! end, and the first process takes everything inside with it.

mod children;
mod first;
mod mounts;
mod netlink;
mod outer;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

pub(super) const OUTER: &str = "outer";
const FIRST: &str = "first";
const TERMINAL: &str = "terminal";

/// Opens the device by which packets leave, in the network of the process that calls it; see [`main`].
pub type OpenDevice = fn() -> io::Result<OwnedFd>;

/// Runs one of the processes; `args` are what follows the hidden command. To be called before any thread is started.
///
/// `device` makes the tun device of a new network, and brings its loopback up.
pub fn main(args: Vec<OsString>, device: OpenDevice) -> ExitCode {
    let mut args = args.into_iter();
    let which = args.next().unwrap_or_default();
    if which == TERMINAL {
        return terminal::run(args);
    }
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return ExitCode::FAILURE;
    };
    let ran = if which == OUTER {
        outer::run(&socket, device)
    } else if which == FIRST {
        first::run(&socket)
    } else {
        Err(Failure("this command is for the server's own use".to_owned()))
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The server may be gone.
            let _ = super::wire::send(&socket, &super::wire::Event::Failed(failure.0), &[]);
            ExitCode::FAILURE
        }
    }
}

/// A sentence about what went wrong.
struct Failure(String);

trait Explain<T> {
    /// Says what was attempted.
    fn during(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Explain<T> for Result<T, E> {
    fn during(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {}", error.into())))
    }
}

fn hung_up() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server hung up")
}
