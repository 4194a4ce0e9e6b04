//! Dialling, refusals, drops, keep-alive, the end.

use std::{fs, time::Duration};

use serde_json::json;

use super::server::*;
use crate::daemon::{DaemonError, Endpoint, Timing};

#[actix::test]
async fn the_dial_carries_the_key_in_a_header_and_the_card_in_the_query() {
    let (daemon, server, _peer) = Daemon::connected().await;
    let dial = &server.dials()[0];
    assert_eq!(dial.authorization, "Bearer ftn_test");
    let value = |name: &str| dial.query[name].as_str();
    assert_eq!(
        (value("name"), value("hostname"), value("version")),
        ("mini", "test-host", "0.0.0-test")
    );
    assert_eq!(
        (value("root"), value("features")),
        (daemon.root.to_str().unwrap(), "replay_end,terminate")
    );
    let marker = fs::read_to_string(daemon.root.join(".root-id")).unwrap();
    assert_eq!(value("root_id"), marker.trim());
    assert!(!dial.query.values().any(|value| value.contains("ftn_")));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v30_an_unknown_op_is_not_supported_by_its_name() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let reply = peer.ask(json!({"op": "fly"})).await;
    assert_eq!(
        reply,
        json!({"id": 2, "ok": false, "error": "not_supported", "detail": "fly"})
    );
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn a_message_that_is_no_request_is_skipped() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    for text in [
        "hello",
        "[1]",
        "{}",
        r#"{"id":"x","op":"list"}"#,
        r#"{"id":4,"op":"exec","args":"x"}"#,
    ] {
        peer.say(text);
    }
    assert_eq!(peer.get(json!({"op": "list"})).await, json!({"names": [SB]}));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v38_a_refused_key_or_name_ends_the_daemon_with_status_and_body() {
    for (status, body) in [
        (401, "api_key_revoked"),
        (403, "runner_name_mismatch"),
        (404, "runners_disabled"),
        (400, "bad"),
    ] {
        let server = Server::start();
        server.refuse([Refuse(status, body)]);
        let mut daemon = Daemon::start(fixed(&server.url), quick());
        match daemon.ended().await {
            Err(DaemonError::Refused {
                status: told,
                body: said,
            }) => assert_eq!((told, said.as_str()), (status, body)),
            other => panic!("{status}: {other:?}"),
        }
    }
}

#[actix::test]
async fn rp_v38_other_answers_are_tried_again() {
    let mut server = Server::start();
    server.refuse([
        Refuse(409, "runner_already_connected"),
        Refuse(500, ""),
        Refuse(503, ""),
        Refuse(302, ""),
    ]);
    let daemon = Daemon::start(fixed(&server.url), quick());
    let mut peer = server.peer().await;
    peer.get(json!({"op": "list"})).await;
    assert_eq!(server.dials().len(), 5);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v36_every_close_of_the_server_is_followed_by_a_new_dial() {
    let (daemon, mut server, mut peer) = Daemon::connected().await;
    for code in [1000, 1001, 1003, 4404, 4409] {
        peer.close(code);
        peer = server.peer().await;
        peer.get(json!({"op": "list"})).await;
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v45_a_dropped_connection_changes_nothing_for_a_running_command() {
    let (daemon, mut server, mut peer) = Daemon::connected().await;
    let request = json!({"op": "spawn", "name": SB, "cmd": "sh", "stdin": true,
        "args": ["-c", "echo one; while ! [ -e go ]; do sleep 0.01; done; echo two; read l; exit 6"]});
    let (_, session) = peer.spawn(request).await;
    peer.shows(&session, "one\n").await;
    drop(peer);
    // Output while nobody is connected, or is connected and not attached.
    fs::write(daemon.sandbox().join("go"), "").unwrap();
    let mut peer = server.peer().await;
    let attach = peer.send(json!({"op": "attach", "session_id": session}));
    peer.shows(&session, "two\n").await;
    peer.get(json!({"op": "stdin", "session_id": session, "data": base64(b"\n")}))
        .await;
    assert_eq!(peer.exit(&session).await, 6);
    let tagged = output(&peer.seen, &session, "stdout", Some(attach));
    let live = output(&peer.seen, &session, "stdout", None);
    assert_eq!([tagged, live].concat(), b"one\ntwo\n");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn pings_of_the_server_are_answered() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    peer.ping();
    peer.until("a pong", |seen| seen.iter().find(|m| m["pong"] == true).map(|_| ()))
        .await;
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn p68_a_server_that_answers_no_ping_is_left() {
    let timing = Timing {
        ping_every: Duration::from_millis(50),
        pong_within: Duration::from_millis(100),
        ..quick()
    };
    let (daemon, mut server, peer) = Daemon::connected_with(timing).await;
    peer.reading.send_replace(false);
    let mut second = server.peer().await;
    second.get(json!({"op": "list"})).await;
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn a_clean_end_stops_every_session_and_tells_their_exits_before_it_closes() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let request = json!({"op": "spawn", "name": SB, "cmd": "sh", "args": ["-c", "echo up; exec sleep 600"]});
    let (_, session) = peer.spawn(request).await;
    peer.shows(&session, "up\n").await;
    daemon.stop().await.unwrap();
    peer.end().await;
    let exit = peer
        .seen
        .iter()
        .position(|m| m["stream"] == "exit" && m["session_id"] == session.as_str());
    let closed = peer.seen.iter().position(|m| m["closed"] == 1001);
    assert!(exit.is_some() && closed.is_some() && exit < closed, "{:?}", peer.seen);
    assert_eq!(peer.seen[exit.unwrap()]["code"], 137);
}

#[actix::test]
async fn rul_46b_a_second_daemon_on_the_same_root_is_refused_and_harms_nothing() {
    let (daemon, server, mut peer) = Daemon::connected().await;
    let request =
        json!({"op": "spawn", "name": SB, "cmd": "sh", "stdin": true, "args": ["-c", "echo up; read l; exit 4"]});
    let (_, session) = peer.spawn(request).await;
    peer.shows(&session, "up\n").await;
    let config = crate::daemon::DaemonConfig {
        endpoint: fixed(&server.url),
        name: "mini".to_owned(),
        root: daemon.root.clone(),
        version: String::new(),
        hostname: String::new(),
        environment: Vec::new(),
        timing: quick(),
    };
    let refused = crate::daemon::run(config, std::future::pending()).await;
    assert!(
        matches!(refused, Err(DaemonError::Ledger(crate::process::LedgerError::InUse(_)))),
        "{refused:?}"
    );
    peer.get(json!({"op": "stdin", "session_id": session, "data": base64(b"\n")}))
        .await;
    assert_eq!(peer.exit(&session).await, 4);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn a_name_or_an_address_that_cannot_work_is_told_at_once() {
    let config = |name: &str, base_url: &str, root: &std::path::Path| crate::daemon::DaemonConfig {
        endpoint: fixed(base_url),
        name: name.to_owned(),
        root: root.to_owned(),
        version: String::new(),
        hostname: String::new(),
        environment: Vec::new(),
        timing: quick(),
    };
    let root = tempfile::tempdir().unwrap();
    let bad_name = crate::daemon::run(
        config("Mini", "http://127.0.0.1:9", root.path()),
        std::future::pending(),
    )
    .await;
    assert!(matches!(bad_name, Err(DaemonError::BadName(_))), "{bad_name:?}");
    let bad_url = crate::daemon::run(config("mini", "ftp://x", root.path()), std::future::pending()).await;
    assert!(matches!(bad_url, Err(DaemonError::BadBaseUrl(_))), "{bad_url:?}");
}

#[test]
fn rp_v04_names_of_runners() {
    let long = "a".repeat(63);
    for name in ["mini", "a.b-c_1", "0", &long] {
        assert!(crate::daemon::is_runner_name(name), "{name}");
    }
    for name in ["Mini", "-a", ".a", "", "a b", "ü", &"a".repeat(64)] {
        assert!(!crate::daemon::is_runner_name(name), "{name}");
    }
    let from = crate::daemon::name_from_hostname;
    assert_eq!(from("Mac Mini.local").as_deref(), Some("mac-mini.local"));
    assert_eq!(from("_x").as_deref(), Some("x"));
    assert_eq!(from("---"), None);
}

/// A connection file, as a server that starts its own runner writes it.
struct ConnectionFile(tempfile::TempDir);

impl ConnectionFile {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("runner.json")
    }

    fn write(&self, url: &str, key: &str) {
        let draft = self.0.path().join("draft");
        fs::write(&draft, json!({"url": url, "api_key": key}).to_string()).unwrap();
        fs::rename(draft, self.path()).unwrap();
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::File(self.path())
    }
}

#[actix::test]
async fn rul_57_the_file_is_read_at_every_dial_and_its_end_is_the_daemons() {
    let file = ConnectionFile::new();
    let mut first = Server::start();
    file.write(&first.url, "ftn_one");
    let mut daemon = Daemon::start(file.endpoint(), quick());
    let peer = first.peer().await;
    assert_eq!(first.dials()[0].authorization, "Bearer ftn_one");

    // The server comes back elsewhere, with another key.
    let mut second = Server::start();
    file.write(&second.url, "ftn_two");
    drop(peer);
    first.stop().await;
    let peer = second.peer().await;
    assert_eq!(second.dials()[0].authorization, "Bearer ftn_two");

    fs::remove_file(file.path()).unwrap();
    drop(peer);
    daemon.ended().await.unwrap();
}

#[actix::test]
async fn rul_57_a_refusal_is_final_only_for_the_file_that_was_refused() {
    let file = ConnectionFile::new();
    let server = Server::start();
    server.refuse([Refuse(401, "api_key_revoked")]);
    file.write(&server.url, "ftn_old");
    let mut daemon = Daemon::start(file.endpoint(), quick());
    assert!(matches!(
        daemon.ended().await,
        Err(DaemonError::Refused { status: 401, .. })
    ));

    // The file changes while the refusal is on its way.
    let mut server = Server::start();
    server.refuse([Refuse(401, "api_key_revoked")]);
    server.refusing.send_replace(false);
    file.write(&server.url, "ftn_old");
    let daemon = Daemon::start(file.endpoint(), quick());
    eventually("the first dial", || !server.dials().is_empty()).await;
    file.write(&server.url, "ftn_new");
    server.refusing.send_replace(true);
    let mut peer = server.peer().await;
    peer.get(json!({"op": "list"})).await;
    let keys: Vec<_> = server.dials().into_iter().map(|dial| dial.authorization).collect();
    assert_eq!(keys, ["Bearer ftn_old", "Bearer ftn_new"]);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_57_without_any_server_the_daemon_ends_after_its_limit() {
    let file = ConnectionFile::new();
    let gone = Server::start();
    file.write(&gone.url, "ftn_one");
    gone.stop().await;
    let timing = Timing {
        no_server_for: Duration::from_millis(100),
        ..quick()
    };
    let mut daemon = Daemon::start(file.endpoint(), timing);
    assert!(matches!(daemon.ended().await, Err(DaemonError::NoServer(_))));
}
