//! What the composition root decides about enclosures, and the seam to the network.

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::Plan;
use crate::policy::Policy;

/// Processes and threads of one sprite, when nobody says otherwise: enough for a parallel build, too few for a fork bomb
/// to be felt outside.
pub const PROCESSES: u64 = 4096;

/// How far sprites are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isolation {
    /// Commands are ordinary children of this process.
    None,
    /// Namespaces over plain directories; the host's system is read-only.
    Copy,
    /// Namespaces over an overlay.
    Overlay,
}

/// How this server makes enclosures.
#[derive(Clone)]
pub struct Settings {
    /// The server's own directory: hidden from every sprite, and the place for what all sprites share.
    pub root: PathBuf,
    /// An executable that calls `enclosure::init::main`, and what it is to be told for that.
    pub helper: PathBuf,
    pub helper_args: Vec<OsString>,
    /// At most this much, even where the host could more.
    pub most: Isolation,
    /// Bytes a sprite.
    pub memory_limit: Option<u64>,
    /// Processes and threads a sprite.
    pub processes_limit: Option<u64>,
    /// The way out. Without it a sprite has a network of its own and no way out.
    pub uplink: Option<Arc<dyn Uplink>>,
}

impl Settings {
    /// The usual ones.
    pub fn new(root: PathBuf, helper: PathBuf, helper_args: Vec<OsString>) -> Self {
        Self {
            root,
            helper,
            helper_args,
            most: Isolation::Overlay,
            memory_limit: None,
            processes_limit: Some(PROCESSES),
            uplink: None,
        }
    }
}

/// Carries the packets of enclosures out.
pub trait Uplink: Send + Sync {
    /// The address inside that answers name queries.
    fn resolver(&self) -> Option<IpAddr>;

    /// Takes the device over; the policy of the plan is in force when this answers. Blocks; called inside a tokio runtime.
    ///
    /// # Errors
    /// The enclosure is not opened then.
    fn attach(&self, device: OwnedFd, plan: &Plan) -> io::Result<Box<dyn UplinkHandle>>;
}

/// The way out of one enclosure; ends when it is dropped.
pub trait UplinkHandle: Send + Sync {
    /// When this answers, the policy is in force and connections that it forbids are cut.
    fn set_policy(&self, policy: Policy) -> fountain_process::Waiting<io::Result<()>>;
}
