//! `fountain dev`: everything on this machine, with nothing else installed (RUL-57 to RUL-59).
//!
//! A server on SQLite, a runner as a process of its own, an account with a key, an environment and the demo agent. What
//! is there already is kept. The runner outlives a kill of this process: the next start adopts it, and its turns go on.
//! A clean stop ends the turns and then the runner, because a runner's processes die with it.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use fountain_actors::directory::ShutdownKind;
use fountain_actors::domain::account::{Account, Actor, NewAudit, Scope};
use fountain_actors::domain::agent::{Agent, AgentConfig, AgentFilter, Runtime};
use fountain_actors::domain::environment::{Environment, EnvironmentConfig};
use fountain_actors::domain::machine::{MachineMode, Provider};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::{AccountId, AgentId, AgentVersionId, EnvironmentId, RunnerId};
use fountain_actors::ports::store::accounts::NewAccount;
use fountain_actors::ports::store::{AccountStore, CatalogStore};
use fountain_actors::ports::{Clock, Rng, RunnerPresence};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use sha2::Digest;

use super::data_dir::{Connection, DataDir, Remembered};
use super::kept_sprites::{self, Kept};
use super::runner::Life;
use super::{Context, Exit, render, serve};
use crate::config;
use crate::daemon::termination;
use crate::server::{self, Server, ServerConfig, SystemClock, SystemRng};
use crate::store::SqlStore;
use crate::telemetry::Metrics;

/// The address of the account that `dev` makes; nothing is ever sent to it.
const EMAIL: &str = "dev@fountain.local";
const RUNNER: &str = "local";
const DEMO: &str = "demo";
/// How long the runner may take to dial in; it redials within seconds.
const RUNNER_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub struct DevArgs {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:4000")]
    listen: SocketAddr,
    /// Where everything is kept.
    #[arg(long, default_value = "./.fountain")]
    data_dir: PathBuf,
    /// Where machines come from: directories on this machine, or sandboxes kept apart (Linux).
    #[arg(long, default_value = "runner")]
    provider: Source,
}

/// What `dev` starts to have machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    Runner,
    Sprites,
}

/// It, started.
enum Machines {
    Runner(RunnerId),
    Sprites(Kept),
}

/// What differs from a deployment: the runner is the provider, and the caps do not stop the twenty-first conversation.
pub fn settings() -> Settings {
    Settings {
        default_provider: Provider::Runner,
        cap_ceiling: 200,
        fleet_ceiling: 200,
        ..Settings::default()
    }
}

pub async fn dev(context: Context, args: DevArgs) -> anyhow::Result<Exit> {
    let mut stop = std::pin::pin!(termination()?);
    let dir = DataDir::create(&args.data_dir)?;
    let key = dir.master_key()?;
    let metrics = Arc::new(Metrics::default());
    let store = server::open_store(&dir.database(&context.env)?, &key, &metrics)?;
    // Before anything is written: a second `dev` on this folder ends here.
    let lock = store.serving_lock()?;
    serve::bring_up_to_date(&context, &store).await?;

    let account = account(&store).await?;
    let api_key = api_key(&store, &dir, &account).await?;
    let environment = environment(&store, &account).await?;
    let agent = agent(&store, &account, &environment, args.provider).await?;
    let runner_key = runner_key(&store, &dir, &account).await?;

    let mut settings = settings();
    let mut kept = None;
    if args.provider == Source::Sprites {
        settings.default_provider = Provider::Sprites;
        settings.checkpoint_creation = true;
        kept = Some(Kept::start_or_adopt(&dir).await?);
    }
    let sprites = match &kept {
        Some(kept) => Some(kept.settings.clone()),
        None => config::sprites(&context.env)?,
    };
    let config = ServerConfig {
        listen: args.listen,
        public_url: config::public_url(&context.env),
        settings: config::settings(&context.env, settings)?,
        metrics_port: config::metrics_port(&context.env)?,
        sprites,
        node: config::node_name(&context.env),
        landing,
    };
    let server = Server::start(config, store, lock, metrics).await?;
    let machines = match kept {
        Some(kept) => Machines::Sprites(kept),
        None => tokio::select! {
            begun = begin(&server, &dir, account.id, runner_key) => match begun {
                Ok(runner) => Machines::Runner(runner),
                Err(error) => {
                    end(server, &dir, None).await?;
                    return Err(error);
                }
            },
            () = stop.as_mut() => return end(server, &dir, None).await,
        },
    };

    if context.json {
        let runner = match &machines {
            Machines::Runner(runner) => Some(*runner),
            Machines::Sprites(_) => None,
        };
        render::json(&json!({
            "url": server.url, "api_key": api_key.expose_secret(), "account_id": account.id, "agent_id": agent.id,
            "environment_id": environment.id, "runner_id": runner,
        }));
    } else {
        render::line(&hello(&server.url, &api_key, &agent, &args.data_dir));
    }
    stop.await;
    end(server, &dir, Some(&machines)).await
}

/// Brings the runner to the server that listens already.
async fn begin(server: &Server, dir: &DataDir, account: AccountId, key: SecretString) -> anyhow::Result<RunnerId> {
    dir.write_connection(&Connection {
        url: format!("http://{}", server.address),
        api_key: key.expose_secret().to_owned(),
    })?;
    start_or_adopt_runner(dir)?;
    connected(server, account).await
}

/// A clean stop: the turns first, then the runner or sprites server that carries them.
async fn end(server: Server, dir: &DataDir, machines: Option<&Machines>) -> anyhow::Result<Exit> {
    tracing::info!("stopping; running turns end, their conversations are kept");
    server.stop(ShutdownKind::Clean).await;
    if let Some(Machines::Sprites(kept)) = machines {
        kept.end().await;
        return Ok(Exit::Ok);
    }
    if let Some(pid) = Life::of(&dir.connection_file())?.filter(|pid| *pid > 0) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        // It gives its commands three seconds; its lock says when it is gone.
        let gone = async {
            while Life::of(&dir.connection_file()).ok().flatten().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(10), gone).await.is_err() {
            tracing::warn!("the runner did not end in time; process {pid}");
        }
    }
    Ok(Exit::Ok)
}

fn audit(account: AccountId, action: &'static str, kind: &'static str, id: impl std::fmt::Display) -> NewAudit {
    NewAudit {
        account_id: Some(account),
        action,
        resource_type: kind,
        resource_id: Some(id.to_string()),
        actor: Actor::System("dev"),
        request_ip: None,
        metadata: Default::default(),
    }
}

async fn account(store: &SqlStore) -> anyhow::Result<Account> {
    if let Some(account) = store.account_by_email(EMAIL.to_owned()).await? {
        return Ok(account);
    }
    let now = SystemClock.now();
    let new = NewAccount {
        id: AccountId(SystemRng.uuid()),
        email: Some(EMAIL.to_owned()),
        email_verified_at: Some(now),
        is_admin: true,
        now,
    };
    Ok(store.create_account(new).await?)
}

/// The remembered key while it works; otherwise a new one.
async fn api_key(store: &SqlStore, dir: &DataDir, account: &Account) -> anyhow::Result<SecretString> {
    if let Some(remembered) = dir.remembered()
        && works(store, &remembered.api_key, account).await?
    {
        return Ok(remembered.api_key.into());
    }
    let key = server::mint_full_key(store, account, "dev").await?;
    dir.remember(&Remembered {
        api_key: key.expose_secret().to_owned(),
        account_id: account.id.to_string(),
    })?;
    Ok(key)
}

async fn works(store: &SqlStore, key: &str, account: &Account) -> anyhow::Result<bool> {
    let found = store.key_by_hash(sha2::Sha256::digest(key.as_bytes()).into()).await?;
    Ok(found.is_some_and(|(key, owner)| key.revoked_at.is_none() && owner.id == account.id))
}

async fn runner_key(store: &SqlStore, dir: &DataDir, account: &Account) -> anyhow::Result<SecretString> {
    if let Some(connection) = dir.connection()
        && works(store, &connection.api_key, account).await?
    {
        return Ok(connection.api_key.into());
    }
    let (text, key) = server::new_key(account.id, "dev runner", Scope::Runner(RUNNER.to_owned()), &SystemRng);
    store.create_key(key, None, SystemClock.now()).await?;
    Ok(text)
}

async fn environment(store: &SqlStore, account: &Account) -> anyhow::Result<Environment> {
    let found = store
        .environments(account.id)
        .await?
        .into_iter()
        .find(|one| one.config.name == DEMO);
    if let Some(environment) = found {
        return Ok(environment);
    }
    let id = EnvironmentId(SystemRng.uuid());
    let audit = audit(account.id, "environment.created", "environment", id);
    Ok(store
        .create_environment(account.id, id, EnvironmentConfig::named(DEMO), audit, SystemClock.now())
        .await?)
}

/// The demo agent, found by name; its command is brought up to date, because the executable may have moved.
async fn agent(
    store: &SqlStore,
    account: &Account,
    environment: &Environment,
    source: Source,
) -> anyhow::Result<Agent> {
    let program = std::env::current_exe().context("this executable's own path is not known")?;
    let on_this_host = demo_command(&program)?;
    let (command, provider) = match source {
        Source::Runner => (on_this_host, Provider::Runner),
        Source::Sprites => (kept_sprites::demo_command(&on_this_host), Provider::Sprites),
    };
    let now = SystemClock.now();
    let found = store
        .agents(account.id, AgentFilter::default())
        .await?
        .into_iter()
        .find(|one| one.config.name == DEMO);
    let version = AgentVersionId(SystemRng.uuid());
    if let Some(agent) = found {
        if agent.config.runtime_command.as_deref() == Some(&command) && agent.config.sandbox_provider == Some(provider)
        {
            return Ok(agent);
        }
        let config = AgentConfig {
            runtime_command: Some(command),
            sandbox_provider: Some(provider),
            ..agent.config
        };
        let audit = audit(account.id, "agent.updated", "agent", agent.id);
        return Ok(store
            .update_agent(account.id, agent.id, version, config, audit, now)
            .await?
            .value
            .0);
    }
    let id = AgentId(SystemRng.uuid());
    let config = AgentConfig {
        name: DEMO.to_owned(),
        description: "Needs no model and no network. Say `run: ls`, `write notes.txt: hello`, `ask: may I?`."
            .to_owned(),
        system: String::new(),
        model: None,
        runtime: Runtime::Acp,
        runtime_command: Some(command),
        sandbox_provider: Some(provider),
        sandbox_mode: MachineMode::Ephemeral,
        environment_id: Some(environment.id),
        skills: Vec::new(),
        mcp_servers: Default::default(),
        metadata: Default::default(),
        allowed_vault_ids: None,
        allowed_environment_ids: None,
        allowed_inference_credential_ids: None,
        inference_credential_id: None,
        permission_policy: serde_json::Map::from_iter([("default".to_owned(), json!("ask"))]),
    };
    Ok(store
        .create_agent(
            account.id,
            id,
            version,
            config,
            audit(account.id, "agent.created", "agent", id),
            now,
        )
        .await?)
}

/// The command line of the demo agent, quoted for a shell.
fn demo_command(program: &Path) -> anyhow::Result<String> {
    let program = program.to_str().context("this executable's path is not UTF-8")?;
    Ok(format!("exec '{}' demo-agent", program.replace('\'', r"'\''")))
}

/// Starts the runner in a process group of its own, or leaves the one that lives to dial in again.
fn start_or_adopt_runner(dir: &DataDir) -> anyhow::Result<()> {
    if let Some(pid) = Life::of(&dir.connection_file())? {
        tracing::info!("adopting the runner that is running already (process {pid})");
        return Ok(());
    }
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.file("runner.log"))
        .context("the runner's log cannot be written")?;
    std::process::Command::new(std::env::current_exe().context("this executable's own path is not known")?)
        .args(["runner", "--name", RUNNER])
        .arg("--root")
        .arg(dir.file("runner").join("sandboxes"))
        .arg("--connection-file")
        .arg(dir.connection_file())
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A signal to the terminal's group (Ctrl-C) must not reach it: its turns end first.
        .process_group(0)
        .spawn()
        .context("the runner could not be started")?;
    Ok(())
}

/// Waits until the runner has registered.
async fn connected(server: &Server, account: AccountId) -> anyhow::Result<RunnerId> {
    let mut changes = RunnerPresence::changes(server.connections.as_ref());
    let online = async {
        loop {
            if let Some(runner) = RunnerPresence::latest(server.connections.as_ref(), account) {
                return runner.id;
            }
            if changes.changed().await.is_err() {
                // The registry lives as long as the server.
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::time::timeout(RUNNER_PATIENCE, online)
        .await
        .map_err(|_| anyhow::anyhow!("the runner did not connect; see runner.log in the data directory"))
}

fn hello(url: &str, key: &SecretString, agent: &Agent, data_dir: &Path) -> String {
    let key = key.expose_secret();
    // Whoever just ran `cargo run` has no `fountain` on the PATH.
    let program = std::env::current_exe()
        .ok()
        .and_then(|path| path.to_str().map(str::to_owned));
    let program = program
        .filter(|path| !path.contains(' '))
        .unwrap_or_else(|| "fountain".to_owned());
    format!(
        "\nFountain is ready.\n\n  URL      {url}\n  API key  {key}\n  data     {}\n\nThree things to try:\n\n  \
         1. export FOUNTAIN_BASE_URL={url} FOUNTAIN_API_KEY={key}\n     {program} run \"run: uname -a\" --agent demo\n\n  \
         2. curl -s -H \"Authorization: Bearer $FOUNTAIN_API_KEY\" {url}/api/agents\n\n  \
         3. curl -s -H \"Authorization: Bearer $FOUNTAIN_API_KEY\" -H 'Content-Type: application/json' \\\n       \
         {url}/api/conversations -d '{{\"agent_id\":\"{}\",\"prompt\":\"hello\"}}'\n\nCtrl-C stops it; the data stays.\n",
        data_dir.display(),
        agent.id
    )
}

/// The page at `GET /`, until there is a dashboard.
pub fn landing(url: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Fountain</title>\
         <body style=\"font-family:system-ui;max-width:44rem;margin:3rem auto;padding:0 1rem;line-height:1.5\">\
         <h1>Fountain</h1><p>The server is running at <code>{url}</code>. Three things to try, with the key that was \
         printed at the start:</p><ol>\
         <li><pre>export FOUNTAIN_BASE_URL={url} FOUNTAIN_API_KEY=ftn_…\nfountain run \"run: uname -a\" --agent demo</pre></li>\
         <li><pre>curl -s -H \"Authorization: Bearer $FOUNTAIN_API_KEY\" {url}/api/agents</pre></li>\
         <li><pre>curl -s -H \"Authorization: Bearer $FOUNTAIN_API_KEY\" -H 'Content-Type: application/json' \\\n  \
         {url}/api/conversations -d '{{\"agent_id\":\"…\",\"prompt\":\"hello\"}}'</pre></li></ol>\
         <p><a href=\"/health/ready\">readiness</a></p></body></html>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_a_quote_cannot_leave_its_quotes() {
        assert_eq!(
            demo_command(Path::new("/a b/it's")).unwrap(),
            r"exec '/a b/it'\''s' demo-agent"
        );
    }

    #[test]
    fn rul_59_the_caps_of_dev_do_not_stop_the_twenty_first_conversation() {
        let settings = settings();
        assert_eq!((settings.cap_ceiling, settings.fleet_ceiling), (200, 200));
        assert_eq!(settings.default_provider, Provider::Runner);
    }
}
