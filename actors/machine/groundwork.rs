//! What a cold build does to a fresh disk before anything of a conversation is on it (lifecycle 4.4 steps 14, 16, 17).
//!
//! Plain data, resolved by whoever asks for the build. Scripts are constant text; what a user typed travels as arguments
//! or environment, so that nothing of it is read by a shell as code. A token of a repository is in the environment of
//! its own clone only, is answered by a credential helper for that one origin, and is never stored in the checkout
//! (RUL-L-34). Only HTTPS is spoken.

use std::fmt;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use crate::domain::environment::EnvironmentCheckpoint;
use crate::domain::machine::Provider;
use crate::domain::{AccountId, EnvironmentId, VaultId};
use crate::ports::sandbox::Env;

/// Of one package manager's run (lifecycle 4.4 step 14).
pub(super) const INSTALL_LIMIT: Duration = Duration::from_secs(300);
/// Of one clone (step 16).
pub(super) const CLONE_LIMIT: Duration = Duration::from_secs(600);
/// A command that its limit ended answers this (RUL-2).
pub(super) const TIMED_OUT: i64 = 124;

/// The cold steps of one build. All empty: there is nothing to do.
#[derive(Clone, Debug, Default)]
pub struct Groundwork {
    /// In this order: apt, then npm.
    pub installs: Vec<Install>,
    pub checkouts: Vec<Checkout>,
    pub setup: Option<Setup>,
    /// None: nothing is worth a checkpoint, or there is no environment.
    pub warm: Option<WarmStart>,
}

/// Whose checkpoint this build may begin from, and what one that it takes is recorded with (RUL-L-34).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmStart {
    pub account: AccountId,
    pub environment: EnvironmentId,
    pub vault: Option<VaultId>,
    /// Of the warm-start fields that this plan was made from.
    pub fingerprint: String,
    /// Digest of the GitHub skills on the disk; empty while none is installed.
    pub skills: String,
}

impl WarmStart {
    /// Whether a recorded checkpoint holds what this build wants.
    pub(super) fn matches(&self, recorded: &EnvironmentCheckpoint, provider: Provider) -> bool {
        recorded.provider == provider
            && recorded.vault_id == self.vault
            && recorded.fingerprint == self.fingerprint
            && recorded.skills == self.skills
    }
}

/// The managers that act; others in an environment mean nothing (lifecycle 1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    Apt,
    Npm,
}

/// The packages of one manager: one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    pub manager: Manager,
    pub names: Vec<String>,
}

/// One repository.
#[derive(Clone)]
pub struct Checkout {
    /// `https://…`
    pub url: String,
    /// Absolute.
    pub mount_path: String,
    pub reference: Option<String>,
    /// The secret that the repository names; its value is `token`.
    pub secret_key: Option<String>,
    /// None with a `secret_key`: there is no such secret, and the build fails before anything is created.
    pub token: Option<SecretString>,
}

impl fmt::Debug for Checkout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkout({})", self.mount_path)
    }
}

/// The setup script, with everything that reaches it through its process only (lifecycle 4.7).
#[derive(Clone)]
pub struct Setup {
    pub script: String,
    /// 1 to 900 s.
    pub limit: Duration,
    pub env: Env,
    pub dir: String,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setup({} bytes, {:?})", self.script.len(), self.limit)
    }
}

/// A command line in the machine.
pub(super) struct Line {
    pub command: &'static str,
    pub arguments: Vec<String>,
    pub env: Env,
    pub dir: Option<String>,
    pub limit: Duration,
}

/// Becomes root where it is not.
const AS_ROOT: &str = r#"if [ "$(id -u)" = 0 ]; then root=""; else root="sudo -n"; fi"#;

impl Install {
    pub(super) fn line(&self) -> Line {
        let work = match self.manager {
            Manager::Apt => {
                "$root env DEBIAN_FRONTEND=noninteractive apt-get update -q \
                 && $root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y -- \"$@\""
            }
            Manager::Npm => {
                "if [ -w \"$(npm prefix -g)\" ]; then root=\"\"; fi; $root \"$(command -v npm)\" install -g -- \"$@\""
            }
        };
        Line {
            command: "sh",
            arguments: script(&format!("{AS_ROOT}; {work}"), "fountain-packages", &self.names),
            env: Env::default(),
            dir: None,
            limit: INSTALL_LIMIT,
        }
    }
}

/// Clones `$1` to `$2` at `$3`, with the credential helper of `$4` when `$4` is not empty. A checkout of the same origin
/// that is there already is taken: a chosen machine keeps its disk. A full object id cannot be cloned by name, so it is
/// fetched; its remote is written last, so that a half-done one is not taken for whole.
const CLONE: &str = r#"set -eu
url="$1"; dest="$2"; ref="$3"; origin="$4"
helper='!f() { if [ "$1" = get ]; then echo username=x-access-token; printf "password=%s\n" "$FOUNTAIN_CLONE_TOKEN"; fi; }; f'
git() {
  if [ -n "$origin" ]; then
    command git -c credential.helper= -c "credential.$origin.helper=$helper" "$@"
  else
    command git -c credential.helper= "$@"
  fi
}
if [ "$(command git -C "$dest" config --get remote.origin.url 2>/dev/null || true)" = "$url" ]; then exit 0; fi
if ! mkdir -p "$dest" 2>/dev/null; then
  sudo -n mkdir -p "$dest"
  sudo -n chown "$(id -u):$(id -g)" "$dest"
fi
case "$ref" in
  "") git clone -q --depth 50 -- "$url" "$dest" ;;
  *[!0-9a-f]*) git clone -q --depth 50 --branch "$ref" -- "$url" "$dest" ;;
  *)
    if [ "${#ref}" -ne 40 ]; then
      git clone -q --depth 50 --branch "$ref" -- "$url" "$dest"
    else
      command git init -q "$dest"
      git -C "$dest" fetch -q --depth 50 "$url" "$ref"
      command git -C "$dest" checkout -q --detach FETCH_HEAD
      command git -C "$dest" remote add origin "$url"
    fi ;;
esac
"#;

impl Checkout {
    /// `destination` is the mount path as the machine's commands see it.
    pub(super) fn line(&self, destination: String) -> Line {
        let mut env = vec![
            ("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned()),
            ("GIT_ALLOW_PROTOCOL".to_owned(), "https".to_owned()),
            // git says in English whether it connected.
            ("LC_ALL".to_owned(), "C".to_owned()),
        ];
        let mut helped = String::new();
        if let Some(token) = &self.token {
            env.push(("FOUNTAIN_CLONE_TOKEN".to_owned(), token.expose_secret().to_owned()));
            helped = origin(&self.url);
        }
        let reference = self.reference.clone().unwrap_or_default();
        let words = [self.url.clone(), destination, reference, helped];
        Line {
            command: "sh",
            arguments: script(CLONE, "fountain-clone", &words),
            env: Env(env),
            dir: None,
            limit: CLONE_LIMIT,
        }
    }

    pub(super) fn is_https(&self) -> bool {
        self.url.starts_with("https://")
    }
}

impl Setup {
    pub(super) fn line(&self) -> Line {
        Line {
            command: "bash",
            arguments: vec!["-c".to_owned(), self.script.clone()],
            env: self.env.clone(),
            dir: Some(self.dir.clone()),
            limit: self.limit,
        }
    }
}

/// Scheme, host and port: whom a token is shown to. A redirect elsewhere does not get it.
fn origin(url: &str) -> String {
    let rest = url.strip_prefix("https://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("https://{host}")
}

/// Whether git's words say that it never reached the server: then, and only then, another try is worth it.
pub(super) fn never_connected(output: &[u8]) -> bool {
    let said = String::from_utf8_lossy(output);
    [
        "Could not resolve host",
        "Failed to connect to",
        "Couldn't connect to server",
        "Connection refused",
        "Connection timed out",
        "Network is unreachable",
    ]
    .iter()
    .any(|words| said.contains(words))
}

fn script(text: &str, name: &str, words: &[String]) -> Vec<String> {
    let head = ["-c".to_owned(), text.to_owned(), name.to_owned()];
    head.into_iter().chain(words.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkout(url: &str, token: Option<&str>) -> Checkout {
        Checkout {
            url: url.into(),
            mount_path: "/home/sprite/app".into(),
            reference: None,
            secret_key: token.map(|_| "TOKEN".into()),
            token: token.map(SecretString::from),
        }
    }

    #[test]
    fn rul_l_34_a_token_is_in_the_environment_of_its_clone_and_nowhere_else() {
        let checkout = checkout("https://me@git.test:8443/a/b.git", Some("hush"));
        let line = checkout.line("/somewhere".into());
        assert!(line.arguments.iter().all(|word| !word.contains("hush")));
        assert!(
            line.env
                .0
                .contains(&("FOUNTAIN_CLONE_TOKEN".to_owned(), "hush".to_owned()))
        );
        assert_eq!(
            line.arguments.last().map(String::as_str),
            Some("https://git.test:8443"),
            "shown to that origin only"
        );
        assert!(!format!("{checkout:?} {:?}", line.env).contains("hush"));
    }

    #[test]
    fn rul_l_34_a_clone_is_shallow_and_leaves_no_token_behind() {
        let room = std::env::temp_dir().join(format!("fountain-clone-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&room);
        std::fs::create_dir_all(&room).unwrap();
        let sh = |script: &str| {
            let done = std::process::Command::new("sh")
                .args(["-c", script])
                .current_dir(&room)
                .status();
            assert!(done.unwrap().success(), "{script}");
        };
        sh("git init -q far && cd far && for n in 1 2 3; do \
            git -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m $n; done");
        let mut checkout = checkout(&format!("file://{}/far", room.display()), Some("hush"));
        let run = |checkout: &Checkout, name: &str| {
            let line = checkout.line(room.join(name).display().to_string());
            std::process::Command::new(line.command)
                .args(&line.arguments)
                .envs(line.env.0)
                // Nothing but files can be reached from a test.
                .env("GIT_ALLOW_PROTOCOL", "file")
                .status()
                .unwrap()
                .success()
        };
        assert!(run(&checkout, "near"));
        assert!(run(&checkout, "near"), "what is there already is taken");
        let config = std::fs::read_to_string(room.join("near/.git/config")).unwrap();
        assert!(!config.contains("hush") && !config.contains("helper"), "{config}");
        let head = std::fs::read_to_string(room.join("near/.git/HEAD")).unwrap();
        let branch = room.join("far/.git").join(head.trim().trim_start_matches("ref: "));
        checkout.reference = Some(std::fs::read_to_string(branch).unwrap().trim().to_owned());
        assert!(run(&checkout, "exact"), "an object id");
        checkout.reference = Some("no-such-branch".into());
        assert!(!run(&checkout, "lost"));
        std::fs::remove_dir_all(&room).unwrap();
    }

    #[test]
    fn only_git_that_never_connected_is_worth_another_try() {
        assert!(never_connected(
            b"fatal: unable to access 'x': Could not resolve host: git.test"
        ));
        assert!(!never_connected(b"fatal: Authentication failed"));
    }

    #[test]
    fn what_a_user_typed_is_no_code() {
        let install = Install {
            manager: Manager::Apt,
            names: vec!["$(reboot)".into(), "-o".into()],
        };
        let line = install.line();
        assert!(!line.arguments[1].contains("reboot"));
        assert_eq!(line.arguments[3..], ["$(reboot)", "-o"]);
    }
}
