//! What a durable ledger remembers of a session besides its output: `<id>.json` next to `<id>.journal`.
//!
//! Written whole and renamed, so a reader sees the old or the new one. Everything in this file blocks.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::journal::Exit;

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Index {
    pub id: String,
    /// How the command is shown.
    pub command: String,
    pub cwd: String,
    pub tty: bool,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Absent while it runs.
    pub end: Option<End>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct End {
    /// Absent when there is no verdict.
    pub code: Option<i32>,
    pub output_ended: bool,
    /// Milliseconds since 1970.
    pub at_ms: u64,
}

impl End {
    pub fn of(exit: Exit, at: SystemTime) -> Self {
        Self {
            code: exit.verdict(),
            output_ended: exit.output_ended,
            at_ms: millis(at),
        }
    }

    pub fn exit(&self) -> Exit {
        self.code.map_or(Exit::LOST, |code| Exit {
            code,
            output_ended: self.output_ended,
            lost: false,
        })
    }
}

impl Index {
    /// The record of a session that begins now.
    pub fn begin(id: String, command: String, cwd: String, tty: bool) -> Self {
        Self {
            id,
            command,
            cwd,
            tty,
            created_ms: millis(SystemTime::now()),
            end: None,
        }
    }

    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let path = path(directory, &self.id);
        let aside = path.with_extension("json-new");
        fs::write(&aside, serde_json::to_vec(self)?)?;
        fs::rename(aside, path)
    }

    /// All that can be read, oldest first. A record that cannot be is told and left out.
    pub fn all(directory: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match fs::read(&path).map(|json| serde_json::from_slice::<Self>(&json)) {
                Ok(Ok(index)) if path_matches(&path, &index.id) => found.push(index),
                Ok(Ok(_)) => tracing::warn!(path = %path.display(), "a session record bears another name"),
                Ok(Err(error)) => tracing::warn!(path = %path.display(), %error, "a session record is broken"),
                Err(error) => tracing::warn!(path = %path.display(), %error, "a session record cannot be read"),
            }
        }
        found.sort_by_key(|index| index.created_ms);
        Ok(found)
    }
}

pub(super) fn path(directory: &Path, session: &str) -> PathBuf {
    directory.join(format!("{session}.json"))
}

fn path_matches(path: &Path, id: &str) -> bool {
    path.file_stem().is_some_and(|stem| stem == id)
}

pub(super) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}
