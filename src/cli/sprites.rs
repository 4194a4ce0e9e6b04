//! `fountain sprites`: a Sprites-compatible server on this host, and how `dev` keeps one (DESIGN 8).
//!
//! As an operator starts it, it takes its tokens from files, flags or the environment. As `dev` starts it, it also writes
//! its address into a connection file and holds a lock beside that for as long as it lives, as the embedded runner does.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use fountain_actors::ports::Rng;
use fountain_provider_sprites::SpritesSettings;
use fountain_sprites::enclosure::{self, Disk, Enclosures, Host, Isolation};
use fountain_sprites::network::{self, GatewaySettings, Gateways, NameServers};
use fountain_sprites::{Limits, Settings, exec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::data_dir::DataDir;
use super::profile::write_private;
use super::runner::Life;
use super::{Context, Exit, render};
use crate::config;
use crate::daemon::termination;
use crate::server::SystemRng;

/// The hidden command by which this executable becomes the first process of an enclosure.
pub const INIT: &str = "sprite-init";
/// How long the server that `dev` started may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub struct SpritesArgs {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:4100")]
    listen: SocketAddr,
    /// Where sprites, their checkpoints and their sessions are kept. One server a folder.
    #[arg(long)]
    root: PathBuf,
    /// A token that is let in; may be given more than once. Each has its own sprites. Others on this host can read the
    /// command line: prefer --token-file, or SPRITES_TOKEN.
    #[arg(long)]
    token: Vec<String>,
    /// A file with one token a line.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// How far sprites are kept apart: `auto` takes what this host gives and says what it does not.
    #[arg(long, default_value = "auto")]
    isolation: IsolationArg,
    /// A place that sprites may reach by this name whatever its address and their policy: NAME=ADDRESS:PORT. Repeatable.
    #[arg(long = "host", value_name = "NAME=ADDRESS:PORT", value_parser = host_of)]
    hosts: Vec<network::Host>,
    /// Memory that one sprite may use, in MiB, where the host can limit it.
    #[arg(long)]
    memory_mib: Option<u64>,
    /// File that gets `{"url"}` when the server is ready.
    #[arg(long, hide = true)]
    connection_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IsolationArg {
    Auto,
    /// Everything, or no start.
    Full,
    /// Ordinary processes in ordinary directories.
    None,
}

#[derive(Serialize, Deserialize)]
struct Connection {
    url: String,
}

pub async fn sprites(context: Context, args: SpritesArgs) -> anyhow::Result<Exit> {
    let stop = termination()?;
    let _life = args.connection_file.as_deref().map(Life::begin).transpose()?;
    let host = host(&args).await?;
    let facilities = host.facilities().clone();
    for sentence in &facilities.missing {
        tracing::warn!("{sentence}");
    }
    let apart = facilities.mount_namespace && facilities.pid_namespace && facilities.disk == Disk::Overlay;
    anyhow::ensure!(
        apart || !matches!(args.isolation, IsolationArg::Full),
        "this host cannot keep sprites apart as --isolation full asks: {}",
        facilities.missing.join(" ")
    );
    let server = fountain_sprites::serve(Settings {
        address: args.listen,
        root: args.root.clone(),
        tokens: tokens(&context, &args)?,
        enclosures: Arc::new(host),
        limits: Limits::default(),
        exec: exec::Settings::default(),
        workers: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
    })
    .await?;
    let url = format!("http://{}", server.address);
    if let Some(path) = &args.connection_file {
        write_private(path, &serde_json::to_vec(&Connection { url: url.clone() })?)?;
    }
    if context.json {
        render::json(&json!({"url": url, "isolation": facilities}));
    } else {
        render::line(&format!("fountain sprites serves on {url}"));
    }
    stop.await;
    tracing::info!("stopping; running commands end, sprites and checkpoints stay");
    server.stop().await;
    Ok(Exit::Ok)
}

/// Finds out what this host can do. The folder of the enclosures is the server's, and below its root.
async fn host(args: &SpritesArgs) -> anyhow::Result<Host> {
    let helper = std::env::current_exe().context("this executable's own path is not known")?;
    let mut settings = enclosure::Settings::new(args.root.join("host"), helper, vec![INIT.into()]);
    settings.uplink = Some(Arc::new(Gateways::start(GatewaySettings {
        hosts: args.hosts.clone(),
        servers: NameServers::of_this_host(),
    })?));
    settings.memory_limit = args.memory_mib.map(|mib| mib * 1024 * 1024);
    settings.most = match args.isolation {
        IsolationArg::Auto | IsolationArg::Full => Isolation::Overlay,
        IsolationArg::None => Isolation::None,
    };
    let probed = tokio::task::spawn_blocking(move || Host::probe(settings)).await?;
    probed.with_context(|| format!("{} cannot be used", args.root.display()))
}

fn host_of(text: &str) -> Result<network::Host, String> {
    let (name, address) = text.split_once('=').ok_or("give NAME=ADDRESS:PORT")?;
    let address: SocketAddr = address
        .parse()
        .map_err(|_| "give NAME=ADDRESS:PORT, with an IP address")?;
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    Ok(network::Host {
        name: name.to_owned(),
        address: address.ip(),
        port: Some(address.port()),
        always: true,
    })
}

fn tokens(context: &Context, args: &SpritesArgs) -> anyhow::Result<Vec<SecretString>> {
    let mut tokens = args.token.clone();
    if let Some(path) = &args.token_file {
        let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        tokens.extend(text.lines().map(|line| line.trim().to_owned()));
    }
    if tokens.is_empty() {
        tokens.extend(context.env.get("SPRITES_TOKEN").map(str::to_owned));
    }
    tokens.retain(|token| !token.is_empty());
    anyhow::ensure!(
        !tokens.is_empty(),
        "no token; give one with --token-file FILE, --token TOKEN or SPRITES_TOKEN"
    );
    Ok(tokens.into_iter().map(SecretString::from).collect())
}

/// The command line of the demo agent in a sprite: this executable where it was put, else where it is.
pub fn demo_command(outside: &str) -> String {
    let inside = enclosure::executable_inside();
    let inside = inside.display();
    format!("if [ -x {inside} ]; then exec {inside} demo-agent; else {outside}; fi")
}

/// The server that `dev` keeps: its folder, its token and its connection file are in the data directory.
pub struct Kept {
    connection: PathBuf,
    pub settings: SpritesSettings,
}

impl Kept {
    /// Starts the server in a process group of its own, or adopts the one that lives, and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up; its log says why.
    pub async fn start_or_adopt(dir: &DataDir) -> anyhow::Result<Self> {
        let connection = dir.file("sprites.json");
        let token_file = dir.file("sprites.token");
        let token = match std::fs::read_to_string(&token_file) {
            Ok(token) => token.trim().to_owned(),
            Err(_) => {
                let token = SystemRng.hex(32);
                write_private(&token_file, token.as_bytes())?;
                token
            }
        };
        match Life::of(&connection)? {
            Some(pid) => tracing::info!("adopting the sprites server that is running already (process {pid})"),
            None => {
                let _ = std::fs::remove_file(&connection);
                spawn(dir, &connection, &token_file)?;
            }
        }
        let url = tokio::time::timeout(PATIENCE, announced(&connection))
            .await
            .map_err(|_| anyhow::anyhow!("the sprites server did not start; see sprites.log in the data directory"))?;
        let settings = SpritesSettings {
            base_url: url,
            token: token.into(),
            timeout: config::SPRITES_TIMEOUT,
            public_urls: false,
            checkpoints: true,
        };
        Ok(Self { connection, settings })
    }

    /// Ends it: sprites and checkpoints stay, running commands do not.
    pub async fn end(&self) {
        let Some(pid) = Life::of(&self.connection).ok().flatten().filter(|pid| *pid > 0) else {
            return;
        };
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let gone = async {
            while Life::of(&self.connection).ok().flatten().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(10), gone).await.is_err() {
            tracing::warn!("the sprites server did not end in time; process {pid}");
        }
    }
}

fn spawn(dir: &DataDir, connection: &Path, token_file: &Path) -> anyhow::Result<()> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.file("sprites.log"))
        .context("the log of the sprites server cannot be written")?;
    let mut command =
        std::process::Command::new(std::env::current_exe().context("this executable's own path is not known")?);
    command
        .args(["sprites", "--listen", "127.0.0.1:0", "--root"])
        .arg(dir.file("sprites"))
        .arg("--token-file")
        .arg(token_file)
        .arg("--connection-file")
        .arg(connection);
    command
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A signal to the terminal's group (Ctrl-C) must not reach it: its turns end first.
        .process_group(0)
        .spawn()
        .context("the sprites server could not be started")?;
    Ok(())
}

/// The address, once the server has written it.
async fn announced(connection: &Path) -> String {
    loop {
        let found = std::fs::read(connection)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Connection>(&bytes).ok());
        if let Some(connection) = found {
            return connection.url;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
