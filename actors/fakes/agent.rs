//! A small programmable ACP agent: a process that speaks JSON-RPC lines and does what a test's script says.
//!
//! It answers `initialize`, `session/new`, `session/load`, `session/resume` and the setters, runs one list of steps for
//! each `session/prompt`, and answers `session/cancel` by ending the prompt as `cancelled`. It is as strict as a test
//! needs and no more: what the real adapters do is covered by recorded transcripts elsewhere.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::process::{FakeProcess, Program, Spawn, Stdio};

/// What the agent does next in a prompt.
#[derive(Clone, Debug)]
pub enum AgentStep {
    /// One `agent_message_chunk`.
    Say(String),
    /// A line as it is.
    Line(Value),
    /// Bytes that are no protocol.
    Raw(String),
    Stderr(String),
    Sleep(Duration),
    /// A `session/request_permission` with these option ids; the prompt goes on when it is answered, and the chosen
    /// option (or `cancelled`) is said.
    Ask(Vec<String>),
    /// The same request, but the prompt goes on at once.
    Leave(Vec<String>),
    /// The transport closes; the process goes on.
    DropConnections,
    /// Ends the process.
    Exit(i64),
    /// Answers the prompt with this stop reason. Every script ends with one, or never answers.
    Stop(&'static str),
}

/// Which steps a prompt's text leads to.
pub type Script = Arc<dyn Fn(&str) -> Vec<AgentStep> + Send + Sync>;

/// The agent, as a program of [`super::FakeSandbox`].
#[derive(Clone)]
pub struct FakeAgent {
    script: Script,
    capabilities: Value,
    /// `session/load` and `session/resume` know no session.
    forgets: bool,
}

impl FakeAgent {
    pub fn new(script: impl Fn(&str) -> Vec<AgentStep> + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            capabilities: json!({ "loadSession": true, "promptCapabilities": { "image": true } }),
            forgets: false,
        }
    }

    /// Says the prompt back and ends its turn.
    pub fn echo() -> Self {
        Self::new(|text| vec![AgentStep::Say(format!("echo: {text}")), AgentStep::Stop("end_turn")])
    }

    /// Announces these capabilities.
    #[must_use]
    pub fn announcing(mut self, capabilities: Value) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Knows no earlier session.
    #[must_use]
    pub fn forgetting(mut self) -> Self {
        self.forgets = true;
        self
    }

    /// The program to hand to a fake sandbox.
    pub fn program(self) -> Program {
        Arc::new(move |spawn: &Spawn| {
            Box::new(AgentProcess {
                agent: self.clone(),
                buffer: Vec::new(),
                turn: Arc::new(Mutex::new(Turn {
                    session: format!("agent-{}", spawn.session_id),
                    ..Turn::default()
                })),
            })
        })
    }
}

/// The prompt that runs, if one does.
#[derive(Default)]
struct Turn {
    session: String,
    prompt: Option<Value>,
    steps: VecDeque<AgentStep>,
    /// Our request that waits for an answer.
    asked: Option<i64>,
    next_id: i64,
    /// Told apart from an older prompt's timers.
    generation: u64,
}

struct AgentProcess {
    agent: FakeAgent,
    buffer: Vec<u8>,
    turn: Arc<Mutex<Turn>>,
}

fn lock(turn: &Mutex<Turn>) -> MutexGuard<'_, Turn> {
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

fn line(stdio: &Stdio, message: &Value) {
    stdio.stdout(format!("{message}\n"));
}

fn answer(stdio: &Stdio, id: &Value, result: Value) {
    line(stdio, &json!({ "jsonrpc": "2.0", "id": id, "result": result }));
}

fn say(stdio: &Stdio, session: &str, text: &str) {
    let update = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
    let params = json!({ "sessionId": session, "update": update });
    line(
        stdio,
        &json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }),
    );
}

/// Runs the steps of a prompt until one has to wait.
fn advance(turn: &Arc<Mutex<Turn>>, stdio: &Stdio) {
    loop {
        let mut now = lock(turn);
        let Some(step) = now.steps.pop_front() else { return };
        let session = now.session.clone();
        match step {
            AgentStep::Say(text) => say(stdio, &session, &text),
            AgentStep::Line(message) => line(stdio, &message),
            AgentStep::Raw(text) => stdio.stdout(text),
            AgentStep::Stderr(text) => stdio.stderr(text),
            AgentStep::DropConnections => stdio.drop_connections(),
            AgentStep::Exit(code) => return stdio.exit(code),
            AgentStep::Stop(reason) => {
                if let Some(id) = now.prompt.take() {
                    answer(stdio, &id, json!({ "stopReason": reason }));
                }
            }
            AgentStep::Ask(ref options) | AgentStep::Leave(ref options) => {
                now.next_id += 1;
                let id = now.next_id;
                let waits = matches!(step, AgentStep::Ask(_));
                now.asked = waits.then_some(id);
                let options: Vec<_> = options
                    .iter()
                    .map(|option| json!({ "optionId": option, "name": option, "kind": option }))
                    .collect();
                let tool = json!({ "toolCallId": format!("call-{id}"), "title": "a tool", "kind": "execute" });
                let params = json!({ "sessionId": session, "options": options, "toolCall": tool });
                let method = "session/request_permission";
                line(
                    stdio,
                    &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }),
                );
                if waits {
                    return;
                }
            }
            AgentStep::Sleep(delay) => {
                let generation = now.generation;
                let (turn, stdio) = (Arc::clone(turn), stdio.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    if lock(&turn).generation == generation {
                        advance(&turn, &stdio);
                    }
                });
                return;
            }
        }
    }
}

impl AgentProcess {
    fn receive(&mut self, message: &Value, stdio: &Stdio) {
        let id = message.get("id").cloned().unwrap_or(Value::Null);
        let Some(method) = message.get("method").and_then(Value::as_str) else {
            return self.answered(&id, message, stdio);
        };
        let session = lock(&self.turn).session.clone();
        match method {
            "initialize" => {
                let capabilities = self.agent.capabilities.clone();
                let result = json!({ "protocolVersion": 1, "agentCapabilities": capabilities, "authMethods": [] });
                answer(stdio, &id, result);
            }
            "session/new" => answer(stdio, &id, json!({ "sessionId": session })),
            "session/load" | "session/resume" if self.agent.forgets => {
                let error = json!({ "code": -32002, "message": "Resource not found" });
                line(stdio, &json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            }
            "session/load" | "session/resume" => {
                let wanted = message.pointer("/params/sessionId").and_then(Value::as_str);
                if let Some(wanted) = wanted {
                    wanted.clone_into(&mut lock(&self.turn).session);
                }
                answer(stdio, &id, json!({}));
            }
            "session/prompt" => self.prompt(id, message, stdio),
            "session/cancel" => self.cancel(stdio),
            _ if id.is_null() => {}
            method if method.starts_with("session/set") => answer(stdio, &id, json!({})),
            _ => {
                let error = json!({ "code": -32601, "message": "Method not found" });
                line(stdio, &json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            }
        }
    }

    fn prompt(&mut self, id: Value, message: &Value, stdio: &Stdio) {
        let parts = message.pointer("/params/prompt").and_then(Value::as_array);
        let text: String = parts
            .into_iter()
            .flatten()
            .filter_map(|part| part.get("text").and_then(Value::as_str))
            .collect();
        {
            let mut turn = lock(&self.turn);
            turn.generation += 1;
            turn.prompt = Some(id);
            turn.steps = (self.agent.script)(&text).into();
        }
        advance(&self.turn, stdio);
    }

    fn cancel(&mut self, stdio: &Stdio) {
        let mut turn = lock(&self.turn);
        turn.generation += 1;
        turn.steps.clear();
        turn.asked = None;
        if let Some(id) = turn.prompt.take() {
            answer(stdio, &id, json!({ "stopReason": "cancelled" }));
        }
    }

    /// The client answered a request of ours. Another answer to the same one is ignored.
    fn answered(&mut self, id: &Value, message: &Value, stdio: &Stdio) {
        let chosen = {
            let mut turn = lock(&self.turn);
            if turn.asked.is_none() || turn.asked != id.as_i64() {
                return;
            }
            turn.asked = None;
            let outcome = message.pointer("/result/outcome");
            let option = outcome
                .and_then(|outcome| outcome.get("optionId"))
                .and_then(Value::as_str);
            let session = turn.session.clone();
            (session, option.unwrap_or("cancelled").to_owned())
        };
        say(stdio, &chosen.0, &chosen.1);
        advance(&self.turn, stdio);
    }
}

impl FakeProcess for AgentProcess {
    fn start(&mut self, _: &Stdio) {}

    fn stdin(&mut self, bytes: &[u8], stdio: &Stdio) {
        self.buffer.extend_from_slice(bytes);
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let rest = self.buffer.split_off(end + 1);
            let line = std::mem::replace(&mut self.buffer, rest);
            if let Ok(message) = serde_json::from_slice::<Value>(&line) {
                self.receive(&message, stdio);
            }
        }
    }

    fn eof(&mut self, stdio: &Stdio) {
        stdio.exit(0);
    }
}
