//! Sandboxes are directories: create, get, list, suspend, resume, destroy, write a file (runner-protocol 3).
//!
//! Everything here blocks and is called on the blocking pool, after the root was checked. A listing is whole or an error;
//! a missing directory is only reported under the known root (RUL-49).

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use serde_json::json;

use super::{
    paths,
    root::Root,
    wire::{Answer, Code, Refusal},
};

const SUSPENDED: &str = ".fountain-suspended";
/// A process that is just dying can still write into the tree that is being removed.
const REMOVAL_TRIES: usize = 5;

/// The directory of an existing sandbox.
///
/// # Errors
/// `not_found`.
pub fn find(root: &Root, name: &str) -> Result<String, Refusal> {
    let directory = root.sandbox(name);
    match fs::metadata(&directory) {
        Ok(meta) if meta.is_dir() => Ok(directory),
        Ok(_) => Err(missing(name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(name)),
        Err(error) => Err(unavailable("look at the sandbox", &error)),
    }
}

/// Makes the directory, or adopts it; `existed` tells which (RUL-L-90).
pub fn create(root: &Root, name: &str) -> Answer {
    let directory = root.sandbox(name);
    match DirBuilder::new().mode(0o700).create(&directory) {
        Ok(()) => Ok(json!({"existed": false})),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && Path::new(&directory).is_dir() => {
            Ok(json!({"existed": true}))
        }
        Err(error) => Err(unavailable("create the sandbox", &error)),
    }
}

/// Status and directory.
pub fn get(root: &Root, name: &str) -> Answer {
    let directory = find(root, name)?;
    let is_suspended = Path::new(&directory).join(SUSPENDED).exists();
    Ok(json!({"status": if is_suspended { "suspended" } else { "running" }, "path": directory}))
}

/// The names of all sandboxes, sorted.
pub fn list(root: &Root) -> Answer {
    let refuse = |error: io::Error| unavailable("list the sandboxes", &error);
    let mut names = Vec::new();
    for entry in fs::read_dir(root.path()).map_err(refuse)? {
        let entry = entry.map_err(refuse)?;
        // A name that is not text was not given by a server.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if paths::is_sandbox_name(&name) && is_directory(&entry.path()).map_err(refuse)? {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(json!({"names": names}))
}

/// Whether a path leads to a directory. One that is deleted meanwhile is none; any other failure is not "no".
fn is_directory(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(meta) => Ok(meta.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Leaves the marker; the commands were stopped before.
pub fn suspend(root: &Root, name: &str) -> Answer {
    let directory = find(root, name)?;
    let marker = Path::new(&directory).join(SUSPENDED);
    let written = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(marker);
    written
        .map(|_| json!({}))
        .map_err(|error| unavailable("mark the sandbox as suspended", &error))
}

/// Removes the marker. Nothing is restarted.
pub fn resume(root: &Root, name: &str) -> Answer {
    let directory = find(root, name)?;
    match fs::remove_file(Path::new(&directory).join(SUSPENDED)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(unavailable("remove the mark of the suspended sandbox", &error))
        }
        _ => Ok(json!({})),
    }
}

/// Removes the tree; one that is missing is fine. The commands were stopped before.
pub fn destroy(root: &Root, name: &str) -> Answer {
    let directory = root.sandbox(name);
    let directory = Path::new(&directory);
    let mut removed = remove(directory);
    for _ in 1..REMOVAL_TRIES {
        match &removed {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // Package caches are often read-only; the owner may still open them.
                open_directories(directory);
            }
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            _ => break,
        }
        removed = remove(directory);
    }
    removed
        .map(|()| json!({}))
        .map_err(|error| unavailable("remove the sandbox", &error))
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Gives the owner all rights on every directory of a tree, as far as possible. Follows no links.
fn open_directories(directory: &Path) {
    let _ = fs::set_permissions(directory, Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_directories(&entry.path());
        }
    }
}

/// Writes a file of a sandbox, with its parents. An explicit mode holds whatever the umask says, and holds before the
/// first byte is in the file, because the content may be a secret.
pub fn write_file(root: &Root, name: &str, path: &str, data: &[u8], mode: Option<i64>) -> Answer {
    let directory = find(root, name)?;
    let mode = match mode {
        None => None,
        Some(mode) => match u32::try_from(mode) {
            Ok(mode @ 0..=0o7777) => Some(mode),
            _ => return Err(Refusal::new(Code::Invalid, "mode is not a permission mode")),
        },
    };
    let target = paths::map_path(&directory, path);
    let written = write(&target, data, mode);
    written
        .map(|()| json!({}))
        .map_err(|error| Refusal::new(Code::WriteFailed, format!("{path}: {error}")))
}

fn write(target: &Path, data: &[u8], mode: Option<u32>) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(mode.unwrap_or(0o644))
        .open(target)?;
    if let Some(mode) = mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.write_all(data)?;
    // Writing takes set-id bits away.
    mode.filter(|mode| mode & 0o6000 != 0)
        .map_or(Ok(()), |mode| file.set_permissions(Permissions::from_mode(mode)))
}

fn missing(name: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("no sandbox {name}"))
}

fn unavailable(attempt: &str, error: &io::Error) -> Refusal {
    Refusal::new(Code::Unavailable, format!("could not {attempt}: {error}"))
}
