use serde_json::json;

use super::*;

fn update(update: &Value) -> String {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}).to_string()
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
