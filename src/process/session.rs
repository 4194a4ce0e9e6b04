//! One command with a journal, from its start to its verdict.
//!
//! A task per session reads both pipes, reaps the process, and gives the verdict: the code that the process gave, 128 and
//! the signal that killed it, or 137 when this daemon stopped it (RUL-46). The verdict waits for output, but not for
//! children that hold a pipe (RUL-46a); their later output is read and thrown away, so that writing does not kill them.

use std::{
    future::Future,
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
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
    index::{self, End, Index},
    journal::{Delay, Exit, Journal, MEMORY_LIMIT, PIECE, Recorder, Stream, Tail},
    launch::{Input, Launch, Leftovers, Output, Spawner, Started, Waiting, WindowSize},
    ledger::{Entry, Ledger},
    reader::Reader,
    recovery,
    stdin::{Queue, StdinError},
    terminal,
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
    index: Index,
    /// The directory in which its traces stay, if they do.
    traces: Option<PathBuf>,
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
    ended_at: OnceLock<SystemTime>,
    /// The master of its terminal, while it runs in one.
    terminal: Mutex<Option<OwnedFd>>,
}

impl Session {
    /// Starts a command. `command` is how it is shown in listings; `id` must be safe as a file name.
    ///
    /// # Errors
    /// The process could not be started; nothing is left behind.
    pub async fn start(
        spawner: &Arc<dyn Spawner>,
        id: String,
        command: String,
        launch: Launch,
        ledger: &Arc<Ledger>,
    ) -> io::Result<Arc<Self>> {
        Self::start_with_memory(spawner, id, command, launch, ledger, MEMORY_LIMIT).await
    }

    /// As [`Self::start`], with another limit for the journal's memory.
    pub(super) async fn start_with_memory(
        spawner: &Arc<dyn Spawner>,
        id: String,
        command: String,
        launch: Launch,
        ledger: &Arc<Ledger>,
        memory_limit: usize,
    ) -> io::Result<Arc<Self>> {
        let (traces, leftovers) = (Arc::clone(ledger), launch.leftovers);
        let index = Index::begin(id, command, launch.cwd.display().to_string(), launch.terminal.is_some());
        let mut started = spawner.start(launch, index.id.clone()).await?;
        let (leader, noted) = (started.leader, index.clone());
        let recording = tokio::task::spawn_blocking(move || {
            note(traces.durable_directory().as_deref(), &noted);
            traces.record(&noted.id, leader)
        });
        let entry = recording.await.map_err(io::Error::other)?;
        let (recorder, journal) = ledger.journal(&index.id, memory_limit);
        let (reaped, is_reaped) = watch::channel(false);
        let group = Group::led_by(started.leader);
        let marks = Marks::now();
        *marks.terminal() = started.terminal.take();
        let stdin = Queue::start(started.stdin.take(), is_reaped);
        let task = Task {
            index: index.clone(),
            traces: ledger.durable_directory(),
            recorder,
            leftovers,
            group: group.clone(),
            marks: Arc::clone(&marks),
            reaped,
            entry,
        };
        tokio::spawn(task.run(started));
        Ok(Arc::new(Self {
            index,
            traces: ledger.durable_directory(),
            journal,
            stdin,
            running: Some(group),
            marks,
        }))
    }

    /// A session that has already ended with this output: the trace of a command that could not start.
    pub async fn ended(id: String, command: String, stdout: &str, code: i32, ledger: &Arc<Ledger>) -> Arc<Self> {
        Self::ended_with(id, command, (Stream::Stdout, stdout), code, ledger).await
    }

    /// As [`Self::ended`], with output of either stream.
    pub async fn ended_with(
        id: String,
        command: String,
        output: (Stream, &str),
        code: i32,
        ledger: &Arc<Ledger>,
    ) -> Arc<Self> {
        let mut index = Index::begin(id, command, String::new(), false);
        let (mut recorder, journal) = ledger.journal(&index.id, MEMORY_LIMIT);
        let exit = match recorder.append(output.0, output.1.as_bytes()).await {
            Delay::GaveUp => Exit::LOST,
            Delay::None | Delay::Disk => Exit::whole(code),
        };
        index.end = Some(End::of(exit, SystemTime::now()));
        note_on_pool(ledger.durable_directory(), &index).await;
        recorder.finish(exit).await;
        Self::over(index, ledger, journal)
    }

    /// The sessions that an earlier server left in a durable ledger, oldest first. Those whose end was recorded keep
    /// their verdict; the others replay what was written and end without one. Blocks.
    ///
    /// # Errors
    /// The directory or a journal cannot be read.
    pub fn recover(ledger: &Arc<Ledger>) -> io::Result<Vec<Arc<Self>>> {
        let found = Index::all(ledger.directory())?;
        recovery::drop_nameless(ledger.directory(), |id| found.iter().any(|index| index.id == id))?;
        let recovered = found.into_iter().map(|index| Self::recovered(index, ledger));
        recovered.collect()
    }

    fn recovered(mut index: Index, ledger: &Arc<Ledger>) -> io::Result<Arc<Self>> {
        let end = match index.end {
            Some(end) => end,
            None => {
                let end = End::of(Exit::LOST, SystemTime::now());
                index.end = Some(end);
                note(ledger.durable_directory().as_deref(), &index);
                end
            }
        };
        let journal = recovery::journal(ledger.journal_path(&index.id), end.exit())?;
        Ok(Self::over(index, ledger, journal))
    }

    /// A session without a process.
    fn over(index: Index, ledger: &Arc<Ledger>, journal: Arc<Journal>) -> Arc<Self> {
        let marks = Marks::now();
        if let Some(end) = index.end {
            let _ = marks.ended_at.set(index::time(end.at_ms));
            marks.last_activity.store(end.at_ms / 1000, Ordering::Relaxed);
        }
        Arc::new(Self {
            index,
            traces: ledger.durable_directory(),
            journal,
            stdin: Queue::start(None::<Input>, watch::channel(true).1),
            running: None,
            marks,
        })
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.index.id
    }

    /// How it is shown in listings.
    pub fn command(&self) -> &str {
        &self.index.command
    }

    /// Where it was started.
    pub fn cwd(&self) -> &str {
        &self.index.cwd
    }

    /// Whether it has a terminal: one output stream, and input without an end.
    pub fn has_terminal(&self) -> bool {
        self.index.tty
    }

    /// When it was started.
    pub fn created_at(&self) -> SystemTime {
        index::time(self.index.created_ms)
    }

    /// When it ended, once it has.
    pub fn ended_at(&self) -> Option<SystemTime> {
        self.exit().and(self.marks.ended_at.get().copied())
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
        ended.ok().and_then(|tail| tail.exit).unwrap_or(Exit::LOST)
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

    /// Ends the input after everything that was queued before: a real end of file. Idempotent. A terminal's input has no
    /// end, so there nothing happens.
    pub fn close_stdin(&self) -> impl Future<Output = Result<(), StdinError>> + use<> {
        let closing = (!self.index.tty).then(|| self.stdin.close());
        async move {
            match closing {
                Some(closing) => closing.await,
                None => Ok(()),
            }
        }
    }

    /// Changes the size of its terminal; without one, or after the end, nothing happens.
    ///
    /// # Errors
    /// The system refused it.
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        match self.marks.terminal().as_ref() {
            Some(master) => terminal::resize(master, size),
            None => Ok(()),
        }
    }

    /// Sends a signal to the whole group; after the end nothing happens.
    pub fn signal(&self, which: Signal) {
        if let Some(group) = &self.running {
            group.signal(which);
        }
    }

    /// Lets go of what a durable ledger keeps of it; its journal goes with the last reader.
    pub(super) fn discard(&self) {
        let Some(directory) = &self.traces else { return };
        self.journal.discard();
        let path = index::path(directory, &self.index.id);
        let unlink = move || drop(std::fs::remove_file(path));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(unlink)),
            Err(_) => unlink(),
        }
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
            ended_at: OnceLock::new(),
            terminal: Mutex::default(),
        });
        marks.touch();
        marks
    }

    fn terminal(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        // A descriptor is there or not; nothing can be half done.
        self.terminal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_activity.store(now.as_secs(), Ordering::Relaxed);
    }
}

/// The part that lives as long as the process.
struct Task {
    index: Index,
    traces: Option<PathBuf>,
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
        let (mut out, mut err) = (vec![0; PIECE], vec![0; PIECE]);
        let mut verdict = None;
        let mut drain: Option<Drain> = None;
        let mut gave_up = false;
        while verdict.is_none() || stdout.is_some() || stderr.is_some() {
            let room = self.recorder.room();
            if gave_up || room == 0 {
                let patience = if gave_up {
                    Duration::ZERO
                } else {
                    self.recorder.patience()
                };
                if verdict.is_none() {
                    self.end_unread(&mut exit, patience).await;
                    release.take().into_iter().for_each(|release| release());
                }
                return self.conclude(Exit::LOST, [stdout, stderr], [out, err]).await;
            }
            let read = tokio::select! {
                length = read(&mut stdout, room_of(&mut out, room)) => Some((Stream::Stdout, length)),
                length = read(&mut stderr, room_of(&mut err, room)) => Some((Stream::Stderr, length)),
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
            gave_up = delay == Delay::GaveUp;
            self.marks.touch();
            if let Some(drain) = &mut drain {
                drain.last_byte = Instant::now();
                if delay == Delay::Disk {
                    // The time that the disk took is not the process's.
                    *drain = Drain::start(self.leftovers);
                }
            }
        }
        let exit = Exit {
            code: verdict.unwrap_or(UNKNOWN),
            output_ended: stdout.is_none() && stderr.is_none(),
            lost: false,
        };
        self.conclude(exit, [stdout, stderr], [out, err]).await;
    }

    /// Waits for a process whose output can no longer be kept, and ends it when that takes too long (RUL-L-114).
    async fn end_unread(&self, exit: &mut Waiting<io::Result<ExitStatus>>, patience: Duration) {
        tracing::warn!(
            session = self.index.id,
            "a journal takes nothing more; its process is not read any longer"
        );
        let status = tokio::time::timeout(patience, &mut *exit).await;
        let status = match status {
            Ok(status) => status,
            Err(_) => {
                self.group.signal(Signal::SIGKILL);
                exit.await
            }
        };
        self.reap(status);
    }

    /// Records the end, tells it, and then looks after what the process left behind.
    async fn conclude(mut self, exit: Exit, [stdout, stderr]: [Option<Output>; 2], [out, err]: [Vec<u8>; 2]) {
        let now = SystemTime::now();
        let _ = self.marks.ended_at.set(now);
        drop(self.marks.terminal().take());
        self.index.end = Some(End::of(exit, now));
        note_on_pool(self.traces.take(), &self.index).await;
        self.recorder.finish(exit).await;
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

/// As much of a buffer as the journal has room for.
fn room_of(buffer: &mut [u8], room: usize) -> &mut [u8] {
    let length = buffer.len().min(room);
    buffer.get_mut(..length).unwrap_or_default()
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
            // A terminal says like this that nobody has it open any more.
            if error.raw_os_error() != Some(nix::libc::EIO) {
                tracing::warn!(%error, "an output pipe broke");
            }
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

/// Writes the record of a session, if its ledger is durable. A full disk must not stop a command: a failure is told.
fn note(directory: Option<&Path>, index: &Index) {
    if let Some(directory) = directory
        && let Err(error) = index.write(directory)
    {
        tracing::warn!(session = index.id, %error, "a session could not be recorded; a restart would forget it");
    }
}

async fn note_on_pool(directory: Option<PathBuf>, index: &Index) {
    if directory.is_some() {
        let index = index.clone();
        let _ = tokio::task::spawn_blocking(move || note(directory.as_deref(), &index)).await;
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
