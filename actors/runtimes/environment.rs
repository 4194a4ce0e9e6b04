//! The variables of an agent's process, and the part of them that is written to disk (runtimes 5.2, lifecycle 4.7).
//!
//! One ordered list, later wins. What names a conversation or lets somebody speak for it is process-only: machines are
//! shared, and a file outlives its conversation. Values never reach a log: the types print names at most.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};

use super::layout;
use crate::domain::agent::Runtime;
use crate::domain::environment::SecretBundle;
use crate::domain::{ConversationId, MachineId};
use crate::ports::sandbox::Env;

/// Names that are never written to disk.
const PROCESS_ONLY: &[&str] = &[
    "FOUNTAIN_CONVERSATION_ID",
    "FOUNTAIN_SPAWN_ID",
    "FOUNTAIN_TOKEN",
    "TRACEPARENT",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
];

/// Where the variables come from.
pub struct Sources<'a> {
    /// The runtime, for its own defaults.
    pub runtime: Runtime,
    /// The callback key; `None` for a conversation without access to the API.
    pub token: Option<&'a SecretString>,
    /// Address of the API as the machine reaches it.
    pub base_url: &'a str,
    /// Whose process it is.
    pub conversation: ConversationId,
    /// Where it runs.
    pub machine: MachineId,
    /// Plain variables of the environment.
    pub env_vars: &'a BTreeMap<String, String>,
    /// Decrypted secrets of environment and vault; the vault's win.
    pub secrets: &'a SecretBundle,
}

impl Sources<'_> {
    /// The variables of the process: every name once, in the order of its first mention.
    #[must_use]
    pub fn process(&self) -> Env {
        let mut list: Vec<(String, String)> = Vec::new();
        let mut set = |name: &str, value: &str| match list.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => value.clone_into(known),
            None => list.push((name.to_owned(), value.to_owned())),
        };
        let layout = layout::of(self.runtime);
        if let Some(home) = layout.home {
            set("HOME", home);
        }
        if self.runtime == Runtime::Acp {
            set("FOUNTAIN_SKILLS_DIR", layout.skills);
        }
        if let Some(token) = self.token {
            set("FOUNTAIN_TOKEN", token.expose_secret());
        }
        set("FOUNTAIN_BASE_URL", self.base_url);
        set("FOUNTAIN_CONVERSATION_ID", &self.conversation.to_string());
        set("FOUNTAIN_SANDBOX_ID", &self.machine.to_string());
        for (name, value) in self.env_vars {
            set(name, value);
        }
        for (name, value) in self.secrets.environment.iter().chain(&self.secrets.vault) {
            set(name, value.expose_secret());
        }
        list.retain(|(name, value)| is_name(name) && !value.contains('\0'));
        Env(list)
    }

    /// The content of [`layout::ENV_FILE`].
    #[must_use]
    pub fn file(&self) -> String {
        let Env(process) = self.process();
        let on_disk = process
            .iter()
            .filter(|(name, _)| !PROCESS_ONLY.contains(&name.as_str()));
        on_disk
            .map(|(name, value)| format!("{name}={}\n", quote(value)))
            .collect()
    }

    /// What must be registered with the redactor before anything can be logged: decrypted values and the callback
    /// key. Not ids, addresses, or plain variables, which the API shows to everyone who may read the environment.
    pub fn secret_values(&self) -> impl Iterator<Item = &str> {
        let bundle = self.secrets.environment.values().chain(self.secrets.vault.values());
        bundle.chain(self.token).map(|value| value.expose_secret())
    }
}

/// A value for a file that a shell reads: single quotes, so that nothing in it is expanded (R-57).
fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// A name that a shell accepts. Others were refused at the door; here they would break the whole file.
fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|first| first == b'_' || first.is_ascii_alphabetic())
        && bytes.all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn secrets(environment: &[(&str, &str)], vault: &[(&str, &str)]) -> SecretBundle {
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), SecretString::from(*value)))
                .collect()
        };
        SecretBundle {
            environment: map(environment),
            vault: map(vault),
        }
    }

    fn with<T>(env_vars: &[(&str, &str)], secrets: &SecretBundle, look: impl FnOnce(&Sources<'_>) -> T) -> T {
        let env_vars = env_vars
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        look(&Sources {
            runtime: Runtime::Acp,
            token: Some(&SecretString::from("callback-key")),
            base_url: "https://fountain.test",
            conversation: ConversationId(Uuid::from_u128(1)),
            machine: MachineId(Uuid::from_u128(2)),
            env_vars: &env_vars,
            secrets,
        })
    }

    fn value(env: &Env, name: &str) -> Option<String> {
        let found: Vec<_> = env.0.iter().filter(|(known, _)| known == name).collect();
        assert!(found.len() <= 1, "{name} stands once");
        found.first().map(|(_, value)| value.clone())
    }

    #[test]
    fn later_sources_win() {
        let secrets = secrets(&[("A", "environment"), ("B", "environment")], &[("B", "vault")]);
        let env = with(
            &[("A", "plain"), ("C", "plain"), ("FOUNTAIN_BASE_URL", "mine")],
            &secrets,
            |sources| sources.process(),
        );
        assert_eq!(value(&env, "A").as_deref(), Some("environment"));
        assert_eq!(value(&env, "B").as_deref(), Some("vault"));
        assert_eq!(value(&env, "C").as_deref(), Some("plain"));
        assert_eq!(value(&env, "FOUNTAIN_BASE_URL").as_deref(), Some("mine"));
        assert_eq!(value(&env, "FOUNTAIN_TOKEN").as_deref(), Some("callback-key"));
        assert_eq!(
            value(&env, "FOUNTAIN_SANDBOX_ID").as_deref(),
            Some("00000000-0000-0000-0000-000000000002")
        );
        assert!(!format!("{env:?}").contains("vault\""), "printing shows names only");
    }

    #[test]
    fn what_names_or_speaks_for_a_conversation_is_never_on_disk() {
        let file = with(
            &[("TRACEPARENT", "x"), ("KEPT", "y")],
            &secrets(&[], &[("TOKEN", "t")]),
            |sources| sources.file(),
        );
        assert!(!file.contains("FOUNTAIN_TOKEN") && !file.contains("callback-key"));
        assert!(!file.contains("FOUNTAIN_CONVERSATION_ID") && !file.contains("TRACEPARENT"));
        assert!(file.contains("FOUNTAIN_BASE_URL='https://fountain.test'\n"));
        assert!(file.contains("KEPT='y'\n") && file.contains("TOKEN='t'\n"));
    }

    #[test]
    fn r_57_values_are_inert_when_the_file_is_sourced() {
        let nasty = "$(touch x) `y` \"z\" 'q' \\ \n$HOME ! #";
        let file = with(&[], &secrets(&[("NASTY", nasty)], &[]), |sources| sources.file());
        assert!(
            file.contains("NASTY='$(touch x) `y` \"z\" '\\''q'\\'' \\ \n$HOME ! #'\n"),
            "{file}"
        );
        let script = format!("{file}printf %s \"$NASTY\"");
        let shell = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(shell.stdout).unwrap(), nasty);
    }

    #[test]
    fn a_name_that_no_shell_takes_is_left_out() {
        let env = with(
            &[("a b", "1"), ("1X", "2"), ("", "3"), ("OK_1", "4"), ("NUL", "a\0b")],
            &secrets(&[], &[]),
            |sources| sources.process(),
        );
        for bad in ["a b", "1X", "", "NUL"] {
            assert_eq!(value(&env, bad), None);
        }
        assert_eq!(value(&env, "OK_1").as_deref(), Some("4"));
    }

    #[test]
    fn rul_53_the_redactor_gets_decrypted_values_and_the_callback_key() {
        let secrets = secrets(&[("A", "one")], &[("B", "two")]);
        let values = with(&[("C", "plain")], &secrets, |sources| {
            sources.secret_values().map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(values, ["one", "two", "callback-key"]);
    }
}
