//! The journal of one session: every output byte from the first, in the order in which it was read.
//!
//! It is one long array of records (stream, length, bytes). The first [`MEMORY_LIMIT`] of it are in memory, the rest in
//! a file at the same offsets, so a position means the same in both and memory can move into the file without anyone
//! noticing. One [`Recorder`] writes; any number of readers follow. A journal that cannot be written makes its recorder
//! wait, and with it the pipes and the process; nothing is dropped (RUL-43).
//!
//! A durable journal keeps nothing in memory: every record is in the file, and with it in the kernel, before any reader
//! hears of it, so a killed server loses none that it showed. It has a [`Bound`] (RUL-L-114); `recovery` reads it again.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::watch, time::Instant};

/// Most bytes of one chunk of output (runner-protocol 2).
pub const CHUNK: usize = 32 * 1024;
/// Most bytes read from a process and written to the disk at once: a hand-over between threads costs more than a copy.
pub(super) const PIECE: usize = 8 * CHUNK;
/// Memory that one journal may use before it spills (runner-protocol 5.3).
pub const MEMORY_LIMIT: usize = 8 * 1024 * 1024;
/// A finished journal above this size leaves memory: a hundred of them are kept per owner.
const KEPT_IN_MEMORY: usize = 256 * 1024;
/// How long a recorder waits before it tries a full disk again.
const DISK_RETRY: Duration = Duration::from_millis(250);
/// Stream, then length.
pub(super) const HEADER: usize = 1 + 4;

/// Where a chunk of output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The code to report; see [`Self::verdict`].
    pub code: i32,
    /// Whether all output had ended by then. False: something else still holds a pipe.
    pub output_ended: bool,
    /// Nobody knows how it ended, or not all of its output could be kept: there is no verdict, and `code` means nothing
    /// (RUL-L-112, RUL-L-114). Only sessions of a durable ledger end like this.
    pub lost: bool,
}

impl Exit {
    /// An end without a verdict.
    pub const LOST: Self = Self {
        code: 1,
        output_ended: false,
        lost: true,
    };

    /// An end with all output and this code.
    pub fn whole(code: i32) -> Self {
        Self {
            code,
            output_ended: true,
            lost: false,
        }
    }

    /// The code, if there is one to report.
    pub fn verdict(&self) -> Option<i32> {
        (!self.lost).then_some(self.code)
    }
}

/// How much a durable journal takes, and how long its process waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Most bytes of the file.
    pub bytes: u64,
    /// How long a process whose output cannot be kept may go on without being read.
    pub patience: Duration,
}

impl Bound {
    /// 4 GiB, ten minutes (RUL-L-114).
    pub const SPRITE: Self = Self {
        bytes: 4 << 30,
        patience: Duration::from_secs(600),
    };
}

/// How far a journal has come. `stdout` and `stderr` count output bytes, `end` counts journal bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The position after the last record.
    pub end: u64,
    /// Bytes of standard output so far.
    pub stdout: u64,
    /// Bytes of standard error so far.
    pub stderr: u64,
    /// Set when nothing more will come.
    pub exit: Option<Exit>,
}

impl Tail {
    /// Bytes of both streams so far.
    pub fn output(&self) -> u64 {
        self.stdout + self.stderr
    }
}

/// The reading side, shared. The file goes when the last holder does, a durable one only after [`Self::discard`].
#[derive(Debug)]
pub struct Journal {
    store: Mutex<Store>,
    path: PathBuf,
    tail: watch::Receiver<Tail>,
    stays: AtomicBool,
}

/// Where the bytes are: positions below `memory.len()` in memory, the others in the file.
#[derive(Debug, Default)]
struct Store {
    memory: Vec<u8>,
    file: Option<Arc<File>>,
}

/// What a reader has to look at.
pub(super) enum Found {
    /// Whole records, copied out of memory.
    Memory(Bytes),
    /// The file, at the position that was asked for.
    File(Arc<File>),
}

impl Journal {
    /// An empty journal that spills to `path` beyond `memory_limit` bytes. Nothing is created before it must be.
    pub fn create(path: PathBuf, memory_limit: usize) -> (Recorder, Arc<Self>) {
        let (sender, tail) = watch::channel(Tail::default());
        let journal = Arc::new(Self {
            store: Mutex::default(),
            path,
            tail,
            stays: AtomicBool::new(false),
        });
        (
            Recorder {
                journal: Arc::clone(&journal),
                tail: sender,
                memory_limit,
                bound: None,
            },
            journal,
        )
    }

    /// An empty journal that is written to `path` record by record, up to `bound`, and stays there.
    pub fn create_durable(path: PathBuf, bound: Bound) -> (Recorder, Arc<Self>) {
        let (mut recorder, journal) = Self::create(path, 0);
        recorder.bound = Some(bound);
        journal.stays.store(true, Ordering::Release);
        (recorder, journal)
    }

    /// A journal that was written before: `file` holds records up to `tail.end`, and nothing more will come.
    pub(super) fn reopened(path: PathBuf, file: Option<File>, tail: Tail) -> Arc<Self> {
        Arc::new(Self {
            store: Mutex::new(Store {
                memory: Vec::new(),
                file: file.map(Arc::new),
            }),
            path,
            tail: watch::channel(tail).1,
            stays: AtomicBool::new(true),
        })
    }

    /// Lets the file of a durable journal go with its last holder.
    pub(super) fn discard(&self) {
        self.stays.store(false, Ordering::Release);
    }

    /// How far it has come by now.
    pub fn tail(&self) -> Tail {
        *self.tail.borrow()
    }

    /// A receiver that hears of every change of [`Self::tail`].
    pub(super) fn watch(&self) -> watch::Receiver<Tail> {
        self.tail.clone()
    }

    /// The bytes from `position` on, at most about `wanted` of them but at least one whole record.
    pub(super) fn look(&self, position: u64, wanted: usize) -> Found {
        let store = self.store();
        let from = usize::try_from(position).unwrap_or(usize::MAX);
        match (store.memory.get(from..), &store.file) {
            (Some(rest), file) if !rest.is_empty() || file.is_none() => {
                Found::Memory(Bytes::copy_from_slice(whole_records(rest, wanted)))
            }
            (_, Some(file)) => Found::File(Arc::clone(file)),
            (_, None) => Found::Memory(Bytes::new()),
        }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        // A panic under this lock could only be a failed allocation; the bytes are whole either way.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.store().file.is_none() || self.stays.load(Ordering::Acquire) {
            return;
        }
        let path = std::mem::take(&mut self.path);
        // Unlinking gigabytes takes a while; a runtime that is going down unlinks on the spot.
        let unlink = move || drop(std::fs::remove_file(path));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(unlink)),
            Err(_) => unlink(),
        }
    }
}

/// The longest run of whole records at the head of `bytes` up to `wanted` bytes, or the first record.
fn whole_records(bytes: &[u8], wanted: usize) -> &[u8] {
    let mut end = 0;
    while let Some((_, data, _)) = bytes.get(end..).and_then(first_record) {
        let next = end + HEADER + data.len();
        if end > 0 && next > wanted {
            break;
        }
        end = next;
    }
    bytes.get(..end).unwrap_or_default()
}

/// Takes one record off the head of `bytes`; `None` when it is not whole.
pub(super) fn first_record(bytes: &[u8]) -> Option<(Stream, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEADER>()?;
    let [stream, length @ ..] = *head;
    let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
    let (data, rest) = rest.split_at_checked(length)?;
    let stream = if stream == 1 { Stream::Stdout } else { Stream::Stderr };
    Some((stream, data, rest))
}

fn encode(stream: Stream, data: &[u8], records: &mut Vec<u8>) {
    let length = u32::try_from(data.len()).expect("a chunk is cut to 32 KiB");
    records.push(match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
    });
    records.extend_from_slice(&length.to_le_bytes());
    records.extend_from_slice(data);
}

/// Whether an append had to wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// It did not.
    None,
    /// The journal could not be written for a while; time that counted against the process should start anew.
    Disk,
    /// The journal could not be written for as long as its [`Bound`] allows: the chunk is not in it.
    GaveUp,
}

/// The writing side, of which there is one.
///
/// A recorder that is dropped before [`Recorder::finish`] (its task died) ends the journal with code 1, so that no reader
/// waits for ever.
#[derive(Debug)]
pub struct Recorder {
    journal: Arc<Journal>,
    tail: watch::Sender<Tail>,
    memory_limit: usize,
    bound: Option<Bound>,
}

impl Recorder {
    /// How many bytes may be read from the process now; 0: another chunk could go beyond the bound.
    pub(super) fn room(&self) -> usize {
        let Some(bound) = self.bound else { return PIECE };
        let left = bound.bytes.saturating_sub(self.tail.borrow().end);
        let chunks = usize::try_from(left).unwrap_or(usize::MAX) / (HEADER + CHUNK);
        (chunks * CHUNK).min(PIECE)
    }

    /// How long a process may wait for a journal that takes nothing more.
    pub(super) fn patience(&self) -> Duration {
        self.bound.map_or(Duration::MAX, |bound| bound.patience)
    }

    /// Appends output, as chunks, and tells the readers. Waits as long as the disk refuses, up to the bound's patience.
    pub async fn append(&mut self, stream: Stream, data: &[u8]) -> Delay {
        let mut delay = Delay::None;
        let mut records = Vec::with_capacity(data.len() + data.len().div_ceil(CHUNK) * HEADER);
        for data in data.chunks(CHUNK) {
            encode(stream, data, &mut records);
        }
        let (grown, position) = (records.len() as u64, self.tail.borrow().end);
        if let Some(records) = self.keep(records) {
            delay = self.spill(records, position).await;
            if delay == Delay::GaveUp {
                return delay;
            }
        }
        self.tail.send_modify(|tail| {
            tail.end += grown;
            match stream {
                Stream::Stdout => tail.stdout += data.len() as u64,
                Stream::Stderr => tail.stderr += data.len() as u64,
            }
        });
        delay
    }

    /// Ends the journal. A large one moves into its file; one that cannot stays in memory.
    pub async fn finish(self, exit: Exit) {
        self.tail.send_modify(|tail| tail.exit = Some(exit));
        let memory = {
            let mut store = self.journal.store();
            if store.memory.len() <= KEPT_IN_MEMORY {
                store.memory.shrink_to_fit();
                return;
            }
            store.memory.clone()
        };
        match self.write(memory, 0).await {
            Ok(()) => self.journal.store().memory = Vec::new(),
            Err(error) => tracing::debug!(%error, "a finished journal stays in memory"),
        }
    }

    /// Puts a record into memory; hands it back when it belongs into the file.
    fn keep(&self, record: Vec<u8>) -> Option<Vec<u8>> {
        let mut store = self.journal.store();
        let needed = store.memory.len() + record.len();
        if store.file.is_some() || needed > self.memory_limit {
            return Some(record);
        }
        if needed > store.memory.capacity() {
            // Doubling, but never beyond the limit that is promised.
            let wanted = needed.max(store.memory.capacity() * 2).min(self.memory_limit);
            let more = wanted - store.memory.len();
            store.memory.reserve_exact(more);
        }
        store.memory.extend_from_slice(&record);
        None
    }

    async fn spill(&self, record: Vec<u8>, position: u64) -> Delay {
        let mut delay = Delay::None;
        let began = Instant::now();
        while let Err(error) = self.write(record.clone(), position).await {
            if delay == Delay::None {
                tracing::warn!(%error, "the journal cannot be written; its process waits");
                delay = Delay::Disk;
            }
            if began.elapsed() >= self.patience() {
                return Delay::GaveUp;
            }
            tokio::time::sleep(DISK_RETRY.min(self.patience())).await;
        }
        if delay == Delay::Disk {
            tracing::info!("the journal can be written again");
        }
        delay
    }

    /// Writes into the file at `position`, opening it first when there is none.
    async fn write(&self, bytes: Vec<u8>, position: u64) -> io::Result<()> {
        let (file, path) = (self.journal.store().file.clone(), self.journal.path.clone());
        let written = tokio::task::spawn_blocking(move || {
            let file = match file {
                Some(file) => file,
                None => Arc::new(
                    File::options()
                        .create(true)
                        .truncate(true)
                        .read(true)
                        .write(true)
                        .mode(0o600)
                        .open(path)?,
                ),
            };
            file.write_all_at(&bytes, position)?;
            Ok::<_, io::Error>(file)
        });
        let file = written.await.map_err(io::Error::other)??;
        self.journal.store().file.get_or_insert(file);
        Ok(())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.tail.send_if_modified(|tail| {
            let lost = tail.exit.is_none();
            tail.exit.get_or_insert(Exit {
                lost: self.bound.is_some(),
                ..Exit::LOST
            });
            lost
        });
    }
}
