//! The peer against scripted and recorded agents.
//!
//! [`Bench`] is the owner: it feeds lines, keeps every effect, and has a clock that only moves when it is told to.

mod attach;
mod handshake;
mod replay;
mod turns;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::domain::policy::{EffectivePolicy, PermissionPolicy};

struct Bench {
    peer: Peer,
    now: Instant,
    /// Every line written, parsed, in order.
    written: Vec<Value>,
    reports: Vec<Report>,
    armed: Option<Instant>,
    input_closed: bool,
    /// Bytes fed so far.
    fed: usize,
}

fn config() -> PeerConfig {
    let mut minted = 0_u32;
    PeerConfig::new(
        "/home/sprite",
        Box::new(move || {
            minted += 1;
            format!("{minted:016x}")
        }),
    )
}

fn prompt(text: &str) -> PromptRequest {
    PromptRequest {
        text: text.into(),
        ..PromptRequest::default()
    }
}

fn policy(value: Value) -> EffectivePolicy {
    EffectivePolicy::of(PermissionPolicy::parse(&value).unwrap(), None)
}

impl Bench {
    fn new(config: PeerConfig) -> Self {
        Self::with(Peer::new(config))
    }

    fn with(peer: Peer) -> Self {
        Self {
            peer,
            now: Instant::now(),
            written: Vec::new(),
            reports: Vec::new(),
            armed: None,
            input_closed: false,
            fed: 0,
        }
    }

    /// A peer that is idle on session `s`, with the given result of `session/new`.
    fn idle(session: Value) -> Self {
        let mut bench = Self::new(config());
        bench.prompt(prompt("warm up"));
        bench.answer(json!({"protocolVersion": 1, "agentCapabilities": {}}));
        bench.answer(session);
        bench.answer(json!({"stopReason": "end_turn"}));
        assert!(bench.peer.is_idle(), "{:?}", bench.reports);
        bench.written.clear();
        bench.reports.clear();
        bench
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Write(out) => {
                    assert!(out.line.ends_with('\n') && out.line.matches('\n').count() == 1);
                    self.written.push(serde_json::from_str(&out.line).unwrap());
                }
                Effect::Report(report) => self.reports.push(report),
                Effect::Arm(deadline) => self.armed = deadline,
                Effect::CloseInput => self.input_closed = true,
            }
        }
    }

    fn prompt(&mut self, request: PromptRequest) {
        let effects = self.peer.prompt(request, self.now).unwrap();
        self.take(effects);
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.fed += bytes.len();
        let effects = self.peer.feed(bytes, self.now);
        self.take(effects);
    }

    fn say(&mut self, message: &Value) {
        self.feed(format!("{message}\n").as_bytes());
    }

    fn update(&mut self, update: Value) {
        self.say(
            &json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}),
        );
    }

    fn chunk(&mut self, text: &str) {
        self.update(json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}));
    }

    /// The last call that was written.
    fn call(&self) -> &Value {
        self.written
            .iter()
            .rev()
            .find(|line| line.get("method").is_some() && line.get("id").is_some())
            .unwrap()
    }

    fn answer(&mut self, result: Value) {
        let id = self.call()["id"].clone();
        self.say(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn refuse(&mut self, error: Value) {
        let id = self.call()["id"].clone();
        self.say(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
    }

    fn ask(&mut self, id: Value, title: &str) {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
            "sessionId": "s", "toolCall": {"toolCallId": "t", "title": title, "kind": "execute"}, "options": OPTIONS()}}));
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        let effects = self.peer.tick(self.now);
        self.take(effects);
    }

    fn methods(&self) -> Vec<&str> {
        self.written
            .iter()
            .filter_map(|line| line.get("method")?.as_str())
            .collect()
    }

    fn failure(&self) -> Option<&Failure> {
        self.reports.iter().find_map(|report| match report {
            Report::Failed { reason, .. } => Some(reason),
            _ => None,
        })
    }

    fn done(&self) -> Option<&Report> {
        self.reports.iter().find(|report| matches!(report, Report::Done { .. }))
    }

    fn lines(&self, wanted: LineStream) -> Vec<&str> {
        let text = |report| match report {
            &Report::Line { stream, ref text, .. } if stream == wanted => Some(text.as_str()),
            _ => None,
        };
        self.reports.iter().filter_map(text).collect()
    }
}

#[expect(non_snake_case, reason = "a constant in all but its allocation")]
fn OPTIONS() -> Value {
    json!([
        {"optionId": "once", "name": "Yes", "kind": "allow_once"},
        {"optionId": "always", "name": "Always", "kind": "allow_always"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ])
}

/// RUL-41: the ranges of the reports cover every complete line once, in order, without a hole.
fn assert_positions(reports: &[Report], from: i64, to: i64) {
    let mut at = from;
    for report in reports {
        match (report, report.range()) {
            (Report::Passed { to }, _) => {
                assert!(*to > at, "{report:?} after {at}");
                at = *to;
            }
            (_, Some(range)) if range.from == at => at = range.to,
            (_, Some(range)) => assert_eq!(range.to, at, "{report:?} leaves a hole"),
            _ => {}
        }
    }
    assert_eq!(at, to, "the last line is covered");
}
