//! The only reader of the environment (lifecycle 9; RUL-17, 32, 58 to 60).
//!
//! The environment is read once, into [`Environment`]; everything else is a pure function of it and the flags, so that
//! every refusal is tested. Messages name the variable and what would be right, and never a value that may be secret.

mod credits;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fountain_actors::domain::machine::Provider;
use fountain_actors::domain::settings::Settings;
use fountain_provider_sprites::SpritesSettings;
use secrecy::SecretString;

/// The whole environment as it is, for what a runner's commands inherit (RUL-48).
pub fn inherited() -> Vec<(OsString, OsString)> {
    #[expect(clippy::disallowed_methods, reason = "this is the one reader")]
    std::env::vars_os().collect()
}

/// A snapshot of the process's environment. Printing it shows names only.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Environment {
    /// The real one. A name or value that is not Unicode is left out.
    pub fn read() -> Self {
        Self(
            inherited()
                .into_iter()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
        )
    }

    /// An environment of exactly these pairs.
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        Self(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn flag(&self, name: &'static str, default: bool) -> Result<bool, ConfigError> {
        match self.get(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(default),
            Some("true" | "1" | "yes" | "on") => Ok(true),
            Some("false" | "0" | "no" | "off") => Ok(false),
            Some(_) => Err(ConfigError::Invalid {
                name,
                wanted: "true or false",
            }),
        }
    }

    fn number(&self, name: &'static str) -> Result<Option<i64>, ConfigError> {
        match self.get(name) {
            None => Ok(None),
            Some(text) => match text.parse::<i64>() {
                Ok(number) if number >= 0 => Ok(Some(number)),
                _ => Err(ConfigError::Invalid {
                    name,
                    wanted: "a whole number, 0 or more",
                }),
            },
        }
    }
}

/// Why the process does not start.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error("{name} is not set; it needs {wanted}")]
    Missing { name: &'static str, wanted: &'static str },
    #[error("{name} is not {wanted}")]
    Invalid { name: &'static str, wanted: &'static str },
    #[error("{0}")]
    Refused(String),
}

/// Where rows are kept.
#[derive(Clone)]
pub struct Database {
    /// `postgres://…`, `postgresql://…` or `sqlite://path`. May hold a password: never printed.
    pub url: SecretString,
    pub pool_size: u32,
    pub ssl: Option<bool>,
    pub ssl_verify: bool,
    pub ssl_ca_file: Option<PathBuf>,
}

impl Database {
    /// The database that the environment names (lifecycle 9.1).
    ///
    /// # Errors
    /// When `DATABASE_URL` is missing or of an unknown scheme.
    pub fn from(env: &Environment) -> Result<Self, ConfigError> {
        let wanted = "postgres://…, postgresql://… or sqlite://path (or start with --data-dir)";
        let url = env.get("DATABASE_URL").ok_or(ConfigError::Missing {
            name: "DATABASE_URL",
            wanted,
        })?;
        if !["postgres://", "postgresql://", "sqlite://"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
        {
            return Err(ConfigError::Invalid {
                name: "DATABASE_URL",
                wanted,
            });
        }
        Self::at(env, url)
    }

    /// A given database, with the pool and TLS settings of the environment.
    ///
    /// # Errors
    /// When one of those settings cannot be read.
    pub fn at(env: &Environment, url: &str) -> Result<Self, ConfigError> {
        let pool_size = match env.number("POOL_SIZE")? {
            None => 10,
            Some(n) => u32::try_from(n)
                .ok()
                .filter(|n| (1..=1000).contains(n))
                .ok_or(ConfigError::Invalid {
                    name: "POOL_SIZE",
                    wanted: "between 1 and 1000",
                })?,
        };
        let ssl = match env.get("DATABASE_SSL") {
            None => None,
            Some(_) => Some(env.flag("DATABASE_SSL", true)?),
        };
        Ok(Self {
            url: url.into(),
            pool_size,
            ssl,
            ssl_verify: env.flag("DATABASE_SSL_VERIFY", false)?,
            ssl_ca_file: env.get("DATABASE_SSL_CA_FILE").map(PathBuf::from),
        })
    }
}

/// The master key as the environment has it; the store judges its form (lifecycle 9.1).
///
/// # Errors
/// When it is missing.
pub fn master_key(env: &Environment) -> Result<SecretString, ConfigError> {
    env.get("MASTER_SECRETS_KEY")
        .map(SecretString::from)
        .ok_or(ConfigError::Missing {
            name: "MASTER_SECRETS_KEY",
            wanted: "32 random bytes as url-safe base64 without padding (43 characters)",
        })
}

/// Whether pending migrations are applied at the start (lifecycle 9.1).
///
/// # Errors
/// When it is no yes or no.
pub fn migrate_on_boot(env: &Environment) -> Result<bool, ConfigError> {
    env.flag("MIGRATE_ON_BOOT", true)
}

/// Where the metrics listener binds; None: off. Unset, empty and 0 are off (RUL-17).
///
/// # Errors
/// When it is no port.
pub fn metrics_port(env: &Environment) -> Result<Option<u16>, ConfigError> {
    match env.number("METRICS_PORT")? {
        None | Some(0) => Ok(None),
        Some(n) => u16::try_from(n).map(Some).map_err(|_| ConfigError::Invalid {
            name: "METRICS_PORT",
            wanted: "a port, or empty for off",
        }),
    }
}

/// Where `serve` listens when no flag says: every address, `PORT` or 4000.
///
/// # Errors
/// When `PORT` is no port.
pub fn listen(env: &Environment) -> Result<SocketAddr, ConfigError> {
    let port = env.number("PORT")?.unwrap_or(4000);
    let port = u16::try_from(port).map_err(|_| ConfigError::Invalid {
        name: "PORT",
        wanted: "a port",
    })?;
    Ok(SocketAddr::from(([0, 0, 0, 0], port)))
}

/// The base URL that machines are given, with its fallbacks (lifecycle 9.1).
pub fn public_url(env: &Environment) -> Option<String> {
    let url = env
        .get("PUBLIC_URL")
        .or_else(|| env.get("RENDER_EXTERNAL_URL"))
        .map(str::to_owned)
        .or_else(|| env.get("FLY_APP_NAME").map(|app| format!("https://{app}.fly.dev")))?;
    Some(url.trim_end_matches('/').to_owned())
}

/// The stable name of this node (RUL-30): the pod's, the host's, or `fountain`.
pub fn node_name(env: &Environment) -> String {
    env.get("POD_NAME")
        .or_else(|| env.get("HOSTNAME"))
        .map(str::to_owned)
        .or_else(|| nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()))
        .unwrap_or_else(|| "fountain".to_owned())
}

/// The numbers of the domain, from the environment (lifecycle 9.2, 9.4) on top of `base`.
///
/// # Errors
/// When a variable cannot be read, or names a provider that has no adapter or credential here.
pub fn settings(env: &Environment, base: Settings) -> Result<Settings, ConfigError> {
    let mut settings = base;
    if let Some(word) = env.get("SANDBOX_PROVIDER") {
        let wanted = "sprites, e2b, daytona or runner";
        settings.default_provider = word
            .parse::<Provider>()
            .ok()
            .filter(|provider| *provider != Provider::Fake)
            .ok_or(ConfigError::Invalid {
                name: "SANDBOX_PROVIDER",
                wanted,
            })?;
        // Unset it means sprites and the launch is refused; said aloud it must be usable (RUL-60).
        match settings.default_provider {
            Provider::Runner => {}
            Provider::Sprites if env.get("SPRITES_TOKEN").is_some() => {}
            Provider::Sprites => {
                return Err(ConfigError::Refused(
                    "SANDBOX_PROVIDER=sprites needs SPRITES_TOKEN, the token of the Sprites service".to_owned(),
                ));
            }
            other => {
                return Err(ConfigError::Refused(format!(
                    "SANDBOX_PROVIDER={other} has no adapter in this build; use sprites or runner, or leave it unset"
                )));
            }
        }
    }
    settings.runners_enabled = env.flag("SANDBOX_RUNNERS_ENABLED", settings.runners_enabled)?;
    settings.checkpoint_creation = env.flag("CHECKPOINT_CREATION_ENABLED", settings.checkpoint_creation)?;
    if let Some(minutes) = env.number("SANDBOX_IDLE_TIMEOUT_MINUTES")? {
        settings.idle_timeout = (minutes > 0).then(|| Duration::from_secs(minutes.unsigned_abs() * 60));
    }
    if let Some(hours) = env.number("SANDBOX_MAX_LIFETIME_HOURS")? {
        settings.max_lifetime = (hours > 0).then(|| Duration::from_secs(hours.unsigned_abs() * 3600));
    }
    if let Some(idle) = settings.idle_timeout
        && idle <= settings.permission_timeout
    {
        return Err(ConfigError::Refused(format!(
            "SANDBOX_IDLE_TIMEOUT_MINUTES must be longer than the {} s that a permission request may wait",
            settings.permission_timeout.as_secs()
        )));
    }
    credits::read(env, &mut settings)?;
    if let Some(url) = public_url(env) {
        settings.public_url = url;
    }
    Ok(settings)
}

/// The Sprites service that is used when nobody names another.
const SPRITES_PUBLIC_API: &str = "https://api.sprites.dev";

/// Limit of one REST call to it.
pub const SPRITES_TIMEOUT: Duration = Duration::from_secs(30);

/// How the Sprites service is reached (lifecycle 9.1; RUL-L-99). None without a token.
///
/// # Errors
/// When a variable cannot be read.
pub fn sprites(env: &Environment) -> Result<Option<SpritesSettings>, ConfigError> {
    let Some(token) = env.get("SPRITES_TOKEN") else {
        return Ok(None);
    };
    let base_url = env.get("SPRITES_BASE_URL").unwrap_or(SPRITES_PUBLIC_API);
    let usable = url::Url::parse(base_url)
        .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none());
    if !usable {
        return Err(ConfigError::Invalid {
            name: "SPRITES_BASE_URL",
            wanted: "an http or https address",
        });
    }
    let timeout = match env.number("SPRITES_TIMEOUT_MS")? {
        Some(0) => {
            return Err(ConfigError::Invalid {
                name: "SPRITES_TIMEOUT_MS",
                wanted: "a whole number of milliseconds, 1 or more",
            });
        }
        Some(milliseconds) => Duration::from_millis(milliseconds.unsigned_abs()),
        None => SPRITES_TIMEOUT,
    };
    Ok(Some(SpritesSettings {
        base_url: base_url.trim_end_matches('/').to_owned(),
        token: SecretString::from(token),
        timeout,
        public_urls: env.flag("SPRITES_PUBLIC_URLS", true)?,
        checkpoints: env.flag("CHECKPOINT_CREATION_ENABLED", false)?,
    }))
}

/// What tells a client command where to go and who it is (http-api 6.1).
#[derive(Clone, Debug, Default)]
pub struct ClientVariables {
    pub base_url: Option<String>,
    pub api_key: Option<SecretString>,
    pub profile: Option<String>,
    /// Set inside a machine: sent with every request as the parent.
    pub conversation_id: Option<String>,
    pub home: Option<PathBuf>,
    /// `FOUNTAIN_STREAM_IDLE_TIMEOUT`, seconds of total silence before `run` gives up.
    pub stream_idle: Duration,
    /// `NO_COLOR` is set.
    pub plain: bool,
}

/// The client's variables.
///
/// # Errors
/// When a number cannot be read.
pub fn client(env: &Environment) -> Result<ClientVariables, ConfigError> {
    let key = env.get("FOUNTAIN_API_KEY").or_else(|| env.get("FOUNTAIN_TOKEN"));
    let idle = env.number("FOUNTAIN_STREAM_IDLE_TIMEOUT")?.unwrap_or(30 * 60);
    Ok(ClientVariables {
        base_url: env
            .get("FOUNTAIN_BASE_URL")
            .map(|url| url.trim_end_matches('/').to_owned()),
        api_key: key.map(SecretString::from),
        profile: env.get("FOUNTAIN_PROFILE").map(str::to_owned),
        conversation_id: env.get("FOUNTAIN_CONVERSATION_ID").map(str::to_owned),
        home: env.get("HOME").map(PathBuf::from),
        stream_idle: Duration::from_secs(idle.unsigned_abs()),
        plain: env.get("NO_COLOR").is_some(),
    })
}

/// `FOUNTAIN_LOG`, else `RUST_LOG`: a tracing filter.
pub fn log_filter(env: &Environment) -> Option<String> {
    env.get("FOUNTAIN_LOG")
        .or_else(|| env.get("RUST_LOG"))
        .map(str::to_owned)
}

/// `FOUNTAIN_LOG_FORMAT=json` asks for one JSON object a line.
pub fn log_json(env: &Environment) -> bool {
    env.get("FOUNTAIN_LOG_FORMAT") == Some("json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(pairs: &[(&str, &str)]) -> String {
        settings(&Environment::of(pairs), Settings::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn every_refusal_names_the_variable() {
        assert!(refusal(&[("SANDBOX_IDLE_TIMEOUT_MINUTES", "-1")]).contains("SANDBOX_IDLE_TIMEOUT_MINUTES"));
        assert!(refusal(&[("SANDBOX_IDLE_TIMEOUT_MINUTES", "5")]).contains("SANDBOX_IDLE_TIMEOUT_MINUTES"));
        assert!(refusal(&[("SANDBOX_MAX_LIFETIME_HOURS", "soon")]).contains("SANDBOX_MAX_LIFETIME_HOURS"));
        assert!(refusal(&[("SANDBOX_RUNNERS_ENABLED", "maybe")]).contains("SANDBOX_RUNNERS_ENABLED"));
        assert!(refusal(&[("SANDBOX_PROVIDER", "fake")]).contains("SANDBOX_PROVIDER"));
        assert!(refusal(&[("SANDBOX_PROVIDER", "e2b")]).contains("SANDBOX_PROVIDER=e2b"));
        assert!(
            Database::from(&Environment::of(&[]))
                .err()
                .unwrap()
                .to_string()
                .contains("DATABASE_URL")
        );
        let odd = Environment::of(&[("DATABASE_URL", "mysql://secret@host/db")]);
        let message = Database::from(&odd).err().unwrap().to_string();
        assert!(message.contains("DATABASE_URL") && !message.contains("secret"));
    }

    #[test]
    fn zero_switches_a_bound_off_and_empty_is_unset() {
        let env = Environment::of(&[
            ("SANDBOX_IDLE_TIMEOUT_MINUTES", "0"),
            ("SANDBOX_MAX_LIFETIME_HOURS", ""),
        ]);
        let settings = settings(&env, Settings::default()).unwrap();
        assert_eq!((settings.idle_timeout, settings.max_lifetime), (None, None));
    }

    #[test]
    fn rul_60_sprites_said_aloud_needs_its_token() {
        assert!(refusal(&[("SANDBOX_PROVIDER", "sprites")]).contains("SPRITES_TOKEN"));
        let env = Environment::of(&[("SANDBOX_PROVIDER", "sprites"), ("SPRITES_TOKEN", "t")]);
        assert_eq!(
            settings(&env, Settings::default()).unwrap().default_provider,
            Provider::Sprites
        );
    }

    #[test]
    fn rul_l_99_the_sprites_settings_have_their_defaults_and_their_bounds() {
        assert!(sprites(&Environment::of(&[])).unwrap().is_none());
        let plain = sprites(&Environment::of(&[("SPRITES_TOKEN", "t")])).unwrap().unwrap();
        assert_eq!(
            (
                plain.base_url.as_str(),
                plain.timeout,
                plain.public_urls,
                plain.checkpoints
            ),
            (SPRITES_PUBLIC_API, Duration::from_secs(30), true, false)
        );
        let refused = |name, value| {
            sprites(&Environment::of(&[("SPRITES_TOKEN", "t"), (name, value)]))
                .err()
                .unwrap()
                .to_string()
        };
        assert!(refused("SPRITES_TIMEOUT_MS", "0").contains("SPRITES_TIMEOUT_MS"));
        assert!(refused("SPRITES_BASE_URL", "ftp://x").contains("SPRITES_BASE_URL"));
        assert!(refused("SPRITES_PUBLIC_URLS", "perhaps").contains("SPRITES_PUBLIC_URLS"));
    }

    #[test]
    fn rul_17_the_metrics_listener_is_off_unless_a_port_is_named() {
        for off in [
            Environment::of(&[]),
            Environment::of(&[("METRICS_PORT", "")]),
            Environment::of(&[("METRICS_PORT", "0")]),
        ] {
            assert_eq!(metrics_port(&off), Ok(None));
        }
        assert_eq!(
            metrics_port(&Environment::of(&[("METRICS_PORT", "9568")])),
            Ok(Some(9568))
        );
        assert!(metrics_port(&Environment::of(&[("METRICS_PORT", "99999")])).is_err());
    }

    #[test]
    fn public_url_has_its_fallbacks_and_no_trailing_slash() {
        assert_eq!(
            public_url(&Environment::of(&[("PUBLIC_URL", "https://f.example/")])).as_deref(),
            Some("https://f.example")
        );
        assert_eq!(
            public_url(&Environment::of(&[("FLY_APP_NAME", "f")])).as_deref(),
            Some("https://f.fly.dev")
        );
    }

    #[test]
    fn printing_an_environment_shows_no_value() {
        let env = Environment::of(&[("MASTER_SECRETS_KEY", "tell-nobody")]);
        assert!(!format!("{env:?}").contains("tell-nobody"));
    }
}
