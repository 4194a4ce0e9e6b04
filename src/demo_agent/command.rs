//! Runs one shell command and hands out its output line by line as it comes.
//!
//! Output and errors share one pipe, so that their order is the command's own. The command leads a process group of
//! its own, and stopping it stops the group. Bytes that are no UTF-8 become U+FFFD; a character is never cut.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};

/// A line longer than this is handed out in parts.
const LINE: usize = 64 * 1024;
/// After the command ended: how long a pipe that a background child still holds may be silent.
const QUIET: Duration = Duration::from_millis(500);
/// Between the polite and the final signal.
const GRACE: Duration = Duration::from_secs(2);

pub(super) struct Running {
    child: Child,
    group: Group,
    pipe: Receiver,
    line: Vec<u8>,
    bytes: u64,
    status: Option<i32>,
}

/// Kills the group unless it was let go: an agent that is torn down leaves nothing behind.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            let _ = killpg(group, signal); // already gone is fine
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

impl Running {
    /// Starts `bash -c <command>` in `cwd`.
    pub fn start(command: &str, cwd: &Path) -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        let child = Command::new("bash")
            .arg("-c")
            .arg(command)
            .current_dir(cwd)
            .stdin(Stdio::null())
            .stdout(Stdio::from(OwnedFd::from(write.try_clone()?)))
            .stderr(Stdio::from(OwnedFd::from(write)))
            .process_group(0)
            .spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let pipe = Receiver::from_owned_fd(OwnedFd::from(read))?;
        Ok(Self {
            child,
            group: Group(group),
            pipe,
            line: Vec::new(),
            bytes: 0,
            status: None,
        })
    }

    /// The next text: a line with its newline, or what is left of one. `None` when the command is over.
    pub async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(text) = self.take_line() {
                return Ok(Some(text));
            }
            let mut buffer = [0; 8192];
            let read = match self.status {
                Some(_) => match tokio::time::timeout(QUIET, self.pipe.read(&mut buffer)).await {
                    Ok(read) => read?,
                    Err(_silence) => 0, // somebody else holds the pipe; the command has ended
                },
                None => tokio::select! {
                    biased;
                    read = self.pipe.read(&mut buffer) => read?,
                    status = self.child.wait() => {
                        self.ended(status?);
                        continue;
                    }
                },
            };
            if read == 0 {
                if self.status.is_none() {
                    let status = self.child.wait().await?;
                    self.ended(status);
                }
                return Ok(self.take_rest());
            }
            self.bytes += read as u64;
            self.line.extend_from_slice(buffer.get(..read).unwrap_or_default());
        }
    }

    fn ended(&mut self, status: std::process::ExitStatus) {
        self.status = Some(
            status
                .code()
                .or_else(|| status.signal().map(|signal| 128 + signal))
                .unwrap_or(-1),
        );
    }

    fn take_line(&mut self) -> Option<String> {
        let end = match self.line.iter().position(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.line.len() >= LINE => whole_characters(&self.line),
            None => return None,
        };
        let rest = self.line.split_off(end);
        let line = std::mem::replace(&mut self.line, rest);
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    fn take_rest(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.line);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }

    /// Exit code (128 + n after signal n) and bytes of output. After `next` has answered `None`.
    pub fn result(mut self) -> (i32, u64) {
        self.group.0 = None; // a server that the command left in the background stays
        (self.status.unwrap_or(-1), self.bytes)
    }

    /// Stops the whole group: politely, then not.
    pub async fn stop(mut self) {
        self.group.signal(Signal::SIGTERM);
        let _ = tokio::time::timeout(GRACE, self.child.wait()).await; // the drop kills what is left
    }
}

/// Length of the prefix that ends at a character, for text; for anything else everything.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}
