//! `fountain auth`: keys into the credentials file, and who they belong to.

use anyhow::Context as _;
use clap::Subcommand;
use secrecy::SecretString;
use serde_json::json;

use super::client::Client;
use super::{Context, Exit, profile, render};

#[derive(Debug, Subcommand)]
pub enum AuthCommand {
    /// Check a key against the server and keep it in ~/.fountain/credentials.
    Login {
        /// The key; without it, it is read from standard input, so that it stays out of the shell's history.
        #[arg(long)]
        api_key: Option<String>,
        /// The server; default: FOUNTAIN_BASE_URL, the profile's, or http://127.0.0.1:4000.
        #[arg(long)]
        base_url: Option<String>,
    },
    /// Print whose key is in use.
    Whoami,
}

pub async fn auth(context: Context, command: AuthCommand) -> anyhow::Result<Exit> {
    match command {
        AuthCommand::Login { api_key, base_url } => login(context, api_key, base_url).await,
        AuthCommand::Whoami => {
            let client = Client::new(&context)?;
            let me = client.get("/api/auth/me").await?;
            if context.json {
                render::json(&me)
            } else {
                render::object(&me)
            }
            Ok(Exit::Ok)
        }
    }
}

async fn login(context: Context, api_key: Option<String>, base_url: Option<String>) -> anyhow::Result<Exit> {
    let name = context.profile.as_deref().unwrap_or(profile::DEFAULT);
    let home = context
        .variables
        .home
        .as_deref()
        .context("HOME is not set, so there is nowhere to keep the key")?;
    let stored = profile::load(Some(home), name)?;
    let base = base_url
        .or_else(|| context.variables.base_url.clone())
        .or(stored.base_url)
        .unwrap_or_else(|| "http://127.0.0.1:4000".to_owned());
    let base = base.trim_end_matches('/').to_owned();
    let key: SecretString = match api_key {
        Some(key) => key.into(),
        None => {
            render::note("API key (ftn_…):", render::Colour::Cyan);
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).context("no key could be read")?;
            line.trim().to_owned().into()
        }
    };
    let client = Client::at(base.clone(), key.clone(), None);
    let me = client.get("/api/auth/me").await?;
    profile::store(home, name, &base, &key)?;
    let email = me
        .get("email")
        .and_then(|email| email.as_str())
        .unwrap_or("an account without address");
    if context.json {
        render::json(&json!({"profile": name, "base_url": base, "email": me.get("email")}));
    } else {
        render::line(&format!("signed in at {base} as {email} (profile {name})"));
    }
    Ok(Exit::Ok)
}
