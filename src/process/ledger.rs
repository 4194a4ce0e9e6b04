//! The directory in which sessions leave traces: `<root>/.sessions`.
//!
//! It holds spilled journals and, for each process group, a record of leader, start time and boot. Whoever opens it takes
//! a lock, ends what a killed daemon left running, and deletes the traces (RUL-46b). Only groups that are proven to be
//! ours are killed: the leader lives and started when the record says, or a member carries the session's mark.
//!
//! A durable ledger keeps its journals, each with an index record, for the next server to find (RUL-L-112).

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use super::{
    identity,
    journal::{Bound, Journal, MEMORY_LIMIT, Recorder},
};

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another daemon lives on this root.
    #[error("{0} is in use by another daemon")]
    InUse(PathBuf),
    /// The directory cannot be made, read or cleaned.
    #[error("{path} cannot be used")]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// An open, locked directory of traces.
#[derive(Debug)]
pub struct Ledger {
    directory: PathBuf,
    boot: String,
    durable: Option<Bound>,
    _lock: File,
}

/// What the next daemon needs to know about a group.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    session: String,
    group: i32,
    started: Option<String>,
    boot: String,
}

/// The record of one running group; it goes when this is dropped.
#[derive(Debug)]
pub(super) struct Entry(Option<PathBuf>);

impl Ledger {
    /// Opens the directory, ends leftovers and empties it. Answers how many groups had to be killed. Blocks.
    ///
    /// # Errors
    /// [`LedgerError::InUse`] when another daemon holds the lock; nothing was touched then.
    pub fn open(directory: &Path) -> Result<(Arc<Self>, usize), LedgerError> {
        Self::open_as(directory, None)
    }

    /// As [`Self::open`], but journals and their index records stay: each session's output is in a file at once, up to
    /// `bound`, and [`super::Session::recover`] finds it after a restart. Blocks.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_durable(directory: &Path, bound: Bound) -> Result<(Arc<Self>, usize), LedgerError> {
        Self::open_as(directory, Some(bound))
    }

    fn open_as(directory: &Path, durable: Option<Bound>) -> Result<(Arc<Self>, usize), LedgerError> {
        let broken = |source| LedgerError::Io {
            path: directory.to_owned(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(broken)?;
        let lock_path = directory.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(lock_path);
        let lock = lock.map_err(broken)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LedgerError::InUse(directory.to_owned())),
            Err(TryLockError::Error(source)) => return Err(broken(source)),
        }
        let boot = identity::boot();
        let killed = sweep(directory, &boot, durable.is_some()).map_err(broken)?;
        Ok((
            Arc::new(Self {
                directory: directory.to_owned(),
                boot,
                durable,
                _lock: lock,
            }),
            killed,
        ))
    }

    /// The directory, if what sessions leave in it stays.
    pub(super) fn durable_directory(&self) -> Option<PathBuf> {
        self.durable.map(|_| self.directory.clone())
    }

    /// The directory itself.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The journal of a new session; `memory` bytes of it stay out of the file unless the ledger is durable.
    pub(super) fn journal(&self, session: &str, memory: usize) -> (Recorder, Arc<Journal>) {
        let path = self.journal_path(session);
        match self.durable {
            Some(bound) => Journal::create_durable(path, bound),
            None => Journal::create(path, memory.min(MEMORY_LIMIT)),
        }
    }

    /// Where the journal of a session is, or spills to.
    pub(super) fn journal_path(&self, session: &str) -> PathBuf {
        self.directory.join(format!("{session}.journal"))
    }

    /// Records a group that was just started. Blocks.
    ///
    /// A full disk must not keep a command from starting, so a failure is only told.
    pub(super) fn record(&self, session: &str, leader: Pid) -> Entry {
        let record = Record {
            session: session.to_owned(),
            group: leader.as_raw(),
            started: identity::started(leader),
            boot: self.boot.clone(),
        };
        let path = self.directory.join(format!("{session}.group"));
        let written = serde_json::to_vec(&record)
            .map_err(io::Error::other)
            .and_then(|json| fs::write(&path, json));
        if let Err(error) = written {
            tracing::warn!(session, %error, "a process group could not be recorded; a killed daemon would leave it");
            return Entry(None);
        }
        Entry(Some(path))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Kills what the records prove to be left over, then deletes records and, unless they are kept, journals.
fn sweep(directory: &Path, boot: &str, keeps_journals: bool) -> io::Result<usize> {
    let mut killed = 0;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("group") => {
                let record = fs::read(&path)
                    .ok()
                    .and_then(|json| serde_json::from_slice::<Record>(&json).ok());
                if let Some(record) = record.filter(|record| record.boot == boot && is_ours(record)) {
                    tracing::warn!(
                        session = record.session,
                        group = record.group,
                        "ending a leftover process group"
                    );
                    let _ = signal::killpg(Pid::from_raw(record.group), Signal::SIGKILL);
                    killed += 1;
                }
                fs::remove_file(&path)?;
            }
            Some("journal") if !keeps_journals => fs::remove_file(&path)?,
            _ => {}
        }
    }
    Ok(killed)
}

fn is_ours(record: &Record) -> bool {
    // Group numbers 0 and 1 mean "my own" and "everybody".
    if record.group <= 1 {
        return false;
    }
    let group = Pid::from_raw(record.group);
    if identity::exists(group) {
        return record.started.is_some() && identity::started(group) == record.started;
    }
    // The leader is gone. Its number may have been used again since, so its members must prove whose they are.
    let members = identity::members(group).unwrap_or_default();
    members
        .into_iter()
        .any(|pid| identity::carries_mark(pid, &record.session))
}
