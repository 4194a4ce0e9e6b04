//! A PostgreSQL database that keeps what it commits: of the server that `FOUNTAIN_TEST_POSTGRES_URL` names when that one
//! syncs to disk, else of a throwaway server of our own with the settings of a fresh installation.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::sql_types::Text;

use super::process::free_port;

/// A database of its own. Dropping it removes it, and the server when that is ours too.
pub struct Database {
    /// Its URL.
    pub url: String,
    admin: String,
    name: String,
    server: Option<Server>,
}

#[derive(QueryableByName)]
struct Setting {
    #[diesel(sql_type = Text)]
    value: String,
}

impl Database {
    /// A fresh database, or None with the reason said.
    pub fn create() -> anyhow::Result<Option<Self>> {
        if let Some(url) = named_server() {
            if is_durable(&url)? {
                return Self::on(url, None).map(Some);
            }
            super::say("the server of FOUNTAIN_TEST_POSTGRES_URL does not sync to disk; starting one that does");
        }
        let Some(programs) = find_programs() else {
            super::say("PostgreSQL: not measured, no server is installed");
            return Ok(None);
        };
        let server = Server::start(&programs)?;
        Self::on(server.url(), Some(server)).map(Some)
    }

    /// Another database on the same server, which lives as long as this one at most.
    pub fn sibling(&self) -> anyhow::Result<Self> {
        Self::on(self.admin.clone(), None)
    }

    fn on(admin: String, server: Option<Server>) -> anyhow::Result<Self> {
        let name = format!("fountain_bench_{}_{}", std::process::id(), free_port()?);
        PgConnection::establish(&format!("{admin}/postgres"))?.batch_execute(&format!("CREATE DATABASE {name}"))?;
        Ok(Self {
            url: format!("{admin}/{name}"),
            admin,
            name,
            server,
        })
    }

    /// Transactions that wrote, so far, on the whole server: each draws one number.
    pub fn written(&self) -> anyhow::Result<u64> {
        let mut conn = PgConnection::establish(&format!("{}/postgres", self.admin))?;
        let next = diesel::sql_query("SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS value");
        Ok(next.get_result::<Setting>(&mut conn)?.value.parse()?)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.server.is_some() {
            return; // it goes with its server
        }
        if let Ok(mut conn) = PgConnection::establish(&format!("{}/postgres", self.admin)) {
            let _ = conn.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)); // the name says whose it is
        }
    }
}

fn named_server() -> Option<String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test's setting, which is none of the product's"
    )]
    std::env::var("FOUNTAIN_TEST_POSTGRES_URL")
        .ok()
        .filter(|url| !url.is_empty())
}

fn is_durable(server: &str) -> anyhow::Result<bool> {
    let mut conn = PgConnection::establish(&format!("{server}/postgres"))?;
    let query = "SELECT current_setting('fsync') || ' ' || current_setting('synchronous_commit') AS value";
    let settings: Setting = diesel::sql_query(query).get_result(&mut conn)?;
    Ok(settings.value == "on on")
}

/// The folder of `initdb` and `postgres`.
fn find_programs() -> Option<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = installed.map(|version| version.path().join("bin"));
    let usual = ["/usr/local/pgsql/bin", "/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    folders.chain(usual).find_map(|folder| {
        let real = folder.join("initdb").canonicalize().ok()?.parent()?.to_owned();
        ["initdb", "pg_ctl", "postgres"]
            .iter()
            .all(|name| real.join(name).exists())
            .then_some(real)
    })
}

struct Server {
    programs: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
}

impl Server {
    fn start(programs: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("fountain-bench-").tempdir()?;
        let server = Self {
            programs: programs.to_owned(),
            folder,
            port: free_port()?,
        };
        if is_root() {
            // The server refuses to run as root; its folder belongs to whom it runs as.
            let done = Command::new("chown").arg(user()).arg(server.folder.path()).status()?;
            anyhow::ensure!(done.success(), "the server's folder cannot be given away");
        }
        let options = format!("-p {} -k '' -c listen_addresses=127.0.0.1", server.port);
        server.run("initdb", &["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"])?;
        server.run(
            "pg_ctl",
            &["-s", "-w", "-t", "60", "-l", "/dev/null", "-o", &options, "start"],
        )?;
        Ok(server)
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}", self.port)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let path = self.programs.join(program);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", user(), "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        // No pipes: the server would keep them open.
        let status = command
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("{program} cannot be run"))?;
        anyhow::ensure!(status.success(), "{program} failed");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.run("pg_ctl", &["-s", "-m", "immediate", "-w", "stop"]); // its files go anyway
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whom a root's server runs as: the package's user, or one without rights.
fn user() -> &'static str {
    let known = Command::new("id")
        .args(["-u", "postgres"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if known.is_ok_and(|status| status.success()) {
        "postgres"
    } else {
        "nobody"
    }
}
