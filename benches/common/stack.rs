//! The system under test: `fountain dev` on a data directory of its own, or `fountain serve` on PostgreSQL with a
//! runner of its own; then conversations with the demo agent on it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::http::{Client, Events, Frame};
use super::process::{FOUNTAIN, Process, fountain, free_port};
use super::{PATIENCE, until};

pub struct Stack {
    pub address: SocketAddr,
    pub key: String,
    pub agent: String,
    metrics: SocketAddr,
    /// Where `dev` keeps its database.
    pub database: PathBuf,
    server: Process,
    _runner: Option<Process>,
    folder: tempfile::TempDir,
}

fn address_of(url: &str) -> anyhow::Result<SocketAddr> {
    let authority = url.strip_prefix("http://").context("the URL is http")?;
    Ok(authority.trim_end_matches('/').parse()?)
}

/// Where the server of a greeting listens.
pub fn address(greeting: &Value) -> anyhow::Result<SocketAddr> {
    address_of(&text(greeting, "url")?)
}

fn text(value: &Value, key: &str) -> anyhow::Result<String> {
    let found = value.get(key).and_then(Value::as_str);
    Ok(found.with_context(|| format!("no {key} in {value}"))?.to_owned())
}

impl Stack {
    /// Makes a data directory as `dev` leaves it.
    pub fn prepare(home: &Path, data: &Path) -> anyhow::Result<()> {
        let mut command = fountain(home);
        command
            .args(["dev", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data);
        Process::start("dev", home, command)?.greeting()?;
        Ok(())
    }

    /// Everything on SQLite, as a newcomer starts it.
    pub fn dev() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        Self::dev_in(folder, &data)
    }

    /// The same on this data directory.
    pub fn dev_in(folder: tempfile::TempDir, data: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let mut command = fountain(folder.path());
        command
            .args(["dev", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            .env("METRICS_PORT", port.to_string());
        let mut server = Process::start("dev", folder.path(), command)?;
        let hello = server.greeting()?;
        Ok(Self {
            address: address(&hello)?,
            key: text(&hello, "api_key")?,
            agent: text(&hello, "agent_id")?,
            metrics: SocketAddr::from(([127, 0, 0, 1], port)),
            database: data.join("fountain.db"),
            server,
            _runner: None,
            folder,
        })
    }

    /// A server on the PostgreSQL database of this URL, and a runner.
    pub fn on_postgres(url: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (port, metrics) = (free_port()?, free_port()?);
        let base = format!("http://127.0.0.1:{port}");
        let with_database = |arguments: &[&str]| {
            let mut command = fountain(folder.path());
            command
                .args(arguments)
                .env("DATABASE_URL", url)
                // 32 bytes of value 0: this database lives for a minute and holds no secret.
                .env("MASTER_SECRETS_KEY", "A".repeat(43))
                .env("SANDBOX_PROVIDER", "runner")
                .env("SANDBOX_CAP_CEILING", "200")
                .env("SANDBOX_FLEET_CEILING", "200")
                .env("PUBLIC_URL", &base)
                .env("METRICS_PORT", metrics.to_string());
            command
        };
        let mut create = with_database(&["account", "create", "--json", "--email", "bench@example.com"]);
        let account = create.output()?;
        let complaint = String::from_utf8_lossy(&account.stderr).into_owned();
        let account: Value = serde_json::from_slice(&account.stdout).with_context(|| complaint)?;
        let listen = format!("127.0.0.1:{port}");
        let mut server = Process::start(
            "serve",
            folder.path(),
            with_database(&["serve", "--json", "--listen", &listen]),
        )?;
        server.greeting()?;
        let key = text(&account, "api_key")?;
        let mut runner = fountain(folder.path());
        runner
            .args(["runner", "--name", "bench", "--root"])
            .arg(folder.path().join("sandboxes"))
            .env("FOUNTAIN_BASE_URL", &base)
            .env("FOUNTAIN_API_KEY", &key);
        let runner = Process::start("runner", folder.path(), runner)?;
        let mut stack = Self {
            address: address_of(&base)?,
            key,
            agent: String::new(),
            metrics: SocketAddr::from(([127, 0, 0, 1], metrics)),
            database: PathBuf::new(),
            server,
            _runner: Some(runner),
            folder,
        };
        let mut client = stack.client()?;
        until("the runner", std::time::Duration::from_millis(50), || {
            let runners = client.done("GET", "/api/runners", None)?;
            let online = runners.pointer("/data/0/online").and_then(Value::as_bool) == Some(true);
            Ok(online.then_some(()))
        })?;
        let agent = json!({
            "name": "demo", "runtime": "acp", "runtime_command": format!("exec '{FOUNTAIN}' demo-agent"),
            "sandbox_provider": "runner", "permission_policy": {"default": "ask"},
        });
        let made = client.done("POST", "/api/agents", Some(&agent))?;
        stack.agent = text(made.get("data").unwrap_or(&Value::Null), "id")?;
        Ok(stack)
    }

    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(self.address, &self.key)
    }

    pub fn server_id(&self) -> u32 {
        self.server.id()
    }

    pub fn home(&self) -> &Path {
        self.folder.path()
    }

    /// The end of the server's log, for an error.
    pub fn log(&self) -> String {
        self.server.tail()
    }

    /// Calls of each store verb so far.
    pub fn verbs(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let (_, body) = Client::new(self.metrics, "")?.fetch("GET", "/metrics", None)?;
        let text = String::from_utf8(body)?;
        let mut verbs = BTreeMap::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("fountain_store_query_duration_ms_count{op=\"") else {
                continue;
            };
            let (Some(op), Some(count)) = (rest.split('"').next(), rest.rsplit(' ').next()) else {
                continue;
            };
            *verbs.entry(op.to_owned()).or_default() += count.parse::<u64>()?;
        }
        Ok(verbs)
    }

    /// Starts a conversation whose opening prompt has ended.
    pub fn warm_conversation(&self, client: &mut Client) -> anyhow::Result<Conversation> {
        let id = self.launch(client, Some("think ready"))?;
        let mut conversation = Conversation::follow(self, id)?;
        conversation.until_turn_ends()?;
        Ok(conversation)
    }

    /// Starts a conversation and answers its id at once.
    pub fn launch(&self, client: &mut Client, prompt: Option<&str>) -> anyhow::Result<String> {
        let mut body = json!({"agent_id": self.agent});
        if let (Some(prompt), Some(body)) = (prompt, body.as_object_mut()) {
            body.insert("prompt".into(), prompt.into());
        }
        let made = client
            .done("POST", "/api/conversations", Some(&body))
            .with_context(|| format!("the server's log ends with\n{}", self.log()))?;
        text(made.get("data").unwrap_or(&Value::Null), "id")
    }

    /// Ends a conversation and its machine.
    pub fn end(&self, client: &mut Client, conversation: &str) -> anyhow::Result<()> {
        client.done("POST", &format!("/api/conversations/{conversation}/terminate"), None)?;
        Ok(())
    }
}

/// A conversation and its open event stream.
pub struct Conversation {
    pub id: String,
    pub events: Events,
}

impl Conversation {
    /// Follows a conversation from its beginning.
    pub fn follow(stack: &Stack, id: String) -> anyhow::Result<Self> {
        let events = Events::open(stack.address, &stack.key, &format!("/api/conversations/{id}/stream"))?;
        Ok(Self { id, events })
    }

    /// Sends a prompt; the moment just before its first byte left.
    pub fn prompt(&self, client: &mut Client, text: &str) -> anyhow::Result<Instant> {
        let path = format!("/api/conversations/{}/prompts", self.id);
        let body = json!({"prompt": text});
        let sent = Instant::now();
        client.done("POST", &path, Some(&body))?;
        Ok(sent)
    }

    /// The next output of the agent.
    pub fn output(&mut self) -> anyhow::Result<Frame> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let frame = self.events.next()?;
            if is_output(&frame) {
                return Ok(frame);
            }
            if ends_turn(&frame)? {
                anyhow::bail!("the turn ended without output");
            }
            anyhow::ensure!(Instant::now() < give_up, "no output came");
        }
    }

    /// Reads on until the turn is over.
    pub fn until_turn_ends(&mut self) -> anyhow::Result<Frame> {
        loop {
            let frame = self.events.next()?;
            if ends_turn(&frame)? {
                return Ok(frame);
            }
        }
    }
}

/// An update of the agent, as a row of the stream `acp`.
pub fn is_output(frame: &Frame) -> bool {
    frame.event == "output" && frame.data.contains("\"stream\":\"acp\"") && frame.data.contains("session/update")
}

/// The stage `turn` came to an end; an error when it failed.
pub fn ends_turn(frame: &Frame) -> anyhow::Result<bool> {
    if frame.event != "stage" {
        return Ok(false);
    }
    let payload = frame.json();
    let word = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    if word("state") == "failed" {
        anyhow::bail!("stage {} failed: {}", word("stage"), word("data"));
    }
    Ok(word("stage") == "turn" && word("state") == "done")
}
