//! The environment of a command: the user's own, without what is ours, and the sandbox's additions (runner-protocol 7).
//!
//! The daemon hands its environment on because the machine's `PATH` and tools are the point of a runner. It holds the
//! daemon's own key and possibly a server's secrets; those never reach an agent (RUL-48, field lesson P81).

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

/// Variables of a Fountain server, and of a provider account, that a command must not see (RUL-48).
const OURS: [&str; 18] = [
    "MASTER_SECRETS_KEY",
    "SECRET_KEY_BASE",
    "DATABASE_URL",
    "SPRITES_TOKEN",
    "E2B_API_KEY",
    "DAYTONA_API_KEY",
    "PLATFORM_ANTHROPIC_API_KEY",
    "PLATFORM_OPENAI_API_KEY",
    "PLATFORM_GEMINI_API_KEY",
    "STRIPE_SECRET_KEY",
    "STRIPE_WEBHOOK_SECRET",
    "RESEND_API_KEY",
    "SMTP_PASSWORD",
    "SUPPORT_GITHUB_TOKEN",
    "GITHUB_OAUTH_CLIENT_SECRET",
    "REGISTRATION_ACCESS_CODE",
    "POSTHOG_PROJECT_API_KEY",
    "SENTRY_DSN",
];
const OUR_PREFIX: &str = "FOUNTAIN_";
/// Search path of a daemon that has none.
const PLAIN_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A whole environment; each name once. Not `Debug`: it holds secrets.
#[derive(Clone, Default)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_os_str())
    }

    /// As pairs.
    pub fn into_pairs(self) -> Vec<(OsString, OsString)> {
        self.0
    }

    fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some(pair) => pair.1 = value,
            None => self.0.push((name, value)),
        }
    }
}

/// What every command of this daemon inherits.
pub struct Inherited {
    kept: Environment,
    path: OsString,
    home: Option<String>,
    is_superuser: bool,
}

impl Inherited {
    /// Takes the daemon's own environment and drops what is ours.
    pub fn new(daemon: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut kept = Environment::default();
        for (name, value) in daemon.into_iter().filter(|(name, _)| !is_ours(name)) {
            kept.set(name, value);
        }
        let path = kept
            .get("PATH")
            .filter(|path| !path.is_empty())
            .unwrap_or(OsStr::new(PLAIN_PATH))
            .to_owned();
        let home = kept
            .get("HOME")
            .and_then(OsStr::to_str)
            .filter(|home| !home.is_empty())
            .map(str::to_owned);
        Self {
            kept,
            path,
            home,
            is_superuser: nix::unistd::geteuid().is_root(),
        }
    }

    /// The environment of a command in the sandbox at `directory`. Looks at the file system, so it blocks.
    pub fn of_command(&self, directory: &str, requested: &[(String, String)]) -> Environment {
        let mut environment = self.kept.clone();
        environment.set(
            "PATH",
            self.search_path(directory, |directory| Path::new(directory).is_dir()),
        );
        environment.set("HOME", directory);
        environment.set("npm_config_prefix", format!("{directory}/.npm-global"));
        environment.set("FOUNTAIN_SANDBOX_DIR", directory);
        if let Some(home) = &self.home
            && environment.get("npm_config_cache").is_none()
        {
            environment.set("npm_config_cache", format!("{home}/.npm"));
        }
        if self.is_superuser {
            // An agent that runs as root refuses to skip its own permission prompts unless told that it is contained.
            environment.set("IS_SANDBOX", "1");
        }
        for (name, value) in requested {
            environment.set(name, value);
        }
        // A login shell replaces PATH; the command line puts this back in front (RUL-50).
        let path = environment.get("PATH").unwrap_or_default().to_owned();
        environment.set("FOUNTAIN_RUNNER_PATH", path);
        environment
    }

    fn search_path(&self, directory: &str, is_directory: impl Fn(&str) -> bool) -> OsString {
        let mut path = OsString::from(format!(
            "{directory}/.local/bin:{directory}/.npm-global/bin:{directory}/.bun/bin:"
        ));
        path.push(&self.path);
        let usual = self.path.to_string_lossy();
        let at_home = self
            .home
            .iter()
            .flat_map(|home| [format!("{home}/.local/bin"), format!("{home}/.bun/bin")]);
        let candidates = ["/opt/homebrew/bin", "/usr/local/bin"]
            .map(str::to_owned)
            .into_iter()
            .chain(at_home);
        for candidate in candidates.filter(|candidate| !usual.contains(candidate.as_str()) && is_directory(candidate)) {
            path.push(":");
            path.push(candidate);
        }
        path
    }
}

fn is_ours(name: &OsStr) -> bool {
    name.to_str()
        .is_some_and(|name| name.starts_with(OUR_PREFIX) || OURS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(pairs: &[(&str, &str)]) -> Inherited {
        Inherited::new(
            pairs
                .iter()
                .map(|(name, value)| (OsString::from(name), OsString::from(value))),
        )
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn rul_48_nothing_of_ours_reaches_a_command() {
        let daemon = inherited(&[
            ("FOUNTAIN_API_KEY", "ftn_secret"),
            ("FOUNTAIN_ANYTHING", "x"),
            ("MASTER_SECRETS_KEY", "x"),
            ("SECRET_KEY_BASE", "x"),
            ("DATABASE_URL", "x"),
            ("SPRITES_TOKEN", "x"),
            ("E2B_API_KEY", "x"),
            ("DAYTONA_API_KEY", "x"),
            ("EDITOR", "vi"),
        ]);
        let environment = daemon.of_command("/sb", &[]);
        let ours: Vec<_> = environment
            .0
            .iter()
            .filter(|(name, _)| is_ours(name))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(ours, ["FOUNTAIN_SANDBOX_DIR", "FOUNTAIN_RUNNER_PATH"]);
        assert_eq!(environment.get("EDITOR"), Some(OsStr::new("vi")));
    }

    #[test]
    fn the_sandbox_is_home_and_its_tools_come_first() {
        let environment = inherited(&[("PATH", "/bin:/usr/local/bin"), ("HOME", "/u")]).of_command("/sb", &[]);
        assert_eq!(environment.get("HOME"), Some(OsStr::new("/sb")));
        assert_eq!(
            environment.get("npm_config_prefix"),
            Some(OsStr::new("/sb/.npm-global"))
        );
        assert_eq!(environment.get("npm_config_cache"), Some(OsStr::new("/u/.npm")));
        let path = environment.get("PATH").unwrap().to_str().unwrap();
        assert!(
            path.starts_with("/sb/.local/bin:/sb/.npm-global/bin:/sb/.bun/bin:/bin:/usr/local/bin"),
            "{path}"
        );
    }

    #[test]
    fn usual_places_are_added_only_when_they_exist_and_are_not_there_yet() {
        let daemon = inherited(&[("PATH", "/bin:/usr/local/bin"), ("HOME", "/u")]);
        let path = daemon.search_path("/sb", |directory| directory != "/u/.bun/bin");
        let added = path
            .to_str()
            .unwrap()
            .strip_prefix("/sb/.local/bin:/sb/.npm-global/bin:/sb/.bun/bin:")
            .unwrap();
        assert_eq!(added, "/bin:/usr/local/bin:/opt/homebrew/bin:/u/.local/bin");
    }

    #[test]
    fn a_request_wins_over_everything_and_its_order_counts() {
        let daemon = inherited(&[("PATH", "/bin"), ("npm_config_cache", "/cache")]);
        let requested = [
            pair("HOME", "/elsewhere"),
            pair("PATH", "/only"),
            pair("K", "1"),
            pair("K", "2"),
        ];
        let environment = daemon.of_command("/sb", &requested);
        assert_eq!(environment.get("HOME"), Some(OsStr::new("/elsewhere")));
        assert_eq!(environment.get("PATH"), Some(OsStr::new("/only")));
        assert_eq!(environment.get("K"), Some(OsStr::new("2")));
        assert_eq!(environment.get("npm_config_cache"), Some(OsStr::new("/cache")));
    }

    #[test]
    fn rul_50_the_final_path_is_handed_on_under_a_name_that_a_login_shell_keeps() {
        let environment = inherited(&[("PATH", "/bin")]).of_command("/sb", &[pair("PATH", "/only")]);
        assert_eq!(environment.get("FOUNTAIN_RUNNER_PATH"), Some(OsStr::new("/only")));
    }
}
