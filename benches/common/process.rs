//! Child processes with a clean environment, and their end: asked first, then killed, by their own id.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{PATIENCE, rest};

/// The binary that this build made.
pub const FOUNTAIN: &str = env!("CARGO_BIN_EXE_fountain");

/// `fountain` with nothing in its environment but a search path and a home of its own.
pub fn fountain(home: &Path) -> Command {
    let mut command = Command::new(FOUNTAIN);
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home)
        .current_dir(home)
        .stdin(Stdio::null());
    command
}

/// A server process. Dropping it stops it.
pub struct Process {
    child: Child,
    name: &'static str,
    log: PathBuf,
}

impl Process {
    /// Starts a command whose standard error goes to a file in `folder`.
    pub fn start(name: &'static str, folder: &Path, mut command: Command) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let child = command
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        Ok(Self { child, name, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The JSON value that it prints when it is ready.
    pub fn greeting(&mut self) -> anyhow::Result<Value> {
        let stdout = self.child.stdout.take().context("the greeting was read before")?;
        let (send, receive) = std::sync::mpsc::channel();
        // Pipes know no deadline, so a thread reads and this one waits.
        std::thread::spawn(move || {
            let mut stdout = stdout;
            let mut values = serde_json::Deserializer::from_reader(&mut stdout).into_iter::<Value>();
            let _ = send.send(values.next());
            // Whatever else it says must not fill the pipe.
            let _ = stdout.read_to_end(&mut Vec::new());
        });
        match receive.recv_timeout(PATIENCE) {
            Ok(Some(Ok(value))) => Ok(value),
            _ => anyhow::bail!("{} did not become ready; its log ends with\n{}", self.name, self.tail()),
        }
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(20)..)
            .unwrap_or_default()
            .join("\n")
    }

    /// Asks it to end and waits.
    pub fn stop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM); // it may be gone already
        }
        let give_up = Instant::now() + Duration::from_secs(30);
        while Instant::now() < give_up {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            rest(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Memory of a process that no other shares, in bytes: anonymous pages, swapped ones included.
pub fn own_memory_bytes(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let anonymous = kib("RssAnon:").context("the kernel does not tell RssAnon")?;
    Ok((anonymous + kib("VmSwap:").unwrap_or(0)) * 1024)
}

/// A port that was free a moment ago.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port())
}
