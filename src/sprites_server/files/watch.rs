//! Changes of files below a root, as the kernel tells them (providers 1.7, `fs/watch`).
//!
//! Directories are found by descriptor, so no link leads outside, and watched by that descriptor. A watch holds neither the
//! root nor its mount: whoever adds one passes the root in and lets go of it. The number of watches is bounded; what the
//! kernel's queue cannot hold is reported as lost.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::{Root, kind};

/// Watches of one watcher; the kernel has a limit for all of a user's.
const MOST: usize = 1024;
/// Room for what is read at once.
const BUFFER: usize = 16 * 1024;

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Write,
    Create,
    Remove,
    Rename,
    Chmod,
}

impl What {
    /// As clients know it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Create => "create",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Chmod => "chmod",
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub what: What,
    pub is_directory: bool,
}

/// What a read gave.
#[derive(Debug, Default)]
pub struct Seen {
    pub changes: Vec<Change>,
    /// Changes were lost.
    pub overflowed: bool,
}

/// Watched files and directories.
#[derive(Debug)]
pub struct Watcher {
    queue: AsyncFd<OwnedFd>,
    paths: HashMap<i32, PathBuf>,
}

impl Watcher {
    /// Watches nothing yet. Call on a runtime.
    ///
    /// # Errors
    /// The kernel has no more of them.
    pub fn new() -> io::Result<Self> {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self {
            queue: crate::network::watched(queue)?,
            paths: HashMap::new(),
        })
    }

    /// Watches a file or a directory, with those below it if `recursive`. Blocks.
    ///
    /// # Errors
    /// What the kernel says; `E2BIG` for too many directories.
    pub fn add(&mut self, root: &Root, path: &Path, recursive: bool) -> io::Result<()> {
        let found = root.open(path, OFlags::PATH)?;
        let is_directory = kind(&rustix::fs::fstat(&found)?) == FileType::Directory;
        self.watch(&found, path)?;
        if !(recursive && is_directory) {
            return Ok(());
        }
        let mut left = vec![path.to_owned()];
        while let Some(directory) = left.pop() {
            for entry in root.list(&directory, false)? {
                if entry.kind != FileType::Directory {
                    continue;
                }
                match root.open(&entry.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
                    Ok(found) => self.watch(&found, &entry.path)?,
                    // It went meanwhile, or became something else.
                    Err(_) => continue,
                }
                left.push(entry.path);
            }
        }
        Ok(())
    }

    fn watch(&mut self, found: &OwnedFd, path: &Path) -> io::Result<()> {
        if self.paths.len() >= MOST {
            return Err(Errno::TOOBIG.into());
        }
        let wanted = WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        let through = format!("/proc/self/fd/{}", found.as_raw_fd());
        let id = inotify::add_watch(self.queue.get_ref(), through, wanted)?;
        self.paths.insert(id, path.to_owned());
        Ok(())
    }

    /// Waits for the next changes. May be dropped and called again.
    ///
    /// # Errors
    /// The queue cannot be read.
    pub async fn next(&mut self) -> io::Result<Seen> {
        loop {
            let mut ready = self.queue.readable().await?;
            let mut raw = Vec::new();
            let read = ready.try_io(|queue| read(queue.get_ref(), &mut raw));
            match read {
                Ok(read) => read?,
                Err(_) => continue,
            }
            let mut seen = Seen::default();
            for (id, flags, name) in raw {
                self.note(id, flags, name, &mut seen);
            }
            return Ok(seen);
        }
    }

    fn note(&mut self, id: i32, flags: ReadFlags, name: Option<Vec<u8>>, seen: &mut Seen) {
        seen.overflowed |= flags.contains(ReadFlags::QUEUE_OVERFLOW);
        if flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&id);
            return;
        }
        let Some(watched) = self.paths.get(&id) else { return };
        let path = match &name {
            Some(name) => watched.join(OsStr::from_bytes(name)),
            None => watched.clone(),
        };
        let what = if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            What::Create
        } else if flags.intersects(ReadFlags::DELETE | ReadFlags::DELETE_SELF) {
            What::Remove
        } else if flags.contains(ReadFlags::MOVED_FROM) {
            What::Rename
        } else if flags.contains(ReadFlags::ATTRIB) {
            What::Chmod
        } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) {
            What::Write
        } else {
            return;
        };
        let is_directory = flags.contains(ReadFlags::ISDIR);
        if what == What::Rename && is_directory {
            // Those below have another path now, or one outside.
            let moved: Vec<_> = self
                .paths
                .iter()
                .filter(|(_, below)| below.starts_with(&path))
                .collect();
            for (id, _) in moved {
                let _ = inotify::remove_watch(self.queue.get_ref(), *id);
            }
        }
        let change = Change {
            path,
            what,
            is_directory,
        };
        // A write is many; one after the other says nothing new.
        if seen.changes.last() != Some(&change) {
            seen.changes.push(change);
        }
    }
}

type Raw = (i32, ReadFlags, Option<Vec<u8>>);

/// One buffer of what waits.
fn read(queue: &OwnedFd, raw: &mut Vec<Raw>) -> io::Result<()> {
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
    let mut reader = inotify::Reader::new(queue, &mut buffer);
    loop {
        let event = reader.next()?;
        let name = event.file_name().map(|name| name.to_bytes().to_vec());
        raw.push((event.wd(), event.events(), name));
        if reader.is_buffer_empty() {
            return Ok(());
        }
    }
}
