//! `fountain runner`: this machine, offered to your agents (runner-protocol 9; RUL-57).
//!
//! As a user starts it, it takes URL and key from the environment or the profile. As `dev` starts it, it reads them from
//! a connection file at every dial, and holds a lock beside that file for as long as it lives, with its process id
//! inside: by that the next `dev` knows that there is one to adopt.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::{Context, Exit, profile, render};
use crate::config;
use crate::daemon::{self, DaemonConfig, DaemonError, Endpoint, Timing};

#[derive(Debug, Args)]
pub struct RunnerArgs {
    /// Name of this runner, unique in your account; default: this machine's host name.
    #[arg(long)]
    name: Option<String>,
    /// Where sandboxes are kept; default: ~/.fountain/runners/NAME/sandboxes.
    #[arg(long)]
    root: Option<PathBuf>,
    /// File with `{"url","api_key"}`, read at every dial; the runner ends when it is gone.
    #[arg(long, hide = true)]
    connection_file: Option<PathBuf>,
}

pub async fn runner(context: Context, args: RunnerArgs) -> anyhow::Result<Exit> {
    let shutdown = daemon::termination()?;
    let hostname = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    let name = args
        .name
        .or_else(|| daemon::name_from_hostname(&hostname))
        .context("the host name cannot name a runner; give one with --name")?;
    let root = match args.root {
        Some(root) => root,
        None => {
            let home = context
                .variables
                .home
                .as_deref()
                .context("HOME is not set; say where with --root")?;
            home.join(".fountain").join("runners").join(&name).join("sandboxes")
        }
    };
    let _life = args.connection_file.as_deref().map(Life::begin).transpose()?;
    let endpoint = match args.connection_file {
        Some(path) => Endpoint::File(path),
        None => fixed(&context)?,
    };
    let config = DaemonConfig {
        endpoint,
        name,
        root,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        hostname,
        environment: config::inherited(),
        timing: Timing::default(),
    };
    match daemon::run(config, shutdown).await {
        Ok(()) => Ok(Exit::Ok),
        Err(error @ DaemonError::Refused { .. }) => {
            render::complain(&anyhow::Error::from(error).context("this runner cannot connect"));
            Ok(Exit::NoServer)
        }
        Err(error) => Err(error.into()),
    }
}

fn fixed(context: &Context) -> anyhow::Result<Endpoint> {
    let name = context.profile.as_deref().unwrap_or(profile::DEFAULT);
    let stored = profile::load(context.variables.home.as_deref(), name)?;
    let base_url = context.variables.base_url.clone().or(stored.base_url);
    let api_key = context.variables.api_key.clone().or(stored.api_key);
    Ok(Endpoint::Fixed {
        base_url: base_url.unwrap_or_else(|| "http://127.0.0.1:4000".to_owned()),
        api_key: api_key.context("no API key; run `fountain auth login --api-key KEY`, or set FOUNTAIN_API_KEY")?,
    })
}

/// The lock of a living embedded runner, and who it is.
pub struct Life {
    _file: File,
}

impl Life {
    fn path(connection_file: &Path) -> PathBuf {
        connection_file.with_extension("lock")
    }

    fn open(connection_file: &Path) -> anyhow::Result<File> {
        let path = Self::path(connection_file);
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("{} cannot be opened", path.display()))
    }

    /// Takes the lock and writes this process's id into its file.
    ///
    /// # Errors
    /// When another runner of this data directory lives.
    pub fn begin(connection_file: &Path) -> anyhow::Result<Self> {
        let mut file = Self::open(connection_file)?;
        file.try_lock()
            .map_err(|_| anyhow::anyhow!("a runner of this data directory is running already"))?;
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{}", std::process::id())?;
        file.flush()?;
        Ok(Self { _file: file })
    }

    /// The process id of a living runner; None when there is none.
    ///
    /// # Errors
    /// When the lock file cannot be read.
    pub fn of(connection_file: &Path) -> anyhow::Result<Option<i32>> {
        let mut file = Self::open(connection_file)?;
        match file.try_lock() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                // Between its lock and its first write the file may still be empty: it lives all the same.
                Ok(Some(text.trim().parse().unwrap_or(0)))
            }
            Err(TryLockError::Error(error)) => Err(error).context("the runner's lock cannot be tried"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rul_57_a_living_runner_is_known_by_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("runner.json");
        assert_eq!(Life::of(&file).unwrap(), None);
        let life = Life::begin(&file).unwrap();
        assert_eq!(Life::of(&file).unwrap(), i32::try_from(std::process::id()).ok());
        assert!(Life::begin(&file).is_err());
        drop(life);
        assert_eq!(Life::of(&file).unwrap(), None);
    }
}
