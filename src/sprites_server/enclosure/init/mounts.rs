//! The root directory of an enclosure, and the change to it.
//!
//! The disk of a sprite is written by strangers, and this runs with the rights of the server: below the new root a path is
//! followed without symbolic links only, and nothing is written to the disk here. What hides something (over `/proc`) is
//! safe because the first process enters another user namespace afterwards, in which every mount made here is locked.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::super::layout::{BOUND, ROOT};
use super::super::wire::{OnDisk, Setup, Tree};
use super::{Explain, Failure};

/// Devices of the host that are harmless.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Files of `/proc` that tell about the host or change it.
const HIDDEN_FILES: [&str; 7] = [
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "sched_debug",
    "sysrq-trigger",
    "timer_list",
];
const HIDDEN_DIRECTORIES: [&str; 3] = ["acpi", "scsi", "driver"];
/// Directories of `/proc` through which the host could be changed: root inside has the number of root outside.
const READ_ONLY: [&str; 4] = ["bus", "fs", "irq", "sys"];
/// A mount that is going away may hold its layers for a moment.
const BUSY_RETRIES: u32 = 400;

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const INERT: MountFlags = PLAIN.union(MountFlags::NOEXEC);

/// The kernel's settings, as they can be written: only for whoever holds this.
pub(super) struct Sysctl(OwnedFd);

impl Sysctl {
    /// Forbids control group namespaces in the user namespace of this process and all below it. In one, root inside could
    /// mount the hierarchies, whose files belong to its own number outside: its limits, and the group of the server.
    pub fn forbid_control_group_namespaces(&self) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.0, "user/max_cgroup_namespaces", flags, Mode::empty()) {
            // A kernel that has none.
            Err(Errno::NOENT) => Ok(()),
            opened => fs::File::from(opened?).write_all(b"0"),
        }
    }
}

/// Makes the new root and moves into it; nothing of the host's is left.
pub(super) fn enter(setup: &Setup) -> Result<Sysctl, Failure> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).during("mounts")?;
    let root = root(setup)?;
    for tree in setup.trees.iter().filter(|tree| !tree.path.is_empty()) {
        // A sprite that moved the place away sees what it put there.
        if let Some(target) = directory(&root, &tree.path) {
            lay(setup, tree, &target)?;
        }
    }
    let sysctl = proc(&root)?;
    sys(&root);
    dev(&root)?;
    let run = needed(&root, "run")?;
    tmpfs(&run, PLAIN, c"mode=755,size=64m").during("/run")?;
    executable(setup, &root)?;
    change_root(&root).during("root directory")?;
    Ok(sysctl)
}

fn root(setup: &Setup) -> Result<OwnedFd, Failure> {
    let tree = Tree {
        path: String::new(),
        name: ROOT.to_owned(),
    };
    let target = open_host(&setup.root).during("root directory")?;
    lay(setup, &tree, &target)?;
    // What was opened before lies under the mount.
    open_host(&setup.root).during("root directory")
}

/// Mounts one tree of the disk.
fn lay(setup: &Setup, tree: &Tree, target: &OwnedFd) -> Result<(), Failure> {
    let what = format!("/{}", tree.path);
    match &setup.disk {
        OnDisk::Copy { disk } if tree.path.is_empty() => {
            rustix::mount::mount_bind(disk, by_number(target)).during(&what)
        }
        OnDisk::Copy { .. } => bind_read_only(&Path::new("/").join(&tree.path), target).during(&what),
        OnDisk::Overlay {
            upper,
            work,
            layers,
            base,
        } => {
            let mut lower = Vec::new();
            for layer in layers.iter().chain([base]) {
                match open_host(&layer.join(&tree.name)) {
                    Ok(open) => lower.push(open),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error).during(&what),
                }
            }
            if !tree.path.is_empty() {
                lower.push(open_host(&Path::new("/").join(&tree.path)).during(&what)?);
            }
            let upper = open_host(&upper.join(&tree.name)).during(&what)?;
            let work = open_host(&work.join(&tree.name)).during(&what)?;
            overlay(&lower, &upper, &work, target).during(&what)
        }
    }
}

/// Layers are named by their descriptors: short, whatever they are called, and no path of the host is seen inside.
fn overlay(lower: &[OwnedFd], upper: &OwnedFd, work: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let lower: Vec<_> = lower.iter().map(by_number).collect();
    let (upper, work) = (by_number(upper), by_number(work));
    let options = format!("userxattr,lowerdir={},upperdir={upper},workdir={work}", lower.join(":"));
    let options = CString::new(options)?;
    let mut tries = 0;
    loop {
        match rustix::mount::mount("overlay", by_number(target), "overlay", PLAIN, options.as_c_str()) {
            Err(Errno::BUSY) if tries < BUSY_RETRIES => {
                tries += 1;
                pause();
            }
            other => return Ok(other?),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this process has one thread and nothing else to do"
)]
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(5));
}

fn proc(root: &OwnedFd) -> Result<Sysctl, Failure> {
    let target = needed(root, "proc")?;
    rustix::mount::mount("proc", by_number(&target), "proc", INERT, None).during("/proc")?;
    let proc = directory(root, "proc").ok_or_else(|| Failure("/proc is gone".to_owned()))?;
    // Opened before something lies over it.
    let sysctl = directory(&proc, "sys").ok_or_else(|| Failure("/proc/sys is not there".to_owned()))?;
    for name in READ_ONLY {
        let Some(open) = directory(&proc, name) else { continue };
        rustix::mount::mount_bind(by_number(&open), by_number(&open)).during("/proc")?;
        let over = directory(&proc, name).ok_or_else(|| Failure("/proc is gone".to_owned()))?;
        remount_read_only(&over).during("/proc")?;
    }
    for name in HIDDEN_FILES {
        if let Some(open) = file(&proc, name) {
            bind_read_only(Path::new("/dev/null"), &open).during("/proc")?;
        }
    }
    for name in HIDDEN_DIRECTORIES {
        if let Some(open) = directory(&proc, name) {
            tmpfs(&open, INERT | MountFlags::RDONLY, c"mode=555,size=4k").during("/proc")?;
        }
    }
    Ok(Sysctl(sysctl))
}

/// Nice to have: without it a command does not see the devices of the host, which it cannot use.
fn sys(root: &OwnedFd) {
    let Some(target) = directory(root, "sys") else { return };
    let flags = INERT | MountFlags::RDONLY;
    if rustix::mount::mount("sysfs", by_number(&target), "sysfs", flags, None).is_ok()
        && let Some(firmware) = directory(root, "sys/firmware")
    {
        let _ = tmpfs(&firmware, flags, c"mode=555,size=4k");
    }
}

fn dev(root: &OwnedFd) -> Result<(), Failure> {
    let target = needed(root, "dev")?;
    tmpfs(&target, MountFlags::NOSUID, c"mode=755,size=1m").during("/dev")?;
    let dev = needed(root, "dev")?;
    // Nobody else is in this directory yet.
    let here = Path::new(&by_number(&dev)).to_owned();
    for name in DEVICES {
        let device = Path::new("/dev").join(name);
        fs::File::create(here.join(name)).during("/dev")?;
        let file = file(&dev, name).ok_or_else(|| Failure("/dev is gone".to_owned()))?;
        // Read-only is the node, not the device: its mode is the host's, and root inside owns it.
        bind_read_only(&device, &file).during("/dev")?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(to, here.join(name)).during("/dev")?;
    }
    for name in ["pts", "shm"] {
        fs::DirBuilder::new()
            .mode(0o755)
            .create(here.join(name))
            .during("/dev")?;
    }
    let pts = needed(&dev, "pts")?;
    let options = Some(c"newinstance,ptmxmode=0666,mode=620");
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount("devpts", by_number(&pts), "devpts", flags, options).during("/dev/pts")?;
    let shm = needed(&dev, "shm")?;
    tmpfs(&shm, PLAIN, c"mode=1777,size=512m").during("/dev/shm")
}

/// The server's executable, for the commands that bring agents and terminals up.
fn executable(setup: &Setup, root: &OwnedFd) -> Result<(), Failure> {
    let name = BOUND.0;
    let target = needed(root, name)?;
    tmpfs(&target, PLAIN, c"mode=755,size=4k").during("executable")?;
    let over = needed(root, name)?;
    fs::File::create(Path::new(&by_number(&over)).join(BOUND.1)).during("executable")?;
    let file = file(&over, BOUND.1).ok_or_else(|| Failure("the executable is gone".to_owned()))?;
    bind_read_only(&setup.helper, &file).during("executable")?;
    remount_read_only(&over).during("executable")
}

fn change_root(root: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Binds a path of the host. An ordinary user may not leave out what is mounted below it, and need not: nothing there is
/// theirs to write.
fn bind_read_only(source: &Path, target: &OwnedFd) -> io::Result<()> {
    let place = fs::read_link(by_number(target))?;
    match rustix::mount::mount_bind(source, by_number(target)) {
        Err(Errno::INVAL) => rustix::mount::mount_bind_recursive(source, by_number(target))?,
        other => other?,
    }
    let over = rustix::fs::open(&place, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    remount_read_only(&over)
}

/// Flags that the mount has already may be locked and have to be repeated.
fn remount_read_only(mount: &OwnedFd) -> io::Result<()> {
    let has = rustix::fs::fstatvfs(mount)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (is_set, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if has.contains(is_set) {
            flags |= flag;
        }
    }
    Ok(rustix::mount::mount_remount(by_number(mount), flags, c"")?)
}

fn tmpfs(target: &OwnedFd, flags: MountFlags, options: &std::ffi::CStr) -> io::Result<()> {
    Ok(rustix::mount::mount(
        "tmpfs",
        by_number(target),
        "tmpfs",
        flags,
        options,
    )?)
}

/// Opens a path of the host.
fn open_host(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// A directory below the new root, by a path without symbolic links.
fn directory(root: &OwnedFd, path: &str) -> Option<OwnedFd> {
    open_below(root, path, OFlags::DIRECTORY)
}

/// A file below the new root, by a path without symbolic links.
fn file(root: &OwnedFd, path: &str) -> Option<OwnedFd> {
    open_below(root, path, OFlags::empty())
}

fn open_below(root: &OwnedFd, path: &str, flags: OFlags) -> Option<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).ok()
}

fn needed(root: &OwnedFd, path: &str) -> Result<OwnedFd, Failure> {
    directory(root, path).ok_or_else(|| Failure(format!("the disk has no directory /{path}")))
}

fn by_number(open: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", open.as_fd().as_raw_fd())
}

/// What commands find at every start, written with their own rights, on their own disk.
pub(super) fn furnish(setup: &Setup, home: &str) -> io::Result<()> {
    let mut user = fs::DirBuilder::new();
    user.mode(0o755).recursive(true).create(home)?;
    let tmp = Path::new("/tmp");
    if fs::symlink_metadata(tmp).is_err() {
        fs::create_dir(tmp)?;
        fs::set_permissions(tmp, fs::Permissions::from_mode(0o1777))?;
    }
    let name = &setup.hostname;
    let known = fs::read_to_string("/etc/hosts").is_ok_and(|hosts| hosts.split_whitespace().any(|word| word == name));
    if !known {
        let hosts = format!("127.0.0.1\tlocalhost {name}\n::1\tlocalhost ip6-localhost ip6-loopback\n");
        write("/etc/hosts", &hosts)?;
        write("/etc/hostname", &format!("{name}\n"))?;
    }
    let resolver = setup.resolver.map(|address| format!("nameserver {address}\n"));
    write("/etc/resolv.conf", &resolver.unwrap_or_default())
}

/// Replaces a file, or a link that the host has in its place. Whoever is root for one id only cannot write to a file of
/// the host's, but put another in its place.
fn write(path: &str, content: &str) -> io::Result<()> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    if !is_link && fs::read_to_string(path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    let new = format!("{path}.fountain");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write(&new, content)?;
    fs::rename(new, path)
}
