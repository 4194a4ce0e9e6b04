//! Opening connections: which database, how it is set up, and over what transport (RUL-20, RUL-32; DESIGN 5).
//!
//! A URL may carry a password. It is taken apart here and shown nowhere: errors name the host at most, and what libpq
//! says is cleaned of the password before it leaves.

use std::path::PathBuf;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::R2D2Connection;
use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use super::{Db, Kind};
use crate::store::OpenError;

/// How long one statement may run on PostgreSQL.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a statement waits for a lock: the machine lock's bound (lifecycle 1.8).
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// A process that was frozen inside a transaction loses its locks after this.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(60);
/// How long SQLite waits for another process's write, for example a migration of the command line.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// libpq's bound for one address, in seconds.
const CONNECT_TIMEOUT_S: u32 = 5;

/// TLS to PostgreSQL: `DATABASE_SSL`, `DATABASE_SSL_VERIFY`, `DATABASE_SSL_CA_FILE` (lifecycle 9.1).
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// None: on, except for a server on this host.
    pub enabled: Option<bool>,
    /// Check the server's certificate and name.
    pub verify: bool,
    /// Bundle to check against. None: the system's.
    pub ca_file: Option<PathBuf>,
}

/// A database, as its URL names it.
#[derive(Clone)]
pub enum Target {
    File(PathBuf),
    /// One connection, gone with the process: tests and the simulation.
    Memory,
    Postgres {
        /// For libpq, with the transport's parameters.
        url: SecretString,
        password: Option<SecretString>,
    },
}

/// Shows which kind, never an address.
impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File(_) => "Target::File",
            Self::Memory => "Target::Memory",
            Self::Postgres { .. } => "Target::Postgres",
        })
    }
}

impl Target {
    /// Reads a `DATABASE_URL`: `sqlite://path`, `sqlite::memory:`, `postgres://…` or `postgresql://…`.
    ///
    /// # Errors
    /// `Url` for anything else, `TlsNotBuilt` when the transport would have to be TLS and this build has none.
    pub fn parse(url: &SecretString, tls: &Tls) -> Result<Self, OpenError> {
        Self::parse_for(url, tls, cfg!(feature = "postgres-tls"))
    }

    fn parse_for(url: &SecretString, tls: &Tls, tls_built: bool) -> Result<Self, OpenError> {
        let text = url.expose_secret();
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                ":memory:" => Ok(Self::Memory),
                "" => Err(OpenError::Url(
                    "sqlite:// needs a path, for example sqlite:///var/lib/fountain/fountain.db",
                )),
                path => Ok(Self::File(path.into())),
            };
        }
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(OpenError::Url("it starts with sqlite://, postgres:// or postgresql://"));
        }
        let parsed = Url::parse(text).map_err(|_| {
            OpenError::Url("it is not a URL; characters such as @ / : # in a password are written as %40 %2F %3A %23")
        })?;
        postgres(parsed, tls, tls_built)
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::File(_) | Self::Memory => Kind::Sqlite,
            Self::Postgres { .. } => Kind::Postgres,
        }
    }
}

/// Adds the transport to a PostgreSQL URL.
fn postgres(mut url: Url, tls: &Tls, tls_built: bool) -> Result<Target, OpenError> {
    let mut named_mode = None;
    let kept: Vec<(String, String)> = url
        .query_pairs()
        .into_owned()
        .filter(|(name, value)| {
            if name == "sslmode" {
                named_mode = Some(value.clone());
            }
            name != "sslmode" && name != "sslrootcert"
        })
        .collect();
    let local = is_local(&url, &kept);
    // DATABASE_SSL is the setting; a mode inside the URL counts only where it is unset.
    let wanted = tls.enabled.or(match named_mode.as_deref() {
        Some("disable") => Some(false),
        Some("require" | "verify-ca" | "verify-full") => Some(true),
        _ => None,
    });
    let verify = tls.verify || (tls.enabled.is_none() && named_mode.as_deref() == Some("verify-full"));
    let mode = match (wanted, tls_built) {
        (Some(false), _) => "disable",
        // Without OpenSSL only a server on this host is reached, in the clear and by rule (RUL-32).
        (_, false) if local => "disable",
        (_, false) => return Err(OpenError::TlsNotBuilt),
        (None, true) if local && !verify => "prefer",
        (_, true) if verify => "verify-full",
        (_, true) => "require",
    };
    let password = url
        .password()
        .map(|encoded| SecretString::from(percent_decoded(encoded)));
    {
        let mut pairs = url.query_pairs_mut();
        pairs.clear().extend_pairs(&kept).append_pair("sslmode", mode);
        if mode == "verify-full" {
            let bundle = tls.ca_file.as_ref().map(|path| path.to_string_lossy());
            pairs.append_pair("sslrootcert", bundle.as_deref().unwrap_or("system"));
        }
        if !kept.iter().any(|(name, _)| name == "connect_timeout") {
            pairs.append_pair("connect_timeout", &CONNECT_TIMEOUT_S.to_string());
        }
    }
    // The url crate writes a space as `+`, which libpq takes literally.
    let url = url.as_str().replace('+', "%20");
    Ok(Target::Postgres {
        url: SecretString::from(url),
        password,
    })
}

/// Whether every way to the server stays on this host: a loopback address or a Unix socket.
fn is_local(url: &Url, query: &[(String, String)]) -> bool {
    let mut hosts: Vec<String> = query
        .iter()
        .filter(|(name, _)| name == "host" || name == "hostaddr")
        .flat_map(|(_, value)| value.split(',').map(str::to_owned))
        .collect();
    match url.host() {
        Some(Host::Ipv4(ip)) => hosts.push(ip.to_string()),
        Some(Host::Ipv6(ip)) => hosts.push(ip.to_string()),
        Some(Host::Domain(name)) => hosts.extend(percent_decoded(name).split(',').map(str::to_owned)),
        None => {}
    }
    hosts.iter().all(|host| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host.is_empty()
            || host.starts_with('/')
            || host.starts_with('@')
            || host == "localhost"
            || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

/// Undoes percent encoding; what is not encoded well stays as it is.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() {
            tail.get(2..).unwrap_or_default()
        } else {
            tail
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Why a connection could not be had. The password is not in it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectFailed(pub(in crate::store) String);

/// What a connection of a pool is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Anything,
    /// SQLite refuses writes on it.
    ReadOnly,
}

/// Makes the connections of one pool.
#[derive(Clone, Debug)]
pub struct Manager {
    target: Target,
    r#use: Use,
    /// Bounds the SQLite file, in pages. Tests fill a "disk" with it.
    page_limit: Option<u32>,
}

impl Manager {
    pub fn new(target: Target, r#use: Use, page_limit: Option<u32>) -> Self {
        Self {
            target,
            r#use,
            page_limit,
        }
    }
}

impl r2d2::ManageConnection for Manager {
    type Connection = Db;
    type Error = ConnectFailed;

    fn connect(&self) -> Result<Db, ConnectFailed> {
        match &self.target {
            Target::File(path) => sqlite(&path.to_string_lossy(), true, self.r#use, self.page_limit),
            Target::Memory => sqlite(":memory:", false, self.r#use, self.page_limit),
            Target::Postgres { url, password } => connect_postgres(url, password.as_ref(), &pooled_session()),
        }
    }

    fn is_valid(&self, db: &mut Db) -> Result<(), ConnectFailed> {
        db.ping().map_err(|e| ConnectFailed(e.to_string()))
    }

    fn has_broken(&self, db: &mut Db) -> bool {
        // After a panic inside a transaction nobody knows what is open on the connection.
        std::thread::panicking() || db.is_broken()
    }
}

fn sqlite(path: &str, journal: bool, r#use: Use, page_limit: Option<u32>) -> Result<Db, ConnectFailed> {
    let failed = |e: &dyn std::fmt::Display| ConnectFailed(format!("SQLite file {path}: {e}"));
    let mut conn = SqliteConnection::establish(path).map_err(|e| failed(&e))?;
    let mut setup = format!(
        "PRAGMA busy_timeout = {}; PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF;",
        BUSY_TIMEOUT.as_millis()
    );
    if journal {
        setup.push_str("PRAGMA journal_mode = WAL;");
    }
    if let Some(pages) = page_limit {
        setup.push_str(&format!("PRAGMA max_page_count = {pages};"));
    }
    if r#use == Use::ReadOnly {
        setup.push_str("PRAGMA query_only = ON;");
    }
    conn.batch_execute(&setup).map_err(|e| failed(&e))?;
    Ok(Db::Sqlite(conn))
}

/// What every pooled PostgreSQL session is set to.
fn pooled_session() -> String {
    format!(
        "SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {};",
        STATEMENT_TIMEOUT.as_millis(),
        LOCK_TIMEOUT.as_millis(),
        IDLE_IN_TRANSACTION.as_millis()
    )
}

fn connect_postgres(url: &SecretString, password: Option<&SecretString>, setup: &str) -> Result<Db, ConnectFailed> {
    let failed = |e: &dyn std::fmt::Display| {
        let mut said = e.to_string();
        if let Some(password) = password.filter(|p| !p.expose_secret().is_empty()) {
            said = said.replace(password.expose_secret(), "[redacted]");
        }
        ConnectFailed(said.trim().to_owned())
    };
    let mut conn = PgConnection::establish(url.expose_secret()).map_err(|e| failed(&e))?;
    conn.batch_execute(&format!(
        "SET TIME ZONE 'UTC'; SET application_name = 'fountain'; SET client_min_messages = warning; {setup}"
    ))
    .map_err(|e| failed(&e))?;
    Ok(Db::Postgres(conn))
}

/// A connection for migrations: outside the pools, without the statement bound, because a migration may take long and
/// wait for another replica's.
pub(in crate::store) fn migration_connection(target: &Target) -> Result<Db, ConnectFailed> {
    match target {
        Target::File(path) => sqlite(&path.to_string_lossy(), true, Use::Anything, None),
        Target::Memory => Err(ConnectFailed("a database in memory has one connection".into())),
        Target::Postgres { url, password } => connect_postgres(url, password.as_ref(), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, tls: &Tls, tls_built: bool) -> Result<String, OpenError> {
        match Target::parse_for(&SecretString::from(url.to_owned()), tls, tls_built)? {
            Target::File(path) => Ok(path.to_string_lossy().into_owned()),
            Target::Memory => Ok("memory".into()),
            Target::Postgres { url, .. } => Ok(url.expose_secret().to_owned()),
        }
    }

    fn mode(url: &str, enabled: Option<bool>, verify: bool, tls_built: bool) -> Option<String> {
        let tls = Tls {
            enabled,
            verify,
            ca_file: None,
        };
        let url = parse(url, &tls, tls_built).ok()?;
        let url = Url::parse(&url).unwrap();
        url.query_pairs()
            .find(|(name, _)| name == "sslmode")
            .map(|(_, value)| value.into_owned())
    }

    #[test]
    fn the_scheme_alone_chooses_the_database() {
        let tls = Tls::default();
        assert_eq!(parse("sqlite:///var/lib/f.db", &tls, false).unwrap(), "/var/lib/f.db");
        assert_eq!(parse("sqlite://data/f.db", &tls, false).unwrap(), "data/f.db");
        assert_eq!(parse("sqlite::memory:", &tls, false).unwrap(), "memory");
        assert!(parse("postgres://u:p@127.0.0.1/f", &tls, false).is_ok());
        for wrong in ["", "f.db", "mysql://h/f", "sqlite://", "host=127.0.0.1 port=1 dbname=x"] {
            assert!(matches!(parse(wrong, &tls, false), Err(OpenError::Url(_))), "{wrong}");
        }
    }

    #[test]
    fn rul_32_without_tls_only_a_local_server_is_reached_in_the_clear() {
        let local = [
            "postgres://u@localhost/f",
            "postgres://u@127.0.0.1:5433/f",
            "postgres://u@[::1]/f",
            "postgres:///f?host=/var/run/postgresql",
            "postgres://u@%2Fvar%2Frun%2Fpostgresql/f",
        ];
        for url in local {
            assert_eq!(mode(url, None, false, false).as_deref(), Some("disable"), "{url}");
            assert_eq!(mode(url, None, false, true).as_deref(), Some("prefer"), "{url}");
        }
        let far = [
            "postgres://u@db.example.com/f",
            "postgres://u@10.0.0.7/f",
            "postgres:///f?host=db.example.com",
            "postgres://u@localhost/f?hostaddr=10.0.0.7",
            "postgres://u@db.example.com/f?sslmode=prefer",
        ];
        for url in far {
            for wish in [None, Some(true)] {
                let tls = Tls {
                    enabled: wish,
                    ..Tls::default()
                };
                assert!(matches!(parse(url, &tls, false), Err(OpenError::TlsNotBuilt)), "{url}");
                assert_eq!(mode(url, wish, false, true).as_deref(), Some("require"), "{url}");
                assert_eq!(mode(url, wish, true, true).as_deref(), Some("verify-full"), "{url}");
            }
            assert_eq!(
                mode(url, Some(false), false, false).as_deref(),
                Some("disable"),
                "{url}"
            );
        }
    }

    #[test]
    fn no_error_of_a_url_shows_its_password() {
        for url in [
            "postgres://u:hunter2@h:notaport/f",
            "postgres://u:hunter2@db.example.com/f",
            "pg://u:hunter2@h",
        ] {
            let error = parse(url, &Tls::default(), false).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let target = Target::parse(
            &SecretString::from("postgres://u:hunter2@127.0.0.1/f".to_owned()),
            &Tls::default(),
        );
        assert!(!format!("{target:?}").contains("hunter2"));
    }
}
