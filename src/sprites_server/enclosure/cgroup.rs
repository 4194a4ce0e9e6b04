//! Limits of a sprite: a control group of its own, where this process may make one.
//!
//! Version 1 (a hierarchy for each controller) and version 2 (one for all, when it was delegated to this process). Nothing
//! here is needed for isolation; what cannot be limited is said in the facilities.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The kernel frees a group a moment after its last process.
const REMOVALS: u32 = 200;

/// Where groups can be made.
#[derive(Clone, Debug, Default)]
pub(super) struct Hierarchies {
    pids: Option<(PathBuf, &'static str)>,
    memory: Option<(PathBuf, &'static str)>,
}

/// The group of one sprite; removed when it is dropped, which blocks until its last process is gone.
#[derive(Debug)]
pub(super) struct Group(Vec<PathBuf>);

impl Hierarchies {
    /// Finds them, by making a group and setting a limit in each.
    pub fn find() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let candidates = |controller: &str, v1: &'static str, v2: &'static str| {
            let old = version_1(&own, &mounts, controller).map(|path| (path, v1));
            let new = || version_2(&own, &mounts, controller).map(|path| (path, v2));
            old.filter(works).or_else(|| new().filter(works))
        };
        let found = Self {
            pids: candidates("pids", "pids.max", "pids.max"),
            memory: candidates("memory", "memory.limit_in_bytes", "memory.max"),
        };
        for (parent, _) in [&found.pids, &found.memory].into_iter().flatten() {
            sweep(parent);
        }
        found
    }

    pub fn limits_processes(&self) -> bool {
        self.pids.is_some()
    }

    pub fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Makes a group with these limits, as far as they can be set here.
    pub fn group(&self, id: &str, processes: Option<u64>, memory: Option<u64>) -> io::Result<Group> {
        let mut group = Group(Vec::new());
        for (place, limit) in [(&self.pids, processes), (&self.memory, memory)] {
            let (Some((parent, file)), Some(limit)) = (place, limit) else {
                continue;
            };
            let directory = parent.join(name(id));
            if !group.0.contains(&directory) {
                fs::create_dir(&directory)?;
                group.0.push(directory.clone());
            }
            fs::write(directory.join(file), limit.to_string())?;
        }
        Ok(group)
    }
}

impl Group {
    /// Puts a process, and all that it will start, into the group.
    pub fn add(&self, pid: i32) -> io::Result<()> {
        self.0
            .iter()
            .try_for_each(|directory| fs::write(directory.join("cgroup.procs"), pid.to_string()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for directory in &self.0 {
            let mut tries = 0;
            while let Err(error) = fs::remove_dir(directory) {
                if error.kind() == io::ErrorKind::NotFound || tries == REMOVALS {
                    tracing::warn!(directory = %directory.display(), %error, "a control group stays");
                    break;
                }
                tries += 1;
                pause();
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "groups are dropped on threads that may block")]
fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

/// Two servers on one host may know the same id.
fn name(id: &str) -> String {
    format!("fountain-{}-{id}", std::process::id())
}

/// Removes the groups that a killed server left. Those with a process in them refuse.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let server = name
            .to_str()
            .and_then(|name| name.strip_prefix("fountain-")?.split('-').next()?.parse::<u32>().ok());
        if server.is_some_and(|server| !Path::new(&format!("/proc/{server}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Whether a group with a limit can be made there.
fn works((parent, file): &(PathBuf, &'static str)) -> bool {
    static PROBES: AtomicU32 = AtomicU32::new(0);
    let probe = parent.join(name(&format!("limit-{}", PROBES.fetch_add(1, Ordering::Relaxed))));
    if fs::create_dir(&probe).is_err() {
        return false;
    }
    let limited = fs::write(probe.join(file), "1048576").is_ok();
    fs::remove_dir(&probe).is_ok() && limited
}

/// The own group in the hierarchy of this controller.
fn version_1(own: &str, mounts: &str, controller: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        controllers
            .split(',')
            .any(|each| each == controller)
            .then(|| fields.next())?
    })?;
    let is_it = |kind: &str, options: &str| kind == "cgroup" && options.split(',').any(|each| each == controller);
    below_mount(mounts, path, is_it)
}

/// The own group in the common hierarchy, with the controller handed on to its children.
fn version_2(own: &str, mounts: &str, controller: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let directory = below_mount(mounts, path, |kind, _| kind == "cgroup2")?;
    let control = directory.join("cgroup.subtree_control");
    let is_on = |text: String| text.split_whitespace().any(|each| each == controller);
    // Refused while this process is a member of the group itself; then there are no limits.
    let on = fs::read_to_string(&control).is_ok_and(is_on) || fs::write(&control, format!("+{controller}")).is_ok();
    on.then_some(directory)
}

/// Finds the mount, and the path below it; a container sees only a part of the hierarchy.
fn below_mount(mounts: &str, path: &str, is_it: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, mount_point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        if !is_it(kind, options) {
            return None;
        }
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Path::new(mount_point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 20 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 20 0:27 /a /sys/fs/cgroup/cpu,pids rw,relatime shared:3 - cgroup cgroup rw,cpu,pids
32 20 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn the_own_group_is_found_in_the_hierarchy_of_its_controller() {
        let own = "4:memory:/x/y\n3:cpu,pids:/a/b\n0::/z\n";
        let memory = version_1(own, MOUNTS, "memory");
        assert_eq!(memory, Some(PathBuf::from("/sys/fs/cgroup/memory/x/y")));
        assert_eq!(
            version_1(own, MOUNTS, "pids"),
            Some(PathBuf::from("/sys/fs/cgroup/cpu,pids/b"))
        );
        assert_eq!(version_1(own, MOUNTS, "freezer"), None);
    }

    #[test]
    fn a_group_outside_of_what_is_mounted_is_no_place() {
        assert_eq!(version_1("3:cpu,pids:/elsewhere\n", MOUNTS, "pids"), None);
    }
}
