//! The port to what this host can keep apart: an [`Enclosure`] is the running inside of one sprite.
//!
//! An enclosure is opened over a directory and a stack of layers, runs commands, and is closed with everything in it.
//! It lives no longer than this process: whatever ends the server ends every process in every enclosure. What a host
//! cannot give is said in [`Facilities`]; a policy that cannot be enforced is refused (RUL-L-113).

#[cfg(target_os = "linux")]
mod birth;
#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
pub mod init;
#[cfg(target_os = "linux")]
mod layout;
#[cfg(target_os = "linux")]
mod plain;
#[cfg(target_os = "linux")]
mod sandbox;
mod settings;
#[cfg(target_os = "linux")]
mod spawn;
#[cfg(target_os = "linux")]
mod wire;

#[cfg(target_os = "linux")]
pub use host::Host;
#[cfg(target_os = "linux")]
pub use layout::{HOME, bound as executable_inside};
pub use settings::{Isolation, Settings, Uplink, UplinkHandle};

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use fountain_process::{Spawner, Waiting};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::policy::Policy;

/// How the disk of a sprite is kept, and with it how checkpoints are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Disk {
    /// An overlay: a writable layer over read-only ones; a checkpoint turns the writable one into a read-only one.
    Overlay,
    /// Plain directories; a checkpoint is a copy (sharing blocks where the filesystem can).
    Copy,
}

/// How far the network of a sprite is kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// A network of its own whose only way out is this server, which enforces every policy.
    Gateway,
    /// A network of its own without a way out: everything is denied whatever the policy allows.
    None,
    /// The host's network: no policy can be enforced.
    Host,
}

/// What this host gives, told at start and with every sprite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facilities {
    pub user_namespace: bool,
    pub mount_namespace: bool,
    pub pid_namespace: bool,
    pub network: Network,
    pub disk: Disk,
    /// Limits on memory and on the number of processes can be set.
    pub limits: bool,
    /// What is missing and why, one sentence each.
    pub missing: Vec<String>,
}

/// What an enclosure is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The sprite's id; unique, and safe as a file name.
    pub id: String,
    /// The name that commands see as their host name.
    pub hostname: String,
    /// A directory that belongs to this sprite. The enclosure makes `upper` and `work` in it (overlay), or `disk` (copy),
    /// and a mount point. With an overlay, `upper` is what was written since the newest layer, and after a close may become
    /// one by being renamed; what is in it is the enclosure's business. `work` holds nothing that has to be kept.
    pub directory: PathBuf,
    /// Read-only layers of its past, newest first; on top of what the host gives every sprite. Empty with [`Disk::Copy`].
    pub layers: Vec<PathBuf>,
    /// In force before the first command can run.
    pub policy: Policy,
}

/// Why an enclosure does not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EnclosureError {
    /// This host cannot enforce the policy; nothing was changed.
    #[error("{0}")]
    Unenforceable(String),
    /// It was closed, or its first process died.
    #[error("the sandbox is not running")]
    Closed,
    #[error("the sandbox could not be made: {0}")]
    Failed(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A byte stream into an enclosure.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The running inside of one sprite.
pub trait Enclosure: Send + Sync {
    /// Starts commands inside. `Launch::program` is looked up inside, in the `PATH` of its environment; `cwd` is a path
    /// inside. A program that is not found is an [`io::ErrorKind::NotFound`].
    fn spawner(&self) -> Arc<dyn Spawner>;

    /// The root directory as commands see it. Resolve below it with `openat2(RESOLVE_IN_ROOT)` only: what is inside is
    /// not to be trusted. Whoever holds it holds the disk: let go of it before a close, or the next opening finds the disk
    /// in use.
    ///
    /// # Errors
    /// [`EnclosureError::Closed`].
    fn root(&self) -> Result<OwnedFd, EnclosureError>;

    /// The home directory, as commands see it.
    fn home(&self) -> &str;

    /// Replaces the policy. When this answers, no new connection escapes it and connections that it forbids are cut.
    fn set_policy(&self, policy: Policy) -> Waiting<Result<(), EnclosureError>>;

    /// Connects to something that listens inside, on its loopback.
    fn connect(&self, port: u16) -> Waiting<Result<Box<dyn Stream>, EnclosureError>>;

    /// Ends everything inside; answers when all processes and mounts are gone. Idempotent.
    fn close(&self) -> Waiting<()>;

    /// Answers when it is closed, whoever closed it.
    fn closed(&self) -> Waiting<()>;
}

/// Makes enclosures on this host.
pub trait Enclosures: Send + Sync {
    fn facilities(&self) -> &Facilities;

    /// Whether [`Self::open`] or [`Enclosure::set_policy`] would take this policy.
    ///
    /// # Errors
    /// [`EnclosureError::Unenforceable`] with a sentence for people.
    fn check(&self, policy: &Policy) -> Result<(), EnclosureError>;

    /// Opens one.
    fn open(&self, plan: Plan) -> Waiting<Result<Arc<dyn Enclosure>, EnclosureError>>;
}
