//! Lists, single objects and deletes of what users configure; reset of a sandbox.

use awc::http::Method;
use clap::Subcommand;
use serde_json::{Value, json};

use super::client::Client;
use super::{Context, Exit, render};

/// One collection of the API and how it is shown.
#[derive(Clone, Copy)]
pub struct Resource {
    pub what: &'static str,
    pub path: &'static str,
    pub columns: &'static [(&'static str, &'static str)],
}

pub const AGENTS: Resource = Resource {
    what: "agent",
    path: "/api/agents",
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("RUNTIME", "runtime"),
        ("MODEL", "model"),
        ("PROVIDER", "sandbox_provider"),
    ],
};
pub const ENVIRONMENTS: Resource = Resource {
    what: "environment",
    path: "/api/environments",
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("NETWORK", "networking_type"),
        ("SECRETS", "secret_count"),
    ],
};
pub const VAULTS: Resource = Resource {
    what: "vault",
    path: "/api/vaults",
    columns: &[("ID", "id"), ("NAME", "name"), ("SECRETS", "secret_count")],
};
pub const SANDBOXES: Resource = Resource {
    what: "sandbox",
    path: "/api/sandboxes",
    columns: &[
        ("ID", "id"),
        ("STATUS", "status"),
        ("PROVIDER", "provider"),
        ("MODE", "mode"),
        ("NAME", "sprite_name"),
    ],
};
pub const RUNNERS: Resource = Resource {
    what: "runner",
    path: "/api/runners",
    columns: &[
        ("ID", "id"),
        ("NAME", "name"),
        ("ONLINE", "online"),
        ("HOST", "hostname"),
        ("LAST SEEN", "last_seen_at"),
    ],
};

#[derive(Debug, Subcommand)]
pub enum Plain {
    /// List them.
    #[command(alias = "ls")]
    List,
    /// Print one, by id or name.
    #[command(alias = "show")]
    Get { name: String },
    /// Create one from a JSON file (`-` reads standard input).
    Create {
        #[arg(long)]
        file: String,
    },
    /// Delete one, by id or name.
    #[command(alias = "rm")]
    Delete { name: String },
}

#[derive(Debug, Subcommand)]
pub enum Listed {
    /// List them.
    #[command(alias = "ls")]
    List,
    /// Print one, by id or name.
    #[command(alias = "show")]
    Get { name: String },
    /// Delete one, by id or name.
    #[command(alias = "rm")]
    Delete { name: String },
}

#[derive(Debug, Subcommand)]
pub enum VaultCommand {
    /// List them.
    #[command(alias = "ls")]
    List,
    /// Print one, by id or name.
    #[command(alias = "show")]
    Get { name: String },
    /// Create one.
    Create { name: String },
    /// Delete one, by id or name.
    #[command(alias = "rm")]
    Delete { name: String },
    /// Set a secret; its value is read from standard input.
    SetSecret { name: String, key: String },
    /// Delete a secret.
    DeleteSecret { name: String, key: String },
}

#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// List them, terminated ones included.
    #[command(alias = "ls")]
    List {
        /// Only these statuses, comma separated.
        #[arg(long)]
        status: Option<String>,
    },
    /// Print one, by id.
    #[command(alias = "show")]
    Get { id: String },
    /// Destroy a persistent machine and keep its conversations.
    #[command(alias = "delete")]
    Reset { id: String },
}

pub async fn plain(context: Context, resource: Resource, command: Plain) -> anyhow::Result<Exit> {
    match command {
        Plain::List => list(&context, resource, "").await,
        Plain::Get { name } => get(&context, resource, &name).await,
        Plain::Create { file } => {
            let text = if file == "-" {
                std::io::read_to_string(std::io::stdin())?
            } else {
                std::fs::read_to_string(&file)?
            };
            let body: Value = serde_json::from_str(&text)?;
            let made = Client::new(&context)?.post(resource.path, &body).await?;
            show(&context, &super::client::data(made));
            Ok(Exit::Ok)
        }
        Plain::Delete { name } => delete(&context, resource, &name).await,
    }
}

pub async fn listed(context: Context, resource: Resource, command: Listed) -> anyhow::Result<Exit> {
    match command {
        Listed::List => list(&context, resource, "").await,
        Listed::Get { name } => one_of_list(&context, resource, &name).await,
        Listed::Delete { name } => delete(&context, resource, &name).await,
    }
}

pub async fn vaults(context: Context, command: VaultCommand) -> anyhow::Result<Exit> {
    match command {
        VaultCommand::List => list(&context, VAULTS, "").await,
        VaultCommand::Get { name } => get(&context, VAULTS, &name).await,
        VaultCommand::Delete { name } => delete(&context, VAULTS, &name).await,
        VaultCommand::Create { name } => {
            let made = Client::new(&context)?.post(VAULTS.path, &json!({"name": name})).await?;
            show(&context, &super::client::data(made));
            Ok(Exit::Ok)
        }
        VaultCommand::SetSecret { name, key } => {
            let client = Client::new(&context)?;
            let id = client.resolve(VAULTS.path, VAULTS.what, &name).await?;
            let value = std::io::read_to_string(std::io::stdin())?;
            let value = value.strip_suffix('\n').unwrap_or(&value);
            client
                .post(
                    &format!("{}/{id}/secrets", VAULTS.path),
                    &json!({"key": key, "value": value}),
                )
                .await?;
            done(&context, &format!("{key} is set"))
        }
        VaultCommand::DeleteSecret { name, key } => {
            let client = Client::new(&context)?;
            let id = client.resolve(VAULTS.path, VAULTS.what, &name).await?;
            client
                .call(
                    Method::DELETE,
                    &format!("{}/{id}/secrets/{}", VAULTS.path, escape(&key)),
                    None,
                )
                .await?;
            done(&context, &format!("{key} is deleted"))
        }
    }
}

pub async fn sandboxes(context: Context, command: SandboxCommand) -> anyhow::Result<Exit> {
    match command {
        SandboxCommand::List { status } => {
            let query = status
                .map(|words| format!("?status={}", escape(&words)))
                .unwrap_or_default();
            list(&context, SANDBOXES, &query).await
        }
        SandboxCommand::Get { id } => get(&context, SANDBOXES, &id).await,
        SandboxCommand::Reset { id } => {
            let path = format!("{}/{}", SANDBOXES.path, escape(&id));
            Client::new(&context)?.call(Method::DELETE, &path, None).await?;
            done(&context, "the sandbox is reset; its conversations are kept")
        }
    }
}

/// Everything but unreserved characters is escaped.
pub fn escape(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes())
        .collect::<String>()
        .replace('+', "%20")
}

async fn list(context: &Context, resource: Resource, query: &str) -> anyhow::Result<Exit> {
    let rows = Client::new(context)?.get(&format!("{}{query}", resource.path)).await?;
    match rows.as_array() {
        Some(rows) if !context.json => render::table(rows, resource.columns),
        _ => render::json(&rows),
    }
    Ok(Exit::Ok)
}

async fn get(context: &Context, resource: Resource, name: &str) -> anyhow::Result<Exit> {
    let client = Client::new(context)?;
    let id = client.resolve(resource.path, resource.what, name).await?;
    show(context, &client.get(&format!("{}/{id}", resource.path)).await?);
    Ok(Exit::Ok)
}

/// For collections without a route for one.
async fn one_of_list(context: &Context, resource: Resource, name: &str) -> anyhow::Result<Exit> {
    let client = Client::new(context)?;
    let id = client.resolve(resource.path, resource.what, name).await?;
    let rows = client.get(resource.path).await?;
    let row = rows
        .as_array()
        .into_iter()
        .flatten()
        .find(|row| row.get("id").and_then(Value::as_str) == Some(&id));
    let row = row.ok_or_else(|| anyhow::anyhow!("there is no {} {id}", resource.what))?;
    show(context, row);
    Ok(Exit::Ok)
}

async fn delete(context: &Context, resource: Resource, name: &str) -> anyhow::Result<Exit> {
    let client = Client::new(context)?;
    let id = client.resolve(resource.path, resource.what, name).await?;
    client
        .call(Method::DELETE, &format!("{}/{id}", resource.path), None)
        .await?;
    done(context, &format!("{} {id} is deleted", resource.what))
}

pub fn show(context: &Context, value: &Value) {
    if context.json {
        render::json(value)
    } else {
        render::object(value)
    }
}

pub fn done(context: &Context, text: &str) -> anyhow::Result<Exit> {
    if context.json {
        render::json(&json!({"ok": true}))
    } else {
        render::line(text)
    }
    Ok(Exit::Ok)
}
