//! One command with a journal, from its start to its verdict.
//!
//! A task per session reads both pipes, reaps the process, and gives the verdict: the code that the process gave, 128 and
//! the signal that killed it, or 137 when this daemon stopped it (RUL-46). The verdict waits for output, but not for
//! children that hold a pipe (RUL-46a); their later output is read and thrown away, so that writing does not kill them.

use std::{
    future::Future,
    io,
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use nix::sys::signal::Signal;
use tokio::{
    io::AsyncReadExt,
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    group::Group,
    journal::{CHUNK, Delay, Exit, Journal, MEMORY_LIMIT, Recorder, Stream, Tail},
    launch::{Input, Launch, Leftovers, Local, Output, Spawner, Started},
    ledger::{Entry, Ledger},
    reader::Reader,
    stdin::{Queue, StdinError},
};

/// The code of a session that this daemon stopped and that died of it.
pub const STOPPED: i32 = 128 + 9;
/// A process that left its group can hold a pipe of the session; the stop does not wait for it longer than this.
const VERDICT_AFTER_STOP: Duration = Duration::from_secs(1);
/// A wait that gave no status.
const UNKNOWN: i32 = 1;

/// A command that runs or has run.
#[derive(Debug)]
pub struct Session {
    id: String,
    command: String,
    created_at: SystemTime,
    journal: Arc<Journal>,
    stdin: Queue,
    running: Option<Group>,
    marks: Arc<Marks>,
}

/// What the session and its task tell each other.
#[derive(Debug)]
struct Marks {
    stopping: AtomicBool,
    last_activity: AtomicU64,
}

impl Session {
    /// Starts a command. `command` is how it is shown in listings.
    ///
    /// # Errors
    /// The process could not be started; nothing is left behind.
    pub async fn start(id: String, command: String, launch: Launch, ledger: &Arc<Ledger>) -> io::Result<Arc<Self>> {
        Self::start_with_memory(id, command, launch, ledger, MEMORY_LIMIT).await
    }

    /// As [`Self::start`], with another limit for the journal's memory.
    pub(super) async fn start_with_memory(
        id: String,
        command: String,
        launch: Launch,
        ledger: &Arc<Ledger>,
        memory_limit: usize,
    ) -> io::Result<Arc<Self>> {
        let (session, traces, leftovers) = (id.clone(), Arc::clone(ledger), launch.leftovers);
        let mut started = Local.start(launch, session.clone()).await?;
        let leader = started.leader;
        let recording = tokio::task::spawn_blocking(move || traces.record(&session, leader));
        let entry = recording.await.map_err(io::Error::other)?;
        let (recorder, journal) = Journal::create(ledger.journal_path(&id), memory_limit);
        let (reaped, is_reaped) = watch::channel(false);
        let group = Group::led_by(started.leader);
        let marks = Marks::now();
        let stdin = Queue::start(started.stdin.take(), is_reaped);
        let task = Task {
            recorder,
            leftovers,
            group: group.clone(),
            marks: Arc::clone(&marks),
            reaped,
            entry,
        };
        tokio::spawn(task.run(started));
        Ok(Arc::new(Self {
            id,
            command,
            created_at: SystemTime::now(),
            journal,
            stdin,
            running: Some(group),
            marks,
        }))
    }

    /// A session that has already ended with this output: the trace of a command that could not start.
    pub async fn ended(id: String, command: String, stdout: &str, code: i32, ledger: &Arc<Ledger>) -> Arc<Self> {
        let (mut recorder, journal) = Journal::create(ledger.journal_path(&id), MEMORY_LIMIT);
        recorder.append(Stream::Stdout, stdout.as_bytes()).await;
        recorder
            .finish(Exit {
                code,
                output_ended: true,
            })
            .await;
        let stdin = Queue::start(None::<Input>, watch::channel(true).1);
        let marks = Marks::now();
        Arc::new(Self {
            id,
            command,
            created_at: SystemTime::now(),
            journal,
            stdin,
            running: None,
            marks,
        })
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How it is shown in listings.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// When it was started.
    pub fn created_at(&self) -> SystemTime {
        self.created_at
    }

    /// When it last wrote or was written to, in whole seconds.
    pub fn last_activity_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.marks.last_activity.load(Ordering::Relaxed))
    }

    /// How it ended, once it has.
    pub fn exit(&self) -> Option<Exit> {
        self.journal.tail().exit
    }

    /// How far its output has come.
    pub fn tail(&self) -> Tail {
        self.journal.tail()
    }

    /// A cursor at the first byte.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.journal))
    }

    /// A cursor at `position`; see [`Reader::at`].
    pub fn reader_at(&self, position: u64) -> Reader {
        Reader::at(Arc::clone(&self.journal), position)
    }

    /// Waits for the end.
    pub async fn ending(&self) -> Exit {
        let mut tail = self.journal.watch();
        let ended = tail.wait_for(|tail| tail.exit.is_some()).await;
        // An error would mean that the recorder went without ending its journal, which its drop rules out.
        ended.ok().and_then(|tail| tail.exit).unwrap_or(Exit {
            code: UNKNOWN,
            output_ended: false,
        })
    }

    /// Waits until there is more than `limit` output, or the end.
    pub async fn growing_beyond(&self, limit: u64) {
        let mut tail = self.journal.watch();
        let _ = tail
            .wait_for(|tail| tail.stdout + tail.stderr > limit || tail.exit.is_some())
            .await;
    }

    /// Takes a place in the input queue now; the answer comes when the pipe has taken everything.
    pub fn write(&self, data: Bytes) -> impl Future<Output = Result<(), StdinError>> + use<> {
        self.marks.touch();
        self.stdin.write(data)
    }

    /// Ends the input after everything that was queued before: a real end of file. Idempotent.
    pub fn close_stdin(&self) -> impl Future<Output = Result<(), StdinError>> + use<> {
        self.stdin.close()
    }

    /// Ends the whole group: SIGTERM, `grace`, SIGKILL; a grace of zero kills at once. Also ends what an exited leader
    /// left behind. Answers whether all of it is gone.
    pub async fn stop(&self, grace: Duration) -> bool {
        self.marks.stopping.store(true, Ordering::Release);
        let Some(group) = &self.running else { return true };
        let gone = group.stop(grace).await;
        if gone {
            // The verdict follows at once; a stop is over when it says so.
            let _ = tokio::time::timeout(VERDICT_AFTER_STOP, self.ending()).await;
        }
        gone
    }

    /// The process group, unless the command never started.
    pub fn group(&self) -> Option<&Group> {
        self.running.as_ref()
    }
}

impl Marks {
    fn now() -> Arc<Self> {
        let marks = Arc::new(Self {
            stopping: AtomicBool::new(false),
            last_activity: AtomicU64::new(0),
        });
        marks.touch();
        marks
    }

    fn touch(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_activity.store(now.as_secs(), Ordering::Relaxed);
    }
}

/// The part that lives as long as the process.
struct Task {
    recorder: Recorder,
    leftovers: Leftovers,
    group: Group,
    marks: Arc<Marks>,
    reaped: watch::Sender<bool>,
    /// The record of the group, which must outlive everything in it.
    entry: Entry,
}

/// Until when output is awaited after the process has ended.
#[derive(Clone, Copy)]
struct Drain {
    quiet: Duration,
    until: Instant,
    last_byte: Instant,
}

impl Drain {
    fn start(leftovers: Leftovers) -> Self {
        let (quiet, most) = match leftovers {
            Leftovers::Keep { quiet, most } => (quiet, most),
            Leftovers::Kill { drain } => (drain, drain),
        };
        let now = Instant::now();
        Self {
            quiet,
            until: now + most,
            last_byte: now,
        }
    }

    fn deadline(&self) -> Instant {
        self.until.min(self.last_byte + self.quiet)
    }
}

impl Task {
    async fn run(mut self, started: Started) {
        let Started {
            mut exit,
            mut release,
            mut stdout,
            mut stderr,
            ..
        } = started;
        let (mut out, mut err) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut verdict = None;
        let mut drain: Option<Drain> = None;
        while verdict.is_none() || stdout.is_some() || stderr.is_some() {
            let read = tokio::select! {
                length = read(&mut stdout, &mut out) => Some((Stream::Stdout, length)),
                length = read(&mut stderr, &mut err) => Some((Stream::Stderr, length)),
                status = &mut exit, if verdict.is_none() => {
                    verdict = Some(self.reap(status));
                    if let Some(release) = release.take() {
                        release();
                    }
                    drain = Some(Drain::start(self.leftovers));
                    None
                }
                () = expiry(drain) => break,
            };
            let data = match read {
                Some((Stream::Stdout, length)) => out.get(..length),
                Some((Stream::Stderr, length)) => err.get(..length),
                None => None,
            };
            let (Some((stream, 1..)), Some(data)) = (read, data) else {
                continue;
            };
            let delay = self.recorder.append(stream, data).await;
            self.marks.touch();
            if let Some(drain) = &mut drain {
                drain.last_byte = Instant::now();
                if delay == Delay::Disk {
                    // The time that the disk took is not the process's.
                    *drain = Drain::start(self.leftovers);
                }
            }
        }
        let output_ended = stdout.is_none() && stderr.is_none();
        self.recorder
            .finish(Exit {
                code: verdict.unwrap_or(UNKNOWN),
                output_ended,
            })
            .await;
        tokio::join!(
            discard(stdout, out),
            discard(stderr, err),
            outlive(self.group, self.entry)
        );
    }

    fn reap(&self, status: io::Result<ExitStatus>) -> i32 {
        self.group.leader_was_reaped();
        self.reaped.send_replace(true);
        if matches!(self.leftovers, Leftovers::Kill { .. }) {
            self.group.signal(Signal::SIGKILL);
        }
        let stopped = self.marks.stopping.load(Ordering::Acquire);
        match status {
            Ok(status) => code(status, stopped),
            Err(error) => {
                tracing::error!(group = self.group.id(), %error, "a process could not be waited for");
                UNKNOWN
            }
        }
    }
}

fn code(status: ExitStatus, stopped: bool) -> i32 {
    let killed = status
        .signal()
        .map(|signal| if stopped { STOPPED } else { 128 + signal });
    status.code().or(killed).unwrap_or(UNKNOWN)
}

/// Reads from a pipe; closes it at its end and answers 0 once. Never answers for one that is closed.
async fn read(pipe: &mut Option<Output>, buffer: &mut [u8]) -> usize {
    let Some(open) = pipe else {
        return std::future::pending().await;
    };
    match open.read(buffer).await {
        Ok(0) => *pipe = None,
        Ok(length) => return length,
        Err(error) => {
            tracing::warn!(%error, "an output pipe broke");
            *pipe = None;
        }
    }
    0
}

async fn expiry(drain: Option<Drain>) {
    match drain {
        Some(drain) => sleep_until(drain.deadline()).await,
        None => std::future::pending().await,
    }
}

/// Reads a pipe to its end and keeps nothing.
async fn discard(mut pipe: Option<Output>, mut buffer: Vec<u8>) {
    while pipe.is_some() {
        read(&mut pipe, &mut buffer).await;
    }
}

/// Keeps the record of a group for as long as something of the group lives.
async fn outlive(group: Group, entry: Entry) {
    const LOOK: Duration = Duration::from_secs(60);
    while group.lives().await {
        tokio::time::sleep(LOOK).await;
    }
    let _ = tokio::task::spawn_blocking(move || drop(entry)).await;
}
