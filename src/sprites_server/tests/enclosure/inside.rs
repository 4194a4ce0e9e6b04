//! One enclosure and ways to ask it things.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fountain_process::{Launch, Leftovers, Started, Stderr, Stdin, WindowSize};
use fountain_sprites::enclosure::{Enclosure, Enclosures, Host, Plan, Settings};
use fountain_sprites::policy::Policy;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

/// Nothing here takes a second on a quiet machine; busy ones exist.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A host, and the directory that it works in.
pub struct World {
    pub directory: TempDir,
    pub host: Host,
}

/// What a command said.
#[derive(Debug)]
pub struct Said {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Its output, if it went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.stdout.trim_end().to_owned()
    }
}

pub fn helper() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_fountain-sprites-host"))
}

pub fn settings(directory: &Path) -> Settings {
    Settings::new(directory.join("server"), helper(), Vec::new())
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings(directory.path());
        change(&mut settings);
        let host = Host::probe(settings).unwrap();
        Self { directory, host }
    }

    pub fn plan(&self, name: &str) -> Plan {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = self.directory.path().join("server").join(&id);
        std::fs::create_dir(&directory).unwrap();
        Plan {
            id,
            hostname: name.to_owned(),
            directory,
            layers: Vec::new(),
            policy: Policy::default(),
        }
    }

    pub async fn open(&self, name: &str) -> Arc<dyn Enclosure> {
        self.open_plan(self.plan(name)).await
    }

    pub async fn open_plan(&self, plan: Plan) -> Arc<dyn Enclosure> {
        self.host.open(plan).await.unwrap()
    }
}

pub fn launch(enclosure: &dyn Enclosure, program: &str, args: &[&str]) -> Launch {
    Launch {
        program: program.into(),
        args: args.iter().map(Into::into).collect(),
        env: vec![
            (
                "PATH".into(),
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
            ),
            ("HOME".into(), enclosure.home().into()),
        ],
        cwd: enclosure.home().into(),
        stdin: Stdin::Null,
        stderr: Stderr::Journal,
        leftovers: Leftovers::ONE_SHOT,
        terminal: None,
    }
}

pub fn on_terminal(enclosure: &dyn Enclosure, script: &str, rows: u16, cols: u16) -> Launch {
    let mut launch = launch(enclosure, "sh", &["-c", script]);
    launch.terminal = Some(WindowSize { rows, cols });
    launch
}

pub async fn start(enclosure: &dyn Enclosure, launch: Launch) -> Started {
    enclosure.spawner().start(launch, "test".to_owned()).await.unwrap()
}

/// Runs a shell script to its end.
pub async fn sh(enclosure: &dyn Enclosure, script: &str) -> Said {
    let started = start(enclosure, launch(enclosure, "sh", &["-c", script])).await;
    finish(started).await
}

pub async fn finish(started: Started) -> Said {
    let all = async {
        let Started {
            exit,
            release,
            stdin,
            stdout,
            stderr,
            terminal,
            ..
        } = started;
        let (out, err) = tokio::join!(read(stdout), read(stderr));
        let status = exit.await.unwrap();
        if let Some(release) = release {
            release();
        }
        drop((stdin, terminal));
        Said {
            status,
            stdout: out,
            stderr: err,
        }
    };
    tokio::time::timeout(LIMIT, all)
        .await
        .expect("the command does not end")
}

async fn read(pipe: Option<fountain_process::Output>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let read = pipe.read_to_end(&mut bytes).await;
        // The end of a terminal.
        assert!(read.is_ok() || read.is_err_and(|error| error.raw_os_error() == Some(nix::libc::EIO)));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Asks until it is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !so() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The control groups of this host whose names start so.
pub fn control_groups(start: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut look = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = look.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(start) {
                    found.push(entry.path());
                }
                look.push(entry.path());
            }
        }
    }
    found
}
