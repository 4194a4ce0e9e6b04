//! `fountain audit`: whether a database keeps what we promise (DESIGN 9). For tests and for whoever suspects a fault.
//!
//! Reads and never writes, also beside a server that runs. Exits with 1 when a row breaks a law, naming law and row.

use std::sync::Arc;

use clap::Args;
use serde_json::json;

use super::data_dir::DataDir;
use super::{Context, DatabaseArgs, Exit, render, serve};
use crate::config::Database;
use crate::server;
use crate::store::secrets::MasterKey;
use crate::telemetry::Metrics;

#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(flatten)]
    database: DatabaseArgs,
}

pub async fn audit(context: Context, args: AuditArgs) -> anyhow::Result<Exit> {
    let (database, key) = match serve::database(&context, &args.database) {
        Ok(both) => both,
        // Rows can be looked at without the key; only the search for secrets needs it.
        Err(_) => {
            let database = match &args.database.data_dir {
                Some(path) => DataDir::open(path)?.database(&context.env)?,
                None => Database::from(&context.env)?,
            };
            (database, MasterKey::generate(&server::SystemRng))
        }
    };
    let store = server::open_store(&database, &key, &Arc::new(Metrics::default()))?;
    if let Some(pending) = store.pending_migrations().await?.first() {
        anyhow::bail!("migration {pending} is pending; run `fountain migrate` first");
    }
    let violations = store.audit_rows(Vec::new()).await?;
    if context.json {
        render::json(&json!({"violations": violations}));
    } else if violations.is_empty() {
        render::line("every row keeps what is promised");
    } else {
        for violation in &violations {
            render::line(&violation.to_string());
        }
    }
    Ok(if violations.is_empty() { Exit::Ok } else { Exit::Failed })
}
