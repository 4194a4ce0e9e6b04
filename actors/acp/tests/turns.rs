//! Prompts, output, permissions, interrupts and endings (runtimes 16, items 1, 6, 7, 13).

use super::*;

fn prompting(policy: EffectivePolicy) -> Bench {
    let mut bench = Bench::idle(json!({"sessionId": "s"}));
    bench.prompt(PromptRequest { policy, ..prompt("go") });
    bench.reports.clear();
    bench
}

fn asked(bench: &Bench) -> &PermissionAsk {
    bench
        .reports
        .iter()
        .find_map(|report| match report {
            Report::PermissionAsk(ask) => Some(&**ask),
            _ => None,
        })
        .unwrap()
}

#[test]
fn what_is_no_protocol_is_output_and_never_an_error() {
    let mut bench = prompting(EffectivePolicy::default());
    let start = bench.peer.position();
    bench.feed(b"npm notice\n[1]\n{\"level\":\"info\"}\n\n{\"id\":1,\n");
    assert_eq!(
        bench.lines(LineStream::Stdout),
        ["npm notice\n", "[1]\n", "{\"level\":\"info\"}\n", "{\"id\":1,\n"]
    );
    assert_positions(&bench.reports, start, i64::try_from(bench.fed).unwrap());
    assert!(bench.peer.feed(b"tail", bench.now).is_empty(), "a partial line waits");
    let effects = bench.peer.end_of_output(bench.now);
    assert!(matches!(&effects[..], [Effect::Report(Report::Line { text, .. })] if text == "tail\n"));
}

#[test]
fn rul_55_a_line_over_16_mib_is_shown_in_marked_pieces_and_is_no_protocol() {
    let mut bench = prompting(EffectivePolicy::default());
    let start = bench.peer.position();
    let long = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{{\"stopReason\":\"{}\"}}}}\n",
        "x".repeat(17 << 20)
    );
    for chunk in long.as_bytes().chunks(1 << 16) {
        bench.feed(chunk);
    }
    assert_eq!(bench.done(), None);
    assert!(!bench.peer.is_idle());
    let pieces = bench.lines(LineStream::Stdout);
    assert!(pieces[0].starts_with("[a line longer than 16 MiB"));
    assert_eq!(pieces.concat().len(), long.len() + pieces[0].find('\n').unwrap() + 1);
    assert_positions(&bench.reports, start, i64::try_from(bench.fed).unwrap());
}

#[test]
fn a_line_of_ten_megabytes_is_protocol() {
    let mut bench = prompting(EffectivePolicy::default());
    bench.chunk(&"y".repeat(10 << 20));
    assert_eq!(bench.lines(LineStream::Acp).len(), 1);
}

#[test]
fn bytes_that_are_no_text_do_not_swallow_the_answer() {
    let mut bench = prompting(EffectivePolicy::default());
    bench.feed(b"{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{\"stopReason\":\"end_turn\",\"x\":\"\xff\"}}\n");
    assert!(bench.done().is_some());
}

#[test]
fn p54_what_belongs_to_another_session_is_dropped_and_its_request_cancelled() {
    let mut bench = prompting(policy(json!({"default": "auto_allow"})));
    bench.written.clear();
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "theirs"}});
    bench.say(&json!({"method": "session/update", "params": {"sessionId": "other", "update": update}}));
    assert!(bench.lines(LineStream::Acp).is_empty());
    bench.say(&json!({"id": 5, "method": "session/request_permission", "params": {"sessionId": "other", "options": OPTIONS()}}));
    assert_eq!(bench.written[0]["result"], json!({"outcome": {"outcome": "cancelled"}}));
    bench.say(&json!({"method": "session/update", "params": {"update": update}}));
    assert_eq!(
        bench.lines(LineStream::Acp).len(),
        1,
        "an update that names no session is ours"
    );
}

#[test]
fn every_unknown_request_is_refused_at_once() {
    let mut bench = prompting(EffectivePolicy::default());
    bench.written.clear();
    for (id, method) in [
        (json!(7), "fs/read_text_file"),
        (json!("x"), "terminal/create"),
        (json!(8), "_ext/any"),
        (json!(9), "elicitation/create"),
    ] {
        bench.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}));
        let answer = bench.written.pop().unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(-32601)));
    }
    bench.say(&json!({"jsonrpc": "2.0", "method": "_auth/status_update", "params": {}}));
    assert!(bench.written.is_empty() && bench.lines(LineStream::Acp).is_empty());
}

#[test]
fn the_three_verdicts_answer_allow_deny_and_hold() {
    let mut bench = prompting(policy(json!({"ls": "auto_allow", "rm": "auto_deny", "default": "ask"})));
    bench.written.clear();
    bench.ask(json!(0), "ls");
    assert_eq!(bench.written[0]["result"]["outcome"]["optionId"], "always");
    assert!(
        bench
            .reports
            .iter()
            .all(|report| matches!(report, Report::Passed { .. })),
        "an allowed request leaves no trace"
    );
    bench.ask(json!(1), "rm");
    assert_eq!(bench.written[1]["result"]["outcome"]["optionId"], "no");
    assert!(
        bench
            .reports
            .iter()
            .any(|report| matches!(report, Report::PermissionDenied { tool: Some(tool), .. } if tool == "rm"))
    );
    bench.ask(json!(2), "make");
    assert_eq!(bench.written.len(), 2, "held");
    let ask = asked(&bench);
    assert_eq!(ask.request_id, "2.0000000000000001");
    assert_eq!(ask.tool.as_deref(), Some("make"));
    assert_eq!(ask.timeout, Duration::from_secs(300));
    let line: Value = serde_json::from_str(&ask.line).unwrap();
    assert_eq!(
        line["id"], "2.0000000000000001",
        "the stored line carries the public id"
    );
    assert_eq!(line["params"]["options"], OPTIONS());
}

#[test]
fn rul_10_answers_are_first_wins_with_offered_options_and_fresh_ids() {
    let mut bench = prompting(policy(json!({"default": "ask"})));
    bench.written.clear();
    bench.ask(json!("a"), "make");
    let first = asked(&bench).request_id.clone();
    assert_eq!(bench.peer.answer(&first, "nope"), Err(AnswerError::UnknownOption));
    assert_eq!(
        bench.peer.answer("a", "once"),
        Err(AnswerError::NotPending),
        "the bare id is not the public one"
    );
    let effects = bench.peer.answer(&first, "once").unwrap();
    assert!(
        matches!(&effects[..], [Effect::Write(Outgoing { about: About::Permission { request_id }, .. })] if *request_id == first)
    );
    bench.take(effects);
    assert_eq!(
        bench.written[0],
        json!({"jsonrpc": "2.0", "id": "a", "result": {"outcome": {"outcome": "selected", "optionId": "once"}}})
    );
    assert_eq!(bench.peer.answer(&first, "once"), Err(AnswerError::NotPending));
    bench.reports.clear();
    bench.ask(json!("a"), "make");
    assert_ne!(
        asked(&bench).request_id,
        first,
        "the agent counts from anew, the card must miss"
    );
}

#[test]
fn a_denial_picks_a_rejecting_option_and_a_replayed_request_is_ignored() {
    let mut bench = prompting(policy(json!({"default": "ask"})));
    bench.written.clear();
    bench.ask(json!(0), "make");
    bench.ask(json!(0), "make");
    assert_eq!(
        bench
            .reports
            .iter()
            .filter(|report| matches!(report, Report::PermissionAsk(_)))
            .count(),
        1
    );
    let id = asked(&bench).request_id.clone();
    let effects = bench.peer.deny(&id).unwrap();
    bench.take(effects);
    assert_eq!(bench.written[0]["result"]["outcome"]["optionId"], "no");
    assert_eq!(bench.peer.deny(&id), Err(AnswerError::NotPending));
}

#[test]
fn the_shorter_of_request_and_policy_bounds_an_ask() {
    let ask = |meta: Value, policy_s: Option<u64>, ceiling: u64| {
        let mut map = json!({"default": "ask"});
        if let Some(seconds) = policy_s {
            map["ask_timeout"] = seconds.into();
        }
        let mut bench = prompting(policy(map));
        bench.peer.config.ask_ceiling = Duration::from_secs(ceiling);
        bench.say(&json!({"id": 1, "method": "session/request_permission", "params": {"sessionId": "s", "options": [], "_meta": meta}}));
        let ask = asked(&bench);
        (ask.timeout.as_secs(), ask.detached_timeout.as_secs())
    };
    assert_eq!(ask(json!({}), None, 300), (300, 300));
    assert_eq!(ask(json!({}), None, 60), (60, 300));
    assert_eq!(ask(json!({"fountain": {"timeout": 20}}), Some(90), 300), (20, 20));
    assert_eq!(ask(json!({"fountain": {"timeout": 86_400}}), None, 300), (300, 86_400));
    assert_eq!(ask(json!({"fountain": {"timeout": -1}}), Some(90), 300), (90, 90));
}

#[test]
fn only_waiting_keeps_a_held_request_open() {
    let mut bench = prompting(policy(json!({"default": "ask"})));
    bench.ask(json!(0), "make");
    let id = asked(&bench).request_id.clone();
    bench.written.clear();
    bench.say(&json!({"id": 4, "result": {"stopReason": "waiting"}}));
    let Some(Report::Done {
        stop_reason,
        unanswered,
        ..
    }) = bench.done()
    else {
        panic!()
    };
    assert!(stop_reason.completes());
    assert_eq!(unanswered, std::slice::from_ref(&id));
    assert_eq!(bench.peer.held_requests(), [id]);
    assert!(bench.written.is_empty());

    let mut bench = prompting(policy(json!({"default": "ask"})));
    bench.ask(json!(0), "make");
    bench.written.clear();
    bench.say(&json!({"id": 4, "result": {"stopReason": "end_turn"}}));
    assert!(matches!(bench.done(), Some(Report::Done { unanswered, .. }) if unanswered.len() == 1));
    assert_eq!(bench.written[0]["result"], json!({"outcome": {"outcome": "cancelled"}}));
    assert!(bench.peer.held_requests().is_empty());
}

#[test]
fn a_cancel_asks_the_agent_and_releases_what_it_waits_for() {
    let mut bench = prompting(policy(json!({"default": "ask"})));
    bench.ask(json!(0), "make");
    bench.written.clear();
    let effects = bench.peer.cancel();
    bench.take(effects);
    assert_eq!(
        bench.written[0],
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}})
    );
    assert_eq!(bench.written[1]["result"]["outcome"]["outcome"], "cancelled");
    bench.say(&json!({"id": 4, "result": {"stopReason": "cancelled", "usage": null}}));
    assert!(matches!(
        bench.done(),
        Some(Report::Done {
            stop_reason: StopReason::Cancelled,
            usage: None,
            ..
        })
    ));
    assert!(bench.peer.cancel().is_empty(), "nothing runs any more");
    let mut bench = prompting(EffectivePolicy::default());
    bench.say(&json!({"id": 4, "error": {"code": -32800, "message": "cancelled"}}));
    assert!(matches!(
        bench.done(),
        Some(Report::Done {
            stop_reason: StopReason::Cancelled,
            ..
        })
    ));
}

#[test]
fn stop_reasons_complete_only_when_the_agent_is_done_or_waits() {
    for (result, word, completes) in [
        (json!({"stopReason": "end_turn"}), "end_turn", true),
        (json!({"stopReason": "waiting"}), "waiting", true),
        (json!({"stopReason": "max_tokens"}), "max_tokens", false),
        (json!({"stopReason": "refusal"}), "refusal", false),
        (json!({"stopReason": ""}), "unknown", false),
        (json!({}), "unknown", false),
        (Value::Null, "unknown", false),
    ] {
        let mut bench = prompting(EffectivePolicy::default());
        bench.say(&json!({"id": 4, "result": result}));
        let Some(Report::Done { stop_reason, .. }) = bench.done() else {
            panic!("{result}")
        };
        assert_eq!((stop_reason.as_str(), stop_reason.completes()), (word, completes));
        assert!(bench.peer.is_idle(), "the connection stays open");
    }
}

#[test]
fn an_error_to_the_prompt_fails_the_turn_and_nothing_is_written_any_more() {
    let mut bench = prompting(policy(json!({"default": "ask"})));
    bench.refuse(json!({"code": -32603, "message": "The model x is not found for api version v1"}));
    assert_eq!(bench.failure().unwrap().code(), "model_unavailable");
    bench.written.clear();
    bench.ask(json!(0), "make");
    bench.say(&json!({"id": 3, "method": "fs/read_text_file", "params": {}}));
    assert!(bench.written.is_empty());
    bench.chunk("last words");
    assert_eq!(bench.lines(LineStream::Acp).len(), 1, "what it still says is kept");
    assert_eq!(bench.peer.prompt(prompt("x"), bench.now), Err(PromptRefused::Closed));
}

#[test]
fn answers_to_nobody_and_a_second_answer_change_nothing() {
    let mut bench = prompting(EffectivePolicy::default());
    bench.say(&json!({"id": 99, "result": {"stopReason": "end_turn"}}));
    bench.say(&json!({"id": "4", "result": {"stopReason": "end_turn"}}));
    assert_eq!(bench.done(), None, "a string is not the number that we sent");
    bench.say(&json!({"id": 4, "result": {"stopReason": "end_turn"}}));
    bench.say(&json!({"id": 4, "result": {"stopReason": "end_turn"}}));
    assert_eq!(
        bench
            .reports
            .iter()
            .filter(|report| matches!(report, Report::Done { .. }))
            .count(),
        1,
        "R-99"
    );
}

#[test]
fn a_busy_or_closed_peer_refuses_a_prompt() {
    let mut bench = prompting(EffectivePolicy::default());
    assert_eq!(bench.peer.prompt(prompt("x"), bench.now), Err(PromptRefused::NotIdle));
    let effects = bench.peer.close();
    bench.take(effects);
    assert!(bench.input_closed);
    assert!(bench.peer.close().is_empty());
    assert_eq!(bench.peer.prompt(prompt("x"), bench.now), Err(PromptRefused::Closed));
    assert!(bench.peer.write_failed().is_empty(), "closed is closed");
    let mut bench = prompting(EffectivePolicy::default());
    let effects = bench.peer.write_failed();
    bench.take(effects);
    assert_eq!(bench.failure().unwrap().code(), "acp_write_failed");
}

#[test]
fn between_turns_lines_say_what_kind_they_are() {
    let mut bench = Bench::idle(json!({"sessionId": "s"}));
    bench.update(json!({"sessionUpdate": "session_info_update", "title": "A title"}));
    bench.update(json!({"sessionUpdate": "_fountain/labels", "labels": {"k": "v"}}));
    bench.chunk("background");
    bench.update(json!({"sessionUpdate": "usage_update", "_meta": {"_claude/origin": {"kind": "task-notification"}}}));
    let kinds: Vec<LineKind> = bench
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::Line { kind, .. } => Some(*kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [LineKind::Metadata, LineKind::Work, LineKind::Metadata]);
    assert!(
        bench
            .reports
            .iter()
            .any(|report| matches!(report, Report::Title { title: Some(title), .. } if title == "A title"))
    );
    assert!(
        bench
            .reports
            .iter()
            .any(|report| matches!(report, Report::Labels { labels, .. } if labels["k"] == "v"))
    );
    assert!(
        bench
            .reports
            .iter()
            .any(|report| matches!(report, Report::CycleEnd { kind, .. } if kind == "task-notification"))
    );
}

fn two_questions() -> (Bench, String, i64) {
    let mut bench = prompting(policy(json!({"default": "ask", "ls": "auto_allow"})));
    bench.written.clear();
    let start = bench.peer.position();
    bench.ask(json!(0), "make");
    bench.ask(json!(1), "rm");
    bench.chunk("meanwhile");
    bench.ask(json!(2), "ls");
    let first = asked(&bench).request_id.clone();
    (bench, first, start)
}

#[test]
fn rul_56_a_second_question_waits_for_the_first_and_keeps_its_place() {
    let (mut bench, first, start) = two_questions();
    let Some(Report::PermissionAsk(ask)) = bench.reports.last() else {
        panic!("{:?}", bench.reports)
    };
    assert_eq!(
        bench.peer.position(),
        ask.range.to,
        "what was not read has not moved the position"
    );
    assert_eq!(bench.peer.held_requests(), std::slice::from_ref(&first));
    assert!(bench.written.is_empty());
    let effects = bench.peer.answer(&first, "once").unwrap();
    bench.take(effects);
    assert_eq!(bench.peer.held_requests().len(), 1, "now the second is asked");
    assert_eq!(bench.lines(LineStream::Acp).len(), 1);
    assert_eq!(
        bench.written[1]["id"], 2,
        "an allowed request behind it is answered too"
    );
    assert_positions(&bench.reports, start, i64::try_from(bench.fed).unwrap());
}

#[test]
fn a_cancel_or_an_end_of_the_connection_reads_what_waited_behind_a_question() {
    let (mut bench, _, start) = two_questions();
    let effects = bench.peer.cancel();
    bench.take(effects);
    let outcome = |line: &Value| line["result"]["outcome"]["outcome"].as_str().map(str::to_owned);
    let told: Vec<_> = bench.written.iter().filter_map(outcome).collect();
    assert_eq!(
        told,
        ["cancelled", "cancelled", "cancelled"],
        "everything that asks is released"
    );
    assert_positions(&bench.reports, start, i64::try_from(bench.fed).unwrap());

    let asks = |bench: &Bench| {
        bench
            .reports
            .iter()
            .filter(|report| matches!(report, Report::PermissionAsk(_)))
            .count()
    };
    let (mut bench, _, start) = two_questions();
    let effects = bench.peer.close();
    bench.take(effects);
    assert_eq!(
        (asks(&bench), bench.lines(LineStream::Acp).len()),
        (1, 1),
        "output is kept, a question is not opened"
    );
    assert_positions(&bench.reports, start, i64::try_from(bench.fed).unwrap());

    let (mut bench, first, start) = two_questions();
    let effects = bench.peer.end_of_output(bench.now);
    bench.take(effects);
    assert_eq!((asks(&bench), bench.lines(LineStream::Acp).len()), (1, 1));
    assert_eq!(
        bench.peer.answer(&first, "once"),
        Err(AnswerError::Closed),
        "nobody is there to be answered"
    );
    assert_positions(&bench.reports, start, i64::try_from(bench.fed).unwrap());
}
