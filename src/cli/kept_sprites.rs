//! The Sprites server that `dev --provider sprites` keeps: a process of its own, which outlives a kill of `dev`.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use fountain_actors::ports::Rng;
use fountain_provider_sprites::SpritesSettings;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::data_dir::DataDir;
use super::profile::write_private;
use super::runner::Life;
use crate::config;
use crate::server::SystemRng;

/// Where a command inside a sprite finds this executable, where the host can put it there.
const INSIDE: &str = "/.fountain/fountain";
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the server writes when it is ready.
#[derive(Serialize, Deserialize)]
pub struct Connection {
    pub url: String,
}

/// The command line of the demo agent in a sprite: this executable where it was put, else where it is.
pub fn demo_command(outside: &str) -> String {
    format!("if [ -x {INSIDE} ]; then exec {INSIDE} demo-agent; else {outside}; fi")
}

/// The server that `dev` keeps: its folder, its token and its connection file are in the data directory.
pub struct Kept {
    connection: PathBuf,
    pub settings: SpritesSettings,
}

impl Kept {
    /// Starts the server in a process group of its own, or adopts the one that lives, and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up; its log says why.
    pub async fn start_or_adopt(dir: &DataDir) -> anyhow::Result<Self> {
        let connection = dir.file("sprites.json");
        let token_file = dir.file("sprites.token");
        let token = match std::fs::read_to_string(&token_file) {
            Ok(token) => token.trim().to_owned(),
            Err(_) => {
                let token = SystemRng.hex(32);
                write_private(&token_file, token.as_bytes())?;
                token
            }
        };
        match Life::of(&connection)? {
            Some(pid) => tracing::info!("adopting the sprites server that is running already (process {pid})"),
            None => {
                let _ = std::fs::remove_file(&connection);
                spawn(dir, &connection, &token_file)?;
            }
        }
        let url = tokio::time::timeout(PATIENCE, announced(&connection))
            .await
            .map_err(|_| anyhow::anyhow!("the sprites server did not start; see sprites.log in the data directory"))?;
        let settings = SpritesSettings {
            base_url: url,
            token: token.into(),
            timeout: config::SPRITES_TIMEOUT,
            public_urls: false,
            checkpoints: true,
        };
        Ok(Self { connection, settings })
    }

    /// Ends it: sprites and checkpoints stay, running commands do not.
    pub async fn end(&self) {
        let Some(pid) = Life::of(&self.connection).ok().flatten().filter(|pid| *pid > 0) else {
            return;
        };
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let gone = async {
            while Life::of(&self.connection).ok().flatten().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(10), gone).await.is_err() {
            tracing::warn!("the sprites server did not end in time; process {pid}");
        }
    }
}

fn spawn(dir: &DataDir, connection: &Path, token_file: &Path) -> anyhow::Result<()> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.file("sprites.log"))
        .context("the log of the sprites server cannot be written")?;
    let mut command =
        std::process::Command::new(std::env::current_exe().context("this executable's own path is not known")?);
    command
        .args(["sprites", "--listen", "127.0.0.1:0", "--root"])
        .arg(dir.file("sprites"))
        .arg("--token-file")
        .arg(token_file)
        .arg("--connection-file")
        .arg(connection);
    command
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A signal to the terminal's group (Ctrl-C) must not reach it: its turns end first.
        .process_group(0)
        .spawn()
        .context("the sprites server could not be started")?;
    Ok(())
}

/// The address, once the server has written it.
async fn announced(connection: &Path) -> String {
    loop {
        let found = std::fs::read(connection)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Connection>(&bytes).ok());
        if let Some(connection) = found {
            return connection.url;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn the_executable_is_where_the_enclosure_puts_it() {
        let inside = fountain_sprites::enclosure::executable_inside();
        assert_eq!(inside.to_str(), Some(super::INSIDE));
    }
}
