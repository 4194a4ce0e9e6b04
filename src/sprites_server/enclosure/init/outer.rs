//! The outer process: out of the host's namespaces, then a parent that waits.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

use super::super::wire::{self, Event, Identity, Request, Setup};
use super::{Explain, FIRST, Failure, OpenDevice, hung_up, netlink};

pub(super) fn run(socket: &UnixStream, open_device: OpenDevice) -> Result<(), Failure> {
    // Whoever is inside shall not open the server's terminal, and an interrupt from there is for the server alone.
    rustix::process::setsid().during("session")?;
    let setup = receive_setup(socket)?;
    let others = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    match setup.identity {
        // The network, the host name and the mounts made below belong to the host's root: nobody inside can change them.
        Identity::Range => unshare(others).during("namespaces")?,
        Identity::Single => {
            let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
            unshare(others | CloneFlags::CLONE_NEWUSER).during("user namespace")?;
            map_self(user.as_raw(), group.as_raw()).during("user namespace")?;
        }
    }
    let device = if setup.uplink {
        Some(open_device().during("tun device")?)
    } else {
        netlink::loopback_up().during("loopback device")?;
        None
    };
    // Whoever is inside has no right over this network, and yet serves on port 80 and pings.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 65535");
    let mut first = Command::new(&setup.helper)
        .args(&setup.helper_args)
        .arg(FIRST)
        .env_clear()
        .stdin(Stdio::from(socket.as_fd().try_clone_to_owned().during("socket")?))
        .spawn()
        .during("first process")?;
    let pid = i32::try_from(first.id()).unwrap_or_default();
    let attached: Vec<_> = device.iter().collect();
    wire::send(socket, &Event::Born(pid), &attached).during("socket")?;
    drop(device);
    first.wait().during("first process")?;
    Ok(())
}

pub(super) fn receive_setup(socket: &UnixStream) -> Result<Setup, Failure> {
    match wire::receive::<Request>(socket).during("socket")? {
        Some((Request::Setup(setup), _)) => Ok(*setup),
        Some(_) => Err(Failure("the server said something unexpected".to_owned())),
        None => Err(hung_up()).during("socket"),
    }
}

/// Maps one user and one group to root.
pub(super) fn map_self(user: u32, group: u32) -> std::io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}
