//! The directory in which sessions leave traces: `<root>/.sessions`.
//!
//! It holds spilled journals and, for each process group, a record of leader, start time and boot. Whoever opens it takes
//! a lock, ends what a killed daemon left running, and deletes the traces (RUL-46b). Only groups that are proven to be
//! ours are killed: the leader lives and started when the record says, or a member carries the session's mark.

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

use super::identity;

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
        let killed = sweep(directory, &boot).map_err(broken)?;
        Ok((
            Arc::new(Self {
                directory: directory.to_owned(),
                boot,
                _lock: lock,
            }),
            killed,
        ))
    }

    /// Where the journal of a session spills to.
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

/// Kills what the records prove to be left over, then deletes records and journals.
fn sweep(directory: &Path, boot: &str) -> io::Result<usize> {
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
            Some("journal") => fs::remove_file(&path)?,
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
