//! The demo agent's memory: one small file per session, so that a new process can resume or load it.
//!
//! A file is JSON lines, `["user", text]` or `["agent", text]`. It is a demo's memory: long texts are cut and only the
//! last entries are read back. An id comes from the client, so it is checked before it names a file.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Longest text that is remembered, in bytes.
const TEXT: usize = 16 * 1024;
/// Entries that are read back.
const ENTRIES: usize = 200;

/// One thing that was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    User(String),
    Agent(String),
}

pub(super) struct Sessions {
    folder: PathBuf,
}

impl Sessions {
    pub fn under(home: &Path) -> Self {
        Self {
            folder: home.join(".fountain-demo"),
        }
    }

    /// Makes an empty session and returns its id.
    pub fn create(&self) -> io::Result<String> {
        let id = uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string();
        fs::create_dir_all(&self.folder)?;
        fs::File::create_new(self.file(&id))?;
        Ok(id)
    }

    /// What was said in a session; `None` when there is no such session.
    pub fn read(&self, id: &str) -> io::Result<Option<Vec<Said>>> {
        if !is_id(id) {
            return Ok(None);
        }
        let text = match fs::read_to_string(self.file(id)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // A line that a crash cut short is not an entry.
        let entries: Vec<Said> = text.lines().filter_map(entry).collect();
        let old = entries.len().saturating_sub(ENTRIES);
        Ok(Some(entries.into_iter().skip(old).collect()))
    }

    /// Adds to a session; empty texts are left out.
    pub fn append(&self, id: &str, said: &[Said]) -> io::Result<()> {
        let mut lines = String::new();
        for said in said {
            let (who, text) = match said {
                Said::User(text) => ("user", text),
                Said::Agent(text) => ("agent", text),
            };
            let text = text.get(..text.floor_char_boundary(TEXT)).unwrap_or_default();
            if !text.is_empty() {
                lines += &serde_json::json!([who, text]).to_string();
                lines.push('\n');
            }
        }
        fs::OpenOptions::new()
            .append(true)
            .open(self.file(id))?
            .write_all(lines.as_bytes())
    }

    fn file(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.jsonl"))
    }
}

fn entry(line: &str) -> Option<Said> {
    let (who, text): (String, String) = serde_json::from_str(line).ok()?;
    match who.as_str() {
        "user" => Some(Said::User(text)),
        "agent" => Some(Said::Agent(text)),
        _ => None,
    }
}

fn is_id(id: &str) -> bool {
    id.len() == 36 && id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_remembered_and_an_unknown_one_is_not_there() {
        let home = tempfile::tempdir().unwrap();
        let sessions = Sessions::under(home.path());
        let id = sessions.create().unwrap();
        assert_eq!(sessions.read(&id).unwrap(), Some(Vec::new()));
        let said = [
            Said::User("a\nb".into()),
            Said::Agent(String::new()),
            Said::Agent("c".into()),
        ];
        sessions.append(&id, &said).unwrap();
        assert_eq!(sessions.read(&id).unwrap().unwrap(), [said[0].clone(), said[2].clone()]);
        assert_eq!(sessions.read("00000000-0000-0000-0000-000000000000").unwrap(), None);
    }

    #[test]
    fn an_id_never_leaves_the_folder() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("x.jsonl"), "[\"user\",\"secret\"]\n").unwrap();
        let sessions = Sessions::under(home.path());
        sessions.create().unwrap();
        assert_eq!(sessions.read("../x").unwrap(), None);
    }

    #[test]
    fn a_line_cut_by_a_crash_and_long_texts_do_no_harm() {
        let home = tempfile::tempdir().unwrap();
        let sessions = Sessions::under(home.path());
        let id = sessions.create().unwrap();
        sessions.append(&id, &[Said::Agent("é".repeat(TEXT))]).unwrap();
        fs::OpenOptions::new()
            .append(true)
            .open(sessions.file(&id))
            .unwrap()
            .write_all(b"[\"user\",\"half")
            .unwrap();
        let read = sessions.read(&id).unwrap().unwrap();
        assert!(matches!(&read[..], [Said::Agent(text)] if text.len() == TEXT));
    }
}
