//! Finding sessions again after a restart of the server (RUL-L-112).
//!
//! What was written is replayed; a record that a kill cut in two is cut off. A session whose end was recorded keeps its
//! verdict; any other has lost its process, and replays without one. Everything in this file blocks.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::PathBuf,
    sync::Arc,
};

use super::journal::{CHUNK, Exit, HEADER, Journal, Tail};

/// Opens a journal that an earlier process wrote; no file means no output.
pub(super) fn journal(path: PathBuf, exit: Exit) -> io::Result<Arc<Journal>> {
    let mut tail = Tail::default();
    let file = match File::options().read(true).write(true).open(&path) {
        Ok(file) => {
            tail = measure(&file)?;
            if file.metadata()?.len() > tail.end {
                file.set_len(tail.end)?;
            }
            Some(file)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    tail.exit = Some(exit);
    Ok(Journal::reopened(path, file, tail))
}

/// Walks the whole records from the start.
fn measure(file: &File) -> io::Result<Tail> {
    let size = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(4 * CHUNK, file);
    let mut tail = Tail::default();
    loop {
        let mut head = [0; HEADER];
        match reader.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(tail),
            Err(error) => return Err(error),
        }
        let [stream, length @ ..] = head;
        let length = u64::from(u32::from_le_bytes(length));
        let next = tail.end + HEADER as u64 + length;
        let is_sound = matches!(stream, 1 | 2) && length <= CHUNK as u64 && next <= size;
        if !is_sound {
            return Ok(tail);
        }
        reader.seek_relative(i64::try_from(length).unwrap_or_default())?;
        tail.end = next;
        match stream {
            1 => tail.stdout += length,
            _ => tail.stderr += length,
        }
    }
}

/// Deletes journals that no record names: their session never got as far as being shown.
pub(super) fn drop_nameless(directory: &std::path::Path, is_named: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_journal = path.extension().is_some_and(|extension| extension == "journal");
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if is_journal && !is_named(stem) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
