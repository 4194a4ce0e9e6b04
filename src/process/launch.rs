//! Starting a command: what it gets, where its program is found, how its pipes are laid.
//!
//! The program is looked up here, in the `PATH` of the *final* environment (runner-protocol 7): the standard library
//! would search the daemon's own. Everything in this file blocks and runs on the blocking pool.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use std::{
    future::Future,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    process::ExitStatus,
};

use nix::unistd::Pid;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::unix::pipe,
    process::{Child, Command},
};

use super::{identity::MARK, journal::PIECE, terminal};

/// Another thread that is between fork and exec may hold a file open that was just written; the kernel then refuses to
/// run it. It is over in microseconds.
const BUSY_RETRIES: u32 = 20;

/// A command, ready to start. Not `Debug`: it holds secrets (field lesson P80).
pub struct Launch {
    /// The program file; see [`resolve`].
    pub program: PathBuf,
    /// Its arguments, without the program.
    pub args: Vec<OsString>,
    /// The whole environment; a later pair wins.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory.
    pub cwd: PathBuf,
    /// Whether there is input.
    pub stdin: Stdin,
    /// Where standard error goes.
    pub stderr: Stderr,
    /// What happens to the group when its leader has ended.
    pub leftovers: Leftovers,
    /// A terminal of this size instead of pipes: one output stream, and input that has no end of its own.
    pub terminal: Option<WindowSize>,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    pub rows: u16,
    pub cols: u16,
}

/// The input of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The null device: a reader sees the end at once (field lesson P48).
    Null,
    /// A pipe.
    Pipe,
}

/// Where standard error goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stderr {
    /// Into the journal, as a stream of its own.
    Journal,
    /// Into the pipe of standard output, so that the order of the two is exact.
    WithStdout,
    /// Nowhere.
    Discard,
}

/// What happens to the rest of a group when its leader has ended, and how long output is awaited then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// They live on (an agent may leave a server running). Output is read until its end, until it has been `quiet`, or
    /// for `most` in all (RUL-46a).
    Keep {
        /// Time without a byte.
        quiet: Duration,
        /// Time in all.
        most: Duration,
    },
    /// They are killed; output that is still open after `drain` is given up.
    Kill {
        /// Time in all.
        drain: Duration,
    },
}

impl Leftovers {
    /// What a session's children get (RUL-46a).
    pub const SESSION: Self = Self::Keep {
        quiet: Duration::from_secs(2),
        most: Duration::from_secs(10),
    };
    /// What the children of a one-shot command get (runner-protocol 5.1).
    pub const ONE_SHOT: Self = Self::Kill {
        drain: Duration::from_millis(250),
    };
}

/// A program that was not found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{program}: executable file not found in PATH")]
pub struct LookupError {
    /// What was asked for.
    pub program: String,
}

/// Finds the program file: a name with a slash as it is, any other in the directories of `path`. Blocks.
///
/// # Errors
/// No directory of `path` holds a file of that name with an execute bit. Empty elements of `path` are skipped.
pub fn resolve(program: &str, path: Option<&OsStr>) -> Result<PathBuf, LookupError> {
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    let directories = path.map(std::env::split_paths).into_iter().flatten();
    let mut candidates = directories
        .filter(|directory| !directory.as_os_str().is_empty())
        .map(|d| d.join(program));
    let found = if program.is_empty() {
        None
    } else {
        candidates.find(|candidate| is_executable(candidate))
    };
    found.ok_or_else(|| LookupError {
        program: program.to_owned(),
    })
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| !meta.is_dir() && meta.permissions().mode() & 0o111 != 0)
}

/// Gives an output pipe room for [`PIECE`] bytes, so that a busy process is read in few and large pieces. Where the
/// system or the user's share of pipe memory does not allow it, the pipe stays as it is.
pub fn widen(pipe: impl AsFd) {
    #[cfg(target_os = "linux")]
    if let Ok(size) = i32::try_from(PIECE) {
        let _ = nix::fcntl::fcntl(pipe, nix::fcntl::FcntlArg::F_SETPIPE_SZ(size));
    }
    #[cfg(not(target_os = "linux"))]
    drop(pipe);
}

/// Output of a child, whatever kind of pipe it came through.
pub type Output = Box<dyn AsyncRead + Send + Unpin>;
/// Input of a child.
pub type Input = Box<dyn AsyncWrite + Send + Unpin>;
/// A future that a session waits for.
pub type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A process that was just started, and its ends of the pipes.
pub struct Started {
    /// The leader of the process group, as this process sees it: in its own PID namespace.
    pub leader: Pid,
    pub stdin: Option<Input>,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    /// The master side, where the command has a terminal. `stdin` and `stdout` are its two directions.
    pub terminal: Option<OwnedFd>,
    /// Answers when the leader has ended.
    pub exit: Waiting<io::Result<ExitStatus>>,
    /// Called once the session has noted that the leader's number may be used again. Whoever holds the leader as a zombie
    /// until then gives a signal to the group no stranger to hit.
    pub release: Option<Box<dyn FnOnce() + Send>>,
}

/// Where a session's process comes from: this host, or an enclosure on it.
pub trait Spawner: Send + Sync {
    /// Starts the command in a process group of its own, with `session` in its environment as [`MARK`].
    ///
    /// The future must be polled inside a tokio runtime.
    fn start(&self, launch: Launch, session: String) -> Waiting<io::Result<Started>>;
}

/// Starts commands as children of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

impl Spawner for Local {
    fn start(&self, launch: Launch, session: String) -> Waiting<io::Result<Started>> {
        let starting = tokio::task::spawn_blocking(move || start(&launch, &session));
        Box::pin(async move { starting.await.map_err(io::Error::other)? })
    }
}

/// Starts the command in a process group of its own. Blocks; must run inside a tokio runtime.
fn start(launch: &Launch, session: &str) -> io::Result<Started> {
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.args)
        .env_clear()
        .envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.env(MARK, session).current_dir(&launch.cwd).kill_on_drop(false);
    if let Some(size) = launch.terminal {
        return start_in_terminal(command, size);
    }
    command.process_group(0);
    command.stdin(match launch.stdin {
        Stdin::Null => Stdio::null(),
        Stdin::Pipe => Stdio::piped(),
    });
    let mut shared = None;
    match launch.stderr {
        Stderr::Journal => command.stdout(Stdio::piped()).stderr(Stdio::piped()),
        Stderr::Discard => command.stdout(Stdio::piped()).stderr(Stdio::null()),
        Stderr::WithStdout => {
            let (reader, writer) = io::pipe()?;
            widen(&reader);
            shared = Some(pipe::Receiver::from_owned_fd(reader.into())?);
            command.stdout(writer.try_clone()?).stderr(writer)
        }
    };
    let mut child = start_unless_busy(&mut command)?;
    let leader = leader(&child)?;
    let stdout = match shared {
        Some(shared) => Some(Box::new(shared) as Output),
        None => child.stdout.take().map(|pipe| {
            widen(&pipe);
            Box::new(pipe) as Output
        }),
    };
    let stderr = child.stderr.take().map(|pipe| Box::new(pipe) as Output);
    Ok(Started {
        leader,
        stdin: child.stdin.take().map(|pipe| Box::new(pipe) as Input),
        stdout,
        stderr,
        terminal: None,
        exit: Box::pin(async move { child.wait().await }),
        release: None,
    })
}

/// A session leader whose controlling terminal is a new one of this size.
fn start_in_terminal(mut command: Command, size: WindowSize) -> io::Result<Started> {
    let (master, slave) = terminal::open(size)?;
    command
        .stdin(slave.try_clone()?)
        .stdout(slave.try_clone()?)
        .stderr(slave);
    terminal::lead_session(&mut command);
    let mut child = start_unless_busy(&mut command)?;
    // The command holds the other side, and with it the end of the output.
    drop(command);
    let leader = leader(&child)?;
    let (stdin, stdout) = terminal::directions(&master)?;
    Ok(Started {
        leader,
        stdin: Some(stdin),
        stdout: Some(stdout),
        stderr: None,
        terminal: Some(master),
        exit: Box::pin(async move { child.wait().await }),
        release: None,
    })
}

fn leader(child: &Child) -> io::Result<Pid> {
    // A freshly started child has an id; it is taken away only when the child is reaped.
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    id.map(Pid::from_raw).ok_or_else(|| io::Error::other("no process id"))
}

fn start_unless_busy(command: &mut Command) -> io::Result<Child> {
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_RETRIES => {
                tries += 1;
                pause_on_this_thread();
            }
            other => return other,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "runs on the blocking pool, where a pause of a millisecond harms nobody"
)]
fn pause_on_this_thread() {
    std::thread::sleep(Duration::from_millis(1));
}
