//! The demo agent on its own pipes: what the system under test is compared with. One line out, one line in, nothing
//! between; lines are looked at as text, so that our own parsing is no part of the baseline.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::process::fountain;

/// The writing half of an agent, which ends with it.
pub struct Prompter {
    child: Child,
    stdin: ChildStdin,
    session: String,
    next_id: i64,
}

impl Prompter {
    fn send(&mut self, method: &str, params: &Value) -> anyhow::Result<()> {
        self.next_id += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params});
        self.stdin.write_all(format!("{message}\n").as_bytes())?;
        Ok(())
    }

    /// Writes a prompt.
    pub fn prompt(&mut self, text: &str) -> anyhow::Result<()> {
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        self.send("session/prompt", &params)
    }
}

impl Drop for Prompter {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

pub struct Agent {
    prompter: Prompter,
    stdout: BufReader<ChildStdout>,
    line: String,
}

impl Agent {
    /// Spawns it, shakes hands and opens a session.
    pub fn start(home: &Path) -> anyhow::Result<Self> {
        let mut child = fountain(home)
            .arg("demo-agent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdin = child.stdin.take().context("stdin is piped")?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut agent = Self {
            prompter: Prompter {
                child,
                stdin,
                session: String::new(),
                next_id: 0,
            },
            stdout: BufReader::with_capacity(256 * 1024, stdout),
            line: String::new(),
        };
        agent.ask("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}))?;
        let opened = agent.ask("session/new", &json!({"cwd": home, "mcpServers": []}))?;
        let session = opened.pointer("/result/sessionId").and_then(Value::as_str);
        agent.prompter.session = session.context("session/new answered no session")?.to_owned();
        Ok(agent)
    }

    fn read(&mut self) -> anyhow::Result<()> {
        self.line.clear();
        anyhow::ensure!(self.stdout.read_line(&mut self.line)? > 0, "the agent ended");
        Ok(())
    }

    fn ask(&mut self, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.prompter.send(method, params)?;
        self.read()?;
        Ok(serde_json::from_str(&self.line)?)
    }

    /// The next update's line, or None when the prompt has ended.
    pub fn update(&mut self) -> anyhow::Result<Option<&str>> {
        self.read()?;
        Ok(self.line.contains("\"session/update\"").then_some(self.line.as_str()))
    }

    /// Prompts, waits for the end, and answers how long the first update took.
    pub fn first_output(&mut self, text: &str) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.prompter.prompt(text)?;
        anyhow::ensure!(self.update()?.is_some(), "the prompt had no output");
        let took = started.elapsed();
        while self.update()?.is_some() {}
        Ok(took)
    }

    /// The agent's output by itself, for whoever relays it. Nothing of it was read ahead.
    pub fn split(self) -> anyhow::Result<(Prompter, ChildStdout)> {
        anyhow::ensure!(self.stdout.buffer().is_empty(), "the agent said something unasked");
        Ok((self.prompter, self.stdout.into_inner()))
    }
}
