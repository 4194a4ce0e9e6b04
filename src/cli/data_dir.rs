//! The data directory of `dev` and `serve --data-dir`: database, keys and the connection file of the runner
//! (RUL-57, RUL-58, RUL-60). The folder is 0700, every file in it that holds a key 0600.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::profile::write_private;
use crate::config::{Database, Environment};
use crate::server::SystemRng;
use crate::store::secrets::MasterKey;

/// What `dev` remembers between starts: the key is stored hashed in the database, so its text is kept here.
#[derive(Clone, Serialize, Deserialize)]
pub struct Remembered {
    pub api_key: String,
    pub account_id: String,
}

/// What the embedded runner dials with; read at every dial, because the port may be another each time.
#[derive(Serialize, Deserialize)]
pub struct Connection {
    pub url: String,
    pub api_key: String,
}

#[derive(Clone, Debug)]
pub struct DataDir {
    path: PathBuf,
}

impl DataDir {
    /// Makes the folder if it is missing. An existing one is closed to others.
    ///
    /// # Errors
    /// When it cannot be made or is somebody else's.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("the data directory {} cannot be made", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .with_context(|| format!("the data directory {} is not ours", path.display()))?;
        Self::open(path)
    }

    /// An existing folder, by its absolute path.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let path = path.canonicalize().with_context(|| {
            format!(
                "there is no data directory {}; `fountain dev --data-dir` makes one",
                path.display()
            )
        })?;
        Ok(Self { path })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The database in this folder.
    ///
    /// # Errors
    /// When a setting of the environment cannot be read.
    pub fn database(&self, env: &Environment) -> anyhow::Result<Database> {
        let path = self.file("fountain.db");
        let path = path.to_str().context("the path of the data directory is not UTF-8")?;
        Ok(Database::at(env, &format!("sqlite://{path}"))?)
    }

    pub fn has_database(&self) -> bool {
        self.file("fountain.db").exists()
    }

    /// The master key: the file's, or a new one for a folder without a database.
    ///
    /// # Errors
    /// When there is a database whose key is gone: its secrets could not be read again (RUL-58).
    pub fn master_key(&self) -> anyhow::Result<SecretString> {
        let path = self.file("master.key");
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().to_owned().into()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !self.has_database() => {
                let key = MasterKey::generate(&SystemRng);
                write_private(&path, key.expose_secret().as_bytes())?;
                Ok(key)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
                "{} is missing, and the database beside it holds secrets that only it can open; put it back, or start \
                 with another --data-dir",
                path.display()
            ),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    /// What an earlier start remembered; None when there is no such file, or none that can be read.
    pub fn remembered(&self) -> Option<Remembered> {
        serde_json::from_slice(&std::fs::read(self.file("dev.json")).ok()?).ok()
    }

    /// # Errors
    /// When the folder cannot be written.
    pub fn remember(&self, remembered: &Remembered) -> anyhow::Result<()> {
        write_private(&self.file("dev.json"), &serde_json::to_vec(remembered)?)
    }

    pub fn connection_file(&self) -> PathBuf {
        self.file("runner.json")
    }

    /// The key that the connection file already holds.
    pub fn connection(&self) -> Option<Connection> {
        serde_json::from_slice(&std::fs::read(self.connection_file()).ok()?).ok()
    }

    /// # Errors
    /// When the folder cannot be written.
    pub fn write_connection(&self, connection: &Connection) -> anyhow::Result<()> {
        write_private(&self.connection_file(), &serde_json::to_vec(connection)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rul_58_a_missing_master_key_beside_a_database_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::create(&folder.path().join("data")).unwrap();
        let key = dir.master_key().unwrap();
        assert_eq!(dir.master_key().unwrap().expose_secret(), key.expose_secret());
        std::fs::write(dir.file("fountain.db"), b"").unwrap();
        assert_eq!(dir.master_key().unwrap().expose_secret(), key.expose_secret());
        std::fs::remove_file(dir.file("master.key")).unwrap();
        assert!(dir.master_key().unwrap_err().to_string().contains("master.key"));
    }

    #[test]
    fn the_folder_is_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        DataDir::create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
