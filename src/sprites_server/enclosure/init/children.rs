//! The commands inside: how they are started, and who is reaped when.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitIdStatus};
use rustix::pty::OpenptFlags;

use super::super::layout::bound;
use super::super::wire::{Refusal, Spawn, StderrTo};
use super::TERMINAL;

/// A process that takes longer than this to become its program was stopped by somebody inside.
const BECOMING: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// As in `fountain-process`: another process may hold the program open that was just written.
const BUSY_RETRIES: u32 = 20;

/// All processes that the first process is a parent of.
pub(super) struct Children {
    /// `/proc` as it was before anybody could mount over it.
    proc: OwnedFd,
    /// Those that the server knows, and whether their end was told.
    leaders: HashMap<i32, bool>,
    /// What the executable is to be told before it is a terminal process.
    helper_args: Vec<OsString>,
}

/// A command that runs.
pub(super) struct Born {
    pub pid: i32,
    pub handle: OwnedFd,
    pub terminal: Option<OwnedFd>,
}

type Refused = (Refusal, String);

impl Children {
    pub fn new(helper_args: Vec<OsString>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            proc: rustix::fs::open("/proc", flags, Mode::empty())?,
            leaders: HashMap::new(),
            helper_args,
        })
    }

    /// Starts a command with these standard streams.
    pub fn spawn(&mut self, spawn: Spawn, fds: Vec<OwnedFd>) -> Result<Born, Refused> {
        let path = spawn.env.iter().rev().find(|(name, _)| name == "PATH");
        let program = find(&spawn, path.map(|(_, value)| value.as_os_str()))?;
        if !Path::new(&spawn.cwd).is_dir() {
            let cwd = Path::new(&spawn.cwd).display();
            return Err((Refusal::NoDirectory, format!("there is no directory {cwd}")));
        }
        let (child, terminal) = match spawn.terminal {
            None => (with_pipes(&spawn, &program, fds), None),
            Some(size) => match with_terminal(&spawn, &program, size, &self.helper_args) {
                Ok((child, master)) => (Ok(child), Some(master)),
                Err(error) => (Err(error), None),
            },
        };
        let pid = child.map_err(|error| refused(&error))?;
        let handle = Pid::from_raw(pid)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|error| refused(&error.into()))?;
        self.leaders.insert(pid, false);
        Ok(Born { pid, handle, terminal })
    }

    /// The server is done with this number. A process that still runs becomes an orphan's equal.
    pub fn release(&mut self, pid: i32) {
        self.leaders.remove(&pid);
        // Reaped now if it has ended; whoever ends later is seen then.
        wait(pid, WaitIdOptions::empty());
    }

    /// Those that have ended since, and their wait status. Reaps orphans.
    pub fn ended(&mut self) -> Vec<(i32, i32)> {
        let mut ended = Vec::new();
        for pid in self.all() {
            match self.leaders.get_mut(&pid) {
                None => {
                    wait(pid, WaitIdOptions::empty());
                }
                Some(told) if !*told => {
                    if let Some(status) = wait(pid, WaitIdOptions::NOWAIT) {
                        *told = true;
                        ended.push((pid, raw(&status)));
                    }
                }
                Some(_) => {}
            }
        }
        ended
    }

    /// The numbers of all children.
    fn all(&self) -> Vec<i32> {
        self.listed().unwrap_or_else(|_| self.scanned())
    }

    fn listed(&self) -> io::Result<Vec<i32>> {
        let list = self.read("1/task/1/children")?;
        Ok(list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    }

    /// For kernels that do not list children.
    fn scanned(&self) -> Vec<i32> {
        let Ok(directory) = rustix::fs::openat(&self.proc, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
            return Vec::new();
        };
        let entries = rustix::fs::Dir::read_from(&directory).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let stat = self.read(&format!("{pid}/stat")).unwrap_or_default();
            let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
            parent == Some("1")
        })
        .collect()
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let open = rustix::fs::openat(&self.proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        fs::File::from(open).read_to_string(&mut text)?;
        Ok(text)
    }
}

fn wait(pid: i32, options: WaitIdOptions) -> Option<WaitIdStatus> {
    let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let id = WaitId::Pid(Pid::from_raw(pid)?);
    rustix::process::waitid(id, options).ok().flatten()
}

/// The status as `waitpid` would give it.
fn raw(status: &WaitIdStatus) -> i32 {
    if let Some(code) = status.exit_status() {
        return (code & 0xff) << 8;
    }
    status.terminating_signal().unwrap_or(0) | if status.dumped() { 0x80 } else { 0 }
}

fn find(spawn: &Spawn, path: Option<&OsStr>) -> Result<PathBuf, Refused> {
    let Some(program) = spawn.program.to_str() else {
        return Ok(PathBuf::from(&spawn.program));
    };
    fountain_process::resolve(program, path).map_err(|error| (Refusal::ProgramNotFound, error.to_string()))
}

fn refused(error: &io::Error) -> Refused {
    let refusal = match error.kind() {
        io::ErrorKind::NotFound => Refusal::ProgramNotFound,
        io::ErrorKind::PermissionDenied => Refusal::NotPermitted,
        _ => Refusal::Other,
    };
    (refusal, error.to_string())
}

fn with_pipes(spawn: &Spawn, program: &Path, fds: Vec<OwnedFd>) -> io::Result<i32> {
    let mut fds = fds.into_iter();
    let mut next = || {
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "a stream is missing");
        fds.next().ok_or_else(missing)
    };
    let mut command = Command::new(program);
    command.args(&spawn.args);
    command.stdin(if spawn.stdin {
        Stdio::from(next()?)
    } else {
        Stdio::null()
    });
    let stdout = next()?;
    command.stderr(match spawn.stderr {
        StderrTo::Own => Stdio::from(next()?),
        StderrTo::Stdout => Stdio::from(stdout.try_clone()?),
        StderrTo::Null => Stdio::null(),
    });
    command.stdout(stdout).process_group(0);
    dress(&mut command, spawn);
    start(&mut command)
}

fn with_terminal(
    spawn: &Spawn,
    program: &Path,
    (rows, cols): (u16, u16),
    helper_args: &[OsString],
) -> io::Result<(i32, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&slave, size)?;
    let (mut report, reporter) = io::pipe()?;
    let mut command = Command::new(bound());
    command.args(helper_args).arg(TERMINAL).arg(program).args(&spawn.args);
    command.stdin(slave.try_clone()?).stdout(slave).stderr(reporter);
    dress(&mut command, spawn);
    let pid = start(&mut command)?;
    drop(command);
    let mut ready = [PollFd::new(&report, PollFlags::IN)];
    let became = poll(&mut ready, Some(&BECOMING))? > 0;
    let mut number = [0; 4];
    let failure = if !became {
        Some(io::Error::from(io::ErrorKind::TimedOut))
    } else if report.read_exact(&mut number).is_ok() {
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
    } else {
        None
    };
    match failure {
        None => Ok((pid, master)),
        Some(error) => {
            if let Some(pid) = Pid::from_raw(pid) {
                // It is this process's child and not reaped: the number is its.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            Err(error)
        }
    }
}

fn dress(command: &mut Command, spawn: &Spawn) {
    command
        .env_clear()
        .envs(spawn.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&spawn.cwd);
}

fn start(command: &mut Command) -> io::Result<i32> {
    let mut tries = 0;
    let child = loop {
        match unblocked(|| command.spawn()) {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_RETRIES => {
                tries += 1;
                pause();
            }
            other => break other?,
        }
    };
    i32::try_from(child.id()).map_err(io::Error::other)
}

/// A child inherits which signals are blocked, and has to hear of its own children. What arrives here meanwhile is lost;
/// whoever starts a command looks for the dead afterwards.
fn unblocked<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let children = SigSet::from(Signal::SIGCHLD);
    children.thread_unblock()?;
    let done = work();
    children.thread_block()?;
    done
}

#[expect(
    clippy::disallowed_methods,
    reason = "this process has one thread, and a millisecond harms nobody but the one who asked"
)]
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(1));
}
