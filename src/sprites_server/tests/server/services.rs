//! Services over real HTTP, with real processes (providers 1.10).

use std::time::{Duration, Instant};

use awc::http::{Method, StatusCode};
use fountain_sprites::enclosure::Disk;
use serde_json::{Value, json};

use crate::host::Server;

const SERVICES: &str = "/v1/sprites/a/services";

/// A service that says `word` and stays.
fn staying(word: &str) -> Value {
    json!({"cmd": "/bin/sh", "args": ["-c", format!("echo {word}; exec sleep 600")]})
}

async fn put(server: &Server, name: &str, service: &Value) -> (StatusCode, Vec<Value>) {
    let path = format!("{SERVICES}/{name}?duration=0s");
    server.lines_of(Method::PUT, &path, service.clone()).await
}

fn kinds(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["type"].as_str().unwrap()).collect()
}

/// Waits for a level of the state.
async fn until(server: &Server, name: &str, reached: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let (_, shown) = server
            .call(Method::GET, &format!("{SERVICES}/{name}"), Value::Null)
            .await;
        if reached(&shown["state"]) {
            return shown["state"].clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{shown}");
    }
}

#[actix_web::test]
async fn p_1_10_a_service_is_made_shown_stopped_started_and_deleted() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    let path = format!("{SERVICES}/web?duration=30s");
    let ends = json!({"cmd": "/bin/sh", "args": ["-c", "echo out; echo err >&2; exit 0"], "env": {"A": "b"}});
    let (status, lines) = server.lines_of(Method::PUT, &path, ends).await;
    assert_eq!(status, StatusCode::OK);
    let mut said = kinds(&lines);
    said[1..3].sort_unstable();
    assert_eq!(said, ["started", "stderr", "stdout", "exit", "complete"]);
    assert_eq!(lines[3]["exit_code"], 0);
    assert!(
        lines
            .iter()
            .all(|line| line["timestamp"].as_i64() > Some(1_600_000_000_000))
    );

    let (status, lines) = put(&server, "web", &staying("hello")).await;
    assert_eq!((status, kinds(&lines)[0]), (StatusCode::OK, "started"));
    let state = until(&server, "web", |state| state["status"] == "running").await;
    assert!(state["pid"].as_i64() > Some(1) && state["restart_count"] == 0);
    let (_, list) = server.call(Method::GET, SERVICES, Value::Null).await;
    assert_eq!((&list[0]["name"], &list[0]["cmd"]), (&json!("web"), &json!("/bin/sh")));
    assert!(list[0].get("stopped").is_none());
    let (_, sessions) = server.call(Method::GET, "/v1/sprites/a/exec", Value::Null).await;
    assert_eq!(sessions["count"], 0);

    // The same again leaves it alone.
    put(&server, "web", &staying("hello")).await;
    let same = until(&server, "web", |state| state["status"] == "running").await;
    assert_eq!(same["pid"], state["pid"]);
    let (_, lines) = server
        .lines(&format!("{SERVICES}/web/restart?duration=0s"), Value::Null)
        .await;
    assert_eq!(kinds(&lines)[..3], ["stopping", "stopped", "started"]);
    let (_, lines) = server
        .lines(&format!("{SERVICES}/web/stop?timeout=5s"), Value::Null)
        .await;
    assert_eq!(kinds(&lines), ["stopping", "stopped", "complete"]);
    assert!(lines[1]["exit_code"].as_i64() > Some(0));
    until(&server, "web", |state| {
        state["status"] == "stopped" && state["pid"].is_null()
    })
    .await;
    let (_, lines) = server
        .lines(&format!("{SERVICES}/web/start?duration=0s"), Value::Null)
        .await;
    assert_eq!(kinds(&lines)[0], "started");
    let gone = format!("{SERVICES}/web");
    assert_eq!(server.status(Method::DELETE, &gone).await, StatusCode::NO_CONTENT);
    assert_eq!(server.status(Method::GET, &gone).await, StatusCode::NOT_FOUND);
    assert_eq!(server.status(Method::DELETE, &gone).await, StatusCode::NOT_FOUND);
}

#[actix_web::test]
async fn p_1_10_only_one_has_an_http_port_and_needs_are_services() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    let with = |more: Value| {
        let mut service = staying("x");
        service
            .as_object_mut()
            .unwrap()
            .append(&mut more.as_object().unwrap().clone());
        service
    };
    assert_eq!(
        put(&server, "one", &with(json!({"http_port": 3000}))).await.0,
        StatusCode::OK
    );
    let second = with(json!({"http_port": 3001}));
    assert_eq!(put(&server, "two", &second).await.0, StatusCode::CONFLICT);
    assert_eq!(put(&server, "one", &second).await.0, StatusCode::OK);
    for wrong in [json!({"needs": ["no"]}), json!({"http_port": 0}), json!({"cmd": ""})] {
        assert_eq!(put(&server, "two", &with(wrong)).await.0, StatusCode::BAD_REQUEST);
    }
    assert_eq!(put(&server, "-two", &staying("x")).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(
        put(&server, "two", &with(json!({"needs": ["one"]}))).await.0,
        StatusCode::OK
    );
    let needed = server.status(Method::DELETE, &format!("{SERVICES}/one")).await;
    assert_eq!(needed, StatusCode::CONFLICT);
}

#[actix_web::test]
async fn p_1_10_what_is_needed_is_started_first() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    put(&server, "db", &staying("db")).await;
    server.lines(&format!("{SERVICES}/db/stop"), Value::Null).await;
    let mut web = staying("web");
    web["needs"] = json!(["db"]);
    let (_, lines) = put(&server, "web", &web).await;
    assert_eq!(kinds(&lines)[0], "started");
    let db = until(&server, "db", |state| state["status"] == "running").await;
    let web = until(&server, "web", |state| state["status"] == "running").await;
    assert!(db["started_at"].as_str() <= web["started_at"].as_str());
}

#[actix_web::test]
async fn p_1_10_a_failed_service_is_started_again_and_a_stopped_one_is_not() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    let fails = json!({"cmd": "/bin/sh", "args": ["-c", "exit 3"]});
    put(&server, "web", &fails).await;
    let failed = |state: &Value| state["status"] == "failed" && !state["next_restart_at"].is_null();
    let state = until(&server, "web", |state| failed(state) && state["restart_count"] == 1).await;
    assert_eq!(state["error"], "it ended with exit code 3");
    server.lines(&format!("{SERVICES}/web/stop"), Value::Null).await;
    until(&server, "web", |state| {
        state["status"] == "stopped" && state["next_restart_at"].is_null()
    })
    .await;
    let (_, lines) = put(&server, "none", &json!({"cmd": "/no/such/program"})).await;
    assert_eq!(kinds(&lines), ["error", "complete"]);
}

#[actix_web::test]
async fn p_1_10_logs_and_signals() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    let talks = "trap 'echo caught; exit 0' USR1; printf 'one\\ntwo\\nthree\\n'; while :; do sleep 0.05; done";
    let path = format!("{SERVICES}/web?duration=0s");
    server
        .lines_of(Method::PUT, &path, json!({"cmd": "/bin/sh", "args": ["-c", talks]}))
        .await;
    let logs = async |query: &str| {
        let (_, lines) = server
            .lines_of(Method::GET, &format!("{SERVICES}/web/logs{query}"), Value::Null)
            .await;
        let said: String = lines.iter().filter_map(|line| line["data"].as_str()).collect();
        (said, lines)
    };
    let begun = Instant::now();
    while !logs("").await.0.contains("three") {
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    assert_eq!(logs("?lines=2").await.0, "two\nthree\n");
    assert_eq!(logs("?lines=0").await.0, "");
    let signal = |name: &str, signal: &str| json!({"name": name, "signal": signal});
    let path = format!("{SERVICES}/signal");
    let send = async |body| server.call(Method::POST, &path, body).await.0;
    assert_eq!(send(signal("web", "NONE")).await, StatusCode::BAD_REQUEST);
    assert_eq!(send(signal("no", "TERM")).await, StatusCode::NOT_FOUND);
    assert_eq!(send(signal("web", "SIGUSR1")).await, StatusCode::NO_CONTENT);
    let (said, lines) = logs("?duration=30s").await;
    assert!(said.contains("caught\n"), "{said}");
    assert_eq!(kinds(&lines[lines.len() - 2..]), ["exit", "complete"]);
    until(&server, "web", |state| state["status"] == "stopped").await;
    assert_eq!(send(signal("web", "TERM")).await, StatusCode::CONFLICT);
}

#[actix_web::test]
async fn p_1_10_services_outlive_a_restart_of_the_server_and_a_restore() {
    let server = Server::new(Disk::Overlay).await;
    server.create("a").await;
    put(&server, "web", &staying("x")).await;
    put(&server, "off", &staying("y")).await;
    server.lines(&format!("{SERVICES}/off/stop"), Value::Null).await;
    let first = until(&server, "web", |state| state["status"] == "running").await;
    let (_, lines) = server.lines("/v1/sprites/a/checkpoint", json!({})).await;
    assert_eq!(lines.last().unwrap()["type"], "complete");
    // Something runs, so the checkpoint was a copy that ended nothing.
    assert_eq!(until(&server, "web", |_| true).await["pid"], first["pid"]);
    let (_, lines) = server.lines("/v1/sprites/a/checkpoints/v1/restore", Value::Null).await;
    assert_eq!(lines.last().unwrap()["type"], "complete");
    let second = until(&server, "web", |state| state["status"] == "running").await;
    assert_ne!(first["pid"], second["pid"]);
    assert!(nix::sys::signal::kill(pid(&first), None).is_err());

    let server = server.killed().await;
    assert_eq!(until(&server, "web", |_| true).await["status"], "stopped");
    assert_eq!(server.status(Method::GET, "/v1/sprites/a/check").await, StatusCode::OK);
    let third = until(&server, "web", |state| state["status"] == "running").await;
    assert_eq!(until(&server, "off", |_| true).await["status"], "stopped");
    assert_eq!(
        server.status(Method::DELETE, "/v1/sprites/a").await,
        StatusCode::NO_CONTENT
    );
    assert!(nix::sys::signal::kill(pid(&third), None).is_err());
}

fn pid(state: &Value) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(i32::try_from(state["pid"].as_i64().unwrap()).unwrap())
}
