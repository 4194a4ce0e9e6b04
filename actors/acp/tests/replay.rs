//! Every recorded conversation of a real agent goes through the peer (runtimes 16, items 1 and 2).
//!
//! The recordings have their own client's numbers; the peer's calls are matched by method, in order. What the recorded
//! client never did (authenticating codex) is answered with an empty result.

use std::collections::VecDeque;
use std::path::PathBuf;

use super::*;

#[derive(Clone)]
struct Tape {
    name: String,
    entries: VecDeque<(bool, Value)>,
}

fn tapes() -> Vec<Tape> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/acp");
    let mut tapes: Vec<Tape> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .map(|path| Tape {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            entries: std::fs::read_to_string(&path)
                .unwrap()
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap())
                .filter(|entry| entry["dir"] != "note")
                .map(|entry| (entry["dir"] == "c2a", entry["msg"].clone()))
                .collect(),
        })
        .collect();
    tapes.sort_by(|a, b| a.name.cmp(&b.name));
    tapes
}

fn tape(name: &str) -> Tape {
    tapes().into_iter().find(|tape| tape.name == name).unwrap()
}

impl Tape {
    fn method(&self, prefix: &str) -> Option<&Value> {
        self.entries
            .iter()
            .map(|(_, message)| message)
            .find(|message| message["method"].as_str().is_some_and(|m| m.starts_with(prefix)))
    }

    fn bench(&self) -> Bench {
        let continued = self.method("session/resume").or_else(|| self.method("session/load"));
        let mut config = config();
        config.cwd = "/agent/folder".into();
        config.session = continued
            .and_then(|message| message["params"]["sessionId"].as_str())
            .map(str::to_owned);
        Bench::new(config)
    }

    fn request(&self, text: &str) -> PromptRequest {
        let model = self
            .method("session/set_config_option")
            .and_then(|message| message["params"]["value"].as_str());
        PromptRequest {
            model: model.map(str::to_owned),
            policy: policy(json!({"default": "ask"})),
            ..prompt(text)
        }
    }

    fn play(self) -> Bench {
        self.play_cut(&|line| vec![line.len()])
    }

    /// Plays the tape; `cuts` says where a line of the agent is cut into chunks.
    fn play_cut(mut self, cuts: &dyn Fn(&str) -> Vec<usize>) -> Bench {
        let mut bench = self.bench();
        let mut numbers: Vec<(Value, Value)> = Vec::new();
        // An agent that offers both is resumed; the recorded client asked for a load.
        let loads = self.method("session/load").is_some();
        while let Some((from_client, mut message)) = self.entries.pop_front() {
            if loads && let Some(offered) = message.pointer_mut("/result/agentCapabilities/sessionCapabilities") {
                offered["resume"] = Value::Null;
            }
            if from_client {
                self.client(&mut bench, &message, &mut numbers);
            } else {
                if message.get("method").is_none()
                    && let Some((_, ours)) = numbers.iter().find(|(theirs, _)| *theirs == message["id"])
                {
                    message["id"] = ours.clone();
                }
                let line = format!(
                    "{message}
"
                );
                let mut from = 0;
                for to in cuts(&line) {
                    bench.feed(&line.as_bytes()[from..to]);
                    from = to;
                }
                bench.feed(&line.as_bytes()[from..]);
            }
        }
        bench
    }

    fn client(&self, bench: &mut Bench, message: &Value, numbers: &mut Vec<(Value, Value)>) {
        let Some(method) = message["method"].as_str() else {
            let option = message["result"]["outcome"]["optionId"].as_str().unwrap();
            let held = bench.peer.held_requests();
            let effects = bench.peer.answer(&held[0], option).unwrap();
            return bench.take(effects);
        };
        match method {
            "session/cancel" => {
                let effects = bench.peer.cancel();
                return bench.take(effects);
            }
            "initialize" => bench.prompt(self.request(self.first_prompt())),
            "session/prompt" if bench.peer.is_idle() => {
                bench.prompt(self.request(message["params"]["prompt"][0]["text"].as_str().unwrap()));
            }
            _ => {}
        }
        for _ in 0..40 {
            if bench.call()["method"] == method {
                break;
            }
            if bench.call()["method"] == "authenticate" {
                bench.answer(json!({}));
            } else {
                bench.wait(REPLAY_QUIET); // history drains
            }
        }
        assert_eq!(bench.call()["method"], method, "{}", self.name);
        numbers.retain(|(theirs, _)| *theirs != message["id"]);
        numbers.push((message["id"].clone(), bench.call()["id"].clone()));
        let (mut ours, mut theirs) = (bench.call()["params"].clone(), message["params"].clone());
        if method == "initialize" {
            ours = Value::Null;
            theirs = Value::Null;
        }
        assert_eq!(ours, theirs, "{}: {method}", self.name);
    }

    fn first_prompt(&self) -> &str {
        self.method("session/prompt")
            .and_then(|message| message["params"]["prompt"][0]["text"].as_str())
            .unwrap()
    }
}

fn stop_reasons(bench: &Bench) -> Vec<&str> {
    bench
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::Done { stop_reason, .. } => Some(stop_reason.as_str()),
            _ => None,
        })
        .collect()
}

#[test]
fn every_recorded_conversation_plays_to_its_end() {
    let tapes = tapes();
    assert_eq!(tapes.len(), 21);
    for tape in tapes {
        let name = tape.name.clone();
        let updates = tape
            .entries
            .iter()
            .filter(|(_, message)| message["method"] == "session/update")
            .count();
        let prompts = tape
            .entries
            .iter()
            .filter(|(_, message)| message["method"] == "session/prompt")
            .count();
        let bench = tape.play();
        assert_eq!(bench.failure(), None, "{name}");
        let expected = if name.ends_with("-cancel") || name.ends_with("ask-reject") {
            "cancelled"
        } else {
            "end_turn"
        };
        assert_eq!(stop_reasons(&bench), vec![expected; prompts], "{name}");
        assert!(bench.peer.is_idle(), "{name}");
        assert_positions(&bench.reports, 0, i64::try_from(bench.fed).unwrap());
        let stored = bench.lines(LineStream::Acp).len();
        if name.ends_with("-load") {
            assert!(stored < updates, "{name}: history is not stored");
        } else {
            assert_eq!(stored, updates, "{name}: every update is stored");
        }
        assert!(bench.lines(LineStream::Stdout).is_empty(), "{name}");
    }
}

#[test]
fn what_is_stored_is_what_the_agent_wrote() {
    for tape in tapes().into_iter().filter(|tape| !tape.name.ends_with("-load")) {
        let said: Vec<String> = tape
            .entries
            .iter()
            .map(|(_, message)| message)
            .filter(|message| message["method"] == "session/update")
            .map(|message| format!("{message}\n"))
            .collect();
        let bench = tape.play();
        assert_eq!(bench.lines(LineStream::Acp), said);
    }
}

#[test]
fn p67_a_conversation_that_comes_byte_by_byte_reports_the_same() {
    for tape in tapes() {
        let whole = tape.clone().play();
        let parts = tape.clone().play_cut(&|line| (1..line.len()).collect());
        assert_eq!(parts.reports, whole.reports, "{}", tape.name);
        assert_eq!(parts.written, whole.written, "{}", tape.name);
    }
}

#[test]
fn p67_a_conversation_cut_once_at_any_byte_reports_the_same() {
    let tape = tape("gemini-0.61.0-reject");
    let whole = tape.clone().play();
    let longest = tape
        .entries
        .iter()
        .map(|(_, message)| message.to_string().len())
        .max()
        .unwrap();
    for cut in 1..=longest {
        let parts = tape.clone().play_cut(&|line| vec![cut % line.len()]); // every position of every line
        assert_eq!(parts.reports, whole.reports, "cut at {cut}");
    }
}

#[test]
fn usage_is_read_from_every_agents_own_place() {
    let usage = |name: &str| {
        let bench = tape(name).play();
        bench
            .reports
            .into_iter()
            .filter_map(|report| match report {
                Report::Done { usage, .. } => Some(usage.map(|usage| (usage.input, usage.output, usage.cache_read))),
                _ => None,
            })
            .next()
            .unwrap()
    };
    assert_eq!(
        usage("claude-0.101.0-turn"),
        Some((360, usage("claude-0.101.0-turn").unwrap().1, Some(90)))
    );
    assert_eq!(usage("codex-2.6.0-turn"), Some((270, 75, Some(90))));
    assert_eq!(usage("gemini-0.61.0-turn"), Some((360, 75, None)));
    assert_eq!(usage("claude-0.101.0-cancel"), Some((0, 0, Some(0))));
    assert_eq!(usage("codex-2.6.0-cancel"), None, "null is not zero");
}

#[test]
fn the_stored_lines_of_every_agent_become_the_same_kinds_of_blocks() {
    use crate::transcript::blocks::{Block, blocks, reply_text};
    for name in [
        "claude-0.101.0-turn",
        "claude-0.81.2-turn",
        "codex-1.10.0-turn",
        "codex-2.6.0-turn",
        "gemini-0.61.0-turn",
        "opencode-1.18.33-turn",
    ] {
        let bench = tape(name).play();
        let rows = bench.lines(LineStream::Acp);
        let all: Vec<Block> = rows.iter().flat_map(|row| blocks(row)).collect();
        let thought: String = all
            .iter()
            .filter_map(|block| match block {
                Block::Thinking { body } => Some(body.as_str()),
                _ => None,
            })
            .collect();
        assert!(thought.contains("planning"), "{name}: {thought}");
        let results: Vec<(&str, bool)> = all
            .iter()
            .filter_map(|block| match block {
                Block::ToolResult { body, error, .. } => Some((body.as_str(), *error)),
                _ => None,
            })
            .collect();
        assert_eq!(results.len(), 2, "{name}: {results:?}");
        assert!(results.iter().all(|(_, error)| !error), "{name}");
        // gemini reports no output of a command.
        assert!(
            name.starts_with("gemini") || results[0].0.contains("hi-from-tool"),
            "{name}: {results:?}"
        );
        let reply = reply_text(rows.iter().copied()).unwrap();
        assert!(
            reply.contains("all finished") && reply.ends_with("earlier prompts"),
            "{name}: {reply}"
        );
        assert!(!all.iter().any(|block| matches!(block, Block::Raw { .. })), "{name}");
    }
}

#[test]
fn the_stored_request_of_every_asking_agent_becomes_a_card() {
    use crate::transcript::blocks::{Block, blocks};
    for name in [
        "claude-0.101.0-reject",
        "codex-2.6.0-ask-allow",
        "codex-2.6.0-ask-reject",
        "gemini-0.61.0-reject",
    ] {
        let bench = tape(name).play();
        let asks: Vec<&PermissionAsk> = bench
            .reports
            .iter()
            .filter_map(|report| match report {
                Report::PermissionAsk(ask) => Some(&**ask),
                _ => None,
            })
            .collect();
        assert_eq!(asks.len(), 1, "{name}");
        let card = blocks(&asks[0].line);
        let Some(Block::PermissionRequest {
            request_id,
            name: tool,
            options,
            ..
        }) = card.first()
        else {
            panic!("{name}: {card:?}")
        };
        assert_eq!(*request_id, asks[0].request_id, "{name}");
        assert_eq!(Some(tool), asks[0].tool.as_ref(), "{name}");
        assert_eq!(*options, asks[0].options, "{name}");
    }
}

proptest::proptest! {
    #[test]
    fn no_line_of_an_agent_makes_the_peer_panic_or_lose_its_place(
        lines in proptest::collection::vec(line(), 1..20),
        cuts in proptest::collection::vec(0usize..2000, 0..6),
    ) {
        let mut bench = Bench::idle(json!({"sessionId": "s"}));
        bench.prompt(PromptRequest { policy: policy(json!({"default": "ask"})), ..prompt("go") });
        bench.reports.clear();
        let start = bench.peer.position();
        let bytes: Vec<u8> = lines.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            bench.feed(&bytes[from..cut]);
            from = cut;
        }
        for line in &lines {
            let _ = crate::transcript::blocks::blocks(&String::from_utf8_lossy(line));
        }
        let effects = bench.peer.end_of_output(bench.now); // reads what waits behind a question
        bench.take(effects);
        assert_positions(&bench.reports, start, start + i64::try_from(bytes.len()).unwrap());
    }
}

/// A line as an agent might write it: protocol with odd values in odd places, or noise.
fn line() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
    use proptest::prelude::*;
    let odd = prop_oneof![
        Just(json!(null)),
        Just(json!(0)),
        Just(json!(4)),
        Just(json!(-1.5)),
        Just(json!("s")),
        Just(json!([])),
        Just(json!([{}, 1])),
        Just(json!({})),
        Just(json!({"sessionUpdate": "tool_call", "content": 1})),
        Just(json!({"kind": "x", "optionId": 1})),
    ];
    let names = prop::sample::select(vec![
        "session/update",
        "session/request_permission",
        "fs/read_text_file",
        "$/x",
    ]);
    let updates = prop::sample::select(vec![
        "agent_message_chunk",
        "tool_call",
        "tool_call_update",
        "plan",
        "usage_update",
        "session_info_update",
        "config_option_update",
        "_fountain/labels",
        "nothing known",
    ]);
    let message =
        (odd.clone(), names, updates, odd.clone(), odd.clone(), odd).prop_map(|(id, method, kind, a, b, c)| {
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {
            "sessionId": a, "toolCall": b, "options": c, "_meta": a, "update": {
                "sessionUpdate": kind, "content": a, "entries": b, "configOptions": c, "labels": a, "title": b,
                "toolCallId": c, "_meta": b, "rawInput": c}}})
        });
    let response = prop::sample::select(vec![json!({}), json!(null), json!({"stopReason": 1}), json!("x")])
        .prop_map(|result| json!({"id": 4, "result": result}));
    let text = prop_oneof![message, response].prop_map(|message| format!("{message}\n").into_bytes());
    let noise = proptest::collection::vec(any::<u8>().prop_filter("one line", |byte| *byte != b'\n'), 0..30).prop_map(
        |mut bytes| {
            bytes.push(b'\n');
            bytes
        },
    );
    prop_oneof![4 => text, 1 => noise]
}
