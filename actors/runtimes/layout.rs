//! Where everything of a runtime is on a machine: HOME and every path from one table (runtimes 2).
//!
//! The exported HOME and the paths must come from one place: where they drift apart, instructions land where the
//! agent never looks. Paths are as the agent sees them; a provider may map them elsewhere.

use crate::domain::agent::Runtime;

/// Home of the image.
pub const HOME: &str = "/home/sprite";
/// The file with the variables of a machine, mode 0600.
pub const ENV_FILE: &str = "/home/sprite/.env";

/// One runtime's places and habits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// HOME as exported to the process; `None` leaves the image's.
    pub home: Option<&'static str>,
    /// Where its configuration is; `None`: its own affair.
    pub config_root: Option<&'static str>,
    /// The file of an agent's `system` text; `None`: it reads none.
    pub instructions: Option<&'static str>,
    /// Skills are at `<skills>/<name>/SKILL.md`.
    pub skills: &'static str,
    /// Working directory of the session.
    pub cwd: &'static str,
    /// Running turns at once per machine; `None`: no limit.
    pub turns_at_once: Option<u32>,
    /// False when it uses tools without ever asking: a stricter policy cannot be enforced on it.
    pub asks: bool,
}

/// The table.
#[must_use]
pub const fn of(runtime: Runtime) -> Layout {
    match runtime {
        Runtime::Claude => Layout {
            home: None,
            config_root: Some("/home/sprite/.claude"),
            instructions: Some("/home/sprite/.claude/CLAUDE.md"),
            skills: "/home/sprite/.claude/skills",
            cwd: HOME,
            turns_at_once: None,
            asks: true,
        },
        Runtime::Codex => Layout {
            home: None,
            config_root: Some("/home/sprite/.codex"),
            instructions: Some("/home/sprite/.codex/AGENTS.md"),
            skills: "/home/sprite/.codex/skills",
            cwd: HOME,
            turns_at_once: None,
            asks: true,
        },
        Runtime::Gemini => Layout {
            home: Some("/tmp"),
            config_root: Some("/tmp/.gemini"),
            instructions: Some("/tmp/.gemini/GEMINI.md"),
            skills: "/tmp/.gemini/skills",
            cwd: "/tmp/gemini-workspace",
            turns_at_once: Some(1),
            asks: true,
        },
        Runtime::Opencode => Layout {
            home: Some("/tmp"),
            config_root: Some("/tmp/.config/opencode"),
            instructions: Some("/tmp/.config/opencode/AGENTS.md"),
            skills: "/tmp/.config/opencode/skills",
            cwd: "/tmp/opencode-workspace",
            turns_at_once: Some(1),
            asks: false,
        },
        Runtime::Acp => Layout {
            home: None,
            config_root: None,
            instructions: None,
            skills: "/home/sprite/.claude/skills",
            cwd: HOME,
            turns_at_once: None,
            asks: true,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_a_runtime_lies_under_the_home_that_it_is_given() {
        for runtime in Runtime::ALL {
            let layout = of(*runtime);
            let home = layout.home.unwrap_or(HOME);
            for path in [
                Some(layout.skills),
                Some(layout.cwd),
                layout.config_root,
                layout.instructions,
            ]
            .into_iter()
            .flatten()
            {
                assert!(path.starts_with(home), "{runtime}: {path}");
            }
            if let (Some(instructions), Some(root)) = (layout.instructions, layout.config_root) {
                assert!(
                    instructions.starts_with(root) && layout.skills.starts_with(root),
                    "{runtime}"
                );
            }
        }
    }
}
