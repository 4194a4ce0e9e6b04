//! Sessions: spawn, attach, replay, input, stop.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{commands::assert_group_is_gone, server::*};

const ECHO: &str = "echo ready; while read l; do echo echo:$l; done";

fn spawn(script: &str) -> Value {
    json!({"op": "spawn", "name": SB, "cmd": "sh", "args": ["-c", script]})
}

fn spawn_reading(script: &str) -> Value {
    let mut request = spawn(script);
    request["stdin"] = json!(true);
    request
}

fn stdin(session: &str, data: &[u8]) -> Value {
    json!({"op": "stdin", "name": SB, "session_id": session, "data": base64(data)})
}

fn about(op: &str, session: &str) -> Value {
    json!({"op": op, "name": SB, "session_id": session})
}

fn position(seen: &[Value], what: impl Fn(&Value) -> bool) -> Option<usize> {
    seen.iter().position(what)
}

#[actix::test]
async fn rp_v20_the_reply_of_a_spawn_comes_before_every_frame_of_its_session() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (id, session) = peer.spawn(spawn_reading(ECHO)).await;
    assert!(session.starts_with("s-") && session.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)));
    peer.shows(&session, "ready\n").await;
    let reply = position(&peer.seen, |m| m["id"] == id).unwrap();
    let first = position(&peer.seen, |m| {
        m["session_id"] == session.as_str() && m["stream"].is_string()
    })
    .unwrap();
    assert!(reply < first);
    let tags: Vec<_> = peer
        .seen
        .iter()
        .filter(|m| m["stream"] == "stdout")
        .map(|m| m["replay_for"].clone())
        .collect();
    assert!(tags.iter().all(|tag| tag.is_null() || *tag == id), "{tags:?}");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v21_to_v25_input_replay_end_and_listing() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn_reading(ECHO)).await;
    peer.shows(&session, "ready\n").await;

    // 21: input, and its untagged echo
    assert_eq!(peer.get(stdin(&session, b"ping\n")).await, json!({}));
    peer.until("the echo", |seen| {
        output(seen, &session, "stdout", None)
            .ends_with(b"echo:ping\n")
            .then_some(())
    })
    .await;

    // 22: a second subscriber gets everything, tagged for it alone
    let attach = peer.send(about("attach", &session));
    let reply = peer.reply(attach).await;
    assert_eq!(reply["result"], json!({"session_id": session}));
    peer.until("the replay", |seen| {
        (output(seen, &session, "stdout", Some(attach)) == b"ready\necho:ping\n").then_some(())
    })
    .await;
    peer.until("its end", |seen| {
        position(seen, |m| {
            m["stream"] == "replay_end" && m["replay_for"] == attach && m["stdout_bytes"] == 16
        })
    })
    .await;

    // 23: a real end of file, one exit
    assert_eq!(peer.get(about("stdin_close", &session)).await, json!({}));
    assert_eq!(peer.exit(&session).await, 0);

    // 24: too late
    assert_eq!(peer.refusal(stdin(&session, b"late")).await.0, "command_exited");
    assert_eq!(peer.get(about("stdin_close", &session)).await, json!({}));

    // 25: listed with its code
    let listed = peer.get(json!({"op": "list_sessions", "name": SB})).await;
    let entry = &listed["sessions"][0];
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&entry["id"], &entry["exit_code"], &entry["tty"]),
        (&json!(session), &json!(0), &json!(false))
    );
    assert!(
        entry["command"].as_str().unwrap().ends_with(&format!("/sh -c {ECHO}")),
        "{entry}"
    );
    let created = chrono::DateTime::parse_from_rfc3339(entry["created_at"].as_str().unwrap()).unwrap();
    assert_eq!(created.timestamp_subsec_nanos(), 0);
    let exits = peer.seen.iter().filter(|m| m["stream"] == "exit").count();
    assert_eq!(exits, 1);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v26_the_code_of_a_session_is_its_own() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn("echo partial; echo wrong >&2; exit 4")).await;
    assert_eq!(peer.exit(&session).await, 4);
    assert_eq!(all_output(&peer.seen, &session, "stdout"), b"partial\n");
    assert_eq!(all_output(&peer.seen, &session, "stderr"), b"wrong\n");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v27_a_program_that_cannot_start_is_a_session_that_is_over() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (id, session) = peer
        .spawn(json!({"op": "spawn", "name": SB, "cmd": "no-such-program", "args": ["x"]}))
        .await;
    assert_eq!(peer.exit(&session).await, 127);
    let said = all_output(&peer.seen, &session, "stdout");
    assert!(
        said.starts_with(b"fountain runner: ") && said.ends_with(b"\n"),
        "{said:?}"
    );
    assert_eq!(peer.seen.last().unwrap()["replay_for"], id);
    let listed = peer.get(json!({"op": "list_sessions", "name": SB})).await;
    assert_eq!(listed["sessions"][0]["command"], "no-such-program");
    assert_eq!(peer.refusal(stdin(&session, b"x")).await.0, "command_exited");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v28_suspend_ends_live_commands_and_their_children() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn("echo $$; sleep 30 & sleep 30")).await;
    peer.shows(&session, "\n").await;
    peer.get(json!({"op": "suspend", "name": SB})).await;
    assert_eq!(peer.exit(&session).await, 137);
    let leader = String::from_utf8(all_output(&peer.seen, &session, "stdout")).unwrap();
    assert_group_is_gone(&leader).await;
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v29_unknown_sessions() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    assert_eq!(peer.get(about("detach", "s-none")).await, json!({}));
    for op in ["stdin_close", "stdin", "attach", "terminate"] {
        assert_eq!(peer.refusal(about(op, "s-none")).await.0, "not_found", "{op}");
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn a_session_belongs_to_its_sandbox() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn("sleep 30")).await;
    let stolen = json!({"op": "attach", "name": "runner-other-1", "session_id": session});
    assert_eq!(peer.refusal(stolen).await.0, "not_found");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_44_every_attachment_ends_its_replay_with_the_counts() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (id, session) = peer
        .spawn(spawn_reading("printf abc; printf de >&2; read l; printf fgh"))
        .await;
    // The spawn itself has a replay, however short.
    peer.until("its end", |seen| {
        position(seen, |m| m["stream"] == "replay_end" && m["replay_for"] == id)
    })
    .await;
    peer.until("both streams", |seen| {
        let whole = all_output(seen, &session, "stdout") == b"abc" && all_output(seen, &session, "stderr") == b"de";
        whole.then_some(())
    })
    .await;
    let attach = peer.send(about("attach", &session));
    let end = peer
        .until("the end of the replay", |seen| {
            seen.iter()
                .find(|m| m["stream"] == "replay_end" && m["replay_for"] == attach)
                .cloned()
        })
        .await;
    assert_eq!((&end["stdout_bytes"], &end["stderr_bytes"]), (&json!(3), &json!(2)));
    peer.get(stdin(&session, b"\n")).await;
    peer.exit(&session).await;
    assert!(output(&peer.seen, &session, "stdout", None).ends_with(b"fgh"));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_p1_no_live_frame_falls_between_a_reply_and_the_end_of_its_replay() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    // Output flows all the time while others attach.
    let (first, session) = peer
        .spawn(spawn("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done"))
        .await;
    let attached: Vec<i64> = (0..5).map(|_| peer.send(about("attach", &session))).collect();
    peer.exit(&session).await;
    for id in &attached {
        let id = *id;
        peer.until("its replay", |seen| {
            position(seen, |m| m["stream"] == "replay_end" && m["replay_for"] == id)
        })
        .await;
    }
    let expected: String = (0..3000).map(|i| format!("line {i}\n")).collect();
    for id in attached.into_iter().chain([first]) {
        // What this subscriber gets: its tagged frames, and every untagged one after its reply.
        let reply = position(&peer.seen, |m| m["id"] == id).unwrap();
        let end = position(&peer.seen, |m| m["stream"] == "replay_end" && m["replay_for"] == id).unwrap();
        let untagged_between = peer.seen[reply..end]
            .iter()
            .any(|m| m["stream"] == "stdout" && m["replay_for"].is_null());
        assert!(!untagged_between, "subscriber {id}");
        let theirs = peer.seen[reply..].iter().filter(|m| m["stream"] == "stdout");
        let theirs = theirs.filter(|m| m["replay_for"].is_null() || m["replay_for"] == id);
        let got: Vec<u8> = theirs.flat_map(|m| bytes(&m["data"])).collect();
        assert_eq!(String::from_utf8(got).unwrap(), expected, "subscriber {id}");
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_p2_an_attachment_after_a_reconnect_speaks_to_the_new_connection() {
    let (daemon, mut server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn_reading(ECHO)).await;
    peer.shows(&session, "ready\n").await;
    drop(peer);
    let mut peer = server.peer().await;
    let attach = peer.send(about("attach", &session));
    peer.until("the replay", |seen| {
        (output(seen, &session, "stdout", Some(attach)) == b"ready\n").then_some(())
    })
    .await;
    peer.get(stdin(&session, b"again\n")).await;
    peer.until("live output", |seen| {
        (output(seen, &session, "stdout", None) == b"echo:again\n").then_some(())
    })
    .await;
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_p3_two_inputs_in_flight_arrive_in_the_order_in_which_they_were_sent() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn_reading("cat")).await;
    let mut expected = Vec::new();
    let ids: Vec<i64> = (0..50_u32)
        .map(|n| {
            // Sizes on both sides of what is parsed aside.
            let piece = format!("{n};").repeat(if n % 5 == 0 { 30_000 } else { 1 });
            expected.extend_from_slice(piece.as_bytes());
            peer.send(stdin(&session, piece.as_bytes()))
        })
        .collect();
    peer.get(about("stdin_close", &session)).await;
    for id in ids {
        assert_eq!(peer.reply(id).await["ok"], true);
    }
    assert_eq!(peer.exit(&session).await, 0);
    assert!(all_output(&peer.seen, &session, "stdout") == expected);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_p4_and_rul_43_a_stalled_socket_stalls_no_process_and_is_closed() {
    let timing = crate::daemon::Timing {
        write_stall: Duration::from_millis(300),
        ..quick()
    };
    let (daemon, mut server, mut peer) = Daemon::connected_with(timing).await;
    peer.reading.send_replace(false);
    // Far more than sockets and queues hold; the process must still get through and leave its mark.
    peer.send(spawn("head -c 24000000 /dev/zero; touch through"));
    let through = daemon.sandbox().join("through");
    eventually("the process got through", || through.exists()).await;
    // The daemon gave the connection up and dialled again; nothing is lost.
    let mut second = server.peer().await;
    let listed = second.get(json!({"op": "list_sessions", "name": SB})).await;
    let session = listed["sessions"][0]["id"].as_str().unwrap().to_owned();
    let attach = second.send(about("attach", &session));
    assert_eq!(second.exit(&session).await, 0);
    let replayed = output(&second.seen, &session, "stdout", Some(attach));
    assert_eq!(
        (replayed.len(), replayed.iter().all(|byte| *byte == 0)),
        (24_000_000, true)
    );
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_p5_after_a_drop_nothing_is_emitted_before_somebody_attaches() {
    let (daemon, mut server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn_reading(ECHO)).await;
    peer.shows(&session, "ready\n").await;
    drop(peer);
    let mut peer = server.peer().await;
    // Input makes output, of which this connection hears nothing.
    peer.get(stdin(&session, b"x\n")).await;
    peer.get(about("stdin_close", &session)).await;
    peer.until("the end in the listing", |seen| seen.last().map(|_| ()))
        .await;
    let mut listed = json!(null);
    while listed["sessions"][0]["exit_code"].is_null() {
        listed = peer.get(json!({"op": "list_sessions", "name": SB})).await;
    }
    assert!(peer.seen.iter().all(|m| m["stream"].is_null()), "{:?}", peer.seen);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_p6_many_stubborn_commands_are_stopped_together() {
    let timing = crate::daemon::Timing {
        stop_grace: Duration::from_secs(1),
        ..quick()
    };
    let (daemon, _server, mut peer) = Daemon::connected_with(timing).await;
    let mut sessions = Vec::new();
    for _ in 0..6 {
        let (_, session) = peer
            .spawn(spawn("trap '' TERM; echo armed; while :; do sleep 1; done"))
            .await;
        peer.shows(&session, "armed\n").await;
        sessions.push(session);
    }
    let began = Instant::now();
    peer.get(json!({"op": "destroy", "name": SB})).await;
    // One after the other would take six graces and more.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for session in sessions {
        assert_eq!(peer.exit(&session).await, 137);
        assert_eq!(peer.refusal(about("attach", &session)).await.0, "not_found");
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_47_terminate_ends_the_group_and_says_so_when_it_is_done() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, gentle) = peer
        .spawn(spawn(
            "trap 'echo bye; exit 5' TERM; echo $$; while :; do sleep 0.05; done",
        ))
        .await;
    peer.shows(&gentle, "\n").await;
    let mut terminate = about("terminate", &gentle);
    terminate["grace_ms"] = json!(20_000);
    assert_eq!(peer.get(terminate).await, json!({}));
    // It ended by itself, so its own code counts.
    assert_eq!(peer.exit(&gentle).await, 5);
    assert!(all_output(&peer.seen, &gentle, "stdout").ends_with(b"bye\n"));

    let (_, stubborn) = peer
        .spawn(spawn("trap '' TERM; echo $$; sleep 600 & while :; do sleep 1; done"))
        .await;
    peer.shows(&stubborn, "\n").await;
    let mut terminate = about("terminate", &stubborn);
    terminate["grace_ms"] = json!(100);
    assert_eq!(peer.get(terminate.clone()).await, json!({}));
    assert_eq!(peer.exit(&stubborn).await, 137);
    let leader = String::from_utf8(all_output(&peer.seen, &stubborn, "stdout")).unwrap();
    assert_group_is_gone(&leader).await;
    assert_eq!(peer.get(terminate).await, json!({}));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_46a_a_background_child_does_not_hold_the_exit_and_lives_on() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer
        .spawn(spawn(
            "(trap '' HUP; while :; do echo noise; touch alive; sleep 0.2; done) & echo started; exit 3",
        ))
        .await;
    let began = Instant::now();
    assert_eq!(peer.exit(&session).await, 3);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // Its output is read on and thrown away, so it is not killed by a broken pipe.
    let alive = daemon.sandbox().join("alive");
    std::fs::remove_file(&alive).unwrap();
    eventually("the child is alive", || alive.exists()).await;
    // It belongs to the sandbox all the same.
    assert_eq!(peer.get(about("terminate", &session)).await, json!({}));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn p48_without_a_wish_for_input_a_reader_sees_the_end_at_once() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn("cat; echo end")).await;
    assert_eq!(peer.exit(&session).await, 0);
    let (_, session) = peer.spawn(spawn("sleep 30")).await;
    let (code, _) = peer.refusal(stdin(&session, b"x")).await;
    assert_eq!(code, "write_failed");
    assert_eq!(peer.get(about("stdin_close", &session)).await, json!({}));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn p50_a_write_that_waits_for_a_full_pipe_ends_with_the_command() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn_reading("echo up; sleep 600")).await;
    peer.shows(&session, "up\n").await;
    let waiting = peer.send(stdin(&session, &vec![b'x'; 1024 * 1024]));
    let mut terminate = about("terminate", &session);
    terminate["grace_ms"] = json!(0);
    peer.get(terminate).await;
    assert_eq!(peer.reply(waiting).await["error"], "command_exited");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn input_that_is_not_base64_is_invalid_and_writes_nothing() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn_reading("cat")).await;
    let mut request = stdin(&session, b"");
    request["data"] = json!("%%");
    assert_eq!(
        peer.refusal(request).await,
        ("invalid".to_owned(), "data is not base64".to_owned())
    );
    peer.get(about("stdin_close", &session)).await;
    assert_eq!(peer.exit(&session).await, 0);
    assert_eq!(all_output(&peer.seen, &session, "stdout"), b"");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn detach_stops_the_frames_and_not_the_command() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn_reading(ECHO)).await;
    peer.shows(&session, "ready\n").await;
    // As the server sends it: nobody reads the reply, so none comes.
    peer.say(&json!({"id": 0, "op": "detach", "session_id": session}).to_string());
    peer.get(stdin(&session, b"unheard\n")).await;
    let attach = peer.send(about("attach", &session));
    peer.until("the replay", |seen| {
        (output(seen, &session, "stdout", Some(attach)) == b"ready\necho:unheard\n"
            || all_output(seen, &session, "stdout").ends_with(b"echo:unheard\n"))
        .then_some(())
    })
    .await;
    assert!(peer.seen.iter().all(|m| m["id"] != 0));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn sessions_are_listed_newest_first_and_with_what_they_run() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let mut started = Vec::new();
    for n in 0..3 {
        let (_, session) = peer.spawn(spawn(&format!("exit {n}"))).await;
        peer.exit(&session).await;
        started.insert(0, session);
    }
    let listed = peer.get(json!({"op": "list_sessions", "name": SB})).await;
    let listed: Vec<_> = listed["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["id"].as_str().unwrap())
        .collect();
    assert_eq!(listed, started);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn attaching_to_a_finished_session_gives_all_of_it_and_one_tagged_exit() {
    let (daemon, mut server, mut peer) = Daemon::connected().await;
    let (_, session) = peer.spawn(spawn("echo out; echo err >&2; exit 9")).await;
    peer.exit(&session).await;
    for _ in 0..2 {
        let attach = peer.send(about("attach", &session));
        let code = peer
            .until("a tagged exit", |seen| {
                seen.iter()
                    .find(|m| m["stream"] == "exit" && m["replay_for"] == attach)
                    .map(|m| m["code"].clone())
            })
            .await;
        assert_eq!(code, 9);
        assert_eq!(output(&peer.seen, &session, "stdout", Some(attach)), b"out\n");
        assert_eq!(output(&peer.seen, &session, "stderr", Some(attach)), b"err\n");
    }
    drop(peer);
    let mut peer = server.peer().await;
    let attach = peer.send(about("attach", &session));
    peer.until("a tagged exit", |seen| {
        position(seen, |m| m["stream"] == "exit" && m["replay_for"] == attach)
    })
    .await;
    daemon.stop().await.unwrap();
}
