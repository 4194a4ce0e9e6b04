//! What the operating system says about processes: when one started, who is in a group, whether anyone of it lives.
//!
//! A process id alone names nobody: it is used again. A leader is itself only with its start time and the boot that it
//! belongs to (RUL-46b). Linux answers from `/proc`, other systems through `ps`. Everything here blocks.

use nix::{errno::Errno, sys::signal, unistd::Pid};

/// Variable that every process of a session inherits; it tells a member of its group from a stranger.
pub const MARK: &str = "FOUNTAIN_SESSION";

/// Whether a process with this id exists, as a zombie too.
pub(super) fn exists(pid: Pid) -> bool {
    !matches!(signal::kill(pid, None), Err(Errno::ESRCH))
}

/// Whether anything is in the group that could still do something. A zombie cannot (field lesson P45).
pub(super) fn group_lives(group: Pid) -> bool {
    if matches!(signal::killpg(group, None), Err(Errno::ESRCH)) {
        return false;
    }
    members(group).is_none_or(|members| !members.is_empty())
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    use super::{MARK, Pid};

    /// Start of a process in clock ticks since boot.
    pub fn started(pid: Pid) -> Option<String> {
        stat_fields(pid.as_raw())?.get(19).cloned()
    }

    /// The running boot.
    pub fn boot() -> String {
        fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    /// Members of a group that are not zombies; `None` when the system does not say.
    pub fn members(group: Pid) -> Option<Vec<Pid>> {
        let group = group.to_string();
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let alive = pids.filter(|pid| {
            // After the name in brackets: state, parent, group.
            stat_fields(*pid).is_some_and(|fields| {
                let dead = fields.first().is_none_or(|state| state == "Z" || state == "X");
                !dead && fields.get(2) == Some(&group)
            })
        });
        Some(alive.map(Pid::from_raw).collect())
    }

    /// Whether the process carries the mark of this session in its environment.
    pub fn carries_mark(pid: Pid, session: &str) -> bool {
        let mark = format!("{MARK}={session}");
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == mark.as_bytes())
    }

    /// The fields of `/proc/<pid>/stat` after the command name, which may itself hold spaces and brackets.
    fn stat_fields(pid: i32) -> Option<Vec<String>> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(") ")?;
        Some(after_name.split_whitespace().map(str::to_owned).collect())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::process::{Command, Stdio};

    use super::{MARK, Pid};

    /// Start of a process as `ps` words it.
    pub fn started(pid: Pid) -> Option<String> {
        let said = ps(&["-o", "lstart=", "-p", &pid.to_string()])?;
        (!said.trim().is_empty()).then(|| said.trim().to_owned())
    }

    /// `ps` gives the date of a start, so the boot adds nothing.
    pub fn boot() -> String {
        String::new()
    }

    /// Members of a group that are not zombies; `None` when the system does not say.
    pub fn members(group: Pid) -> Option<Vec<Pid>> {
        let listed = ps(&["-A", "-o", "pid=,pgid=,state="])?;
        let group = group.to_string();
        let alive = listed.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (pid, pgid, state) = (fields.next()?, fields.next()?, fields.next()?);
            (pgid == group && !state.starts_with('Z')).then(|| pid.parse().ok().map(Pid::from_raw))?
        });
        Some(alive.collect())
    }

    /// Whether the process carries the mark of this session in its environment.
    pub fn carries_mark(pid: Pid, session: &str) -> bool {
        let mark = format!("{MARK}={session}");
        let listed = ps(&["-E", "-ww", "-o", "command=", "-p", &pid.to_string()]).unwrap_or_default();
        listed.split_whitespace().any(|word| word == mark)
    }

    fn ps(arguments: &[&str]) -> Option<String> {
        let output = Command::new("ps")
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        String::from_utf8(output.stdout).ok()
    }
}

pub(super) use system::{boot, carries_mark, members, started};
