//! Receipts: what is proof and what is not (sandbox-contract 10 and 12.2).

use fountain_actors::ports::sandbox::checked;
use fountain_actors::ports::sandbox::{Terminate, TerminateMode};

use super::server::{Say, chunked, half_chunked, http};
use super::*;

const REDIRECT: &str = "Location: http://127.0.0.1:1/elsewhere\r\n";

fn prose(status: u16) -> Say {
    let headers = if status == 302 { REDIRECT } else { "Retry-After: 5\r\n" };
    Say::Http(status, headers, r#"{"error":"provider prose"}"#.to_owned())
}

async fn terminate(say: Say, mode: TerminateMode, timeout_ms: i64) -> (Result<(), SandboxError>, Vec<String>) {
    let server = Server::start(vec![say]).await;
    let adapter = adapter(&server);
    let how = Terminate { mode, timeout_ms };
    let answer = adapter.terminate_session(&adapter.handle("a-b"), "17", how).await;
    (answer, server.lines())
}

const GRACEFUL: TerminateMode = TerminateMode::Graceful;
const FORCE: TerminateMode = TerminateMode::Force;

#[actix_rt::test]
async fn t01_t02_t03_sc_v17_a_graceful_end_is_proven_by_its_events_or_by_absence() {
    let killed = "{\"type\":\"signal\"}\n{\"type\":\"timeout\"}\n{\"type\":\"killed\"}\n{\"type\":\"complete\",\"exit_code\":137}\n";
    let exited = "{\"type\":\"exited\"}\n{\"type\":\"complete\",\"exit_code\":0}\n";
    for say in [
        http(200, killed),
        http(200, exited),
        Say::Cut(chunked(exited)),
        prose(404),
    ] {
        let (answer, lines) = terminate(say, GRACEFUL, 1000).await;
        assert_eq!(answer, Ok(()));
        assert_eq!(
            lines,
            ["POST /v1/sprites/a-b/exec/17/kill?signal=SIGTERM&timeout=1000ms"]
        );
    }
}

#[actix_rt::test]
async fn t04_sc_v18_a_forced_end_shows_its_signal() {
    let proof = "{\"type\":\"signal\",\"signal\":\"SIGKILL\",\"pid\":17}\n{\"type\":\"exited\"}\n{\"type\":\"complete\",\"exit_code\":137}\n";
    let (answer, lines) = terminate(http(200, proof), FORCE, 500).await;
    assert_eq!(answer, Ok(()));
    assert_eq!(
        lines,
        ["POST /v1/sprites/a-b/exec/17/kill?signal=SIGKILL&timeout=500ms"]
    );
}

#[actix_rt::test]
async fn t05_t07_sc_v19_without_the_signal_a_forced_end_is_unconfirmed() {
    let after = "\n{\"type\":\"exited\"}\n{\"type\":\"complete\",\"exit_code\":137}\n";
    let signals = [
        r#"{"type":"signal"}"#,
        r#"{"type":"signal","signal":"SIGTERM","pid":17}"#,
        r#"{"type":"signal","signal":"SIGKILL"}"#,
        r#"{"type":"signal","signal":"SIGKILL","pid":0}"#,
        r#"{"type":"signal","signal":"SIGKILL","pid":"17"}"#,
        "",
    ];
    let says = signals.iter().map(|signal| http(200, &format!("{signal}{after}")));
    for say in says.chain([prose(404)]) {
        let (answer, lines) = terminate(say, FORCE, 500).await;
        assert_eq!(answer, Err(unavailable("termination_unconfirmed")));
        assert_eq!(lines.len(), 1);
    }
}

#[actix_rt::test]
async fn t06_an_adapter_without_force_is_not_asked() {
    /// A Sprites adapter that offers less.
    struct Graceful(SpritesAdapter);
    macro_rules! delegate {
        ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
            $(fn $name<'a>(&'a self, $($argument: $kind),*) -> $answer { self.0.$name($($argument),*) })*
        };
    }
    impl SandboxAdapter for Graceful {
        fn provider(&self) -> Provider {
            Provider::Sprites
        }
        fn capabilities(&self) -> BTreeSet<Capability> {
            BTreeSet::from([Capability::TerminateSession])
        }
        fn list_all_names(&self) -> Answer<'_, BTreeSet<String>> {
            self.0.list_all_names()
        }
        delegate! {
            create(name: &'a str, epoch: Option<Epoch>) -> Answer<'a, Created>;
            get(handle: &'a Handle) -> Answer<'a, Info>;
            destroy(handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()>;
            suspend(handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()>;
            resume(handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()>;
            write_file(handle: &'a Handle, path: &'a str, bytes: Bytes, mode: Option<u32>, epoch: Option<Epoch>) -> Answer<'a, ()>;
            exec(handle: &'a Handle, command: &'a str, arguments: &'a [String], options: ExecOptions) -> Answer<'a, ExecOutput>;
            spawn(handle: &'a Handle, command: &'a str, arguments: &'a [String], options: SpawnOptions) -> Answer<'a, (Command, FrameStream)>;
            write_stdin(command: &'a Command, bytes: Bytes) -> Answer<'a, ()>;
            close_stdin(command: &'a Command) -> Answer<'a, ()>;
            stop_command(command: &'a Command) -> LocalBoxFuture<'a, ()>;
            list_sessions(handle: &'a Handle) -> Answer<'a, Vec<Session>>;
            attach(handle: &'a Handle, session_id: &'a str) -> Answer<'a, (Command, FrameStream)>;
            terminate_session(handle: &'a Handle, session_id: &'a str, how: Terminate) -> Answer<'a, ()>;
        }
    }
    let server = Server::start(vec![http(404, ""), http(404, "")]).await;
    let adapter = Graceful(adapter(&server));
    let handle = adapter.handle("a-b");
    let forced = checked::terminate_session(&adapter, &handle, "17", Terminate::FORCE).await;
    assert_eq!(forced, Err(SandboxError::NotSupported));
    assert_eq!(server.lines(), Vec::<String>::new());
    let graceful = checked::terminate_session(&adapter, &handle, "17", Terminate::GRACEFUL).await;
    assert_eq!(graceful, Ok(()));
}

#[actix_rt::test]
async fn t08_t09_events_that_do_not_prove_an_end_are_unconfirmed() {
    let exited = "{\"type\":\"exited\"}\n";
    let complete = "{\"type\":\"complete\",\"exit_code\":0}\n";
    let mut bodies: Vec<String> = [
        String::new(),
        "{\"type\":\"signal\"}".to_owned(),
        complete.to_owned(),
        "{\"type\":\"killed\"}".to_owned(),
        "not JSON".to_owned(),
        "[]".to_owned(),
        format!("{exited}{{\"type\":\"complete\"}}"),
        format!("{exited}{{\"type\":\"error\",\"message\":\"x\"}}\n{complete}"),
        format!("{exited}{{\"type\":\"surprise\"}}\n{complete}"),
        format!("{exited}{complete}{exited}"),
        format!(
            "{exited}{complete}{}",
            " ".repeat(16_385 - exited.len() - complete.len())
        ),
    ]
    .into();
    for code in ["-1", "256", "1.5", "\"137\"", "null"] {
        bodies.push(format!("{exited}{{\"type\":\"complete\",\"exit_code\":{code}}}"));
    }
    for body in bodies {
        let (answer, lines) = terminate(http(200, &body), GRACEFUL, 1000).await;
        assert_eq!(answer, Err(unavailable("termination_unconfirmed")), "{body}");
        assert_eq!(lines.len(), 1);
    }
    let longest = format!(
        "{exited}{complete}{}",
        " ".repeat(16_384 - exited.len() - complete.len())
    );
    assert_eq!(terminate(http(200, &longest), GRACEFUL, 1000).await.0, Ok(()));
    let half = Say::Cut(half_chunked(&format!("{exited}{complete}")));
    assert_eq!(
        terminate(half, GRACEFUL, 1000).await.0,
        Err(unavailable("termination_unconfirmed"))
    );
}

#[actix_rt::test]
async fn t10_other_statuses_are_normalised_without_prose() {
    for (status, error) in [
        (401, SandboxError::Denied("http 401".into())),
        (429, SandboxError::RateLimited { retry_after_s: None }),
        (503, unavailable("http 503")),
        (302, invalid("http 302")),
        (202, unavailable("termination_unconfirmed")),
    ] {
        let (answer, lines) = terminate(prose(status), GRACEFUL, 1000).await;
        assert_eq!(answer, Err(error));
        assert_eq!(lines.len(), 1);
    }
}

#[actix_rt::test]
async fn t11_t12_a_kill_without_an_answer_is_bounded_and_sent_once() {
    assert_eq!(LIMITS.termination_margin, Duration::from_secs(5));
    let server = Server::start(vec![Say::Hold(String::new()), Say::Cut(String::new())]).await;
    let adapter = impatient(&server);
    let handle = adapter.handle("a-b");
    let how = Terminate {
        mode: GRACEFUL,
        timeout_ms: 1,
    };
    let late = adapter.terminate_session(&handle, "17", how).await;
    assert_eq!(late, Err(unavailable("termination_timeout")));
    server.until_closed(1).await;
    let cut = adapter.terminate_session(&handle, "17", how).await;
    assert_eq!(cut, Err(unavailable("termination_transport_failed")));
    assert_eq!(server.lines().len(), 2);
    let away = nowhere().await;
    let away = away.terminate_session(&handle, "17", how).await;
    assert_eq!(away, Err(unavailable("termination_transport_failed")));
}

#[actix_rt::test]
async fn t13_a_bad_request_is_not_sent() {
    let server = Server::start(Vec::new()).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let long = "x".repeat(257);
    for id in ["", "../other", "a/b", "a?x=1", &long] {
        let answer = adapter.terminate_session(&handle, id, Terminate::GRACEFUL).await;
        assert_eq!(answer, Err(invalid("termination_request")), "{id}");
    }
    for timeout_ms in [0, -1, 30_001] {
        let how = Terminate {
            timeout_ms,
            mode: GRACEFUL,
        };
        let answer = adapter.terminate_session(&handle, "17", how).await;
        assert_eq!(answer, Err(invalid("termination_request")));
    }
    assert_eq!(server.lines(), Vec::<String>::new());
}

async fn create_new(say: Say, how: CreateNew) -> (Result<Handle, SandboxError>, Server) {
    let server = Server::start(vec![say]).await;
    let adapter = impatient(&server);
    let answer = adapter.create_new("new-worker", how).await;
    (answer, server)
}

#[actix_rt::test]
async fn c01_a_new_machine_has_an_incarnation() {
    let body = r#"{"name":"new-worker","id":"sprite-1","status":"cold"}"#;
    let how = CreateNew {
        wait_for_capacity: Some(true),
        epoch: Some(Epoch(3)),
        ..CreateNew::default()
    };
    let (answer, server) = create_new(http(201, body), how).await;
    let handle = answer.unwrap();
    assert_eq!(
        (handle.name.as_str(), handle.instance_id.as_deref()),
        ("new-worker", Some("sprite-1"))
    );
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].body,
        r#"{"name":"new-worker","wait_for_capacity":true,"url_settings":{"auth":"public"}}"#
    );
    assert_eq!(
        (seen[0].header("fountain-epoch"), seen[0].header("connection")),
        (Some("3"), Some("close"))
    );

    let server = Server::start(vec![http(200, body)]).await;
    let private = SpritesSettings {
        public_urls: false,
        ..settings(&server.base_url)
    };
    SpritesAdapter::new(private)
        .create_new("new-worker", CreateNew::default())
        .await
        .unwrap();
    assert_eq!(
        server.seen()[0].body,
        r#"{"name":"new-worker","url_settings":{"auth":"sprite"}}"#
    );
}

#[actix_rt::test]
async fn c02_c04_a_taken_name_and_other_refusals_are_told_without_prose() {
    for (status, error) in [
        (409, SandboxError::AlreadyExists),
        (302, invalid("http 302")),
        (400, invalid("http 400")),
        (401, SandboxError::Denied("http 401".into())),
        (429, SandboxError::RateLimited { retry_after_s: None }),
        (503, unavailable("http 503")),
    ] {
        let (answer, server) = create_new(prose(status), CreateNew::default()).await;
        assert_eq!(answer, Err(error));
        assert_eq!(server.lines(), ["POST /v1/sprites"]);
    }
}

#[actix_rt::test]
async fn c03_sc_v21_an_answer_that_proves_nothing_is_unconfirmed() {
    let long = "x".repeat(257);
    let huge = "x".repeat(65_536);
    for body in [
        "{}".to_owned(),
        r#"{"name":"other","id":"sprite-1"}"#.to_owned(),
        r#"{"id":"sprite-1"}"#.to_owned(),
        r#"{"name":"new-worker"}"#.to_owned(),
        r#"{"name":"new-worker","id":""}"#.to_owned(),
        r#"{"name":"new-worker","id":7}"#.to_owned(),
        format!(r#"{{"name":"new-worker","id":"{long}"}}"#),
        "not JSON".to_owned(),
        r#"[{"name":"new-worker","id":"sprite-1"}]"#.to_owned(),
        format!(r#"{{"name":"new-worker","id":"sprite-1","pad":"{huge}"}}"#),
    ] {
        let (answer, server) = create_new(http(200, &body), CreateNew::default()).await;
        assert_eq!(answer, Err(unavailable("create_unconfirmed")));
        assert_eq!(server.lines().len(), 1);
    }
}

#[actix_rt::test]
async fn c05_c06_a_lost_create_is_uncertain_and_its_socket_closes() {
    let (answer, _) = create_new(Say::Cut(String::new()), CreateNew::default()).await;
    assert_eq!(answer, Err(unavailable("create_transport_failed")));
    let away = nowhere().await.create_new("new-worker", CreateNew::default()).await;
    assert_eq!(away, Err(unavailable("create_transport_failed")));
    let how = CreateNew {
        timeout_ms: 500,
        ..CreateNew::default()
    };
    let (answer, server) = create_new(
        Say::Hold("HTTP/1.1 201 X\r\nContent-Length: 9\r\n\r\n{".to_owned()),
        how,
    )
    .await;
    assert_eq!(answer, Err(unavailable("create_timeout")));
    server.until_closed(1).await;
}

#[actix_rt::test]
async fn c07_d08_k10_bad_limits_are_refused_before_anything_is_sent() {
    let server = Server::start(Vec::new()).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    for timeout_ms in [0, -1, 120_001] {
        let create = CreateNew {
            timeout_ms,
            ..CreateNew::default()
        };
        assert_eq!(adapter.create_new("a", create).await, Err(invalid("create_timeout")));
        let delete = DestroyOnce {
            timeout_ms,
            ..DestroyOnce::default()
        };
        assert_eq!(
            adapter.destroy_once(&handle, delete).await,
            Err(invalid("delete_timeout"))
        );
        let answer = adapter.create_checkpoint_once(&handle, &once("?", timeout_ms)).await;
        assert_eq!(answer, Err(invalid("checkpoint_timeout")));
    }
    let long = "x".repeat(129);
    for id in ["", "a b", "a/b", "é", &long] {
        let answer = adapter.create_checkpoint_once(&handle, &once(id, 1000)).await;
        assert_eq!(answer, Err(invalid("checkpoint_operation_id")));
    }
    assert_eq!(server.lines(), Vec::<String>::new());
}

async fn destroy_once(script: Vec<Say>, timeout_ms: i64) -> (Result<(), SandboxError>, Server) {
    let server = Server::start(script).await;
    let adapter = adapter(&server);
    let how = DestroyOnce {
        timeout_ms,
        epoch: Some(Epoch(3)),
    };
    let answer = adapter.destroy_once(&adapter.handle("owned worker/x"), how).await;
    (answer, server)
}

#[actix_rt::test]
async fn d01_d02_a_delete_is_confirmed_by_one_look_or_by_absence() {
    for status in [200, 202, 204] {
        let (answer, server) = destroy_once(vec![http(status, ""), prose(404)], 30_000).await;
        assert_eq!(answer, Ok(()));
        let path = "/v1/sprites/owned%20worker%2Fx";
        assert_eq!(server.lines(), [format!("DELETE {path}"), format!("GET {path}")]);
        let connections: Vec<_> = server.seen().iter().map(|seen| seen.connection).collect();
        assert_eq!(connections, [1, 2]);
    }
    let (answer, server) = destroy_once(vec![prose(404)], 30_000).await;
    assert_eq!((answer, server.lines().len()), (Ok(()), 1));
}

#[actix_rt::test]
async fn d03_d04_d07_everything_else_is_unconfirmed() {
    for (first, second) in [(202, 200), (204, 200), (200, 503), (200, 302)] {
        let (answer, server) = destroy_once(vec![http(first, ""), prose(second)], 30_000).await;
        assert_eq!(answer, Err(unavailable("delete_unconfirmed")));
        assert_eq!(server.lines().len(), 2);
    }
    for status in [302, 401, 409, 429, 503] {
        let (answer, server) = destroy_once(vec![prose(status)], 30_000).await;
        assert_eq!(answer, Err(unavailable("delete_unconfirmed")));
        assert_eq!(server.lines().len(), 1);
    }
    let (answer, server) = destroy_once(vec![http(200, &"x".repeat(65_537))], 30_000).await;
    assert_eq!(
        (answer, server.lines().len()),
        (Err(unavailable("delete_unconfirmed")), 1)
    );
}

#[actix_rt::test]
async fn d05_d06_a_lost_delete_is_uncertain() {
    let (answer, server) = destroy_once(vec![Say::Cut(String::new())], 30_000).await;
    assert_eq!(
        (answer, server.lines().len()),
        (Err(unavailable("delete_transport_failed")), 1)
    );
    for script in [
        vec![Say::Hold(String::new())],
        vec![http(204, ""), Say::Hold(String::new())],
    ] {
        let (answer, server) = destroy_once(script, 500).await;
        assert_eq!(answer, Err(unavailable("delete_timeout")));
        server.until_closed(1).await;
    }
}

const STREAM: &str = "{\"type\":\"info\",\"data\":\"v999\"}\n{\"type\":\"complete\",\"data\":\"x\"}\n";
const LISTING: &str = r#"[{"id":"old"},{"id":"snapshot-42","comment":"sandbox-operation:persisted-operation-123"}]"#;

fn once(operation_id: &str, timeout_ms: i64) -> CheckpointOnce {
    CheckpointOnce {
        operation_id: operation_id.to_owned(),
        timeout_ms,
        epoch: None,
    }
}

async fn checkpoint(script: Vec<Say>, timeout_ms: i64) -> (Result<String, SandboxError>, Server) {
    let server = Server::start(script).await;
    let adapter = adapter(&server);
    let how = once("persisted-operation-123", timeout_ms);
    let answer = adapter
        .create_checkpoint_once(&adapter.handle("owned worker/x"), &how)
        .await;
    (answer, server)
}

fn unconfirmed() -> Result<String, SandboxError> {
    Err(unavailable("checkpoint_unconfirmed"))
}

#[actix_rt::test]
async fn k01_k05_sc_v20_the_id_is_the_listing_s_and_not_the_stream_s() {
    for stream in [http(200, STREAM), Say::Cut(chunked(STREAM))] {
        let (answer, server) = checkpoint(vec![stream, http(200, LISTING)], 30_000).await;
        assert_eq!(answer.as_deref(), Ok("snapshot-42"));
        let path = "/v1/sprites/owned%20worker%2Fx";
        assert_eq!(
            server.lines(),
            [format!("POST {path}/checkpoint"), format!("GET {path}/checkpoints")]
        );
        assert_eq!(
            server.seen()[0].body,
            r#"{"comment":"sandbox-operation:persisted-operation-123"}"#
        );
    }
}

#[actix_rt::test]
async fn k02_any_other_status_is_unconfirmed_and_nothing_is_looked_up() {
    for status in [201, 202, 204, 302, 400, 401, 404, 409, 429, 500, 503] {
        let (answer, server) = checkpoint(vec![prose(status)], 30_000).await;
        assert_eq!((answer, server.lines().len()), (unconfirmed(), 1), "{status}");
    }
}

#[actix_rt::test]
async fn k03_a_stream_with_a_flaw_is_unconfirmed() {
    let info = r#"{"type":"info","data":"x"}"#;
    let complete = r#"{"type":"complete","data":"x"}"#;
    for stream in [
        String::new(),
        "nonsense".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        info.to_owned(),
        r#"{"type":"error","error":"x"}"#.to_owned(),
        r#"{"type":"complete","data":7}"#.to_owned(),
        r#"{"type":"complete","data":"x","error":"y"}"#.to_owned(),
        format!("{{\"type\":\"info\",\"data\":\"x\",\"error\":null}}\n{complete}"),
        format!("{complete}\n{complete}"),
        format!("{complete}\n{info}"),
    ] {
        let (answer, server) = checkpoint(vec![http(200, &stream)], 30_000).await;
        assert_eq!((answer, server.lines().len()), (unconfirmed(), 1), "{stream}");
    }
}

#[actix_rt::test]
async fn k04_a_listing_with_a_flaw_is_unconfirmed() {
    let ours = r#"{"id":"a","comment":"sandbox-operation:persisted-operation-123"}"#;
    let long = "x".repeat(257);
    for listing in [
        "nonsense".to_owned(),
        "{}".to_owned(),
        "[]".to_owned(),
        "[null]".to_owned(),
        "[4]".to_owned(),
        format!(r#"[{{"id":null}},{ours}]"#),
        r#"[{"id":"a","comment":"other"}]"#.to_owned(),
        ours.replace("\"a\"", "\"Current\"")
            .replace('{', "[{")
            .replace('}', "}]"),
        format!("[{ours},{ours}]"),
        format!(r#"[{{"id":""}},{ours}]"#),
        format!(r#"[{{"id":"{long}"}},{ours}]"#),
        format!(r#"[{{"id":"b","comment":7}},{ours}]"#),
    ] {
        let (answer, server) = checkpoint(vec![http(200, STREAM), http(200, &listing)], 30_000).await;
        assert_eq!((answer, server.lines().len()), (unconfirmed(), 2), "{listing}");
    }
}

#[actix_rt::test]
async fn k06_a_listing_that_is_refused_is_unconfirmed() {
    for status in [202, 302, 404, 429, 503] {
        let (answer, server) = checkpoint(vec![http(200, STREAM), prose(status)], 30_000).await;
        assert_eq!((answer, server.lines().len()), (unconfirmed(), 2), "{status}");
    }
}

#[actix_rt::test]
async fn k07_k12_both_answers_share_one_budget_and_too_much_closes_the_socket() {
    let padded = format!("{STREAM}{}", " ".repeat(65_536 - STREAM.len() - LISTING.len()));
    let (answer, _) = checkpoint(vec![http(200, &padded), http(200, LISTING)], 30_000).await;
    assert_eq!(answer.as_deref(), Ok("snapshot-42"));
    let (answer, server) = checkpoint(vec![http(200, &format!("{padded} ")), http(200, LISTING)], 30_000).await;
    assert_eq!((answer, server.lines().len()), (unconfirmed(), 2));
    let huge = format!("HTTP/1.1 200 X\r\nContent-Length: 99999\r\n\r\n{}", " ".repeat(65_537));
    let (answer, server) = checkpoint(vec![Say::Hold(huge)], 30_000).await;
    assert_eq!((answer, server.lines().len()), (unconfirmed(), 1));
    server.until_closed(1).await;
}

#[actix_rt::test]
async fn k08_k09_k12_k14_a_lost_checkpoint_is_uncertain_and_the_look_has_the_rest_of_the_time() {
    let (answer, _) = checkpoint(vec![Say::Cut(String::new())], 30_000).await;
    assert_eq!(answer, Err(unavailable("checkpoint_transport_failed")));
    for script in [
        vec![Say::Hold(String::new())],
        vec![http(200, STREAM), Say::Hold(String::new())],
    ] {
        let begun = std::time::Instant::now();
        let (answer, server) = checkpoint(script, 500).await;
        assert_eq!(answer, Err(unavailable("checkpoint_timeout")));
        assert!(begun.elapsed() >= Duration::from_millis(500));
        server.until_closed(1).await;
    }
}

#[actix_rt::test]
async fn k13_complete_in_half_a_body_proves_nothing() {
    let length = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{STREAM}",
        STREAM.len() + 1
    );
    for half in [half_chunked(STREAM), length] {
        let (answer, server) = checkpoint(vec![Say::Cut(half), http(200, LISTING)], 30_000).await;
        assert_eq!((answer, server.lines().len()), (unconfirmed(), 1));
    }
}

#[actix_rt::test]
async fn k15_a_caller_that_goes_takes_the_socket_with_it() {
    let server = Server::start(vec![Say::Hold(String::new())]).await;
    let adapter = adapter(&server);
    let (handle, how) = (adapter.handle("a-b"), once("o", 120_000));
    let caller = actix_rt::spawn(async move { adapter.create_checkpoint_once(&handle, &how).await });
    server.until_seen(1).await;
    caller.abort();
    server.until_closed(1).await;
    assert_eq!(server.lines().len(), 1);
}
