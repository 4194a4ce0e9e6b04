//! An "enclosure" of a host that can keep nothing apart: a directory, and ordinary children.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fountain_process::{Launch, Local, MARK, Spawner, Started, Waiting};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::{Enclosure, EnclosureError, Plan, Stream};
use crate::policy::Policy;

/// Commands find this name of their sprite in their environment, by which they are found again.
const SPRITE: &str = "FOUNTAIN_SPRITE";

/// A sprite without walls.
pub(super) struct Plain {
    id: String,
    disk: PathBuf,
    home: String,
    closed: watch::Sender<bool>,
}

impl Plain {
    /// Makes the directory. Blocks.
    pub fn open(plan: &Plan) -> io::Result<Self> {
        let disk = plan.directory.join("disk");
        let home = disk.join("home/sprite");
        for directory in [&home, &disk.join("tmp")] {
            fs::create_dir_all(directory)?;
        }
        let home = home.into_os_string().into_string();
        Ok(Self {
            id: plan.id.clone(),
            disk,
            home: home.map_err(|_| io::Error::other("the path of the disk is not UTF-8"))?,
            closed: watch::channel(false).0,
        })
    }
}

impl Enclosure for Plain {
    fn spawner(&self) -> Arc<dyn Spawner> {
        Arc::new(Children {
            id: self.id.clone(),
            closed: self.closed.subscribe(),
        })
    }

    fn root(&self) -> Result<OwnedFd, EnclosureError> {
        if *self.closed.borrow() {
            return Err(EnclosureError::Closed);
        }
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.disk, flags, rustix::fs::Mode::empty());
        root.map_err(|error| EnclosureError::Io(error.into()))
    }

    fn home(&self) -> &str {
        &self.home
    }

    fn set_policy(&self, policy: Policy) -> Waiting<Result<(), EnclosureError>> {
        Box::pin(async move { refuse_enforced(&policy) })
    }

    fn connect(&self, port: u16) -> Waiting<Result<Box<dyn Stream>, EnclosureError>> {
        Box::pin(async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn close(&self) -> Waiting<()> {
        self.closed.send_replace(true);
        let id = self.id.clone();
        Box::pin(async move {
            let ended = tokio::task::spawn_blocking(move || end_all(&id)).await;
            if ended.is_err() {
                tracing::error!("processes of a sprite without walls could not be ended");
            }
        })
    }

    fn closed(&self) -> Waiting<()> {
        let mut closed = self.closed.subscribe();
        Box::pin(async move {
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }
}

/// The answer of a host that enforces nothing (RUL-L-113).
pub(super) fn refuse_enforced(policy: &Policy) -> Result<(), EnclosureError> {
    if policy.is_enforced() {
        let why = "this host cannot keep a sprite off its network, so that no network policy can be enforced";
        return Err(EnclosureError::Unenforceable(why.to_owned()));
    }
    Ok(())
}

struct Children {
    id: String,
    closed: watch::Receiver<bool>,
}

impl Spawner for Children {
    fn start(&self, mut launch: Launch, session: String) -> Waiting<io::Result<Started>> {
        if *self.closed.borrow() {
            return Box::pin(async { Err(io::Error::new(io::ErrorKind::BrokenPipe, "the sandbox is not running")) });
        }
        launch.env.push((SPRITE.into(), self.id.clone().into()));
        let path = launch.env.iter().rev().find(|(name, _)| name == "PATH");
        match resolve(&launch.program, path.map(|(_, path)| path.as_os_str())) {
            Ok(program) => launch.program = program,
            Err(error) => return Box::pin(async { Err(error) }),
        }
        Local.start(launch, session)
    }
}

fn resolve(program: &Path, path: Option<&OsStr>) -> io::Result<PathBuf> {
    let Some(name) = program.to_str() else {
        return Ok(program.to_owned());
    };
    fountain_process::resolve(name, path).map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))
}

/// Kills everything that carries the sprite's name, until a look finds nothing. What removed the name from its
/// environment is not found: such a host keeps nothing apart, and says so. Blocks.
fn end_all(id: &str) {
    const LOOKS: u32 = 100;
    let name = format!("{SPRITE}={id}").into_bytes();
    for _ in 0..LOOKS {
        let mut found = false;
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|pid| pid.parse::<i32>().ok());
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_marked = environment.split(|byte| *byte == 0).any(|pair| pair == name);
            if let Some(pid) = pid.filter(|_| is_marked && carries_mark(&environment)) {
                found = true;
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        if !found {
            return;
        }
        pause();
    }
}

/// Both names are needed: no command of another server is hit.
fn carries_mark(environment: &[u8]) -> bool {
    let start = format!("{MARK}=").into_bytes();
    environment
        .split(|byte| *byte == 0)
        .any(|pair| pair.starts_with(&start))
}

#[expect(clippy::disallowed_methods, reason = "runs on the blocking pool")]
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(5));
}
