//! A real network namespace, made by a thread of its own: a namespace belongs to a thread, and ends with it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::inside::{ADDRESS, RESOLVER, open_tun};

/// Only root may make a network namespace without a user namespace, and only there is this what the server does.
fn in_a_new_network(test: fn(OwnedFd)) {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let made = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        test(open_tun().expect("root opens the tun device"));
    });
    made.join().unwrap();
}

/// The next packet, within five seconds.
fn packet(device: &mut File) -> Vec<u8> {
    let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&*device, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "no packet came");
    let mut packet = vec![0; 65_536];
    let length = device.read(&mut packet).unwrap();
    packet.truncate(length);
    packet
}

#[test]
fn what_is_sent_anywhere_comes_out_of_the_device_and_answers_go_in() {
    in_a_new_network(|device| {
        let mut device = File::from(device);
        let inside = UdpSocket::bind("0.0.0.0:0").unwrap();
        inside
            .set_read_timeout(Some(std::time::Duration::from_secs(5)))
            .unwrap();
        for to in [
            RESOLVER,
            Ipv4Addr::new(203, 0, 113, 7),
            Ipv4Addr::new(169, 254, 169, 254),
        ] {
            inside.send_to(b"question", (to, 53)).unwrap();
            let mut found = packet(&mut device);
            assert_eq!(found[12..16], ADDRESS.octets());
            assert_eq!(found[16..20], to.octets());
            assert_eq!(&found[28..], b"question");
            // The same packet with its ends exchanged is an answer; sums do not depend on the order.
            let ends: Vec<u8> = [&found[16..20], &found[12..16], &found[22..24], &found[20..22]].concat();
            found[12..24].copy_from_slice(&ends);
            device.write_all(&found).unwrap();
            let mut answer = [0; 16];
            let (length, from) = inside.recv_from(&mut answer).unwrap();
            assert_eq!((&answer[..length], from), (b"question".as_slice(), (to, 53).into()));
        }
    });
}

#[test]
fn loopback_is_up_and_there_is_no_way_to_ipv6() {
    in_a_new_network(|_device| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.write_all(b"x").unwrap();
        let mut byte = [0];
        listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let why = TcpStream::connect("[2001:db8::1]:80").unwrap_err();
        let kinds = [
            ErrorKind::NetworkUnreachable,
            ErrorKind::AddrNotAvailable,
            ErrorKind::Unsupported,
        ];
        assert!(kinds.contains(&why.kind()), "{why}");
    });
}

#[test]
fn a_second_device_in_the_same_network_is_refused() {
    in_a_new_network(|_device| {
        assert_eq!(open_tun().unwrap_err().kind(), ErrorKind::ResourceBusy);
    });
}
