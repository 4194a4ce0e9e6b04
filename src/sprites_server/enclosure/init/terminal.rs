//! A command on its way to its terminal: a session of its own, the terminal as its controlling one, then the program.
//!
//! Standard input and output are the terminal; standard error is a pipe to the first process, which learns there whether
//! the program was started: it closes without a byte, or tells the error's number.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

pub(super) fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let Ok(report) = io::stderr().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let error = become_program(args);
    let number = error.raw_os_error().unwrap_or(0);
    let _ = std::fs::File::from(report).write_all(&number.to_ne_bytes());
    ExitCode::FAILURE
}

/// Answers only when it failed.
fn become_program(mut args: impl Iterator<Item = OsString>) -> io::Error {
    let Some(program) = args.next() else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    let taken = || -> io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(io::stdin())?;
        rustix::stdio::dup2_stderr(io::stdin())?;
        Ok(())
    };
    match taken() {
        Ok(()) => Command::new(program).args(args).exec(),
        Err(error) => error,
    }
}
