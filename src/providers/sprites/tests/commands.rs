//! The exec socket: run, stream, join, write, stop (sandbox-contract 7 and 8, providers 1.3).

use actix_http::ws::{Item, Message};
use fountain_actors::ports::sandbox::{CLOSED_BEFORE_EXIT, Env, Frame};
use fountain_actors::runtimes::SPAWN_TAG;

use super::server::{Act, Say, http};
use super::*;

const INFO: Act = Act::Text(r#"{"type":"session_info","session_id":"17","is_owner":true,"tty":false}"#);

fn env(pairs: &[(&str, &str)]) -> Env {
    Env(pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect())
}

async fn run(acts: Vec<Act>, options: ExecOptions) -> (Result<ExecOutput, SandboxError>, Server) {
    let server = Server::start(vec![Say::Socket(acts)]).await;
    let adapter = adapter(&server);
    let answer = adapter
        .exec(&adapter.handle("a-b"), "sh", &strings(&["-c", "x"]), options)
        .await;
    (answer, server)
}

fn output(text: &str, code: i64) -> Result<ExecOutput, SandboxError> {
    Ok(ExecOutput {
        output: Bytes::copy_from_slice(text.as_bytes()),
        code,
    })
}

fn closed() -> SandboxError {
    unavailable(CLOSED_BEFORE_EXIT)
}

#[actix_rt::test]
async fn p_v01_the_command_stands_in_the_query() {
    let options = ExecOptions {
        env: env(&[("TZ", "A=1")]),
        dir: Some("/tmp".to_owned()),
        epoch: Some(Epoch(7)),
        ..ExecOptions::default()
    };
    let (answer, server) = run(vec![INFO, Act::Binary(b"\x03\x00"), Act::Hold], options).await;
    assert_eq!(answer, output("", 0));
    assert_eq!(
        server.lines(),
        ["GET /v1/sprites/a-b/exec?cmd=sh&cmd=-c&cmd=x&path=sh&env=TZ%3DA%3D1&dir=%2Ftmp&stdin=false"]
    );
    let seen = &server.seen()[0];
    assert_eq!(seen.header("authorization"), Some("Bearer sekrit-token"));
    assert_eq!(seen.header("fountain-epoch"), Some("7"));
}

#[actix_rt::test]
async fn p_v03_a02_errors_are_dropped_or_merged_in_their_order() {
    for (merged, text) in [(false, "out"), (true, "outerr")] {
        let acts = vec![
            INFO,
            Act::Binary(b"\x01out"),
            Act::Binary(b"\x02err"),
            Act::Binary(b"\x03\x07"),
            Act::Hold,
        ];
        let options = ExecOptions {
            stderr_to_stdout: merged,
            ..ExecOptions::default()
        };
        assert_eq!(run(acts, options).await.0, output(text, 7));
    }
}

#[actix_rt::test]
async fn p_v04_p_v05_rul_2_rul_l_96_a_close_without_a_code_is_never_exit_zero() {
    for last in [
        vec![],
        vec![Act::Close],
        vec![Act::Binary(b"\x03"), Act::Hold],
        vec![Act::Message(Message::Continuation(Item::FirstBinary(
            b"\x03\x00".as_slice().into(),
        )))],
        vec![Act::Text("{\"type\":\"exit\"}"), Act::Close],
    ] {
        let mut acts = vec![INFO, Act::Binary(b"\x01partial")];
        acts.extend(last);
        assert_eq!(run(acts, ExecOptions::default()).await.0, Err(closed()));
    }
    let (answer, _) = run(
        vec![INFO, Act::Binary(b"\x03\x07\xff"), Act::Close],
        ExecOptions::default(),
    )
    .await;
    assert_eq!(answer, output("", 7));
}

#[actix_rt::test]
async fn every_code_of_one_byte_comes_through() {
    for code in 0..=255u8 {
        let exit = Act::Message(Message::Binary(vec![3, code].into()));
        let (answer, _) = run(vec![INFO, exit, Act::Close], ExecOptions::default()).await;
        assert_eq!(answer.unwrap().code, i64::from(code));
    }
}

#[actix_rt::test]
async fn a09_split_messages_and_all_bytes_come_through() {
    let all: Vec<u8> = (0..=255).collect();
    let mut first = vec![1];
    first.extend(&all[..100]);
    let acts = vec![
        INFO,
        Act::Message(Message::Continuation(Item::FirstBinary(first.into()))),
        Act::Message(Message::Ping("p".into())),
        Act::Message(Message::Continuation(Item::Continue(all[100..200].to_vec().into()))),
        Act::Message(Message::Continuation(Item::Last(all[200..].to_vec().into()))),
        Act::Message(Message::Continuation(Item::FirstBinary(vec![3].into()))),
        Act::Message(Message::Continuation(Item::Last(vec![5].into()))),
        Act::Hold,
    ];
    let (answer, _) = run(acts, ExecOptions::default()).await;
    let answer = answer.unwrap();
    assert_eq!((&answer.output[..], answer.code), (&all[..], 5));
}

#[actix_rt::test]
async fn x02_x07_no_time_means_nothing_is_sent() {
    let options = ExecOptions {
        timeout: Some(Duration::ZERO),
        env: env(&[("SECRET", "s")]),
        ..ExecOptions::default()
    };
    let (answer, server) = run(vec![], options).await;
    assert_eq!(answer, Err(unavailable("exec_timeout 0")));
    assert_eq!(server.lines(), Vec::<String>::new());
}

#[actix_rt::test]
async fn x03_x04_a_deadline_ends_a_command_and_closes_its_socket() {
    let mut acts = vec![INFO];
    acts.extend((0..5).map(|_| Act::Binary(b"\x01more")));
    acts.push(Act::Hold);
    let options = ExecOptions {
        timeout: Some(Duration::from_millis(500)),
        ..ExecOptions::default()
    };
    let (answer, server) = run(acts, options).await;
    assert_eq!(answer, Err(unavailable("exec_timeout 500")));
    server.until_closed(1).await;
}

#[actix_rt::test]
async fn x05_the_deadline_holds_for_the_start_too() {
    let server = Server::start(vec![Say::Hold(String::new())]).await;
    let adapter = adapter(&server);
    let options = ExecOptions {
        timeout: Some(Duration::from_millis(500)),
        ..ExecOptions::default()
    };
    let answer = adapter.exec(&adapter.handle("a-b"), "true", &[], options).await;
    assert_eq!(answer, Err(unavailable("exec_timeout 500")));
    server.until_closed(1).await;
}

#[actix_rt::test]
async fn an_upgrade_has_its_own_limit_and_a_refusal_is_read() {
    let server = Server::start(vec![
        Say::Hold(String::new()),
        http(503, r#"{"error":"policy"}"#),
        http(429, r#"{"retry_after_seconds":4}"#),
        http(404, ""),
        http(200, ""),
    ])
    .await;
    let adapter = impatient(&server);
    let handle = adapter.handle("a-b");
    for error in [
        unavailable("timeout"),
        unavailable("http 503: policy"),
        SandboxError::RateLimited { retry_after_s: Some(4) },
        SandboxError::NotFound,
        unavailable("not_upgraded"),
    ] {
        let answer = adapter.exec(&handle, "true", &[], ExecOptions::default()).await;
        assert_eq!(answer, Err(error));
    }
}

#[actix_rt::test]
async fn rul_l_92_no_secret_stands_in_a_request_line() {
    let server = Server::start(vec![
        http(200, "{}"),
        Say::Socket(vec![INFO, Act::Binary(b"\x01x"), Act::Binary(b"\x03\x00"), Act::Hold]),
        http(200, "{}"),
        Say::Socket(vec![INFO, Act::Hold]),
    ])
    .await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let secret = "it's a\nsécret $HOME";
    let pairs = env(&[("PATH", "/bin"), ("API_KEY", secret), ("LANG", "C")]);
    let options = ExecOptions {
        env: pairs.clone(),
        epoch: Some(Epoch(7)),
        ..ExecOptions::default()
    };
    adapter
        .exec(&handle, "agent", &strings(&["FOUNTAIN_SPAWN_ID=1"]), options)
        .await
        .unwrap();
    let options = SpawnOptions {
        env: pairs,
        ..SpawnOptions::default()
    };
    let (command, _frames) = adapter.spawn(&handle, "agent", &[], options).await.unwrap();
    let seen = server.seen();
    for seen in &seen {
        assert!(
            !seen.line.contains("cret") && !seen.line.contains("API_KEY"),
            "{}",
            seen.line
        );
    }
    assert!(
        seen[0]
            .line
            .starts_with("PUT /v1/sprites/a-b/fs/write?path=%2Ftmp%2F.fountain-"),
        "{}",
        seen[0].line
    );
    assert!(seen[0].line.contains("&mode=0600&"));
    assert_eq!(seen[0].body, "export API_KEY='it'\\''s a\nsécret $HOME'\n");
    assert_eq!(seen[0].header("fountain-epoch"), Some("7"));
    assert!(
        seen[1].line.starts_with("GET /v1/sprites/a-b/exec?cmd=sh&cmd=-c&cmd="),
        "{}",
        seen[1].line
    );
    assert!(
        seen[1]
            .line
            .contains("&cmd=agent&cmd=FOUNTAIN_SPAWN_ID%3D1&path=sh&env=PATH%3D%2Fbin&env=LANG%3DC&")
    );
    assert_ne!(seen[0].line, seen[2].line, "the file's name is used once");
    assert!(!format!("{command:?}").contains("agent"));
    assert_eq!(SPAWN_TAG, "FOUNTAIN_SPAWN_ID");
}

#[actix_rt::test]
async fn rul_l_92_a_start_that_failed_leaves_no_file() {
    let not_found = vec![
        INFO,
        Act::Binary(b"\x02sh: not found"),
        Act::Binary(b"\x03\x7f"),
        Act::Hold,
    ];
    for (start, answer) in [
        (http(503, ""), Err(unavailable("http 503"))),
        (Say::Cut(String::new()), Err(unavailable("transport_failed"))),
        (Say::Socket(Vec::new()), Err(closed())),
        (Say::Socket(not_found), output("", 127)),
    ] {
        let server = Server::start(vec![http(200, "{}"), start, http(200, "{}")]).await;
        let adapter = adapter(&server);
        let options = ExecOptions {
            env: env(&[("SECRET", "s")]),
            ..ExecOptions::default()
        };
        assert_eq!(adapter.exec(&adapter.handle("a-b"), "x", &[], options).await, answer);
        let seen = server.until_seen(3).await;
        let file = seen[0].line.split(['=', '&']).nth(1).unwrap();
        let wanted = format!("DELETE /v1/sprites/a-b/fs/delete?path={file}&workingDir=%2F");
        assert_eq!(seen[2].line, wanted);
    }
}

#[actix_rt::test]
async fn rul_l_92_a_file_that_was_refused_needs_no_removal_and_one_that_was_lost_does() {
    for (say, error, count) in [
        (http(404, ""), SandboxError::NotFound, 1),
        (Say::Cut(String::new()), unavailable("transport_failed"), 2),
    ] {
        let server = Server::start(vec![say, http(404, ""), http(200, "{}")]).await;
        let adapter = adapter(&server);
        let handle = adapter.handle("a-b");
        let options = SpawnOptions {
            env: env(&[("SECRET", "s")]),
            ..SpawnOptions::default()
        };
        assert_eq!(adapter.spawn(&handle, "x", &[], options).await.unwrap_err(), error);
        // Another call behind it: whatever was to be removed is on its way before the answer.
        let _ = adapter.get(&handle).await;
        let seen = server.until_seen(count + 1).await;
        let removals = seen.iter().filter(|seen| seen.line.starts_with("DELETE ")).count();
        assert_eq!((seen.len(), removals), (count + 1, count - 1));
    }
}

#[actix_rt::test]
async fn an_environment_that_no_shell_can_export_is_refused_before_anything_is_sent() {
    let server = Server::start(Vec::new()).await;
    let adapter = adapter(&server);
    let options = SpawnOptions {
        env: env(&[("A-B", "secret")]),
        ..SpawnOptions::default()
    };
    let refused = adapter
        .spawn(&adapter.handle("a-b"), "x", &[], options)
        .await
        .unwrap_err();
    assert_eq!(refused, invalid("environment_name"));
    assert_eq!(server.lines(), Vec::<String>::new());
}

async fn spawn(acts: Vec<Act>, options: SpawnOptions) -> (Server, SpritesAdapter, Command, FrameStream) {
    let server = Server::start(vec![Say::Socket(acts)]).await;
    let adapter = adapter(&server);
    let (command, frames) = adapter
        .spawn(&adapter.handle("a-b"), "cat", &[], options)
        .await
        .unwrap();
    (server, adapter, command, frames)
}

fn with_stdin() -> SpawnOptions {
    SpawnOptions {
        stdin: true,
        ..SpawnOptions::default()
    }
}

/// Output so far, and the verdict.
async fn to_the_end(frames: &mut FrameStream) -> (Vec<u8>, Vec<u8>, Frame) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match frames.recv().await.expect("a verdict comes first") {
            Frame::Stdout(held) => out.extend_from_slice(&held.bytes),
            Frame::Stderr(held) => err.extend_from_slice(&held.bytes),
            verdict => {
                assert!(frames.recv().await.is_none(), "f2: nothing follows the verdict");
                return (out, err, verdict);
            }
        }
    }
}

#[actix_rt::test]
async fn p_v06_a_spawned_command_takes_input_and_ends_once() {
    let (server, adapter, command, mut frames) = spawn(vec![INFO, Act::Echo, Act::Hold], with_stdin()).await;
    assert_eq!((command.session_id.as_str(), command.machine.as_str()), ("17", "a-b"));
    assert_eq!(server.lines(), ["GET /v1/sprites/a-b/exec?cmd=cat&path=cat&stdin=true"]);
    adapter.write_stdin(&command, "hi".into()).await.unwrap();
    adapter.close_stdin(&command).await.unwrap();
    adapter.close_stdin(&command).await.unwrap();
    let (out, _, verdict) = to_the_end(&mut frames).await;
    assert!(out == b"hi" && matches!(verdict, Frame::Exit(0)), "{verdict:?}");
    assert_eq!(server.messages(), [&b"\x00hi"[..], b"\x04"]);
    assert_eq!(
        adapter.write_stdin(&command, "late".into()).await,
        Err(SandboxError::CommandExited)
    );
    assert_eq!(adapter.close_stdin(&command).await, Ok(()));
}

#[actix_rt::test]
async fn a08_a_megabyte_goes_both_ways() {
    let (_server, adapter, command, mut frames) = spawn(vec![INFO, Act::Echo, Act::Hold], with_stdin()).await;
    let input: Vec<u8> = (0..1 << 20)
        .map(|place: u32| place.to_le_bytes()[place as usize % 3])
        .collect();
    let write = async {
        adapter.write_stdin(&command, input.clone().into()).await.unwrap();
        adapter.write_stdin(&command, "end".into()).await.unwrap();
        adapter.close_stdin(&command).await.unwrap();
    };
    let ((), (out, _, verdict)) = tokio::join!(write, to_the_end(&mut frames));
    assert!(matches!(verdict, Frame::Exit(0)));
    assert!(out[..input.len()] == input[..] && &out[input.len()..] == b"end");
}

#[actix_rt::test]
async fn input_to_a_command_without_input_fails_and_after_the_end_of_input_too() {
    let (_server, adapter, command, _frames) = spawn(vec![INFO, Act::Hold], SpawnOptions::default()).await;
    let failed = |why: &str| Err(SandboxError::WriteFailed(why.to_owned()));
    assert_eq!(adapter.write_stdin(&command, "x".into()).await, failed("no_stdin"));
    let (_server, adapter, command, _frames) = spawn(vec![INFO, Act::Hold], with_stdin()).await;
    adapter.close_stdin(&command).await.unwrap();
    assert_eq!(adapter.write_stdin(&command, "x".into()).await, failed("stdin_closed"));
}

#[actix_rt::test]
async fn f03_rul_l_40_a_dropped_stream_is_an_error_and_its_input_fails() {
    let options = SpawnOptions {
        detachable: true,
        stdin: true,
        ..SpawnOptions::default()
    };
    let (server, adapter, command, mut frames) = spawn(vec![INFO, Act::Binary(b"\x01part")], options).await;
    let (out, _, verdict) = to_the_end(&mut frames).await;
    assert!(out == b"part" && matches!(verdict, Frame::Error(error) if error == closed()));
    assert!(server.lines()[0].ends_with("&stdin=true&detachable=true"));
    let lost = SandboxError::WriteFailed(CLOSED_BEFORE_EXIT.to_owned());
    assert_eq!(adapter.write_stdin(&command, "x".into()).await, Err(lost));
    assert_eq!(adapter.close_stdin(&command).await, Ok(()));
}

#[actix_rt::test]
async fn f07_t16_a_stopped_attachment_hears_nothing_more() {
    let (server, adapter, command, mut frames) = spawn(vec![INFO, Act::Read, Act::Hold], with_stdin()).await;
    adapter.write_stdin(&command, "x".into()).await.unwrap();
    server.until_messages(1).await;
    adapter.stop_command(&command).await;
    adapter.stop_command(&command).await;
    assert!(frames.recv().await.is_none());
    assert_eq!(
        adapter.write_stdin(&command, "x".into()).await,
        Err(SandboxError::CommandExited)
    );
    assert_eq!(adapter.close_stdin(&command).await, Ok(()));
    server.until_closed(1).await;
}

#[actix_rt::test]
async fn t16_t17_another_attachment_hears_the_end_of_a_terminated_session() {
    let proof = "{\"type\":\"killed\"}\n{\"type\":\"complete\",\"exit_code\":137}\n";
    let server = Server::start(vec![
        Say::Socket(vec![INFO, Act::Hold]),
        Say::Socket(vec![INFO, Act::Read, Act::Binary(b"\x03\x89"), Act::Hold]),
        http(200, proof),
        http(404, ""),
    ])
    .await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let (first, mut unheard) = adapter.spawn(&handle, "cat", &[], with_stdin()).await.unwrap();
    adapter.stop_command(&first).await;
    let (second, mut frames) = adapter.attach(&handle, &first.session_id).await.unwrap();
    for _ in 0..2 {
        let ended = adapter.terminate_session(&handle, "17", Terminate::GRACEFUL).await;
        assert_eq!(ended, Ok(()));
    }
    adapter
        .write_stdin(&second, "let the server go on".into())
        .await
        .unwrap();
    assert!(matches!(to_the_end(&mut frames).await.2, Frame::Exit(137)));
    assert!(unheard.recv().await.is_none());
}

#[actix_rt::test]
async fn rul_43_output_that_nobody_takes_is_left_in_the_socket() {
    // More than an attachment and the buffers of a loopback connection hold.
    let count = 1024;
    let acts = vec![INFO, Act::Pour(count), Act::Binary(b"\x03\x00"), Act::Hold];
    let (server, _adapter, _command, mut frames) = spawn(acts, SpawnOptions::default()).await;
    let mut held = Vec::new();
    let mut poured = 0;
    // The server has come to a stop when a while brings nothing new.
    loop {
        match tokio::time::timeout(Duration::from_millis(200), frames.recv()).await {
            Ok(frame) => held.push(frame.unwrap()),
            Err(_) if server.poured() == poured => break,
            Err(_) => {}
        }
        poured = server.poured();
    }
    assert!(poured < count, "{poured}");
    drop(held);
    let (rest, _, verdict) = to_the_end(&mut frames).await;
    assert!(!rest.is_empty() && matches!(verdict, Frame::Exit(0)));
    assert_eq!(server.poured(), count);
}

#[actix_rt::test]
async fn an_owner_that_goes_closes_the_socket() {
    let (server, adapter, command, frames) = spawn(vec![INFO, Act::Hold], with_stdin()).await;
    drop(frames);
    server.until_closed(1).await;
    assert_eq!(
        adapter.write_stdin(&command, "x".into()).await,
        Err(SandboxError::CommandExited)
    );
}

#[actix_rt::test]
async fn f05_an_exit_that_was_said_in_text_wins_over_the_close() {
    let acts = vec![
        INFO,
        Act::Text(r#"{"type":"exit","exit_code":3}"#),
        Act::Binary(b"\x01tail"),
        Act::Close,
    ];
    let (_server, _adapter, _command, mut frames) = spawn(acts, SpawnOptions::default()).await;
    let (out, _, verdict) = to_the_end(&mut frames).await;
    assert!(out == b"tail" && matches!(verdict, Frame::Exit(3)));
}

#[actix_rt::test]
async fn p_v02_a_terminal_is_raw_both_ways() {
    let info = Act::Text(r#"{"type":"session_info","session_id":"9","tty":true}"#);
    let acts = vec![
        info,
        Act::Read,
        Act::Binary(b"\x03\x07"),
        Act::Text(r#"{"type":"exit","exit_code":2}"#),
        Act::Close,
    ];
    let options = SpawnOptions {
        tty: true,
        stdin: true,
        ..SpawnOptions::default()
    };
    let (server, adapter, command, mut frames) = spawn(acts, options).await;
    adapter.write_stdin(&command, "ls".into()).await.unwrap();
    let (out, _, verdict) = to_the_end(&mut frames).await;
    assert!(out == b"\x03\x07" && matches!(verdict, Frame::Exit(2)));
    assert_eq!(server.messages(), [&b"ls"[..]]);
    assert!(server.lines()[0].ends_with("&stdin=true&tty=true&rows=24&cols=80"));
}

#[actix_rt::test]
async fn a_start_without_any_message_is_unknown_and_a_silent_server_is_waited_for() {
    let server = Server::start(vec![Say::Socket(Vec::new()), Say::Socket(vec![Act::Echo])]).await;
    let adapter = impatient(&server);
    let handle = adapter.handle("a-b");
    assert_eq!(
        adapter.spawn(&handle, "x", &[], with_stdin()).await.unwrap_err(),
        closed()
    );
    let (command, mut frames) = adapter.spawn(&handle, "x", &[], with_stdin()).await.unwrap();
    assert_eq!(command.session_id, "");
    adapter.write_stdin(&command, "hi".into()).await.unwrap();
    assert!(matches!(frames.recv().await, Some(Frame::Stdout(held)) if &held.bytes[..] == b"hi"));
}

#[actix_rt::test]
async fn pings_are_answered_and_a_server_that_answers_none_is_lost() {
    let acts = vec![INFO, Act::Message(Message::Ping("are you there".into())), Act::Hold];
    let (server, _adapter, _command, _frames) = spawn(acts, SpawnOptions::default()).await;
    assert_eq!(server.until_messages(1).await[0], "are you there");

    let server = Server::start(vec![Say::Socket(vec![INFO, Act::Deaf])]).await;
    let adapter = impatient(&server);
    let (_command, mut frames) = adapter
        .spawn(&adapter.handle("a-b"), "x", &[], with_stdin())
        .await
        .unwrap();
    let (_, _, verdict) = to_the_end(&mut frames).await;
    assert!(matches!(verdict, Frame::Error(error) if error == closed()));
}

#[actix_rt::test]
async fn a_silent_command_lives_as_long_as_its_server_answers_pings() {
    let server = Server::start(vec![Say::Socket(vec![
        INFO,
        Act::Read,
        Act::Binary(b"\x03\x00"),
        Act::Hold,
    ])])
    .await;
    let adapter = impatient(&server);
    let (command, mut frames) = adapter
        .spawn(&adapter.handle("a-b"), "x", &[], with_stdin())
        .await
        .unwrap();
    // Longer than the silence that ends a deaf server's socket.
    tokio::time::timeout(SHORT.silence * 2, frames.recv())
        .await
        .expect_err("nothing ended it");
    adapter.write_stdin(&command, "x".into()).await.unwrap();
    assert!(matches!(frames.recv().await, Some(Frame::Exit(0))));
}

#[actix_rt::test]
async fn p_v20_an_attach_replays_everything_and_then_lives() {
    let replay: &'static [u8] = {
        let mut bytes = vec![b'r'; 100 * 1024];
        bytes[0] = 1;
        bytes.leak()
    };
    let info = Act::Text(r#"{"type":"session_info","session_id":"17","is_owner":false,"tty":false}"#);
    let acts = vec![
        info,
        Act::Binary(replay),
        Act::Binary(b"\x02e"),
        Act::Read,
        Act::Binary(b"\x01live"),
        Act::Binary(b"\x03\x05"),
        Act::Hold,
    ];
    let server = Server::start(vec![Say::Socket(acts)]).await;
    let adapter = adapter(&server);
    let (command, mut frames) = adapter.attach(&adapter.handle("a-b"), "17").await.unwrap();
    assert_eq!(command.session_id, "17");
    adapter.write_stdin(&command, "go".into()).await.unwrap();
    let (out, err, verdict) = to_the_end(&mut frames).await;
    assert!(out[..replay.len() - 1] == replay[1..] && &out[replay.len() - 1..] == b"live");
    assert!(err == b"e" && matches!(verdict, Frame::Exit(5)));
    assert_eq!(server.lines(), ["GET /v1/sprites/a-b/exec/17?stdin=true"]);
}

#[actix_rt::test]
async fn p_v19_attach_speaks_the_form_of_the_service_and_an_unknown_session_is_not_found() {
    let path = "GET /v1/sprites/a-b/exec/17?stdin=true";
    let query = "GET /v1/sprites/a-b/exec?id=17&stdin=true";
    let release = "Sprite-Version: v1.0.0\r\n";
    for (version, known, wanted) in [
        (release, true, vec![path]),
        ("Sprite-Version: dev-abc\r\n", true, vec![query]),
        ("", true, vec![query]),
        (release, false, vec![path]),
        ("", false, vec![path, query]),
    ] {
        let refusal = || Say::Http(404, version, "session not found: 17".to_owned());
        let mut script = vec![refusal(), refusal()];
        if known {
            script.insert(0, Say::Http(200, version, "{}".to_owned()));
        }
        let server = Server::start(script).await;
        let adapter = adapter(&server);
        let handle = adapter.handle("a-b");
        if known {
            adapter.get(&handle).await.unwrap();
        }
        assert_eq!(adapter.attach(&handle, "17").await.unwrap_err(), SandboxError::NotFound);
        assert_eq!(server.lines()[usize::from(known)..], wanted, "{version} {known}");
    }
    let joined = Server::start(vec![
        Say::Http(404, "", String::new()),
        Say::SocketWith(release, vec![INFO, Act::Hold]),
    ]);
    let server = joined.await;
    let adapter = adapter(&server);
    adapter.attach(&adapter.handle("a-b"), "17").await.unwrap();
    assert_eq!(server.lines(), [path, query]);
}

#[actix_rt::test]
async fn a05_rul_l_112_a_finished_session_replays_and_repeats_its_code_or_its_lack() {
    for (last, is_exit) in [
        (vec![Act::Binary(b"\x03\x09"), Act::Close], true),
        (vec![Act::Close], false),
    ] {
        let mut acts = vec![INFO, Act::Binary(b"\x01all of it")];
        acts.extend(last);
        let server = Server::start(vec![Say::Socket(acts)]).await;
        let adapter = adapter(&server);
        let (_command, mut frames) = adapter.attach(&adapter.handle("a-b"), "17").await.unwrap();
        let (out, _, verdict) = to_the_end(&mut frames).await;
        assert_eq!(out, b"all of it");
        assert!(matches!(verdict, Frame::Exit(9)) == is_exit, "{verdict:?}");
    }
}

#[actix_rt::test]
async fn sessions_are_listed() {
    let body = r#"{"count":1,"sessions":[{"id":"17","command":"cat FOUNTAIN_SPAWN_ID=1","is_active":false}]}"#;
    let server = Server::start(vec![http(200, body), http(200, "{}"), http(404, "")]).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let listed = adapter.list_sessions(&handle).await.unwrap();
    assert_eq!((listed.len(), listed[0].id.as_str()), (1, "17"));
    assert_eq!(
        adapter.list_sessions(&handle).await,
        Err(errors::unclassified("malformed_sessions"))
    );
    assert_eq!(adapter.list_sessions(&handle).await, Err(SandboxError::NotFound));
    assert_eq!(server.lines()[0], "GET /v1/sprites/a-b/exec");
}
