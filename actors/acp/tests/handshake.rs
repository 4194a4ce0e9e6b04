//! Initialize, authenticate, sessions, replay, model and options (runtimes 16, items 3, 4, 5, 9).

use std::collections::BTreeMap;

use super::*;

fn begun(session: Option<&str>, capabilities: Value) -> Bench {
    let mut config = config();
    config.session = session.map(str::to_owned);
    let mut bench = Bench::new(config);
    bench.prompt(prompt("hi"));
    bench.answer(json!({"protocolVersion": 1, "agentCapabilities": capabilities}));
    bench
}

#[test]
fn a_fresh_process_is_initialized_before_anything_else() {
    let mut bench = Bench::new(config());
    assert!(bench.written.is_empty(), "nothing is written before a prompt");
    bench.prompt(prompt("hi"));
    assert_eq!(
        bench.written,
        [
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1,
            "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false,
                "session": {"configOptions": {"boolean": {}}}}}})
        ]
    );
    assert_eq!(bench.armed, Some(bench.now + CALL_LIMIT));
}

#[test]
fn the_session_call_follows_what_is_stored_and_what_is_offered() {
    let resume = json!({"loadSession": true, "sessionCapabilities": {"resume": {}}});
    for (stored, offered, expected) in [
        (None, resume.clone(), "session/new"),
        (Some("s"), resume, "session/resume"),
        (
            Some("s"),
            json!({"loadSession": true, "sessionCapabilities": {}}),
            "session/load",
        ),
    ] {
        let bench = begun(stored, offered);
        assert_eq!(bench.call()["method"], expected);
        let params = &bench.call()["params"];
        assert_eq!(params["cwd"], "/home/sprite");
        assert_eq!(params["mcpServers"], json!([]));
        assert_eq!(params.get("sessionId").and_then(Value::as_str), stored);
    }
    let bench = begun(Some("s"), json!({"loadSession": false}));
    assert_eq!(bench.failure().unwrap().code(), "acp_agent_cannot_resume");
}

#[test]
fn a_whole_first_turn_reports_session_prompt_and_end() {
    let mut bench = begun(None, json!({}));
    bench.now += Duration::from_secs(3);
    bench.answer(json!({"sessionId": "s"}));
    assert_eq!(bench.call()["method"], "session/prompt");
    assert_eq!(
        bench.call()["params"],
        json!({"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]})
    );
    let session = bench
        .reports
        .iter()
        .find(|report| matches!(report, Report::Session { .. }))
        .unwrap();
    assert!(matches!(session, Report::Session { id, method: SessionMethod::New, .. } if id == "s"));
    let took = Duration::from_secs(3);
    assert!(bench.reports.contains(&Report::Handshake {
        took,
        method: SessionMethod::New
    }));
    assert!(bench.reports.contains(&Report::PromptSent { rpc_id: 3 }));
    assert_eq!(bench.armed, None, "a prompt has no deadline");
    bench.chunk("hello");
    bench.answer(json!({"stopReason": "end_turn", "usage": {"inputTokens": 1, "outputTokens": 2}}));
    let Some(Report::Done {
        stop_reason,
        usage: Some(usage),
        ..
    }) = bench.done()
    else {
        panic!()
    };
    assert!(stop_reason.completes());
    assert_eq!((usage.input, usage.output), (1, 2));
    assert_eq!(bench.lines(LineStream::Acp).len(), 1);
    assert_positions(&bench.reports, 0, i64::try_from(bench.fed).unwrap());
}

#[test]
fn only_a_method_that_takes_an_api_key_is_used_to_authenticate() {
    let methods = json!([{"id": "oauth", "name": "Log in"}, {"id": "key", "_meta": {"api-key": {"provider": "p"}}}]);
    let init = json!({"protocolVersion": 1, "agentCapabilities": {}, "authMethods": methods});
    let mut bench = Bench::new(config());
    bench.prompt(prompt("hi"));
    bench.answer(init.clone());
    assert_eq!(bench.call()["method"], "authenticate");
    assert_eq!(bench.call()["params"], json!({"methodId": "key"}));
    bench.answer(Value::Null);
    assert_eq!(bench.call()["method"], "session/new");

    let mut granted = config();
    granted.authenticate = false;
    let mut bench = Bench::new(granted);
    bench.prompt(prompt("hi"));
    bench.answer(init);
    assert_eq!(bench.call()["method"], "session/new", "a grant never authenticates");

    let mut bench = Bench::new(config());
    bench.prompt(prompt("hi"));
    bench.answer(json!({"protocolVersion": 1, "authMethods": [{"id": "oauth"}]}));
    bench.refuse(json!({"code": -32000, "message": "Authentication required"}));
    assert!(
        !bench.methods().contains(&"authenticate"),
        "an interactive login is never tried"
    );
    assert_eq!(bench.failure().unwrap().code(), "acp_error");
}

#[test]
fn the_authentication_backstop_is_used_once() {
    let mut bench = Bench::new(config());
    bench.prompt(prompt("hi"));
    bench.answer(json!({"protocolVersion": 1, "authMethods": [{"id": "openai-api-key"}]}));
    assert_eq!(bench.call()["method"], "session/new");
    bench.refuse(json!({"code": -32000, "message": "Authentication required"}));
    assert_eq!(bench.call()["params"], json!({"methodId": "openai-api-key"}));
    bench.answer(json!({}));
    assert_eq!(bench.call()["method"], "session/new");
    bench.refuse(json!({"code": -32000, "message": "Authentication required"}));
    assert_eq!(
        bench
            .methods()
            .iter()
            .filter(|method| **method == "authenticate")
            .count(),
        1
    );
    assert_eq!(bench.failure().unwrap().code(), "acp_error");
}

#[test]
fn rul_39_every_call_before_the_prompt_has_a_deadline() {
    let mut bench = Bench::new(config());
    bench.prompt(prompt("hi"));
    bench.wait(CALL_LIMIT - Duration::from_millis(1));
    assert_eq!(bench.failure(), None);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.failure(), Some(&Failure::Timeout { request: "initialize" }));
    assert!(!bench.peer.prompt_was_written());
    bench.answer(json!({"protocolVersion": 1}));
    assert_eq!(bench.methods(), ["initialize"], "a late answer starts nothing");

    let mut bench = begun(None, json!({}));
    bench.wait(CALL_LIMIT);
    assert_eq!(bench.failure(), Some(&Failure::Timeout { request: "session/new" }));
}

#[test]
fn an_alarm_that_comes_too_early_is_asked_for_again() {
    let mut bench = Bench::new(config());
    bench.prompt(prompt("hi"));
    let deadline = bench.armed;
    bench.armed = None;
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.armed, deadline);
}

#[test]
fn another_protocol_version_and_a_session_without_an_id_fail_the_turn() {
    let mut bench = Bench::new(config());
    bench.prompt(prompt("hi"));
    bench.answer(json!({"protocolVersion": 2}));
    assert_eq!(bench.failure().unwrap().code(), "acp_protocol_version");
    let mut bench = begun(None, json!({}));
    bench.answer(json!({"sessionId": " "}));
    assert_eq!(bench.failure().unwrap().code(), "acp_no_session_id");
}

#[test]
fn rul_18_images_need_an_agent_that_takes_them() {
    let image = crate::domain::turn::PromptImage {
        media_type: "image/png".into(),
        bytes: bytes::Bytes::from_static(b"png"),
    };
    let with_image = || PromptRequest {
        images: vec![image.clone()],
        ..prompt("see")
    };
    let mut bench = Bench::new(config());
    bench.prompt(with_image());
    bench.answer(json!({"protocolVersion": 1, "agentCapabilities": {"promptCapabilities": {"image": false}}}));
    assert_eq!(bench.failure().unwrap().code(), "images_not_supported");
    assert_eq!(bench.methods(), ["initialize"]);

    let mut bench = Bench::new(config());
    bench.prompt(with_image());
    bench.answer(json!({"protocolVersion": 1, "agentCapabilities": {"promptCapabilities": {"image": true}}}));
    bench.answer(json!({"sessionId": "s"}));
    let blocks = &bench.call()["params"]["prompt"];
    assert_eq!(blocks[0]["text"], "see");
    assert_eq!(
        blocks[1],
        json!({"type": "image", "mimeType": "image/png", "data": "cG5n"})
    );

    let mut bench = Bench::idle(json!({"sessionId": "s"}));
    bench.prompt(with_image());
    assert_eq!(
        bench.failure().unwrap().code(),
        "images_not_supported",
        "on a reused connection too"
    );
}

#[test]
fn additional_directories_and_meta_go_only_where_they_are_wanted() {
    let open = |offered: Value| {
        let mut config = config();
        config.additional_directories = vec!["/repo".into()];
        config.session_meta = Some(json!({"claudeCode": {"options": {"maxTurns": 3}}}));
        let mut bench = Bench::new(config);
        bench.prompt(prompt("hi"));
        bench.answer(json!({"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": offered}}));
        bench.call()["params"].clone()
    };
    assert_eq!(
        open(json!({"additionalDirectories": {}}))["additionalDirectories"],
        json!(["/repo"])
    );
    let without = open(json!({}));
    assert_eq!(without.get("additionalDirectories"), None);
    assert_eq!(without["_meta"]["claudeCode"]["options"]["maxTurns"], 3);
}

#[test]
fn history_is_discarded_before_and_after_the_load_answer_until_it_is_quiet() {
    let mut bench = begun(Some("s"), json!({"loadSession": true}));
    bench.chunk("old 1");
    bench.answer(json!({}));
    bench.chunk("old 2");
    assert_eq!(bench.armed, Some(bench.now + REPLAY_QUIET));
    bench.wait(Duration::from_millis(200));
    bench.chunk("old 3");
    bench.wait(Duration::from_millis(249));
    assert!(!bench.methods().contains(&"session/prompt"));
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.call()["method"], "session/prompt");
    assert!(bench.lines(LineStream::Acp).is_empty(), "history is never logged");
    bench.chunk("new");
    assert_eq!(bench.lines(LineStream::Acp).len(), 1);
    assert_positions(&bench.reports, 0, i64::try_from(bench.fed).unwrap());
}

#[test]
fn history_that_never_ends_is_cut_after_ten_seconds() {
    let mut bench = begun(Some("s"), json!({"loadSession": true}));
    bench.answer(json!({}));
    let start = bench.now;
    while !bench.methods().contains(&"session/prompt") {
        bench.chunk("old");
        bench.wait(Duration::from_millis(100));
        assert!(bench.now - start <= REPLAY_LIMIT);
    }
    assert_eq!(bench.now - start, REPLAY_LIMIT);
}

#[test]
fn a_gone_session_is_replaced_once_on_the_same_connection_with_the_same_prompt() {
    let offered = json!({"sessionCapabilities": {"resume": {}}});
    for error in [
        json!({"code": -32002, "message": "Resource not found"}),
        json!({"code": -32603, "message": "Internal error", "data": {"details": "no rollout found for thread id x"}}),
        json!({"code": -32603, "message": "Internal error", "data": {"details": "Invalid session identifier \"x\"."}}),
        json!({"code": -32603, "message": "Internal error: OpenCode service failure", "data": {"service": "session"}}),
    ] {
        let mut bench = begun(Some("old"), offered.clone());
        bench.refuse(error);
        assert_eq!(bench.call()["method"], "session/new");
        assert_eq!(bench.call()["params"].get("sessionId"), None);
        assert!(
            bench
                .reports
                .iter()
                .any(|report| matches!(report, Report::SessionGone { .. }))
        );
        bench.answer(json!({"sessionId": "new"}));
        assert_eq!(bench.call()["params"]["prompt"][0]["text"], "hi");
        assert_eq!(bench.peer.session(), Some("new"));
    }
    let mut bench = begun(Some("old"), offered.clone());
    bench.refuse(json!({"code": -32002, "message": "Resource not found"}));
    bench.refuse(json!({"code": -32002, "message": "Resource not found"}));
    assert_eq!(bench.failure().unwrap().code(), "acp_error", "only once");

    let mut bench = begun(Some("old"), offered);
    bench.refuse(json!({"code": -32603, "message": "disk full"}));
    assert!(
        !bench
            .reports
            .iter()
            .any(|report| matches!(report, Report::SessionGone { .. })),
        "the id is kept"
    );
    assert_eq!(bench.failure().unwrap().code(), "acp_error");
}

fn with_model(model: &str) -> PromptRequest {
    PromptRequest {
        model: Some(model.into()),
        ..prompt("hi")
    }
}

fn selected(bench: &Bench) -> Option<(Option<&str>, Option<&str>, ModelSource)> {
    bench.reports.iter().find_map(|report| match report {
        Report::ModelSelected {
            requested,
            effective,
            source,
            ..
        } => Some((requested.as_deref(), effective.as_deref(), *source)),
        _ => None,
    })
}

fn option_model(current: &str) -> Value {
    json!({"sessionId": "s", "configOptions": [{"id": "model", "type": "select", "currentValue": current}]})
}

#[test]
fn the_model_is_set_before_every_prompt_also_on_a_reused_connection() {
    let mut bench = Bench::idle(option_model("default"));
    for _ in 0..2 {
        bench.prompt(with_model("claude-opus-5"));
        assert_eq!(bench.call()["method"], "session/set_config_option");
        assert_eq!(
            bench.call()["params"],
            json!({"sessionId": "s", "configId": "model", "value": "claude-opus-5"})
        );
        bench.answer(json!({"configOptions": [{"id": "model", "type": "select", "currentValue": "opus[1m]"}]}));
        let expected = (Some("claude-opus-5"), Some("opus[1m]"), ModelSource::Runtime);
        assert_eq!(selected(&bench), Some(expected));
        bench.answer(json!({"stopReason": "end_turn"}));
        assert!(bench.peer.is_idle());
        bench.reports.clear();
    }
}

#[test]
fn without_a_wanted_model_nothing_is_sent_and_the_agents_is_reported() {
    let mut bench = Bench::idle(option_model("sonnet"));
    bench.prompt(prompt("hi"));
    assert_eq!(bench.methods(), ["session/prompt"]);
    assert_eq!(selected(&bench), Some((None, Some("sonnet"), ModelSource::Runtime)));
    let mut bench = Bench::idle(json!({"sessionId": "s"}));
    bench.prompt(prompt("hi"));
    assert_eq!(selected(&bench), None);
}

#[test]
fn a_separate_model_list_is_set_with_its_own_call_and_acknowledged() {
    let mut bench = Bench::idle(json!({"sessionId": "s", "models": {"currentModelId": "auto"}}));
    bench.prompt(with_model("gemini-3.1-pro-preview"));
    assert_eq!(bench.call()["method"], "session/set_model");
    assert_eq!(
        bench.call()["params"],
        json!({"sessionId": "s", "modelId": "gemini-3.1-pro-preview"})
    );
    bench.answer(json!({}));
    let expected = (
        Some("gemini-3.1-pro-preview"),
        Some("gemini-3.1-pro-preview"),
        ModelSource::SelectionAck,
    );
    assert_eq!(selected(&bench), Some(expected));
    assert_eq!(bench.call()["method"], "session/prompt");
}

#[test]
fn a_model_that_is_refused_or_replaced_or_not_offered_writes_no_prompt() {
    let check = |bench: &Bench| {
        assert_eq!(bench.failure().unwrap().code(), "model_selection_failed");
        assert!(bench.failure().unwrap().is_about_the_model());
        assert!(!bench.peer.prompt_was_written() && !bench.methods().contains(&"session/prompt"));
    };
    let mut bench = Bench::idle(option_model("sonnet"));
    bench.prompt(with_model("nope"));
    bench.refuse(json!({"code": -32602, "message": "unknown value"}));
    check(&bench);
    let mut bench = Bench::idle(option_model("sonnet"));
    bench.prompt(with_model("claude-opus-5"));
    bench.answer(json!({"configOptions": [{"id": "model", "currentValue": "claude-haiku-4-5"}]}));
    check(&bench);
    let mut bench = Bench::idle(json!({"sessionId": "s"}));
    bench.prompt(with_model("any"));
    check(&bench);
}

#[test]
fn options_follow_the_model_in_the_agents_order_against_the_latest_list() {
    let list = |mode: &str, effort: &str| json!([{"id": "mode", "type": "select", "currentValue": mode}, {"id": "effort", "type": "select", "currentValue": effort}]);
    let mut bench = Bench::idle(json!({"sessionId": "s", "configOptions": list("default", "low")}));
    let options = BTreeMap::from([
        ("effort".to_owned(), OptionValue::Choice("high".into())),
        ("mode".to_owned(), OptionValue::Choice("plan".into())),
        ("nope".to_owned(), OptionValue::Flag(true)),
    ]);
    bench.prompt(PromptRequest {
        options: options.clone(),
        ..prompt("hi")
    });
    assert_eq!(bench.call()["params"]["configId"], "mode");
    // Setting the mode also moved the effort: nothing is left to set.
    bench.answer(json!({"configOptions": list("plan", "high")}));
    assert_eq!(bench.call()["method"], "session/prompt");
    assert!(bench.reports.contains(&Report::ConfigSkipped {
        ids: vec!["nope".into()]
    }));
    let applied = vec![("mode".to_owned(), OptionValue::Choice("plan".into()))];
    assert!(
        bench
            .reports
            .iter()
            .any(|report| matches!(report, Report::ConfigSelected { applied: seen, .. } if *seen == applied))
    );
    bench.answer(json!({"stopReason": "end_turn"}));

    // The agent changed it by itself; the next prompt sets it again.
    bench.update(json!({"sessionUpdate": "config_option_update", "configOptions": list("plan", "low")}));
    bench.prompt(PromptRequest {
        options: options.clone(),
        ..prompt("hi")
    });
    assert_eq!(
        bench.call()["params"],
        json!({"sessionId": "s", "configId": "effort", "value": "high"})
    );
    bench.refuse(json!({"code": -32602, "message": "no"}));
    assert_eq!(bench.failure().unwrap().code(), "config_selection_failed");
    assert!(!bench.peer.prompt_was_written());
}
