//! Stored `acp` lines as the blocks that a reader draws (http-api 3.5, runtimes 11).
//!
//! Computed from one line at a time, when asked for; nothing here remembers an earlier line, so any page of a
//! transcript can be rendered by itself. A variant that is unknown gives nothing, a line that is no protocol gives
//! itself, and no input makes this fail.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::acp::message::{self, Incoming};

/// Longest value in a tool's summary, and longest summary, in bytes (http-api 3.5).
const SUMMARY_VALUE: usize = 40;
const SUMMARY: usize = 120;

/// One thing to draw. Serializes to the wire shape, `kind` first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Block {
    /// A chunk of what the agent says.
    Text { body: String },
    /// A chunk of what it thinks.
    Thinking { body: String },
    /// A tool is used. Its result has the same id.
    ToolUse {
        id: String,
        name: String,
        summary: String,
        body: String,
    },
    /// What came of it.
    ToolResult { tool_id: String, body: String, error: bool },
    /// The whole checklist; empty clears it.
    Plan { body: Vec<PlanEntry> },
    /// A permission request, with its public id.
    PermissionRequest {
        request_id: String,
        name: String,
        summary: String,
        options: Vec<Value>,
    },
    /// A line that is no protocol.
    Raw {
        body: String,
        #[serde(serialize_with = "raw_summary")]
        summary: (),
    },
    /// The prompt of a turn; comes from its row, never from a line.
    Prompt {
        body: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        read_only: Option<bool>,
    },
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanEntry {
    content: String,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "activeForm", skip_serializing_if = "Option::is_none")]
    active_form: Option<String>,
}

fn raw_summary<S: Serializer>((): &(), serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("raw")
}

/// The blocks of one stored `acp` row: one or more lines.
#[must_use]
pub fn blocks(data: &str) -> Vec<Block> {
    data.split('\n').filter_map(of_line).collect()
}

fn of_line(line: &str) -> Option<Block> {
    match message::read(line) {
        Incoming::Blank | Incoming::Response { .. } => None,
        Incoming::Noise => Some(Block::Raw {
            body: line.to_owned(),
            summary: (),
        }),
        Incoming::Request { id, method, params, .. } if method == "session/request_permission" => {
            Some(permission(&id, &params))
        }
        Incoming::Notification { method, params, .. } if method == "session/update" => of_update(params.get("update")?),
        Incoming::Request { .. } | Incoming::Notification { .. } => None,
    }
}

fn of_update(update: &Value) -> Option<Block> {
    if let Some(plan) = update.pointer("/_meta/managoat_acp/plan") {
        return plan.as_array().map(|entries| plan_block(entries)); // null: the call that makes it still runs
    }
    match text(update, "sessionUpdate")? {
        "agent_message_chunk" => said(update).map(|body| Block::Text { body }),
        "agent_thought_chunk" => said(update).map(|body| Block::Thinking { body }),
        "tool_call" => Some(Block::ToolUse {
            id: text(update, "toolCallId").unwrap_or_default().to_owned(),
            name: name(update),
            summary: summary(update),
            body: update.get("rawInput").map(readable).unwrap_or_default(),
        }),
        "tool_call_update" => {
            let status =
                text(update, "status").filter(|status| matches!(*status, "completed" | "failed" | "cancelled"))?;
            Some(Block::ToolResult {
                tool_id: text(update, "toolCallId").unwrap_or_default().to_owned(),
                body: result_body(update),
                error: status != "completed",
            })
        }
        "plan" => update
            .get("entries")
            .and_then(Value::as_array)
            .map(|entries| plan_block(entries)),
        _ => None,
    }
}

fn permission(id: &Value, params: &Value) -> Block {
    let call = params.get("toolCall").unwrap_or(&Value::Null);
    Block::PermissionRequest {
        request_id: id.as_str().map_or_else(|| id.to_string(), str::to_owned),
        name: name(call),
        summary: summary(call),
        options: params
            .get("options")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default(),
    }
}

fn text<'a>(from: &'a Value, key: &str) -> Option<&'a str> {
    from.get(key).and_then(Value::as_str)
}

fn name(call: &Value) -> String {
    let named = |key| text(call, key).filter(|name| !name.is_empty());
    named("title").or_else(|| named("kind")).unwrap_or("tool").to_owned()
}

/// The text of a chunk; none when it is empty.
fn said(update: &Value) -> Option<String> {
    Some(content_text(update.get("content")?)).filter(|body| !body.is_empty())
}

fn content_text(content: &Value) -> String {
    match content {
        Value::Array(list) => list.iter().map(content_text).collect(),
        Value::String(text) => text.clone(),
        block => match text(block, "type") {
            Some("text") => text(block, "text").unwrap_or_default().to_owned(),
            Some("image") => "[image]".to_owned(),
            Some("audio") => "[audio]".to_owned(),
            Some("resource_link") => text(block, "uri").unwrap_or_default().to_owned(),
            _ => String::new(),
        },
    }
}

/// A tool's content; codex reports the output of its commands elsewhere, so that comes next, `rawOutput` last.
fn result_body(update: &Value) -> String {
    let content = update.get("content").and_then(Value::as_array).into_iter().flatten();
    let shown: Vec<String> = content.map(tool_content).filter(|text| !text.is_empty()).collect();
    if !shown.is_empty() {
        return shown.join("\n");
    }
    if let Some(streamed) = update
        .pointer("/_meta/terminal_output_delta/data")
        .and_then(Value::as_str)
    {
        return streamed.to_owned();
    }
    let Some(raw) = update.get("rawOutput") else {
        return String::new();
    };
    let output = ["formatted_output", "output"]
        .into_iter()
        .find_map(|key| text(raw, key));
    output.map_or_else(|| readable(raw), str::to_owned)
}

fn tool_content(content: &Value) -> String {
    match text(content, "type") {
        Some("content") => content.get("content").map(content_text).unwrap_or_default(),
        Some("diff") => format!("diff: {}", text(content, "path").unwrap_or_default()),
        _ => String::new(),
    }
}

/// A string as it is, anything else as indented JSON, null as nothing.
fn readable(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    }
}

/// The first location, else a preview of the input.
fn summary(call: &Value) -> String {
    let locations = call.get("locations").and_then(Value::as_array);
    let path = locations
        .into_iter()
        .flatten()
        .find_map(|location| text(location, "path"));
    match (path, call.get("rawInput")) {
        (Some(path), _) => path.to_owned(),
        (None, Some(Value::Object(input))) => preview(input),
        _ => String::new(),
    }
}

fn preview(input: &Map<String, Value>) -> String {
    let mut preview = String::new();
    for (key, value) in input {
        if !preview.is_empty() {
            preview.push(' ');
        }
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        preview = preview + key + "=" + &shorten(&value, SUMMARY_VALUE);
        if preview.len() > SUMMARY {
            break;
        }
    }
    shorten(&preview, SUMMARY)
}

fn shorten(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let cut = text.floor_char_boundary(bytes);
    format!("{}…", text.get(..cut).unwrap_or_default())
}

fn plan_block(entries: &[Value]) -> Block {
    let entry = |entry: &Value| {
        let own = |key: &str| text(entry, key).map(str::to_owned);
        Some(PlanEntry {
            content: own("content")?,
            status: own("status").unwrap_or_else(|| "pending".to_owned()),
            priority: own("priority"),
            id: own("id"),
            active_form: own("activeForm"),
        })
    };
    Block::Plan {
        body: entries.iter().filter_map(entry).collect(),
    }
}

/// Collects what the agent said in a turn: its text blocks, joined and trimmed.
#[derive(Debug, Default)]
pub struct ReplyText {
    text: String,
}

impl ReplyText {
    /// Takes the data of one stored `acp` row.
    pub fn push(&mut self, data: &str) {
        for line in data.split('\n') {
            // Most lines of a turn are chunks; the others need not be parsed to know that they are not.
            if !line.contains("agent_message_chunk") {
                continue;
            }
            let Incoming::Notification { params, .. } = message::read(line) else {
                continue;
            };
            let Some(update) = params.get("update").filter(|update| !is_informational(update)) else {
                continue;
            };
            if let Some(Block::Text { body }) = of_update(update) {
                self.text.push_str(&body);
            }
        }
    }

    /// What was said; `None` when nothing was.
    #[must_use]
    pub fn finish(&self) -> Option<String> {
        let text = self.text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

/// A notice of the adapter in the shape of a message is no answer.
fn is_informational(update: &Value) -> bool {
    update.pointer("/_meta/claudeCode/kind").and_then(Value::as_str) == Some("informational")
}

/// [`ReplyText`] over a whole turn.
#[must_use]
pub fn reply_text<'a>(rows: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut reply = ReplyText::default();
    for row in rows {
        reply.push(row);
    }
    reply.finish()
}

#[cfg(test)]
mod tests;
