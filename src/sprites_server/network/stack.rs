//! The TCP side of the far end: smoltcp over the tun device, one socket a connection, made when its way out is open.
//!
//! A connection is accepted only after the host has connected, so what the sprite sees of it is what is true: a refused
//! connection is refused, and nothing is answered for an address that does not answer. What no socket takes is reset.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpListenEndpoint};
use tokio::io::unix::AsyncFd;

use super::inside::{MTU, RESOLVER};

/// Bytes that wait in each direction of one connection: what a flow can cost, and how much is under way.
pub const WINDOW: usize = 256 * 1024;
/// A handshake that does not end.
const HANDSHAKE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(30);

/// The connections of one sprite.
pub struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
}

/// The device as smoltcp wants it: packets that came wait here, packets that go are written at once.
struct Wire {
    device: Arc<AsyncFd<OwnedFd>>,
    inbox: VecDeque<Vec<u8>>,
}

impl Stack {
    /// A stack that answers for every address.
    pub fn new(device: Arc<AsyncFd<OwnedFd>>, seed: u64) -> Self {
        let mut wire = Wire {
            device,
            inbox: VecDeque::new(),
        };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, Instant::now());
        let own = IpCidr::new(IpAddress::Ipv4(RESOLVER), 24);
        interface.update_ip_addrs(|addresses| {
            // An empty list has room for one.
            let _ = addresses.push(own);
        });
        // With a route by its own address the interface takes packets for every address as its own.
        let routed = interface.routes_mut().add_default_ipv4_route(RESOLVER);
        debug_assert!(routed.is_ok(), "an empty table has room for one");
        interface.set_any_ip(true);
        Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            wire,
        }
    }

    /// Takes a packet of a connection.
    pub fn take(&mut self, packet: Vec<u8>) {
        self.wire.inbox.push_back(packet);
    }

    /// Writes a packet that is no connection's.
    pub fn send(&mut self, packet: &[u8]) {
        self.wire.write(packet);
    }

    /// Accepts the connection that this packet opens; None when it does not.
    pub fn accept(&mut self, to: SocketAddrV4, syn: Vec<u8>) -> Option<SocketHandle> {
        self.poll();
        let mut socket = Socket::new(SocketBuffer::new(vec![0; WINDOW]), SocketBuffer::new(vec![0; WINDOW]));
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_timeout(Some(HANDSHAKE));
        let endpoint = IpListenEndpoint {
            addr: Some(IpAddress::Ipv4(*to.ip())),
            port: to.port(),
        };
        socket.listen(endpoint).ok()?;
        let handle = self.sockets.add(socket);
        self.take(syn);
        self.poll();
        if self.socket(handle).is_listening() {
            self.remove(handle);
            return None;
        }
        Some(handle)
    }

    /// The socket of a handle that [`Self::accept`] gave and [`Self::remove`] did not take.
    pub fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Forgets a connection; what its peer still sends is reset.
    pub fn remove(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }

    /// Resets a connection.
    pub fn abort(&mut self, handle: SocketHandle) {
        self.socket(handle).abort();
        self.poll();
        self.remove(handle);
    }

    /// Lets time pass and packets through.
    pub fn poll(&mut self) {
        self.interface.poll(Instant::now(), &mut self.wire, &mut self.sockets);
    }

    /// When something is due without a packet.
    pub fn due(&mut self) -> Option<Duration> {
        let due = self.interface.poll_delay(Instant::now(), &self.sockets)?;
        Some(due.into())
    }
}

impl Wire {
    fn write(&self, packet: &[u8]) {
        // A device that is full loses it, as any network may; TCP sends it again.
        let _ = rustix::io::write(self.device.get_ref(), packet);
    }
}

impl Device for Wire {
    type RxToken<'a> = Came;
    type TxToken<'a> = Goes<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Came, Goes<'_>)> {
        let packet = self.inbox.pop_front()?;
        Some((Came(packet), Goes(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Goes<'_>> {
        Some(Goes(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = usize::try_from(MTU).unwrap_or(1500);
        capabilities
    }
}

struct Came(Vec<u8>);
struct Goes<'a>(&'a mut Wire);

impl RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let answer = f(&mut packet);
        self.0.write(&packet);
        answer
    }
}
