//! `fountain conversations`: list, look, prompt, follow, answer, stop.

use awc::http::Method;
use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, ClientError};
use super::resources::{done, escape, show};
use super::{Context, Exit, render, run};

#[derive(Debug, Subcommand)]
pub enum ConversationCommand {
    /// List them, newest first.
    #[command(alias = "ls")]
    List {
        /// Only these statuses, comma separated.
        #[arg(long)]
        status: Option<String>,
    },
    /// Print one and its turns.
    #[command(alias = "show")]
    Get { id: String },
    /// Create one from a JSON file (`-` reads standard input).
    Create {
        #[arg(long)]
        file: String,
    },
    /// Send the next prompt and follow its turn.
    Prompt { id: String, prompt: String },
    /// Follow its stream from now on.
    Stream { id: String },
    /// Stop the running turn.
    Interrupt { id: String },
    /// Answer a permission request of its agent.
    Answer {
        id: String,
        request: String,
        option: String,
    },
    /// End it; its machine goes unless others use it.
    Terminate { id: String },
    /// Delete it with its history.
    #[command(alias = "rm")]
    Delete { id: String },
}

const COLUMNS: &[(&str, &str)] = &[
    ("ID", "id"),
    ("STATUS", "status"),
    ("RUNTIME", "runtime"),
    ("TURNS", "turn_count"),
    ("UPDATED", "updated_at"),
    ("TITLE", "title"),
];

pub async fn conversations(context: Context, command: ConversationCommand) -> anyhow::Result<Exit> {
    let client = Client::new(&context)?;
    let path = |id: &str, rest: &str| format!("/api/conversations/{}{rest}", escape(id));
    match command {
        ConversationCommand::List { status } => {
            let query = status
                .map(|words| format!("?status={}", escape(&words)))
                .unwrap_or_default();
            let rows = client.get(&format!("/api/conversations{query}")).await?;
            match rows.as_array() {
                Some(rows) if !context.json => render::table(rows, COLUMNS),
                _ => render::json(&rows),
            }
            Ok(Exit::Ok)
        }
        ConversationCommand::Get { id } => {
            let mut one = client.get(&path(&id, "")).await?;
            let turns = client.get(&path(&id, "/turns")).await?;
            if context.json {
                if let Some(object) = one.as_object_mut() {
                    object.insert("turns".to_owned(), turns);
                }
                render::json(&one);
            } else {
                render::object(&one);
                render::line("");
                let columns = [
                    ("TURN", "turn_number"),
                    ("STATUS", "status"),
                    ("EXIT", "exit_code"),
                    ("PROMPT", "prompt"),
                ];
                render::table(turns.as_array().map(Vec::as_slice).unwrap_or_default(), &columns);
            }
            Ok(Exit::Ok)
        }
        ConversationCommand::Create { file } => {
            let text = if file == "-" {
                std::io::read_to_string(std::io::stdin())?
            } else {
                std::fs::read_to_string(&file)?
            };
            let made = client
                .post("/api/conversations", &serde_json::from_str::<Value>(&text)?)
                .await?;
            show(&context, &super::client::data(made));
            Ok(Exit::Ok)
        }
        ConversationCommand::Prompt { id, prompt } => {
            let head = head(&client, &id).await?;
            client
                .post(&path(&id, "/prompts"), &json!({"prompt": prompt, "images": []}))
                .await?;
            run::follow(&context, &client, &id, head).await
        }
        ConversationCommand::Stream { id } => {
            let head = head(&client, &id).await?;
            run::follow(&context, &client, &id, head).await
        }
        ConversationCommand::Interrupt { id } => match client.post(&path(&id, "/interrupt"), &json!({})).await {
            Ok(_) => done(&context, "the turn is interrupted"),
            Err(ClientError::Api { status: 409, .. }) => done(&context, "no turn is running"),
            Err(error) => Err(error.into()),
        },
        ConversationCommand::Answer { id, request, option } => {
            let path = path(&id, &format!("/requests/{}", escape(&request)));
            client.post(&path, &json!({"option_id": option})).await?;
            done(&context, "answered")
        }
        ConversationCommand::Terminate { id } => {
            client.post(&path(&id, "/terminate"), &json!({})).await?;
            done(&context, "the conversation has ended")
        }
        ConversationCommand::Delete { id } => {
            client.call(Method::DELETE, &path(&id, ""), None).await?;
            done(&context, "the conversation is deleted")
        }
    }
}

/// The newest event id, so that a follow shows what comes and not what was.
async fn head(client: &Client, id: &str) -> anyhow::Result<i64> {
    let mut after = 0;
    loop {
        let path = format!("/api/conversations/{}/events?limit=1000&after={after}", escape(id));
        let page = client.call(Method::GET, &path, None).await?;
        after = page
            .pointer("/meta/next_cursor")
            .and_then(Value::as_i64)
            .unwrap_or(after);
        if page.pointer("/meta/has_more").and_then(Value::as_bool) != Some(true) {
            return Ok(after);
        }
    }
}
