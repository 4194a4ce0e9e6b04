//! The files of a sprite, from outside (providers 1.7).
//!
//! What is inside is not to be trusted: every path is resolved by the kernel strictly below the root of the enclosure
//! (`openat2`, `RESOLVE_IN_ROOT`), and what follows works on descriptors and single names, which follow no links. A write
//! goes aside and is renamed; a link at the end of its path is replaced, not followed. Everything here blocks.

pub mod path;
pub mod watch;

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, openat2, statat};
use rustix::io::Errno;

/// Deeper trees are not walked.
const DEEPEST: usize = 128;
/// Longer lists are refused rather than cut.
const MOST: usize = 100_000;

/// What a list shows of one file.
#[derive(Clone, Debug)]
pub struct Entry {
    pub path: PathBuf,
    pub kind: FileType,
    pub size: u64,
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: i64,
}

/// The root of a sprite.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// From the descriptor of an enclosure.
    pub fn new(root: OwnedFd) -> Self {
        Self(root)
    }

    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        // The kernel answers EAGAIN when something was renamed meanwhile.
        let opened =
            (0..16).find_map(
                |_| match openat2(&self.0, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                    Err(Errno::AGAIN) => None,
                    other => Some(other),
                },
            );
        Ok(opened.unwrap_or(Err(Errno::AGAIN))?)
    }

    /// The directory that holds the last name of a path, and that name.
    fn place<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::ISDIR.into());
        };
        Ok((self.open(parent, OFlags::PATH | OFlags::DIRECTORY)?, name))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// `EISDIR` and what the kernel says.
    pub fn read(&self, path: &Path) -> io::Result<File> {
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        match kind(&rustix::fs::fstat(&file)?) {
            FileType::RegularFile => Ok(file.into()),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Writes a whole file; without a mode an existing one keeps its own. Answers the mode.
    ///
    /// # Errors
    /// What the kernel says; the old file is as it was.
    pub fn write(&self, path: &Path, data: &[u8], mode: Option<u32>, parents: bool) -> io::Result<u32> {
        if parents && let Some(parent) = path.parent() {
            self.make_directories(parent)?;
        }
        let (directory, name) = self.place(path)?;
        let old = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        if old.as_ref().is_some_and(|old| kind(old) == FileType::Directory) {
            return Err(Errno::ISDIR.into());
        }
        let old = old.filter(|old| kind(old) == FileType::RegularFile);
        let mode = mode.or(old.map(|old| old.st_mode & 0o7777)).unwrap_or(0o644);
        let aside = format!(".fountain-{:016x}", rand::random::<u64>());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(
            &directory,
            &aside,
            flags,
            Mode::from_raw_mode(0o600),
        )?);
        let written = file
            .write_all(data)
            .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
            .and_then(|()| Ok(rustix::fs::renameat(&directory, &aside, &directory, name)?));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&directory, &aside, AtFlags::empty());
        }
        written.map(|()| mode)
    }

    fn make_directories(&self, path: &Path) -> io::Result<()> {
        let mut reached = PathBuf::from("/");
        for part in path.components() {
            let before = reached.clone();
            reached.push(part);
            match self.open(&reached, OFlags::PATH | OFlags::DIRECTORY) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => {
                    other?;
                    continue;
                }
            }
            let parent = self.open(&before, OFlags::PATH | OFlags::DIRECTORY)?;
            match rustix::fs::mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Err(Errno::EXIST) => {}
                other => {
                    other?;
                    let made = self.open(&reached, OFlags::PATH | OFlags::DIRECTORY)?;
                    set_mode(&made, 0o755)?;
                }
            }
        }
        Ok(())
    }

    /// What is in a directory, or the file itself.
    ///
    /// # Errors
    /// What the kernel says; `E2BIG` for too long a list.
    pub fn list(&self, path: &Path, recursive: bool) -> io::Result<Vec<Entry>> {
        let found = self.open(path, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&found)?;
        if kind(&stat) != FileType::Directory {
            return Ok(vec![entry(path.to_owned(), &stat)]);
        }
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        list_below(directory.as_fd(), path, recursive, DEEPEST, &mut entries)?;
        Ok(entries)
    }

    /// Removes a file, a link, an empty directory, or a whole tree.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn delete(&self, path: &Path, recursive: bool) -> io::Result<()> {
        let (directory, name) = self.place(path)?;
        let stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match kind(&stat) {
            FileType::Directory if recursive => remove_tree(directory.as_fd(), name, DEEPEST),
            FileType::Directory => Ok(rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR)?),
            _ => Ok(rustix::fs::unlinkat(&directory, name, AtFlags::empty())?),
        }
    }

    /// Renames.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn rename(&self, source: &Path, dest: &Path) -> io::Result<()> {
        let (from, old) = self.place(source)?;
        let (to, new) = self.place(dest)?;
        Ok(rustix::fs::renameat(from, old, to, new)?)
    }

    /// Copies a file or a tree; answers how many files and bytes.
    ///
    /// # Errors
    /// What the kernel says; `EINVAL` for a tree into itself.
    pub fn copy(&self, source: &Path, dest: &Path, recursive: bool) -> io::Result<(u64, u64)> {
        if dest.starts_with(source) {
            return Err(Errno::INVAL.into());
        }
        let (from, old) = self.place(source)?;
        let (to, new) = self.place(dest)?;
        let mut total = (0, 0);
        copy_one(from.as_fd(), old, to.as_fd(), new, recursive, DEEPEST, &mut total)?;
        Ok(total)
    }

    /// Changes permissions; answers how many files.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn chmod(&self, path: &Path, mode: u32, recursive: bool) -> io::Result<u64> {
        self.change(path, recursive, &|file| set_mode(file, mode))
    }

    /// Changes the owner; answers how many files.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn chown(&self, path: &Path, uid: Option<u32>, gid: Option<u32>, recursive: bool) -> io::Result<u64> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        self.change(path, recursive, &|file| {
            Ok(rustix::fs::chownat(file, "", uid, gid, AtFlags::EMPTY_PATH)?)
        })
    }

    fn change(&self, path: &Path, recursive: bool, change: Change<'_>) -> io::Result<u64> {
        let file = self.open(path, OFlags::PATH)?;
        let is_directory = kind(&rustix::fs::fstat(&file)?) == FileType::Directory;
        let mut changed = 1;
        if recursive && is_directory {
            let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            changed += change_below(directory.as_fd(), change, DEEPEST)?;
        }
        change(&file)?;
        Ok(changed)
    }
}

type Change<'c> = &'c dyn Fn(&OwnedFd) -> io::Result<()>;

/// Through the descriptor: the one way to change exactly what was resolved.
fn set_mode(file: &OwnedFd, mode: u32) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn entry(path: PathBuf, stat: &Stat) -> Entry {
    Entry {
        path,
        kind: kind(stat),
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: stat.st_mode & 0o7777,
        modified: stat.st_mtime,
    }
}

fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for found in Dir::read_from(directory)? {
        let found = found?;
        let name = found.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
        if names.len() > MOST {
            return Err(Errno::TOOBIG.into());
        }
    }
    names.sort();
    Ok(names)
}

/// A directory by its name, which may not be a link.
fn enter(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn one_deeper(depth: usize) -> io::Result<usize> {
    depth.checked_sub(1).ok_or_else(|| Errno::LOOP.into())
}

fn list_below(
    directory: BorrowedFd<'_>,
    path: &Path,
    recursive: bool,
    depth: usize,
    entries: &mut Vec<Entry>,
) -> io::Result<()> {
    for name in names(directory)? {
        let stat = match statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            other => other?,
        };
        let below = path.join(&name);
        entries.push(entry(below.clone(), &stat));
        if entries.len() > MOST {
            return Err(Errno::TOOBIG.into());
        }
        if recursive && kind(&stat) == FileType::Directory {
            let child = enter(directory, &name)?;
            list_below(child.as_fd(), &below, true, one_deeper(depth)?, entries)?;
        }
    }
    Ok(())
}

fn remove_tree(parent: BorrowedFd<'_>, name: &OsStr, depth: usize) -> io::Result<()> {
    let directory = enter(parent, name)?;
    for child in names(directory.as_fd())? {
        let stat = statat(&directory, &child, AtFlags::SYMLINK_NOFOLLOW)?;
        if kind(&stat) == FileType::Directory {
            remove_tree(directory.as_fd(), &child, one_deeper(depth)?)?;
        } else {
            rustix::fs::unlinkat(&directory, &child, AtFlags::empty())?;
        }
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

fn change_below(directory: BorrowedFd<'_>, change: Change<'_>, depth: usize) -> io::Result<u64> {
    let mut changed = 0;
    for name in names(directory)? {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &name, flags, Mode::empty())?;
        match kind(&rustix::fs::fstat(&file)?) {
            FileType::Symlink => continue,
            FileType::Directory => {
                let child = enter(directory, &name)?;
                changed += change_below(child.as_fd(), change, one_deeper(depth)?)?;
            }
            _ => {}
        }
        change(&file)?;
        changed += 1;
    }
    Ok(changed)
}

fn copy_one(
    from: BorrowedFd<'_>,
    old: &OsStr,
    to: BorrowedFd<'_>,
    new: &OsStr,
    recursive: bool,
    depth: usize,
    total: &mut (u64, u64),
) -> io::Result<()> {
    let stat = statat(from, old, AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = Permissions::from_mode(stat.st_mode & 0o7777);
    match kind(&stat) {
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let mut source = File::from(rustix::fs::openat(from, old, flags, Mode::empty())?);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let flags = flags | OFlags::NONBLOCK;
            let mut dest = File::from(rustix::fs::openat(to, new, flags, Mode::from_raw_mode(0o600))?);
            total.1 += io::copy(&mut source, &mut dest)?;
            dest.set_permissions(mode)?;
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(from, old, Vec::new())?;
            rustix::fs::symlinkat(target, to, new)?;
        }
        FileType::Directory if recursive => {
            let source = enter(from, old)?;
            let children = names(source.as_fd())?;
            match rustix::fs::mkdirat(to, new, Mode::from_raw_mode(0o700)) {
                Err(Errno::EXIST) => {}
                other => other?,
            }
            let dest = enter(to, new)?;
            for child in children {
                copy_one(
                    source.as_fd(),
                    &child,
                    dest.as_fd(),
                    &child,
                    true,
                    one_deeper(depth)?,
                    total,
                )?;
            }
            File::from(dest).set_permissions(mode)?;
        }
        FileType::Directory => return Err(Errno::ISDIR.into()),
        _ => return Err(Errno::INVAL.into()),
    }
    total.0 += 1;
    Ok(())
}
