//! One message to the kernel: the loopback device of a new network namespace is up.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST_ACK: u16 = 1 | 4;
const NLMSG_ERROR: u16 = 2;
const LOOPBACK: i32 = 1;
const IFF_UP: u32 = 1;
const LENGTH: u32 = 32;

/// Brings the loopback device up.
pub(super) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    let mut message = Vec::with_capacity(LENGTH as usize);
    // struct nlmsghdr: length, type, flags, sequence, port
    message.extend(LENGTH.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8]);
    // struct ifinfomsg: family, padding, type, index, flags, change mask
    message.extend([0; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0_u8; 1024];
    rustix::net::recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
    let (kind, code) = (answer.get(4..6), answer.get(16..20));
    let kind = kind.and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let code = code.and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(io::Error::other("the kernel's answer is not one")),
    }
}
