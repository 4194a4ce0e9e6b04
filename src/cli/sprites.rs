//! `fountain sprites`: a Sprites-compatible server on this Linux host (DESIGN 8).
//!
//! As an operator starts it, it takes its tokens from files, flags or the environment. As `dev` starts it, it also writes
//! its address into a connection file and holds a lock beside that for as long as it lives, as the embedded runner does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use fountain_sprites::enclosure::{self, Disk, Enclosures, Host, Isolation};
use fountain_sprites::network::{self, GatewaySettings, Gateways, NameServers};
use fountain_sprites::{Limits, Settings, exec};
use secrecy::SecretString;
use serde_json::json;

use super::kept_sprites::Connection;
use super::profile::write_private;
use super::runner::Life;
use super::{Context, Exit, render};
use crate::daemon::termination;

/// The hidden command by which this executable becomes the first process of an enclosure.
pub const INIT: &str = "sprite-init";
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
    /// Sprites that one token may have at the same time.
    #[arg(long)]
    max_sprites: Option<usize>,
    /// Sprites that one token may create in a minute.
    #[arg(long)]
    max_creations_a_minute: Option<usize>,
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
        limits: Limits {
            sprites: args.max_sprites,
            creations: args.max_creations_a_minute.map(|most| (most, Duration::from_secs(60))),
        },
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
