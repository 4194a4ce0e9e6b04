//! What the server and the first process of an enclosure say to each other, over one Unix stream socket.
//!
//! A frame is its length (four bytes, with the file descriptors attached) and a JSON value. What comes out of an
//! enclosure is not to be trusted: lengths and the number of descriptors are bounded, and nothing in it is a host path.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// An environment and arguments as long as the kernel takes them, as JSON numbers.
const LONGEST: u32 = 16 * 1024 * 1024;
/// Three standard streams, or a process and its terminal.
const MOST_FDS: usize = 4;

/// Who root is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Identity {
    /// The ids 0 to 65535 are the host's, without a capability outside. Needs root.
    Range,
    /// Root inside is the user that runs the server; there are no others.
    Single,
}

/// A tree of the host that is seen inside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Tree {
    /// Where it is, on the host and inside, without the first slash. Empty: the root itself.
    pub path: String,
    /// What its layers are called in `upper`, `work` and every layer.
    pub name: String,
}

/// Everything that the first process has to know to make its root directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub identity: Identity,
    pub disk: OnDisk,
    /// The mount point of the new root, outside.
    pub root: PathBuf,
    pub hostname: String,
    pub helper: PathBuf,
    pub helper_args: Vec<OsString>,
    pub trees: Vec<Tree>,
    /// Whether there will be a way out through the server.
    pub uplink: bool,
    /// Who answers name queries.
    pub resolver: Option<IpAddr>,
}

/// Where the disk is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum OnDisk {
    Overlay {
        upper: PathBuf,
        work: PathBuf,
        /// Newest first.
        layers: Vec<PathBuf>,
        base: PathBuf,
    },
    Copy {
        disk: PathBuf,
    },
}

/// From the server.
#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    Setup(Box<Setup>),
    /// The maps of the user namespace are written.
    Mapped,
    /// With standard input, output and error attached, as far as `Spawn` says.
    Spawn(u64, Box<Spawn>),
    /// Asks for a socket of the inner network.
    Socket(u64),
    /// The server is done with the number of this process.
    Release(i32),
}

/// A command to start inside.
#[derive(Serialize, Deserialize)]
pub(super) struct Spawn {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: OsString,
    pub stdin: bool,
    pub stderr: StderrTo,
    /// Rows and columns.
    pub terminal: Option<(u16, u16)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StderrTo {
    Own,
    Stdout,
    Null,
}

/// From inside.
#[derive(Serialize, Deserialize)]
pub(super) enum Event {
    /// By the outer process: the first process has this number outside. With the tun device attached, when asked for.
    Born(i32),
    /// Waits for `Mapped`.
    MapMe,
    /// With the root directory attached.
    Ready,
    /// It could not be made.
    Failed(String),
    /// With a pidfd, and the master of the terminal, attached.
    Spawned(u64, i32),
    /// With the socket attached.
    Socket(u64),
    Refused(u64, Refusal, String),
    /// A process ended with this wait status.
    Exited(i32, i32),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Refusal {
    ProgramNotFound,
    NoDirectory,
    NotPermitted,
    Other,
}

/// Sends one frame. Blocks.
pub(super) fn send(mut socket: &UnixStream, message: &impl Serialize, fds: &[&OwnedFd]) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    if length > LONGEST {
        return Err(io::Error::new(
            io::ErrorKind::ArgumentListTooLong,
            "the command is too long",
        ));
    }
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("too many file descriptors for one message"));
    }
    let header = length.to_be_bytes();
    let sent = loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    socket.write_all(header.get(sent..).unwrap_or_default())?;
    socket.write_all(&body)
}

/// Receives one frame; `None` at the end. Blocks.
pub(super) fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut header = [0; 4];
    let mut fds = Vec::new();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut parts = [IoSliceMut::new(&mut header)];
        match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many file descriptors"));
    }
    socket.read_exact(header.get_mut(got.bytes..).unwrap_or_default())?;
    let length = u32::from_be_bytes(header);
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    let mut body = vec![0; length as usize];
    socket.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, fds)))
}
