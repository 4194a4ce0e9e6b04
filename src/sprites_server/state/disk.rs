//! Writing so that a crash leaves the old or the new, and removing trees that do not want to go. Everything here blocks.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Serialize, de::DeserializeOwned};

/// Replaces a record: written aside, synced, renamed.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let json = serde_json::to_vec(value).map_err(io::Error::other)?;
    let aside = aside(path);
    let written = File::create(&aside).and_then(|mut file| {
        file.write_all(&json)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&aside, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&aside);
    }
    renamed?;
    sync_parent(path)
}

/// Reads a record; none when there is no file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(json) => serde_json::from_slice(&json)
            .map(Some)
            .map_err(|error| io::Error::other(format!("{} is damaged: {error}", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes renames in the directory of `path` last.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Removes a tree, if it is there; what an ordinary user may not enter is opened first.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => open_up(path)?,
        other => return other,
    }
    fs::remove_dir_all(path)
}

fn open_up(directory: &Path) -> io::Result<()> {
    fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

/// Copies a tree with everything `cp` can keep, sharing blocks where the filesystem can. `to` must not exist.
pub fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let copied = Command::new("cp")
        .args(["-a", "--reflink=auto", "-T", "--"])
        .args([from, to])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    let told = match copied {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => io::Error::other(reason(&output.stderr)),
        Err(error) => error,
    };
    let _ = remove_tree(to);
    Err(told)
}

/// The reason without the paths of this host.
fn reason(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().next().unwrap_or_default();
    let cause = line.rsplit(": ").next().unwrap_or_default();
    format!("the disk could not be copied: {cause}")
}

/// Where a record is written before it has its name. Names of checkpoints have dots.
fn aside(path: &Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}
