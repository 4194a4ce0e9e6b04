//! How a command gets its environment without a secret in a request line (RUL-L-92).
//!
//! Pairs whose names are on a short list ride in the query. All others go into a file of mode 0600 with a random name; a
//! shell reads it, removes it and becomes the command. The shell's own arguments end in the original ones, so whoever
//! searches a session's command for a tag finds it.

use std::sync::Arc;

use bytes::Bytes;
use fountain_actors::domain::Epoch;
use fountain_actors::ports::sandbox::{Env, SandboxError};

use crate::address::Target;
use crate::call::Call;
use crate::{Core, entropy};

/// Names whose values are no secret. `LC_*` too.
const SHOWN: [&str; 12] = [
    "HOME",
    "PATH",
    "TERM",
    "LANG",
    "TZ",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "TMPDIR",
    "FOUNTAIN_CONVERSATION_ID",
    "FOUNTAIN_SPAWN_ID",
];

/// `$0` is the file. `command -p` finds `rm` whatever PATH is; where the file cannot be removed nothing runs.
const READ_ONCE: &str = r#". "$0" && command -p rm -f -- "$0" && exec "$@""#;

/// A command as it is asked for.
pub(crate) struct Prepared {
    pub argv: Vec<String>,
    /// Pairs for the query.
    pub shown: Vec<(String, String)>,
    pub file: Option<OneTimeFile>,
}

/// Splits the environment and writes the hidden part.
///
/// # Errors
/// `invalid(environment_name)` or `invalid(environment_value)` before anything is sent; those of a file write.
pub(crate) async fn prepare(
    core: &Arc<Core>,
    machine: &str,
    command: &str,
    arguments: &[String],
    env: Env,
    epoch: Option<Epoch>,
) -> Result<Prepared, SandboxError> {
    let mut argv = vec![command.to_owned()];
    argv.extend_from_slice(arguments);
    let (shown, hidden): (Vec<_>, Vec<_>) = env.0.into_iter().partition(|(name, _)| is_shown(name));
    if hidden.is_empty() {
        return Ok(Prepared {
            argv,
            shown,
            file: None,
        });
    }
    let script = script(&hidden)?;
    let name = entropy::hex_name().ok_or_else(|| SandboxError::Invalid("no_randomness".to_owned()))?;
    let path = format!("/tmp/.fountain-{name}");
    let mut wrapped: Vec<String> = ["sh", "-c", READ_ONCE, path.as_str()].map(str::to_owned).into();
    wrapped.append(&mut argv);
    // From here on the file may exist, whatever the answer says.
    let file = OneTimeFile {
        core: Arc::clone(core),
        machine: machine.to_owned(),
        path: Some(path.clone()),
    };
    match core.write_file(machine, &path, script, Some(0o600), epoch).await {
        Ok(()) => Ok(Prepared {
            argv: wrapped,
            shown,
            file: Some(file),
        }),
        Err(error) => {
            if error.is_refusal() {
                file.forget();
            }
            Err(error)
        }
    }
}

fn is_shown(name: &str) -> bool {
    SHOWN.contains(&name) || name.starts_with("LC_")
}

/// One `export` a pair.
fn script(pairs: &[(String, String)]) -> Result<Bytes, SandboxError> {
    let mut text = String::new();
    for (name, value) in pairs {
        if !is_variable(name) {
            return Err(SandboxError::Invalid("environment_name".to_owned()));
        }
        if value.contains('\0') {
            return Err(SandboxError::Invalid("environment_value".to_owned()));
        }
        text.push_str("export ");
        text.push_str(name);
        text.push('=');
        text.push_str(&quoted(value));
        text.push('\n');
    }
    Ok(text.into())
}

/// What a shell can export.
fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// One word of a shell, whatever is in it.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// A written file that its reader removes. Dropping it without [`OneTimeFile::forget`] removes it from here, best effort.
pub(crate) struct OneTimeFile {
    core: Arc<Core>,
    machine: String,
    path: Option<String>,
}

impl OneTimeFile {
    /// There is nothing to remove: the command's shell has done it, or the file was never written.
    pub fn forget(mut self) {
        self.path = None;
    }
}

impl Drop for OneTimeFile {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        // A process that ends has nobody left to send it; the file's name is random and its mode 0600.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let core = Arc::clone(&self.core);
        let target = Target::sprite(&self.machine)
            .segment("fs")
            .segment("delete")
            .pair("path", &path)
            .pair("workingDir", "/");
        actix_rt::spawn(async move {
            if core.expect(Call::delete(target)).await.is_err() {
                tracing::debug!(provider = "sprites", "a one-time file may be left on a machine");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a real shell makes of the script and the wrapper; the file must be gone when the command runs.
    fn through_a_shell(name: &str, value: &str) -> Vec<u8> {
        let path = std::env::temp_dir().join(format!("fountain-test-{}", entropy::hex_name().unwrap()));
        let script = script(&[(name.to_owned(), value.to_owned())]).unwrap();
        std::fs::write(&path, script).unwrap();
        let show = format!(r#"[ -e "$1" ] && exit 9; printf %s "${name}""#);
        let run = std::process::Command::new("sh")
            .args(["-c", READ_ONCE])
            .arg(&path)
            .args(["sh", "-c", &show, "x"])
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
        run.stdout
    }

    #[test]
    fn rul_l_92_a_shell_reads_any_value_back_and_the_file_forget() {
        for value in [
            "",
            "plain",
            "it's",
            "''",
            "a\nb\n",
            "$HOME `x` \\ \"q\" $(y)",
            "ünï → 日本",
            "-n",
            "!$#",
        ] {
            assert_eq!(through_a_shell("SECRET", value), value.as_bytes(), "{value:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn rul_l_92_a_shell_reads_random_values_back(value in "[^\0]{0,30}") {
            prop_assert_eq!(through_a_shell("SECRET", &value), value.as_bytes());
        }
    }

    #[test]
    fn what_a_shell_cannot_export_is_refused() {
        let of = |name: &str, value: &str| script(&[(name.to_owned(), value.to_owned())]);
        for name in ["", "1A", "A-B", "A B", "A;rm", "Ä"] {
            assert_eq!(
                of(name, "x"),
                Err(SandboxError::Invalid("environment_name".into())),
                "{name}"
            );
        }
        assert_eq!(of("A", "x\0y"), Err(SandboxError::Invalid("environment_value".into())));
    }

    #[test]
    fn only_names_of_the_list_are_shown() {
        for name in ["PATH", "LC_ALL", "FOUNTAIN_SPAWN_ID"] {
            assert!(is_shown(name));
        }
        for name in [
            "ANTHROPIC_API_KEY",
            "path",
            "FOUNTAIN_API_KEY",
            "HTTP_PROXY",
            "TRACEPARENT",
        ] {
            assert!(!is_shown(name));
        }
    }
}
