//! Taking a running turn back after a restart (runtimes 10.7; 16, item 8).

use super::*;

fn attached(held: Vec<HeldPermission>, has_record: bool) -> Bench {
    let mut config = config();
    config.session = Some("s".into());
    Bench::with(Peer::attach(
        config,
        Attach {
            prompt_id: 5,
            held,
            from: 1000,
            has_record,
            policy: policy(json!({"default": "ask"})),
        },
    ))
}

#[test]
fn rul_41_an_attached_turn_ends_with_the_answer_to_its_prompt_and_no_other() {
    let mut bench = attached(Vec::new(), true);
    assert!(bench.peer.prompt_was_written());
    bench.say(&json!({"id": 4, "result": {"stopReason": "end_turn"}}));
    bench.chunk("again");
    bench.chunk("again");
    assert_eq!(bench.done(), None);
    assert_eq!(
        bench.lines(LineStream::Acp).len(),
        2,
        "rul_42: an honest repeat is kept"
    );
    bench.say(&json!({"id": 5, "result": {"stopReason": "end_turn"}}));
    assert!(matches!(bench.done(), Some(Report::Done { range, .. }) if range.from > 1000));
    assert!(bench.written.is_empty(), "no handshake");
    assert_positions(&bench.reports, 1000, 1000 + i64::try_from(bench.fed).unwrap());
    bench.prompt(prompt("next"));
    assert_eq!(
        (&bench.call()["id"], &bench.call()["method"]),
        (&json!(6), &json!("session/prompt"))
    );
    assert_eq!(bench.call()["params"]["sessionId"], "s");
}

#[test]
fn rul_42_without_a_record_the_first_partial_line_is_dropped() {
    let mut bench = attached(Vec::new(), false);
    bench.feed(b"rt\":1}}\n{\"method\":\"session/update\",\"params\":{}}\n");
    assert_eq!(bench.lines(LineStream::Stdout).len(), 0);
    assert_eq!(bench.lines(LineStream::Acp).len(), 1);
    let mut bench = attached(Vec::new(), true);
    bench.feed(b"not json\n");
    assert_eq!(bench.lines(LineStream::Stdout), ["not json\n"]);
}

#[test]
fn r_87_a_held_request_is_still_answerable_and_its_replay_ignored() {
    let stored = crate::domain::turn::PendingPermission {
        request_id: "0.00000000000000aa".into(),
        rpc_id: json!(0),
        tool: Some("make".into()),
        options: OPTIONS().as_array().unwrap().clone(),
        asked_at: chrono::DateTime::UNIX_EPOCH,
        deadline: chrono::DateTime::UNIX_EPOCH,
        detached_until: None,
        answer: None,
    };
    let mut bench = attached(vec![HeldPermission::from(&stored)], true);
    bench.ask(json!(0), "make");
    assert!(
        !bench
            .reports
            .iter()
            .any(|report| matches!(report, Report::PermissionAsk(_)))
    );
    let effects = bench.peer.answer("0.00000000000000aa", "once").unwrap();
    bench.take(effects);
    assert_eq!(
        (
            &bench.written[0]["id"],
            &bench.written[0]["result"]["outcome"]["optionId"]
        ),
        (&json!(0), &json!("once"))
    );
}

#[test]
fn what_the_agent_offers_is_unknown_after_an_attach() {
    let mut bench = attached(Vec::new(), true);
    bench.say(&json!({"id": 5, "result": {"stopReason": "end_turn"}}));
    let refused = bench.peer.prompt(
        PromptRequest {
            model: Some("m".into()),
            ..prompt("x")
        },
        bench.now,
    );
    assert_eq!(refused, Err(PromptRefused::CapabilitiesUnknown));
    assert!(bench.peer.prompt(prompt("x"), bench.now).is_ok());
}

#[test]
fn the_stored_form_of_an_ask_carries_its_deadline() {
    let mut bench = attached(Vec::new(), true);
    bench.ask(json!("q"), "make");
    let Some(Report::PermissionAsk(ask)) = bench.reports.first() else {
        panic!()
    };
    let pending = ask.pending(chrono::DateTime::UNIX_EPOCH);
    assert_eq!(pending.deadline.timestamp(), 300);
    assert_eq!((&pending.rpc_id, pending.answer.is_none()), (&json!("q"), true));
    assert_eq!(HeldPermission::from(&pending), HeldPermission::from(&**ask));
}
