//! Makes the network inside: run by an enclosure's outer process, in the new network namespace, before any command.
//!
//! It blocks and needs no runtime. IPv6 is off on the device: a sprite has no route there, so that nothing is left to
//! judge. Whoever may not open the tun device gets the error and a network without a way out.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use super::netlink::Netlink;

/// The sprite's own address.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
/// The server's end of the device: its default route, and the resolver.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// Bytes of the largest packet. No wire is involved; large packets are fewer system calls.
pub const MTU: u32 = 65_520;

const PREFIX: u8 = 24;
const NAME: &str = "tun0";
const DEVICE: &str = "/dev/net/tun";
const LOOPBACK: u32 = 1;

/// Brings loopback up and makes the device, with its address and the default route.
///
/// # Errors
/// What the kernel answered: [`io::ErrorKind::NotFound`] and [`io::ErrorKind::PermissionDenied`] where this user may not
/// have such a device.
pub fn open_tun() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    attach(&device)?;
    let netlink = Netlink::open()?;
    let index = rustix::net::netdevice::name_to_index(netlink.socket(), NAME)?;
    // A kernel without IPv6 has no such file, and then nothing to be switched off.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{NAME}/disable_ipv6"), "1");
    netlink.up(LOOPBACK, None)?;
    netlink.address(index, ADDRESS, PREFIX)?;
    netlink.up(index, Some(MTU))?;
    netlink.default_route(index, RESOLVER)?;
    Ok(device.into())
}

/// `struct ifreq`, as far as the kernel reads it here.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Turns the open file into the device: packets without a header before them.
fn attach(device: &File) -> io::Result<()> {
    const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
    const IFF_TUN: u16 = 0x0001;
    const IFF_NO_PI: u16 = 0x1000;
    let mut request = Request {
        name: [0; 16],
        flags: IFF_TUN | IFF_NO_PI,
        rest: [0; 22],
    };
    for (to, from) in request.name.iter_mut().zip(NAME.bytes()) {
        *to = from;
    }
    #[expect(
        unsafe_code,
        reason = "TUNSETIFF reads and writes one ifreq of 40 bytes, which is what it is given"
    )]
    unsafe {
        rustix::ioctl::ioctl(device, rustix::ioctl::Updater::<TUNSETIFF, Request>::new(&mut request))?;
    }
    Ok(())
}
