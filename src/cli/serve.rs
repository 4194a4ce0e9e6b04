//! `fountain serve` and `fountain migrate` (RUL-60).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use fountain_actors::directory::ShutdownKind;
use fountain_actors::domain::settings::Settings;
use secrecy::SecretString;
use serde_json::json;

use super::data_dir::{Connection, DataDir};
use super::{Context, DatabaseArgs, Exit, render};
use crate::config::{self, ConfigError, Database};
use crate::daemon::termination;
use crate::server::{self, Server, ServerConfig};
use crate::store::SqlStore;
use crate::telemetry::Metrics;

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address to listen on; default 0.0.0.0 and PORT (4000), with --data-dir 127.0.0.1:4000.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Data directory that `fountain dev` made; without it DATABASE_URL and MASTER_SECRETS_KEY are needed.
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Which database and key, by flag or environment.
pub fn database(context: &Context, args: &DatabaseArgs) -> anyhow::Result<(Database, SecretString)> {
    match &args.data_dir {
        Some(path) => {
            let dir = DataDir::open(path)?;
            Ok((dir.database(&context.env)?, dir.master_key()?))
        }
        None => Ok((Database::from(&context.env)?, config::master_key(&context.env)?)),
    }
}

/// Migrates, or checks that somebody did; refuses a master key that does not fit (RUL-58).
pub async fn bring_up_to_date(context: &Context, store: &SqlStore) -> anyhow::Result<()> {
    if config::migrate_on_boot(&context.env)? {
        for name in store.migrate().await? {
            tracing::info!("applied migration {name}");
        }
    } else if let Some(name) = store.pending_migrations().await?.first() {
        tracing::warn!("MIGRATE_ON_BOOT is off and migration {name} is pending; run `fountain migrate`");
        return Ok(());
    }
    // With another key every secret would fail one by one, at the first launch that needs it.
    anyhow::ensure!(
        store.master_key_opens().await?,
        "the master key is not the one under which this database keeps its secrets; put the right one back \
         (MASTER_SECRETS_KEY, or master.key in the data directory)"
    );
    Ok(())
}

pub async fn serve(context: Context, args: ServeArgs) -> anyhow::Result<Exit> {
    let stop = termination()?;
    let dir = args.data_dir.as_deref().map(DataDir::open).transpose()?;
    let (database, key) = database(
        &context,
        &DatabaseArgs {
            data_dir: args.data_dir.clone(),
        },
    )?;
    let metrics = Arc::new(Metrics::default());
    let store = server::open_store(&database, &key, &metrics)?;
    let lock = store.serving_lock()?;
    bring_up_to_date(&context, &store).await?;
    let public_url = config::public_url(&context.env);
    if dir.is_none() && public_url.is_none() {
        let wanted =
            "the address under which machines and people reach this server, for example https://fountain.example";
        return Err(ConfigError::Missing {
            name: "PUBLIC_URL",
            wanted,
        }
        .into());
    }
    let base = if dir.is_some() {
        super::dev::settings()
    } else {
        Settings::default()
    };
    let listen = match args.listen {
        Some(listen) => listen,
        None if dir.is_some() => SocketAddr::from(([127, 0, 0, 1], 4000)),
        None => config::listen(&context.env)?,
    };
    let config = ServerConfig {
        listen,
        public_url,
        settings: config::settings(&context.env, base)?,
        metrics_port: config::metrics_port(&context.env)?,
        sprites: config::sprites(&context.env)?,
        node: config::node_name(&context.env),
        landing: super::dev::landing,
    };
    let server = Server::start(config, store, lock, metrics).await?;
    if let Some(dir) = &dir
        && let Some(connection) = dir.connection()
    {
        // A runner that outlived `dev` finds its server again (RUL-60).
        let connection = Connection {
            url: server.url.clone(),
            ..connection
        };
        if let Err(error) = dir.write_connection(&connection) {
            server.stop(ShutdownKind::Drain).await;
            return Err(error);
        }
    }
    if context.json {
        render::json(&json!({"url": server.url}));
    } else {
        render::line(&format!("fountain serves on {}", server.url));
    }
    stop.await;
    tracing::info!("stopping; running turns go on at their provider");
    server.stop(ShutdownKind::Drain).await;
    Ok(Exit::Ok)
}

pub async fn migrate(context: Context, args: MigrateArgs) -> anyhow::Result<Exit> {
    let database = match &args.database.data_dir {
        Some(path) => DataDir::open(path)?.database(&context.env)?,
        None => Database::from(&context.env)?,
    };
    // The schema needs no key, so a migration job needs none either.
    let key = crate::store::secrets::MasterKey::generate(&server::SystemRng);
    let store = server::open_store(&database, &key, &Arc::new(Metrics::default()))?;
    let applied = store.migrate().await?;
    if context.json {
        render::json(&json!({"applied": applied}));
    } else if applied.is_empty() {
        render::line("nothing to do: the schema is up to date");
    } else {
        render::line(&format!("applied {}", applied.join(", ")));
    }
    Ok(Exit::Ok)
}
