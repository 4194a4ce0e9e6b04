//! The four requests to the kernel that a network of one device needs, each with its answer (rtnetlink(7)).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
/// NLM_F_REQUEST, NLM_F_ACK.
const CHANGE: u16 = 1 | 4;
/// And NLM_F_EXCL, NLM_F_CREATE.
const CREATE: u16 = CHANGE | 0x200 | 0x400;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;
const AF_INET: u8 = 2;
const HEADER: usize = 16;

/// A conversation with the kernel about the network namespace in which it was opened.
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(rustix::net::socket(
            AddressFamily::NETLINK,
            SocketType::RAW,
            None,
        )?))
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Brings a device up, with this MTU in bytes.
    pub(super) fn up(&self, index: u32, mtu: Option<u32>) -> io::Result<()> {
        const IFLA_MTU: u16 = 4;
        // struct ifinfomsg: family, padding, type, index, flags, change mask
        let mut body = vec![0; 4];
        for field in [index, IFF_UP, IFF_UP] {
            body.extend(field.to_ne_bytes());
        }
        if let Some(mtu) = mtu {
            attribute(&mut body, IFLA_MTU, mtu.to_ne_bytes());
        }
        self.ask(RTM_NEWLINK, CHANGE, &body)
    }

    pub(super) fn address(&self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        const IFA_ADDRESS: u16 = 1;
        const IFA_LOCAL: u16 = 2;
        // struct ifaddrmsg: family, prefix, flags, scope, index
        let mut body = vec![AF_INET, prefix, 0, 0];
        body.extend(index.to_ne_bytes());
        attribute(&mut body, IFA_LOCAL, address.octets());
        attribute(&mut body, IFA_ADDRESS, address.octets());
        self.ask(RTM_NEWADDR, CREATE, &body)
    }

    pub(super) fn default_route(&self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        const RTA_OIF: u16 = 4;
        const RTA_GATEWAY: u16 = 5;
        const MAIN: u8 = 254;
        const STATIC: u8 = 4;
        const UNICAST: u8 = 1;
        // struct rtmsg: family, destination and source length, tos, table, protocol, scope, type, flags
        let mut body = vec![AF_INET, 0, 0, 0, MAIN, STATIC, 0, UNICAST, 0, 0, 0, 0];
        attribute(&mut body, RTA_GATEWAY, gateway.octets());
        attribute(&mut body, RTA_OIF, index.to_ne_bytes());
        self.ask(RTM_NEWROUTE, CREATE, &body)
    }

    fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        // struct nlmsghdr: length, type, flags, sequence, port
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        rustix::net::send(&self.0, &message, SendFlags::empty())?;
        let mut answer = [0_u8; 1024];
        rustix::net::recv(&self.0, answer.as_mut_slice(), RecvFlags::empty())?;
        let (kind, code) = (answer.get(4..6), answer.get(16..20));
        let kind = kind.and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        let code = code.and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
        match (kind, code) {
            (Some(NLMSG_ERROR), Some(0)) => Ok(()),
            (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(-error)),
            _ => Err(io::Error::other("the kernel's answer is not one")),
        }
    }
}

/// Every attribute here has four bytes, so that none needs padding.
fn attribute(body: &mut Vec<u8>, kind: u16, value: [u8; 4]) {
    body.extend(8_u16.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}
