//! What is installed, written and spawned for a runtime (runtimes 1 to 9).
//!
//! [`layout`] is the one table of paths, [`environment`] what a process gets and what is written to disk, [`models`]
//! what a model name means to a runtime. Only `acp` is enabled yet (RUL-51): it runs the agent's own command. Nothing
//! here talks to a machine; the conversation and machine actors perform what is described here.

pub mod environment;
pub mod layout;
pub mod models;

use crate::domain::agent::Runtime;
use crate::domain::{ConversationId, SpawnId};

/// The runtimes that can be launched (RUL-51). Agents of the others can be stored.
pub const ENABLED: &[Runtime] = &[Runtime::Acp];

/// Whether conversations of this runtime can be launched.
#[must_use]
pub fn is_enabled(runtime: Runtime) -> bool {
    ENABLED.contains(&runtime)
}

/// What goes before the script of every login shell: the system profile replaces PATH, and a runner's additions with
/// it (RUL-50). Where the variable is unset nothing changes.
pub const RUNNER_PATH_PREFIX: &str = r#"PATH="$FOUNTAIN_RUNNER_PATH${FOUNTAIN_RUNNER_PATH:+:}$PATH"; export PATH; "#;

/// Name of the tag that says whose process this is. It stands on the command line, where a reattach can read it.
pub const CONVERSATION_TAG: &str = "FOUNTAIN_CONVERSATION_ID";
/// Name of the tag of one spawn (RUL-L-41).
pub const SPAWN_TAG: &str = "FOUNTAIN_SPAWN_ID";

/// Why a runtime cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// Not enabled on this server: 422 `runtime_disabled`.
    #[error("runtime {0} is not enabled on this server")]
    Disabled(Runtime),
    /// Runtime `acp` without a command: stage `turn/failed`, reason `no_runtime_command`.
    #[error("the agent has no runtime_command")]
    NoCommand,
}

/// A command to spawn: detachable, with stdin, without a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawn {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Working directory, before the provider maps it.
    pub dir: String,
}

/// The command of a conversation's agent (runtimes 9, RUL-50, RUL-L-41).
///
/// # Errors
/// `Disabled` for a runtime that is not enabled, `NoCommand` for a blank command.
pub fn spawn(
    runtime: Runtime,
    runtime_command: Option<&str>,
    conversation: ConversationId,
    spawn: SpawnId,
) -> Result<Spawn, RuntimeError> {
    if !is_enabled(runtime) {
        return Err(RuntimeError::Disabled(runtime));
    }
    let command = runtime_command
        .filter(|command| !command.trim().is_empty())
        .ok_or(RuntimeError::NoCommand)?;
    let mut arguments = vec![
        format!("{CONVERSATION_TAG}={conversation}"),
        format!("{SPAWN_TAG}={spawn}"),
    ];
    arguments.extend(login_shell(command));
    Ok(Spawn {
        command: "env".into(),
        arguments,
        dir: layout::of(runtime).cwd.to_owned(),
    })
}

/// `bash -lc` with the prefix of RUL-50, as words. Build stages use it too.
#[must_use]
pub fn login_shell(script: &str) -> [String; 3] {
    ["bash".into(), "-lc".into(), format!("{RUNNER_PATH_PREFIX}{script}")]
}

/// Whether a session's command line carries the tag of this conversation. An untagged session is never taken.
#[must_use]
pub fn is_tagged(command_line: &str, conversation: ConversationId) -> bool {
    has_word(command_line, &format!("{CONVERSATION_TAG}={conversation}"))
}

/// Whether a session's command line carries the tag of this spawn.
#[must_use]
pub fn is_spawn(command_line: &str, spawn: SpawnId) -> bool {
    has_word(command_line, &format!("{SPAWN_TAG}={spawn}"))
}

/// The tag must be a whole word among the leading words of `env`: the agent's own command may contain anything.
fn has_word(command_line: &str, tag: &str) -> bool {
    command_line
        .split_ascii_whitespace()
        .map(|word| word.trim_matches(['\'', '"']))
        .take_while(|word| *word != "bash")
        .any(|word| word == tag)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const CONVERSATION: ConversationId = ConversationId(Uuid::from_u128(1));
    const SPAWN: SpawnId = SpawnId(Uuid::from_u128(2));

    #[test]
    fn the_command_runs_in_a_login_shell_under_both_tags() {
        let spawn = spawn(Runtime::Acp, Some("my-agent --acp"), CONVERSATION, SPAWN).unwrap();
        assert_eq!(spawn.command, "env");
        assert_eq!(
            spawn.arguments,
            [
                "FOUNTAIN_CONVERSATION_ID=00000000-0000-0000-0000-000000000001",
                "FOUNTAIN_SPAWN_ID=00000000-0000-0000-0000-000000000002",
                "bash",
                "-lc",
                r#"PATH="$FOUNTAIN_RUNNER_PATH${FOUNTAIN_RUNNER_PATH:+:}$PATH"; export PATH; my-agent --acp"#,
            ]
        );
        assert_eq!(spawn.dir, "/home/sprite");
    }

    #[test]
    fn rul_51_only_acp_is_enabled_and_it_needs_a_command() {
        for runtime in Runtime::ALL {
            let answer = spawn(*runtime, Some("x"), CONVERSATION, SPAWN);
            assert_eq!(answer.is_ok(), *runtime == Runtime::Acp, "{runtime}");
        }
        for blank in [None, Some(""), Some(" \n")] {
            assert_eq!(
                spawn(Runtime::Acp, blank, CONVERSATION, SPAWN),
                Err(RuntimeError::NoCommand)
            );
        }
    }

    #[test]
    fn r_90_a_session_is_ours_only_by_its_tags() {
        let line = |command: &str| {
            let spawn = spawn(Runtime::Acp, Some(command), CONVERSATION, SPAWN).unwrap();
            format!("{} {}", spawn.command, spawn.arguments.join(" "))
        };
        assert!(is_tagged(&line("x"), CONVERSATION) && is_spawn(&line("x"), SPAWN));
        let other = ConversationId(Uuid::from_u128(3));
        assert!(!is_tagged(&line("x"), other));
        let imitation = line(&format!("{CONVERSATION_TAG}={other} x"));
        assert!(
            !is_tagged(&imitation, other),
            "the agent's command cannot claim another conversation"
        );
        assert!(!is_tagged("bash -lc x", CONVERSATION));
    }
}
