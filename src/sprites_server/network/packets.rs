//! Packets as the tun device gives and takes them: whole IPv4 datagrams.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, TcpPacket, UdpPacket, UdpRepr};

const HOP_LIMIT: u8 = 64;

/// Two ends of a flow, as the sprite sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
}

/// What a packet is.
#[derive(Debug, PartialEq, Eq)]
pub enum Packet<'p> {
    /// The first of a connection.
    Syn(Key),
    /// Another of a connection.
    Tcp,
    Udp(Key, &'p [u8]),
    /// Not carried: fragments, other protocols, what cannot be read.
    Other,
}

/// Looks at a packet.
pub fn look(bytes: &[u8]) -> Packet<'_> {
    let Ok(ip) = Ipv4Packet::new_checked(bytes) else {
        return Packet::Other;
    };
    if ip.version() != 4 || ip.more_frags() || ip.frag_offset() != 0 {
        return Packet::Other;
    }
    let key = |from, to| Key {
        from: SocketAddrV4::new(ip.src_addr(), from),
        to: SocketAddrV4::new(ip.dst_addr(), to),
    };
    match ip.next_header() {
        IpProtocol::Tcp => match TcpPacket::new_checked(ip.payload()) {
            Ok(tcp) if tcp.syn() && !tcp.ack() => Packet::Syn(key(tcp.src_port(), tcp.dst_port())),
            Ok(_) => Packet::Tcp,
            Err(_) => Packet::Other,
        },
        IpProtocol::Udp => match UdpPacket::new_checked(ip.payload()) {
            Ok(udp) => Packet::Udp(key(udp.src_port(), udp.dst_port()), udp.payload()),
            Err(_) => Packet::Other,
        },
        _ => Packet::Other,
    }
}

/// An UDP datagram from the far end of `key` to the sprite; None when it is too large for a packet.
pub fn datagram(key: Key, payload: &[u8]) -> Option<Vec<u8>> {
    let udp = UdpRepr {
        src_port: key.to.port(),
        dst_port: key.from.port(),
    };
    let (from, to): (Ipv4Addr, Ipv4Addr) = (*key.to.ip(), *key.from.ip());
    let ip = Ipv4Repr {
        src_addr: from,
        dst_addr: to,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + payload.len(),
        hop_limit: HOP_LIMIT,
    };
    let length = ip.buffer_len() + ip.payload_len;
    if length > usize::from(u16::MAX) {
        return None;
    }
    let mut bytes = vec![0; length];
    let sums = ChecksumCapabilities::default();
    let mut packet = Ipv4Packet::new_unchecked(&mut bytes);
    ip.emit(&mut packet, &sums);
    let mut inner = UdpPacket::new_unchecked(packet.payload_mut());
    let copy = |buffer: &mut [u8]| buffer.copy_from_slice(payload);
    udp.emit(
        &mut inner,
        &IpAddress::Ipv4(from),
        &IpAddress::Ipv4(to),
        payload.len(),
        copy,
        &sums,
    );
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_datagram_is_read_as_it_was_written() {
        let key = Key {
            from: "10.200.0.2:40000".parse().unwrap(),
            to: "1.2.3.4:53".parse().unwrap(),
        };
        let bytes = datagram(key, b"hello").unwrap();
        let back = Key {
            from: key.to,
            to: key.from,
        };
        assert_eq!(look(&bytes), Packet::Udp(back, b"hello"));
        assert_eq!(datagram(key, &vec![0; 65_536]), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = look(&bytes);
            let mut ip = bytes;
            if let Some(first) = ip.first_mut() {
                *first = 0x45;
            }
            let _ = look(&ip);
        }
    }
}
