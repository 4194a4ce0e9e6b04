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
mod tests {
    use serde_json::json;

    use super::*;

    fn update(update: &Value) -> String {
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
            .to_string()
            + "\n"
    }

    fn wire(data: &str) -> Value {
        serde_json::to_value(blocks(data)).unwrap()
    }

    fn one(of: &Value) -> Value {
        wire(&update(of))
            .as_array()
            .unwrap()
            .first()
            .cloned()
            .unwrap_or(Value::Null)
    }

    fn said(kind: &str, content: Value) -> Value {
        one(&json!({"sessionUpdate": kind, "content": content}))
    }

    #[test]
    fn text_and_thought_chunks_map_their_content() {
        assert_eq!(
            said("agent_message_chunk", json!({"type": "text", "text": " a "})),
            json!({"kind": "text", "body": " a "})
        );
        assert_eq!(
            said("agent_thought_chunk", json!({"type": "text", "text": "b"})),
            json!({"kind": "thinking", "body": "b"})
        );
        assert_eq!(
            said("agent_message_chunk", json!({"type": "text", "text": ""})),
            Value::Null
        );
        let mixed = json!([{"type": "text", "text": "see "}, {"type": "image", "data": "x"}, {"type": "audio"}, {"type": "resource_link", "uri": "file:///a"}]);
        assert_eq!(
            said("agent_message_chunk", mixed),
            json!({"kind": "text", "body": "see [image][audio]file:///a"})
        );
    }

    #[test]
    fn a_tool_call_has_name_summary_and_readable_input() {
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "ls", "kind": "execute", "rawInput": {"command": "ls", "n": 1}});
        assert_eq!(
            one(&call),
            json!({"kind": "tool_use", "id": "t", "name": "ls", "summary": "command=ls n=1", "body": "{\n  \"command\": \"ls\",\n  \"n\": 1\n}"})
        );
        let by_kind = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "", "kind": "edit", "rawInput": "x", "locations": [{"path": "/a"}]});
        assert_eq!(
            one(&by_kind),
            json!({"kind": "tool_use", "id": "t", "name": "edit", "summary": "/a", "body": "x"})
        );
        assert_eq!(
            one(&json!({"sessionUpdate": "tool_call", "toolCallId": "t"}))["name"],
            "tool"
        );
    }

    #[test]
    fn a_summary_is_cut_at_characters() {
        let long = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "rawInput": {"a": "é".repeat(30), "b": "x".repeat(50), "c": "y".repeat(50)}});
        let summary = one(&long)["summary"].as_str().unwrap().to_owned();
        assert!(
            summary.starts_with(&format!("a={}… b={}…", "é".repeat(20), "x".repeat(40))),
            "{summary}"
        );
        assert!(
            summary.ends_with('…') && summary.len() <= 120 + '…'.len_utf8(),
            "{summary}"
        );
    }

    #[test]
    fn a_result_takes_content_then_terminal_output_then_raw_output() {
        let result = |extra: Value| {
            let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"});
            update
                .as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            one(&update)
        };
        let content = json!({"content": [{"type": "content", "content": {"type": "text", "text": "a"}}, {"type": "diff", "path": "/p"}], "rawOutput": "no"});
        assert_eq!(
            result(content),
            json!({"kind": "tool_result", "tool_id": "t", "body": "a\ndiff: /p", "error": false})
        );
        let codex = json!({"content": [{"type": "terminal", "terminalId": "x"}], "_meta": {"terminal_output_delta": {"data": "out"}}, "rawOutput": {"formatted_output": "no"}});
        assert_eq!(result(codex)["body"], "out");
        assert_eq!(
            result(json!({"rawOutput": {"formatted_output": "f", "exit_code": 0}}))["body"],
            "f"
        );
        assert_eq!(result(json!({"content": [], "rawOutput": "plain"}))["body"], "plain");
        assert_eq!(
            result(json!({"rawOutput": {"exit_code": 1}}))["body"],
            "{\n  \"exit_code\": 1\n}"
        );
        assert_eq!(result(json!({}))["body"], "");
        assert_eq!(result(json!({"status": "cancelled"}))["error"], true);
        assert_eq!(result(json!({"status": "in_progress"})), Value::Null);
    }

    #[test]
    fn a_plan_is_the_whole_list_and_may_be_empty() {
        let entries = json!([{"content": "a", "status": "completed", "priority": "high", "odd": 1}]);
        assert_eq!(
            one(&json!({"sessionUpdate": "plan", "entries": entries})),
            json!({"kind": "plan", "body": [{"content": "a", "status": "completed", "priority": "high"}]})
        );
        assert_eq!(
            one(&json!({"sessionUpdate": "plan", "entries": []})),
            json!({"kind": "plan", "body": []})
        );
        let annotated = |plan: Value| {
            one(
                &json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed", "_meta": {"managoat_acp": {"plan": plan}}}),
            )
        };
        assert_eq!(
            annotated(json!([{"content": "b", "status": "pending", "id": "1", "activeForm": "doing b"}]))["body"][0]["activeForm"],
            "doing b"
        );
        assert_eq!(annotated(Value::Null), Value::Null);
    }

    #[test]
    fn a_permission_request_carries_its_public_id_and_its_options() {
        let options = json!([{"optionId": "o", "kind": "allow_once", "name": "Yes"}]);
        let line = json!({"jsonrpc": "2.0", "id": "0.00aa", "method": "session/request_permission", "params": {"toolCall": {"title": "make"}, "options": options}});
        assert_eq!(
            wire(&line.to_string()),
            json!([{"kind": "permission_request", "request_id": "0.00aa", "name": "make", "summary": "", "options": options}])
        );
        let number = json!({"id": 7, "method": "session/request_permission", "params": {}});
        assert_eq!(wire(&number.to_string())[0]["request_id"], "7");
    }

    #[test]
    fn what_is_no_protocol_is_raw_and_what_is_unknown_is_nothing() {
        assert_eq!(
            wire("oops\n"),
            json!([{"kind": "raw", "body": "oops", "summary": "raw"}])
        );
        for name in [
            "user_message_chunk",
            "available_commands_update",
            "usage_update",
            "current_mode_update",
            "config_option_update",
            "session_info_update",
            "new_thing",
        ] {
            assert_eq!(
                one(&json!({"sessionUpdate": name, "content": {"type": "text", "text": "x"}})),
                Value::Null,
                "{name}"
            );
        }
        for line in [
            json!({"id": 1, "result": {}}),
            json!({"method": "other"}),
            json!({"id": 1, "method": "fs/read_text_file"}),
            json!({"method": "session/update"}),
        ] {
            assert_eq!(wire(&line.to_string()), json!([]));
        }
        assert_eq!(wire("\n\n"), json!([]));
    }

    #[test]
    fn one_row_may_hold_several_lines() {
        let chunk = |text: &str| {
            update(&json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}))
        };
        assert_eq!(blocks(&(chunk("a") + &chunk("b"))).len(), 2);
    }

    #[test]
    fn the_prompt_block_is_made_from_its_row() {
        let block = |read_only| {
            serde_json::to_value(Block::Prompt {
                body: "hi".into(),
                read_only,
            })
            .unwrap()
        };
        assert_eq!(block(None), json!({"kind": "prompt", "body": "hi"}));
        assert_eq!(
            block(Some(true)),
            json!({"kind": "prompt", "body": "hi", "read_only": true})
        );
    }

    #[test]
    fn the_reply_is_what_was_said_without_notices_and_thoughts() {
        let chunk = |text: &str, meta: Value| {
            update(
                &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}, "_meta": meta}),
            )
        };
        let rows = [
            chunk("warning", json!({"claudeCode": {"kind": "informational"}})),
            chunk(" Hello", json!({})),
            update(
                &json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "agent_message_chunk"}}),
            ),
            chunk(" world \n", Value::Null),
        ];
        assert_eq!(
            reply_text(rows.iter().map(String::as_str)).as_deref(),
            Some("Hello world")
        );
        assert_eq!(reply_text([""]), None);
    }
}
