//! The demo agent driven by our own peer over pipes, and by the protocol crate's client.
//!
//! Real processes and real time: every wait is for a level and has a limit.

use std::path::Path;
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse,
};
use fountain_actors::acp::PromptRequest as OurPrompt;
use fountain_actors::acp::{Effect, LineStream, Peer, PeerConfig, Report};
use fountain_actors::domain::policy::{EffectivePolicy, PermissionPolicy};
use fountain_actors::transcript::blocks::{Block, blocks, reply_text};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// An agent in this process, and a client at the other end of its pipes.
struct Stage {
    peer: Peer,
    to_agent: DuplexStream,
    from_agent: DuplexStream,
    reports: Vec<Report>,
    quits: mpsc::UnboundedReceiver<Quit>,
}

fn start(home: &Path) -> (DuplexStream, DuplexStream, mpsc::UnboundedReceiver<Quit>) {
    let (to_agent, input) = tokio::io::duplex(4096);
    let (output, from_agent) = tokio::io::duplex(4096);
    let (quit, quits) = mpsc::unbounded_channel();
    let on_quit: OnQuit = Arc::new(move |how| quit.send(how).unwrap());
    tokio::spawn(serve(input, output, home.to_path_buf(), on_quit));
    (to_agent, from_agent, quits)
}

impl Stage {
    fn new(home: &Path, session: Option<String>) -> Self {
        let (to_agent, from_agent, quits) = start(home);
        let mut config = PeerConfig::new(home.to_string_lossy(), Box::new(|| "0".repeat(16)));
        config.session = session;
        Self {
            peer: Peer::new(config),
            to_agent,
            from_agent,
            reports: Vec::new(),
            quits,
        }
    }

    async fn act(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Write(out) => self.to_agent.write_all(out.line.as_bytes()).await.unwrap(),
                Effect::Report(report) => self.reports.push(report),
                Effect::Arm(_) | Effect::CloseInput => {}
            }
        }
    }

    async fn prompt(&mut self, text: &str) {
        self.reports.clear();
        let policy = PermissionPolicy::parse(&json!({"default": "ask"})).unwrap();
        let request = OurPrompt {
            text: text.into(),
            policy: EffectivePolicy::of(policy, None),
            ..OurPrompt::default()
        };
        let effects = self.peer.prompt(request, Instant::now()).unwrap();
        self.act(effects).await;
    }

    /// Reads until the level is reached.
    async fn until(&mut self, reached: impl Fn(&Self) -> bool) {
        let mut buffer = [0; 4096];
        while !reached(self) {
            let read = timeout(LIMIT, self.from_agent.read(&mut buffer)).await;
            let read = read
                .unwrap_or_else(|_| panic!("not reached, last: {:?}", self.reports))
                .unwrap();
            assert_ne!(read, 0, "the agent hung up: {:?}", self.reports);
            let effects = self.peer.feed(&buffer[..read], Instant::now());
            self.act(effects).await;
        }
    }

    /// Plays a prompt to its end and returns the stop reason.
    async fn play(&mut self, text: &str) -> String {
        self.prompt(text).await;
        self.end().await
    }

    async fn end(&mut self) -> String {
        let end = |stage: &Self| {
            stage.reports.iter().find_map(|report| match report {
                Report::Done { stop_reason, .. } => Some(stop_reason.as_str().to_owned()),
                Report::Failed { reason, .. } => panic!("{reason}"),
                _ => None,
            })
        };
        self.until(|stage| end(stage).is_some()).await;
        end(self).unwrap()
    }

    fn rows(&self, wanted: LineStream) -> Vec<&str> {
        let row = |report| match report {
            &Report::Line { stream, ref text, .. } if stream == wanted => Some(text.as_str()),
            _ => None,
        };
        self.reports.iter().filter_map(row).collect()
    }

    fn blocks(&self) -> Vec<Block> {
        self.rows(LineStream::Acp).into_iter().flat_map(blocks).collect()
    }

    fn wire_blocks(&self) -> Value {
        serde_json::to_value(self.blocks()).unwrap()
    }

    /// Everything the agent said, untrimmed.
    fn said(&self) -> String {
        self.blocks()
            .into_iter()
            .filter_map(|block| match block {
                Block::Text { body } => Some(body),
                _ => None,
            })
            .collect()
    }
}

async fn stage() -> (tempfile::TempDir, Stage) {
    let home = tempfile::tempdir().unwrap();
    let stage = Stage::new(home.path(), None);
    (home, stage)
}

#[tokio::test]
async fn an_unknown_prompt_is_explained_in_one_chunk() {
    let (_home, mut stage) = stage().await;
    assert_eq!(stage.play("What can you do?").await, "end_turn");
    assert!(matches!(&stage.blocks()[..], [Block::Text { body }] if body.contains("demo agent")));
}

#[tokio::test]
async fn rul_59a_command_output_appears_once_line_by_line_with_exit_code_and_count() {
    let (_home, mut stage) = stage().await;
    assert_eq!(
        stage.play("run: echo needle-1; echo needle-2 >&2; printf tail").await,
        "end_turn"
    );
    let blocks = stage.wire_blocks();
    assert_eq!(blocks[0]["kind"], "tool_use");
    assert_eq!(blocks[1], json!({"kind": "text", "body": "needle-1\n"}));
    assert_eq!(blocks[2], json!({"kind": "text", "body": "needle-2\n"}));
    assert_eq!(blocks[3], json!({"kind": "text", "body": "tail"}));
    let body: Value = serde_json::from_str(blocks[4]["body"].as_str().unwrap()).unwrap();
    assert_eq!(body, json!({"exit_code": 0, "bytes": 22}));
    assert_eq!(blocks[4]["error"], false);
    let rows = stage.rows(LineStream::Acp).concat();
    let call = rows.lines().next().unwrap();
    assert_eq!(
        rows.replace(call, "").matches("needle").count(),
        2,
        "output stands nowhere else"
    );
}

#[tokio::test]
async fn rul_59a_a_failing_command_is_failed_and_the_turn_still_ends() {
    let (_home, mut stage) = stage().await;
    assert_eq!(
        stage.play("run: exit 3\nrun: kill -9 $$\nrun: no-such-program").await,
        "end_turn"
    );
    let codes: Vec<Value> = stage
        .blocks()
        .into_iter()
        .filter_map(|block| match block {
            Block::ToolResult { body, error, .. } => {
                assert!(error);
                Some(serde_json::from_str::<Value>(&body).unwrap()["exit_code"].clone())
            }
            _ => None,
        })
        .collect();
    assert_eq!(codes, [json!(3), json!(137), json!(127)]);
}

#[tokio::test]
async fn output_that_is_no_text_cannot_break_the_protocol() {
    let (_home, mut stage) = stage().await;
    assert_eq!(
        stage
            .play(r"run: printf '\377\376\000a\nb\303'; head -c 200000 /dev/urandom")
            .await,
        "end_turn"
    );
    assert!(
        stage.said().starts_with("\u{fffd}\u{fffd}\0a\nb"),
        "{:?}",
        stage.said().get(..20)
    );
    assert!(stage.rows(LineStream::Stdout).is_empty());
}

#[tokio::test]
async fn a_long_line_of_wide_characters_is_parted_between_characters() {
    let (_home, mut stage) = stage().await;
    assert_eq!(
        stage.play("run: for i in $(seq 30000); do printf 'é€😀'; done").await,
        "end_turn"
    );
    assert_eq!(stage.said(), "é€😀".repeat(30000));
}

#[tokio::test]
async fn p45_a_background_child_does_not_hold_the_turn() {
    let (_home, mut stage) = stage().await;
    assert_eq!(stage.play("run: sleep 3600 & echo $!").await, "end_turn");
    let pid = nix::unistd::Pid::from_raw(stage.said().trim().parse().unwrap());
    assert!(nix::sys::signal::kill(pid, None).is_ok(), "it was left running");
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_cancel_stops_the_whole_group() {
    let (_home, mut stage) = stage().await;
    stage.prompt("run: trap '' TERM; sleep 3600 & echo $!; wait").await;
    stage.until(|stage| stage.said().ends_with('\n')).await;
    let pid = nix::unistd::Pid::from_raw(stage.said().trim().parse().unwrap());
    let effects = stage.peer.cancel();
    stage.act(effects).await;
    assert_eq!(stage.end().await, "cancelled");
    assert!(matches!(
        stage.blocks().last(),
        Some(Block::ToolResult { error: true, .. })
    ));
    let gone = async {
        while nix::sys::signal::kill(pid, None).is_ok() && !is_zombie(pid) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, gone)
        .await
        .expect("the child of the command was stopped too");
}

/// An orphan that nobody has reaped yet is dead enough.
fn is_zombie(pid: nix::unistd::Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status
        .rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[tokio::test]
async fn slow_hang_and_a_held_question_are_cancelled_too() {
    for script in ["slow 1000 50", "hang", "ask: May I?", "flood 100000000000"] {
        let (_home, mut stage) = stage().await;
        stage.prompt(&format!("think first\n{script}")).await;
        stage.until(|stage| !stage.blocks().is_empty()).await;
        let effects = stage.peer.cancel();
        stage.act(effects).await;
        assert_eq!(stage.end().await, "cancelled", "{script}");
        assert_eq!(
            stage.play("recall").await,
            "end_turn",
            "the session goes on after {script}"
        );
    }
}

#[tokio::test]
async fn a_question_comes_back_with_the_chosen_option() {
    let (_home, mut stage) = stage().await;
    for option in ["allow_once", "reject_once"] {
        stage.prompt("ask: Delete everything").await;
        stage.until(|stage| !stage.peer.held_requests().is_empty()).await;
        let id = stage.peer.held_requests().remove(0);
        let Some(Report::PermissionAsk(ask)) = stage
            .reports
            .iter()
            .find(|report| matches!(report, Report::PermissionAsk(_)))
        else {
            panic!()
        };
        assert_eq!((ask.tool.as_deref(), ask.options.len()), (Some("Delete everything"), 3));
        let effects = stage.peer.answer(&id, option).unwrap();
        stage.act(effects).await;
        assert_eq!(stage.end().await, "end_turn");
        assert_eq!(stage.said(), format!("permission: {option}\n"));
    }
}

#[tokio::test]
async fn several_lines_are_several_steps() {
    let (home, mut stage) = stage().await;
    let script =
        "think about it\nplan\nwrite a/b.txt: hello\nrun: cat a/b.txt\nslow 3 1\nstderr: a word\nsplit\nflood 10000";
    assert_eq!(stage.play(script).await, "end_turn");
    assert_eq!(std::fs::read_to_string(home.path().join("a/b.txt")).unwrap(), "hello");
    let said = stage.said();
    assert!(said.starts_with("helloword1 word2 word3\n0123"), "{:?}", said.get(..40));
    assert_eq!(said.len(), "helloword1 word2 word3\n".len() + 10000);
    let blocks = stage.wire_blocks();
    assert_eq!(blocks[0], json!({"kind": "thinking", "body": "about it"}));
    assert_eq!(
        blocks[3]["body"][2],
        json!({"content": "Check the result", "status": "completed", "priority": "medium"})
    );
    assert_eq!(blocks[4]["kind"], "tool_use");
    assert!(blocks[4]["summary"].as_str().unwrap().ends_with("a/b.txt"));
    assert!(
        stage.rows(LineStream::Stdout).is_empty(),
        "split pieces are still whole lines"
    );
}

#[tokio::test]
async fn garbage_is_output_and_the_turn_goes_on() {
    let (_home, mut stage) = stage().await;
    assert_eq!(stage.play("garbage\nrecall").await, "end_turn");
    assert_eq!(stage.rows(LineStream::Stdout).len(), 4);
    assert_eq!(
        reply_text(stage.rows(LineStream::Acp)).as_deref(),
        Some("recall: 0 earlier prompts")
    );
}

#[tokio::test]
async fn a_crash_and_an_exit_come_after_everything_that_was_said() {
    for (script, expected) in [("crash", Quit::Abort), ("exit 7", Quit::Code(7))] {
        let (_home, mut stage) = stage().await;
        stage.prompt(&format!("flood 20000\n{script}")).await;
        stage.until(|stage| stage.said().len() == 20000).await;
        assert_eq!(timeout(LIMIT, stage.quits.recv()).await.unwrap(), Some(expected));
    }
}

#[tokio::test]
async fn a_client_that_is_gone_ends_the_agent_even_with_output_that_nobody_reads() {
    let (_home, mut stage) = stage().await;
    stage.prompt("flood 100000000").await;
    stage.until(|stage| !stage.said().is_empty()).await;
    stage.to_agent.shutdown().await.unwrap();
    assert_eq!(timeout(LIMIT, stage.quits.recv()).await.unwrap(), Some(Quit::Code(0)));
}

#[tokio::test]
async fn images_are_seen() {
    let (_home, mut stage) = stage().await;
    let image = fountain_actors::domain::turn::PromptImage {
        media_type: "image/png".into(),
        bytes: bytes::Bytes::from_static(b"four"),
    };
    let request = OurPrompt {
        text: "recall".into(),
        images: vec![image],
        ..OurPrompt::default()
    };
    let effects = stage.peer.prompt(request, Instant::now()).unwrap();
    stage.act(effects).await;
    assert_eq!(stage.end().await, "end_turn");
    assert!(
        stage.said().starts_with("I see an image (image/png, 4 bytes).\n"),
        "{}",
        stage.said()
    );
}

#[tokio::test]
async fn a_new_process_goes_on_with_the_session() {
    let (home, mut stage) = stage().await;
    stage.play("run: echo first").await;
    let session = stage.peer.session().unwrap().to_owned();
    drop(stage);
    let mut stage = Stage::new(home.path(), Some(session.clone()));
    assert_eq!(stage.play("recall").await, "end_turn");
    assert_eq!(stage.said(), "recall: 1 earlier prompts\n");
    assert_eq!(stage.peer.session(), Some(session.as_str()));

    let gone = "00000000-0000-0000-0000-000000000000".to_owned();
    let mut stage = Stage::new(home.path(), Some(gone.clone()));
    assert_eq!(stage.play("recall").await, "end_turn");
    assert_ne!(
        stage.peer.session(),
        Some(gone.as_str()),
        "a session that is gone is replaced"
    );
}

/// A client that only writes and reads lines.
struct Raw {
    to_agent: DuplexStream,
    lines: tokio::io::Lines<tokio::io::BufReader<DuplexStream>>,
}

impl Raw {
    fn new(home: &Path) -> Self {
        use tokio::io::AsyncBufReadExt as _;
        let (to_agent, from_agent, _quits) = start(home);
        Self {
            to_agent,
            lines: tokio::io::BufReader::new(from_agent).lines(),
        }
    }

    async fn send(&mut self, message: Value) {
        self.to_agent
            .write_all(format!("{message}\n").as_bytes())
            .await
            .unwrap();
    }

    async fn read(&mut self) -> Value {
        let line = timeout(LIMIT, self.lines.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    async fn call(&mut self, id: u64, method: &str, params: Value) -> (Vec<Value>, Value) {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        let mut before = Vec::new();
        loop {
            let message = self.read().await;
            if message["id"] == id {
                return (before, message);
            }
            before.push(message);
        }
    }
}

#[tokio::test]
async fn a_load_replays_the_history_before_its_answer() {
    let (home, mut stage) = stage().await;
    stage.play("run: echo first").await;
    let session = stage.peer.session().unwrap().to_owned();
    drop(stage);
    let mut raw = Raw::new(home.path());
    raw.call(1, "initialize", json!({"protocolVersion": 1})).await;
    let (history, answer) = raw
        .call(
            2,
            "session/load",
            json!({"sessionId": session, "cwd": home.path(), "mcpServers": []}),
        )
        .await;
    let told: Vec<_> = history
        .iter()
        .map(|line| {
            let update = &line["params"]["update"];
            (
                update["sessionUpdate"].as_str().unwrap(),
                update["content"]["text"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("user_message_chunk", "run: echo first"),
            ("agent_message_chunk", "first\n")
        ]
    );
    assert!(answer["result"].is_object());
}

#[tokio::test]
async fn wrong_calls_get_errors_and_the_agent_lives_on() {
    let home = tempfile::tempdir().unwrap();
    let mut raw = Raw::new(home.path());
    let (_, init) = raw.call(1, "initialize", json!({"protocolVersion": 1})).await;
    assert_eq!(init["result"]["agentCapabilities"]["loadSession"], true);
    assert_eq!(
        init["result"]["agentCapabilities"]["sessionCapabilities"]["resume"],
        json!({})
    );
    let unknown = json!({"sessionId": "nope", "cwd": home.path(), "mcpServers": [], "prompt": []});
    for (id, method, code) in [
        (2, "session/prompt", -32002),
        (3, "session/load", -32002),
        (4, "session/resume", -32002),
        (5, "no/such", -32601),
    ] {
        let (_, answer) = raw.call(id, method, unknown.clone()).await;
        assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
    }
    let (_, new) = raw
        .call(6, "session/new", json!({"cwd": home.path(), "mcpServers": []}))
        .await;
    let prompt =
        |text: &str| json!({"sessionId": new["result"]["sessionId"], "prompt": [{"type": "text", "text": text}]});
    raw.send(json!({"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": prompt("hang")}))
        .await;
    let (_, second) = raw.call(8, "session/prompt", prompt("plan")).await;
    assert_eq!(second["error"]["code"], -32602, "one prompt at a time");
    raw.send(
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": new["result"]["sessionId"]}}),
    )
    .await;
    let ended = raw.read().await;
    assert_eq!(
        (&ended["id"], &ended["result"]["stopReason"]),
        (&json!(7), &json!("cancelled"))
    );
}

#[tokio::test]
async fn the_protocol_crates_own_client_understands_the_agent() {
    let home = tempfile::tempdir().unwrap();
    let (to_agent, from_agent, _quits) = start(home.path());
    let wire = Arc::new(Wire::new(to_agent));
    let (told, mut updates) = mpsc::unbounded_channel();
    let cwd = home.path().to_path_buf();
    let session = Client
        .v1()
        .on_receive_notification(
            async move |notification: SessionNotification, _cx| {
                told.send(notification.update).map_err(Error::into_internal_error)
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest, responder, _cx| {
                let option = request.options[0].option_id.clone();
                let chosen = agent_client_protocol::v1::schema::SelectedPermissionOutcome::new(option);
                responder.respond(RequestPermissionResponse::new(RequestPermissionOutcome::Selected(
                    chosen,
                )))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(wire::transport(wire, from_agent), async |cx| {
            cx.send_request(InitializeRequest::new(ProtocolVersion::V1))
                .block_task()
                .await?;
            let new = cx.send_request(NewSessionRequest::new(cwd)).block_task().await?;
            let prompt = agent_client_protocol::v1::schema::PromptRequest::new(
                new.session_id,
                vec!["ask: May I?\nrun: echo yes\nplan".to_owned().into()],
            );
            cx.send_request(prompt).block_task().await
        });
    let answer = timeout(LIMIT, session).await.unwrap().unwrap();
    assert_eq!(
        answer.stop_reason,
        agent_client_protocol::v1::schema::StopReason::EndTurn
    );
    let mut said = String::new();
    let mut plans = 0;
    while let Ok(update) = updates.try_recv() {
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => match chunk.content {
                ContentBlock::Text(text) => said += &text.text,
                other => panic!("{other:?}"),
            },
            SessionUpdate::Plan(_) => plans += 1,
            _ => {}
        }
    }
    assert_eq!(said, "permission: allow_once\nyes\n");
    assert_eq!(plans, 3);
}
