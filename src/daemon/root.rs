//! The directory under which all sandboxes lie, and the proof that it is the one we know (RUL-49, RUL-L-94).
//!
//! A disk that is not mounted leaves an empty directory behind, in which every sandbox seems to be gone. So the root holds
//! a marker with a random id, which the server learns at the dial. Before anything is said about a sandbox the marker is
//! looked at; without it the answer is `unavailable`, and absence is never reported.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use super::wire::{Code, Refusal};

const MARKER: &str = ".root-id";

/// A root that was opened.
#[derive(Clone, Debug)]
pub struct Root {
    path: PathBuf,
    text: String,
    id: String,
}

impl Root {
    /// Opens a root, creating it (0700) and its marker where they are missing. `fresh_id` names a new one. Blocks.
    ///
    /// # Errors
    /// The directory cannot be made or written, or its path is not text.
    pub fn open(path: &Path, fresh_id: &str) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let text = path
            .to_str()
            .ok_or_else(|| io::Error::other("the root's path is not valid text"))?
            .to_owned();
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let marker = path.join(MARKER);
        let id = match fs::read_to_string(&marker) {
            Ok(id) if !id.trim().is_empty() => id.trim().to_owned(),
            Ok(_) => write_marker(&marker, fresh_id)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => write_marker(&marker, fresh_id)?,
            Err(error) => return Err(error),
        };
        Ok(Self { path, text, id })
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The absolute path, as the server sees it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The id in the marker.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory of a sandbox whose name was checked.
    pub fn sandbox(&self, name: &str) -> String {
        format!("{}/{name}", self.text.trim_end_matches('/'))
    }

    /// Looks at the marker. Blocks.
    ///
    /// # Errors
    /// `unavailable` when it is missing, unreadable or another one.
    pub fn check(&self) -> Result<(), Refusal> {
        let found = fs::read_to_string(self.path.join(MARKER));
        match found {
            Ok(id) if id.trim() == self.id => Ok(()),
            Ok(_) => Err(Refusal::new(
                Code::Unavailable,
                "the sandbox root is another one than at the start",
            )),
            Err(error) => Err(Refusal::new(
                Code::Unavailable,
                format!("the sandbox root cannot be seen: {error}"),
            )),
        }
    }
}

fn write_marker(marker: &Path, id: &str) -> io::Result<String> {
    fs::write(marker, format!("{id}\n"))?;
    Ok(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rul_l_94_a_root_keeps_its_id() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/root");
        assert_eq!(Root::open(&path, "one").unwrap().id(), "one");
        assert_eq!(Root::open(&path, "two").unwrap().id(), "one");
    }

    #[test]
    fn rul_l_94_an_empty_mount_point_is_not_the_root() {
        let parent = tempfile::tempdir().unwrap();
        let root = Root::open(parent.path(), "one").unwrap();
        assert_eq!(root.check(), Ok(()));
        fs::remove_file(parent.path().join(MARKER)).unwrap();
        assert_eq!(root.check().unwrap_err().code, Code::Unavailable);
        fs::write(parent.path().join(MARKER), "other").unwrap();
        assert_eq!(root.check().unwrap_err().code, Code::Unavailable);
    }
}
