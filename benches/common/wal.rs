//! Counts SQLite's commits from outside: the frames of a write-ahead log whose header says "a transaction ends here".
//!
//! Of a frame's 24 header bytes, bytes 4 to 8 are the size of the database after the commit, 0 in every other frame, and
//! bytes 8 to 16 repeat the salts of the log's own header; a frame with other salts is left over from before a
//! checkpoint. So nothing in the server has to be trusted or changed.

use std::path::Path;

use anyhow::Context as _;

const LOG_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// Commits in the log so far. Two counts can be compared while `generation` is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commits {
    pub generation: [u8; 8],
    pub count: u64,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads the log beside a database file.
pub fn commits(database: &Path) -> anyhow::Result<Commits> {
    let mut path = database.as_os_str().to_owned();
    path.push("-wal");
    let log = std::fs::read(&path).context("the database has no write-ahead log")?;
    let page = word(&log, 8).context("the log is too short")? as usize;
    let generation: [u8; 8] = log.get(16..24).context("the log is too short")?.try_into()?;
    let mut count = 0;
    for frame in log
        .get(LOG_HEADER..)
        .unwrap_or_default()
        .chunks_exact(FRAME_HEADER + page)
    {
        if frame.get(8..16) != Some(&generation[..]) {
            break;
        }
        count += u64::from(word(frame, 4).unwrap_or(0) != 0);
    }
    Ok(Commits { generation, count })
}
