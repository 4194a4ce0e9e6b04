//! `fountain run "prompt"`: a launch, then the turn streamed to the terminal (DESIGN 10, http-api 6.5).

use std::io::IsTerminal;
use std::time::Duration;

use awc::http::{Method, StatusCode};
use clap::Args;
use futures_util::StreamExt;
use serde_json::Value;

use super::client::{Client, ClientError, data, refusal};
use super::sse::{Decoder, Frame};
use super::{Context, Exit, render};

#[derive(Debug, Args)]
pub struct RunArgs {
    /// What to do; `-` reads it from standard input.
    prompt: String,
    /// Agent, by id or name. Without it, the account's only agent.
    #[arg(long)]
    agent: Option<String>,
    /// Environment, by id or name; overrides the agent's.
    #[arg(long, visible_alias = "env")]
    environment: Option<String>,
    /// Vault, by id or name.
    #[arg(long)]
    vault: Option<String>,
    /// Title of the conversation.
    #[arg(long)]
    title: Option<String>,
    /// Do not wait: print the conversation and leave it running.
    #[arg(long)]
    detach: bool,
}

pub async fn run(context: Context, args: RunArgs) -> anyhow::Result<Exit> {
    if context.variables.plain {
        render::without_colours();
    }
    let client = Client::new(&context)?;
    let prompt = if args.prompt == "-" {
        std::io::read_to_string(std::io::stdin())?
    } else {
        args.prompt
    };
    let agent = match args.agent {
        Some(name) => client.resolve("/api/agents", "agent", &name).await?,
        None => only_agent(&client).await?,
    };
    let mut body = serde_json::Map::from_iter([
        ("agent_id".to_owned(), Value::from(agent)),
        ("prompt".to_owned(), prompt.into()),
        ("title".to_owned(), args.title.into()),
    ]);
    if let Some(name) = args.environment {
        let id = client.resolve("/api/environments", "environment", &name).await?;
        body.insert("environment_id".to_owned(), id.into());
    }
    if let Some(name) = args.vault {
        let id = client.resolve("/api/vaults", "vault", &name).await?;
        body.insert("vault_id".to_owned(), id.into());
    }
    let conversation = data(client.post("/api/conversations", &Value::Object(body)).await?);
    let id = conversation
        .get("id")
        .and_then(Value::as_str)
        .ok_or(ClientError::NotTheApi)?
        .to_owned();
    if args.detach {
        if context.json {
            render::json(&conversation)
        } else {
            render::line(&id)
        }
        return Ok(Exit::Ok);
    }
    if !context.json {
        render::note(&format!("conversation {id}"), render::Colour::Dim);
    }
    follow(&context, &client, &id, 0).await
}

async fn only_agent(client: &Client) -> anyhow::Result<String> {
    let list = client.get("/api/agents").await?;
    match list.as_array().map(Vec::as_slice) {
        Some([one]) => Ok(one.get("id").and_then(Value::as_str).unwrap_or_default().to_owned()),
        Some([]) => {
            anyhow::bail!("this account has no agent yet; create one with `fountain agents create --file agent.json`")
        }
        _ => anyhow::bail!("this account has several agents; name one with --agent (see `fountain agents list`)"),
    }
}

/// Follows a conversation from an event id to the end of its turn, over dropped connections and restarts.
pub async fn follow(context: &Context, client: &Client, id: &str, after: i64) -> anyhow::Result<Exit> {
    let mut view = View {
        json: context.json,
        terminal: std::io::stdout().is_terminal(),
        open_line: false,
    };
    let mut cursor = after;
    let mut heard = tokio::time::Instant::now();
    loop {
        match connect(client, id, cursor).await {
            Ok(mut response) => {
                let mut decoder = Decoder::default();
                while let Ok(Some(Ok(chunk))) = tokio::time::timeout(Duration::from_secs(60), response.next()).await {
                    for frame in decoder.feed(&chunk) {
                        heard = tokio::time::Instant::now();
                        cursor = frame.id.unwrap_or(cursor).max(cursor);
                        if let Some(exit) = view.show(&frame) {
                            view.finish();
                            return Ok(exit);
                        }
                    }
                    if heard.elapsed() > context.variables.stream_idle {
                        break;
                    }
                }
            }
            // A refusal does not get better by asking again; everything else may.
            Err(
                error @ ClientError::Api {
                    status: 401 | 403 | 404,
                    ..
                },
            ) => return Err(error.into()),
            Err(error) => tracing::debug!("the stream of {id} could not be opened: {error}"),
        }
        if heard.elapsed() > context.variables.stream_idle {
            view.finish();
            render::note(
                "nothing was heard for too long; the conversation may still run",
                render::Colour::Red,
            );
            return Ok(Exit::Silent);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn connect(client: &Client, id: &str, cursor: i64) -> Result<awc::ClientResponse, ClientError> {
    let mut request = client
        .request(Method::GET, &format!("/api/conversations/{id}/stream"))
        .insert_header(("Accept", "text/event-stream"));
    if cursor > 0 {
        request = request.insert_header(("Last-Event-ID", cursor.to_string()));
    }
    let sent = tokio::time::timeout(Duration::from_secs(30), request.send())
        .await
        .map_err(|_| client.unreachable("the stream did not open"))?;
    let mut response = sent.map_err(|error| client.unreachable(&error.to_string()))?;
    if response.status() == StatusCode::OK {
        return Ok(response);
    }
    let status = response.status();
    let bytes = response.body().await.unwrap_or_default();
    Err(refusal(status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}

/// What the terminal shows of a stream.
struct View {
    json: bool,
    terminal: bool,
    /// Text was printed that did not end its line.
    open_line: bool,
}

impl View {
    /// Shows one frame; answers how the command ends, when this frame ends it.
    fn show(&mut self, frame: &Frame) -> Option<Exit> {
        let text = |key: &str| frame.data.get(key).and_then(Value::as_str).unwrap_or_default();
        if self.json {
            let mut object = frame.data.clone();
            if let Some(object) = object.as_object_mut() {
                object.insert("id".to_owned(), frame.id.into());
            }
            render::json(&object);
        }
        if frame.event == "output" {
            if !self.json {
                self.output(text("stream"), text("data"));
            }
            return None;
        }
        let meta: Value = serde_json::from_str(text("data")).unwrap_or(Value::Null);
        let (stage, state) = (text("stage"), text("state"));
        if !self.json {
            self.stage(stage, state, &meta);
        }
        verdict(stage, state, &meta)
    }

    fn output(&mut self, stream: &str, text: &str) {
        if stream != "acp" {
            self.break_line();
            render::note(text.trim_end(), render::Colour::Dim);
            return;
        }
        for line in text.lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            if message.get("method").and_then(Value::as_str) == Some("session/request_permission") {
                self.permission(&message);
                continue;
            }
            let Some(update) = message.pointer("/params/update") else {
                continue;
            };
            let content = update.pointer("/content/text").and_then(Value::as_str);
            match update.get("sessionUpdate").and_then(Value::as_str) {
                Some("agent_message_chunk") => {
                    if let Some(text) = content {
                        render::piece(text);
                        self.open_line = !text.ends_with('\n');
                    }
                }
                Some("agent_thought_chunk") => {
                    if let Some(text) = content {
                        self.break_line();
                        render::note(text.trim_end(), render::Colour::Dim);
                    }
                }
                Some("tool_call") => {
                    let title = update
                        .get("title")
                        .or_else(|| update.get("kind"))
                        .and_then(Value::as_str);
                    self.break_line();
                    render::note(&format!("→ {}", title.unwrap_or("tool")), render::Colour::Cyan);
                }
                Some("tool_call_update") if update.get("status").and_then(Value::as_str) == Some("failed") => {
                    self.break_line();
                    render::note("  the tool failed", render::Colour::Red);
                }
                _ => {}
            }
        }
    }

    fn permission(&mut self, message: &Value) {
        self.break_line();
        let title = message
            .pointer("/params/toolCall/title")
            .and_then(Value::as_str)
            .unwrap_or("a tool");
        let id = message
            .get("id")
            .map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned))
            .unwrap_or_default();
        render::note(
            &format!("? the agent asks for permission: {title} (request {id})"),
            render::Colour::Cyan,
        );
        let options = message.pointer("/params/options").and_then(Value::as_array);
        for option in options.into_iter().flatten() {
            let text = |key: &str| option.get(key).and_then(Value::as_str).unwrap_or_default();
            render::note(
                &format!("    {}  {}", text("optionId"), text("name")),
                render::Colour::Plain,
            );
        }
        render::note(
            "  answer with `fountain conversations answer CONVERSATION REQUEST OPTION`",
            render::Colour::Dim,
        );
    }

    fn stage(&mut self, stage: &str, state: &str, meta: &Value) {
        self.break_line();
        let why = meta
            .get("message")
            .or_else(|| meta.get("reason"))
            .or_else(|| meta.get("stop_reason"));
        let why = why
            .and_then(Value::as_str)
            .map(|why| format!(" ({why})"))
            .unwrap_or_default();
        let colour = match state {
            "failed" => render::Colour::Red,
            "done" if stage == "turn" => render::Colour::Green,
            _ => render::Colour::Dim,
        };
        render::note(&format!("· {stage} {state}{why}"), colour);
    }

    fn break_line(&mut self) {
        if self.open_line && self.terminal {
            render::piece("\n");
            self.open_line = false;
        }
    }

    fn finish(&mut self) {
        if self.open_line && !self.json {
            render::piece("\n");
            self.open_line = false;
        }
    }
}

/// The end states of the published CLI (http-api 6.5).
fn verdict(stage: &str, state: &str, meta: &Value) -> Option<Exit> {
    match (stage, state) {
        ("turn", "done") => {
            let code = meta.get("exit_code").and_then(Value::as_i64).unwrap_or(0);
            Some(if code == 0 { Exit::Ok } else { Exit::Failed })
        }
        ("turn", "interrupted") | ("terminate", "done") => Some(Exit::Ok),
        ("sandbox", "done") if meta.get("reason").and_then(Value::as_str) == Some("max_lifetime") => Some(Exit::Failed),
        ("turn" | "provision" | "reattach", "failed") => Some(Exit::Failed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_end_states_of_http_api_6_5() {
        assert_eq!(verdict("turn", "done", &json!({})), Some(Exit::Ok));
        assert_eq!(verdict("turn", "done", &json!({"exit_code": 3})), Some(Exit::Failed));
        assert_eq!(verdict("turn", "interrupted", &json!({})), Some(Exit::Ok));
        assert_eq!(verdict("provision", "failed", &json!({})), Some(Exit::Failed));
        assert_eq!(verdict("reattach", "failed", &json!({})), Some(Exit::Failed));
        assert_eq!(
            verdict("sandbox", "done", &json!({"reason": "max_lifetime"})),
            Some(Exit::Failed)
        );
        assert_eq!(verdict("sandbox", "done", &json!({"event": "suspended"})), None);
        assert_eq!(verdict("turn", "started", &json!({})), None);
    }
}
