//! `fountain account`: the first account of a server (RUL-61). Opens the database and nothing else.

use std::sync::Arc;

use clap::Subcommand;
use fountain_actors::domain::AccountId;
use fountain_actors::ports::store::AccountStore;
use fountain_actors::ports::store::accounts::NewAccount;
use fountain_actors::ports::{Clock, Rng};
use secrecy::ExposeSecret;
use serde_json::json;

use super::{Context, DatabaseArgs, Exit, render, serve};
use crate::server::{self, SystemClock, SystemRng};
use crate::telemetry::Metrics;

#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// Create a verified account and print one key of full scope, once. The first account is the administrator.
    Create {
        #[arg(long)]
        email: String,
        #[command(flatten)]
        database: DatabaseArgs,
    },
}

pub async fn account(context: Context, command: AccountCommand) -> anyhow::Result<Exit> {
    let AccountCommand::Create { email, database } = command;
    let email = email.trim().to_owned();
    let well_formed = email
        .split_once('@')
        .is_some_and(|(local, host)| !local.is_empty() && host.contains('.'));
    anyhow::ensure!(
        well_formed && !email.contains(char::is_whitespace),
        "{email:?} is no e-mail address"
    );
    let (database, key) = serve::database(&context, &database)?;
    let store = server::open_store(&database, &key, &Arc::new(Metrics::default()))?;
    serve::bring_up_to_date(&context, &store).await?;
    let now = SystemClock.now();
    let account = store
        .create_account(NewAccount {
            id: AccountId(SystemRng.uuid()),
            email: Some(email.clone()),
            email_verified_at: Some(now),
            is_admin: store.count_accounts().await? == 0,
            now,
        })
        .await?;
    let key = server::mint_full_key(&store, &account, "account create").await?;
    if context.json {
        render::json(&json!({"account_id": account.id, "email": email, "api_key": key.expose_secret()}));
    } else {
        render::line(&format!("account {} ({email})", account.id));
        render::line(&format!("API key, shown once: {}", key.expose_secret()));
    }
    Ok(Exit::Ok)
}
