//! REST calls: machines, files, policies, checkpoints, and what never shows.

use fountain_actors::ports::sandbox::{NOT_CONNECTED, RunState};

use super::server::{Say, chunked, half_chunked, http};
use super::*;

const EXISTS: &str = r#"{"error":"A sprite named 'a-b' already exists. Please choose a different name."}"#;
const STALE: &str = r#"{"error":"stale_epoch"}"#;
const EPOCH: Option<Epoch> = Some(Epoch(7));

#[actix_rt::test]
async fn s01_p_v09_create_opens_the_url_and_stands_when_that_fails() {
    for put in [200, 503] {
        let server = Server::start(vec![http(201, "{}"), http(put, "{}")]).await;
        let created = adapter(&server).create("a-b", EPOCH).await.unwrap();
        assert_eq!((created.adopted, created.handle.name.as_str()), (false, "a-b"));
        let seen = server.seen();
        assert_eq!(server.lines(), ["POST /v1/sprites", "PUT /v1/sprites/a-b"]);
        assert_eq!(seen[0].body, r#"{"name":"a-b"}"#);
        assert_eq!(seen[1].body, r#"{"url_settings":{"auth":"public"}}"#);
        assert_eq!(seen[0].header("authorization"), Some("Bearer sekrit-token"));
        assert_eq!(seen[0].header("fountain-epoch"), Some("7"));
    }
}

#[actix_rt::test]
async fn s01_without_public_urls_no_url_is_opened() {
    let server = Server::start(vec![http(201, "{}")]).await;
    let settings = SpritesSettings {
        public_urls: false,
        ..settings(&server.base_url)
    };
    let adapter = SpritesAdapter::new(settings);
    assert!(!adapter.create("a-b", None).await.unwrap().adopted);
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].header("fountain-epoch")), (1, None));
}

#[actix_rt::test]
async fn s02_rul_l_90_a_taken_name_is_adopted() {
    let server = Server::start(vec![http(409, EXISTS), http(200, "{}")]).await;
    assert!(adapter(&server).create("a-b", EPOCH).await.unwrap().adopted);
}

#[actix_rt::test]
async fn rul_l_2_a_stale_epoch_is_never_taken_for_exists() {
    let server = Server::start((0..9).map(|_| http(409, STALE)).collect()).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let policy = NetworkPolicy { allow: Vec::new() };
    assert!(adapter.create("a-b", EPOCH).await.unwrap_err().is_stale_epoch());
    assert!(adapter.destroy(&handle, EPOCH).await.unwrap_err().is_stale_epoch());
    assert!(
        adapter
            .apply_network_policy(&handle, &policy, EPOCH)
            .await
            .unwrap_err()
            .is_stale_epoch()
    );
    assert!(
        adapter
            .create_checkpoint(&handle, "c", EPOCH)
            .await
            .unwrap_err()
            .is_stale_epoch()
    );
    assert!(
        adapter
            .restore_checkpoint(&handle, "v1", EPOCH)
            .await
            .unwrap_err()
            .is_stale_epoch()
    );
    assert!(
        adapter
            .write_file(&handle, "/a", "x".into(), None, EPOCH)
            .await
            .unwrap_err()
            .is_stale_epoch()
    );
    let options = ExecOptions {
        epoch: EPOCH,
        ..ExecOptions::default()
    };
    assert!(
        adapter
            .exec(&handle, "true", &[], options)
            .await
            .unwrap_err()
            .is_stale_epoch()
    );
    let once = CreateNew {
        epoch: EPOCH,
        ..CreateNew::default()
    };
    assert!(adapter.create_new("a-b", once).await.unwrap_err().is_stale_epoch());
    let once = DestroyOnce {
        epoch: EPOCH,
        ..DestroyOnce::default()
    };
    assert!(adapter.destroy_once(&handle, once).await.unwrap_err().is_stale_epoch());
    let seen = server.seen();
    assert_eq!(seen.len(), 9);
    assert!(seen.iter().all(|seen| seen.header("fountain-epoch") == Some("7")));
}

#[actix_rt::test]
async fn s03_the_status_map_knows_the_words_and_calls_the_rest_unknown() {
    for (word, state) in [
        ("running", RunState::Running),
        ("ready", RunState::Running),
        ("active", RunState::Running),
        ("suspended", RunState::Suspended),
        ("paused", RunState::Suspended),
        ("stopped", RunState::Suspended),
        ("cold", RunState::Unknown),
        ("warm", RunState::Unknown),
        ("migrating", RunState::Unknown),
    ] {
        let body = format!(r#"{{"name":"a-b","status":"{word}"}}"#);
        let server = Server::start(vec![http(200, &body)]).await;
        let adapter = adapter(&server);
        assert_eq!(
            adapter.get(&adapter.handle("a-b")).await.unwrap().state,
            state,
            "{word}"
        );
    }
}

#[actix_rt::test]
async fn s04_a_machine_without_a_url_has_none_and_a_failure_is_a_failure() {
    let bodies = [http(200, r#"{"url":"https://a-b.x"}"#), http(200, "{}"), http(503, "")];
    let server = Server::start(bodies.into()).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    assert_eq!(adapter.public_url(&handle).await, Ok("https://a-b.x".to_owned()));
    assert_eq!(adapter.public_url(&handle).await, Err(PublicUrlError::Unsupported));
    let failed = PublicUrlError::Failed(unavailable("http 503"));
    assert_eq!(adapter.public_url(&handle).await, Err(failed));
}

#[actix_rt::test]
async fn a_deleted_machine_is_gone_and_so_is_one_that_was_never_there() {
    let server = Server::start(vec![http(204, ""), http(404, "{}"), http(503, "")]).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("owned worker/x");
    assert_eq!(adapter.destroy(&handle, None).await, Ok(()));
    assert_eq!(adapter.destroy(&handle, None).await, Ok(()));
    assert_eq!(adapter.destroy(&handle, None).await, Err(unavailable("http 503")));
    assert_eq!(server.lines()[0], "DELETE /v1/sprites/owned%20worker%2Fx");
}

#[actix_rt::test]
async fn rul_l_98_suspend_sends_nothing_and_resume_is_one_get() {
    let server = Server::start(vec![http(200, "{}"), http(404, "")]).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    assert_eq!(adapter.suspend(&handle, EPOCH).await, Ok(()));
    assert_eq!(server.lines(), Vec::<String>::new());
    assert_eq!(adapter.resume(&handle, EPOCH).await, Ok(()));
    assert_eq!(adapter.resume(&handle, EPOCH).await, Err(SandboxError::NotFound));
    assert_eq!(server.lines(), ["GET /v1/sprites/a-b"; 2]);
}

#[actix_rt::test]
async fn a_listing_is_followed_to_its_end() {
    let pages = [
        http(
            200,
            r#"{"sprites":[{"name":"a"},{"name":"b"}],"has_more":true,"next_continuation_token":"t/1"}"#,
        ),
        http(
            200,
            r#"{"sprites":[{"name":"c"}],"has_more":false,"next_continuation_token":null}"#,
        ),
    ];
    let server = Server::start(pages.into()).await;
    let names = adapter(&server).list_all_names().await.unwrap();
    assert_eq!(names, BTreeSet::from(["a", "b", "c"].map(str::to_owned)));
    assert_eq!(
        server.lines(),
        ["GET /v1/sprites", "GET /v1/sprites?continuation_token=t%2F1"]
    );
}

#[actix_rt::test]
async fn a_listing_of_more_than_forty_pages_is_no_listing() {
    let page = r#"{"sprites":[],"has_more":true,"next_continuation_token":"t"}"#;
    let server = Server::start((0..50).map(|_| http(200, page)).collect()).await;
    assert_eq!(adapter(&server).list_all_names().await, Err(SandboxError::Truncated));
    assert_eq!(server.lines().len(), 40);
}

#[actix_rt::test]
async fn a_broken_listing_is_an_error_and_never_a_short_one() {
    let whole = r#"{"sprites":[{"name":"a"}],"has_more":true,"next_continuation_token":"t"}"#;
    let half = Say::Cut("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"sprites\":[]}".to_owned());
    for (second, error) in [
        (http(503, ""), unavailable("http 503")),
        (http(200, "{}"), errors::unclassified("malformed_list")),
        (http(200, r#"{"sprites":[{}]}"#), errors::unclassified("malformed_list")),
        (half, unavailable("transport_failed")),
        (http(200, r#"{"sprites":[],"has_more":true}"#), SandboxError::Truncated),
    ] {
        let server = Server::start(vec![http(200, whole), second]).await;
        assert_eq!(adapter(&server).list_all_names().await, Err(error));
    }
}

#[actix_rt::test]
async fn p_v13_a_file_is_written_with_its_mode_and_its_parents() {
    let server = Server::start(vec![http(200, "{}"), http(201, "{}"), http(403, r#"{"error":"no"}"#)]).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    adapter
        .write_file(&handle, "/tmp/a", "hello".into(), Some(0o644), EPOCH)
        .await
        .unwrap();
    adapter
        .write_file(&handle, "notes/b c", Bytes::new(), None, None)
        .await
        .unwrap();
    let denied = adapter.write_file(&handle, "/x", Bytes::new(), None, None).await;
    assert_eq!(denied, Err(SandboxError::Denied("http 403: no".into())));
    let seen = server.seen();
    assert_eq!(
        seen[0].line,
        "PUT /v1/sprites/a-b/fs/write?path=%2Ftmp%2Fa&workingDir=%2F&mode=0644&mkdirParents=true"
    );
    assert_eq!(
        (seen[0].body.as_str(), seen[0].header("fountain-epoch")),
        ("hello", Some("7"))
    );
    assert_eq!(
        seen[1].line,
        "PUT /v1/sprites/a-b/fs/write?path=notes%2Fb%20c&workingDir=%2Fhome%2Fsprite&mkdirParents=true"
    );
}

#[actix_rt::test]
async fn s05_a_policy_is_confirmed_by_exactly_204() {
    let server = Server::start(vec![http(204, ""), http(200, "{}"), http(400, "")]).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let policy = NetworkPolicy { allow: Vec::new() };
    assert_eq!(adapter.apply_network_policy(&handle, &policy, None).await, Ok(()));
    assert_eq!(
        adapter.apply_network_policy(&handle, &policy, None).await,
        Err(errors::unclassified("http 200"))
    );
    assert_eq!(
        adapter.apply_network_policy(&handle, &policy, None).await,
        Err(invalid("http 400"))
    );
    assert_eq!(server.seen()[0].body, r#"{"rules":[{"domain":"*","action":"deny"}]}"#);
    assert_eq!(server.lines()[0], "POST /v1/sprites/a-b/policy/network");
}

#[actix_rt::test]
async fn rul_64a_the_policy_in_force_is_read_back() {
    let rules = r#"{"rules":[{"domain":"a.example","action":"allow"}]}"#;
    let server = Server::start(vec![http(200, rules), http(404, ""), http(200, "[]")]).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let read = adapter.network_policy(&handle).await.unwrap();
    assert_eq!(read.allow, ["a.example"]);
    assert_eq!(adapter.network_policy(&handle).await, Err(SandboxError::NotFound));
    assert_eq!(
        adapter.network_policy(&handle).await,
        Err(errors::unclassified("malformed_policy"))
    );
}

#[actix_rt::test]
async fn rul_l_44_s06_policy_calls_have_ninety_seconds_and_a_pool_of_their_own() {
    assert_eq!(LIMITS.policy, Duration::from_secs(90));
    assert_eq!(LIMITS.create, Duration::from_secs(120));
    assert_eq!(LIMITS.upgrade, Duration::from_secs(10));
    let script = [http(200, "{}"), http(204, ""), http(200, "{}"), http(204, "")];
    let server = Server::start(script.into()).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let policy = NetworkPolicy { allow: Vec::new() };
    for _ in 0..2 {
        adapter.get(&handle).await.unwrap();
        adapter.apply_network_policy(&handle, &policy, None).await.unwrap();
    }
    let connections: Vec<_> = server.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [1, 2, 1, 2]);
}

#[actix_rt::test]
async fn s06_a_policy_answer_that_comes_too_late_is_read_by_nobody() {
    let server = Server::start(vec![Say::Hold(String::new()), http(200, "{}"), http(204, "")]).await;
    let adapter = impatient(&server);
    let handle = adapter.handle("a-b");
    let policy = NetworkPolicy { allow: Vec::new() };
    let late = adapter.apply_network_policy(&handle, &policy, None).await;
    assert_eq!(late, Err(unavailable("timeout")));
    server.until_closed(1).await;
    adapter.get(&handle).await.unwrap();
    assert_eq!(adapter.apply_network_policy(&handle, &policy, None).await, Ok(()));
    let connections: BTreeSet<_> = server.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections.len(), 3);
}

#[actix_rt::test]
async fn s07_a_checkpoint_is_found_in_the_listing() {
    let stream = "{\"type\":\"info\",\"data\":\"  ID: v999\"}\n{\"type\":\"complete\",\"data\":\"x\"}\n";
    let listing = r#"[{"id":"Current","create_time":"2026-01-09T00:00:00Z"},
        {"id":"v1","create_time":"2026-01-01T00:00:00Z","comment":"c","global_id":"sprite-1.v1"}]"#;
    for (announced, id) in [
        ("", "v1"),
        ("X-Sprite-Capabilities: signal, checkpoint-global\r\n", "sprite-1.v1"),
    ] {
        let list = Say::Http(200, announced, listing.to_owned());
        let server = Server::start(vec![Say::Cut(chunked(stream)), list]).await;
        let adapter = adapter(&server);
        let made = adapter.create_checkpoint(&adapter.handle("a-b"), "c", EPOCH).await;
        assert_eq!(made.as_deref(), Ok(id));
        assert_eq!(
            server.lines(),
            ["POST /v1/sprites/a-b/checkpoint", "GET /v1/sprites/a-b/checkpoints"]
        );
        assert_eq!(server.seen()[0].body, r#"{"comment":"c"}"#);
    }
}

#[actix_rt::test]
async fn s07_without_an_entry_there_is_no_id_and_without_a_stream_no_listing() {
    let complete = "{\"type\":\"complete\",\"data\":\"x\"}\n";
    let server = Server::start(vec![http(200, complete), http(200, r#"[{"id":"Current"}]"#)]).await;
    let made = adapter(&server);
    let made = made.create_checkpoint(&made.handle("a-b"), "c", None).await;
    assert_eq!(made, Err(errors::unclassified("no_checkpoint_id")));
    for (stream, error) in [
        (
            http(200, "{\"type\":\"info\",\"data\":\"x\"}"),
            unavailable("checkpoint_unconfirmed"),
        ),
        (
            http(200, "{\"type\":\"error\",\"error\":\"full\"}"),
            errors::unclassified("checkpoint failed: full"),
        ),
        (Say::Cut(half_chunked(complete)), unavailable("transport_failed")),
    ] {
        let server = Server::start(vec![stream]).await;
        let adapter = adapter(&server);
        assert_eq!(
            adapter.create_checkpoint(&adapter.handle("a-b"), "c", None).await,
            Err(error)
        );
        assert_eq!(server.lines().len(), 1);
    }
}

#[actix_rt::test]
async fn s08_rul_l_34_a_restore_is_what_its_stream_says() {
    let complete = "{\"type\":\"info\",\"data\":\"x\"}\n{\"type\":\"complete\",\"data\":\"x\"}\n";
    let failed = |text: &str| Err(SandboxError::RestoreFailed(text.to_owned()));
    for (say, answer) in [
        (http(200, complete), Ok(())),
        (Say::Cut(chunked(complete)), Ok(())),
        (
            http(200, "{\"type\":\"error\",\"error\":\"no such checkpoint\"}\n"),
            failed("no such checkpoint"),
        ),
        (
            http(
                200,
                "{\"type\":\"info\",\"error\":\"disk\"}\n{\"type\":\"complete\",\"data\":\"x\"}",
            ),
            failed("disk"),
        ),
        (http(200, ""), failed("incomplete")),
        (Say::Cut(half_chunked(complete)), Err(unavailable("transport_failed"))),
        (http(404, ""), Err(SandboxError::NotFound)),
        (http(500, "boom"), Err(unavailable("http 500: boom"))),
    ] {
        let server = Server::start(vec![say]).await;
        let adapter = adapter(&server);
        let restored = adapter
            .restore_checkpoint(&adapter.handle("a-b"), "sprite-1.v1", EPOCH)
            .await;
        assert_eq!(restored, answer);
        assert_eq!(server.lines(), ["POST /v1/sprites/a-b/checkpoints/sprite-1.v1/restore"]);
    }
}

#[actix_rt::test]
async fn rul_l_35_a_checkpoint_is_deleted_where_the_service_can() {
    let server = Server::start(vec![http(204, ""), http(404, ""), http(405, ""), http(503, "")]).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    assert_eq!(adapter.delete_checkpoint(&handle, "v1", EPOCH).await, Ok(()));
    assert_eq!(adapter.delete_checkpoint(&handle, "v1", None).await, Ok(()));
    assert_eq!(
        adapter.delete_checkpoint(&handle, "v1", None).await,
        Err(SandboxError::NotSupported)
    );
    assert_eq!(
        adapter.delete_checkpoint(&handle, "v1", None).await,
        Err(unavailable("http 503"))
    );
    assert_eq!(server.lines()[0], "DELETE /v1/sprites/a-b/checkpoints/v1");
}

#[actix_rt::test]
async fn s09_k11_without_the_flag_no_checkpoint_call_reaches_the_provider() {
    let server = Server::start(Vec::new()).await;
    let settings = SpritesSettings {
        checkpoints: false,
        ..settings(&server.base_url)
    };
    let adapter = SpritesAdapter::new(settings);
    let handle = adapter.handle("a-b");
    let once = CheckpointOnce {
        operation_id: "o".to_owned(),
        timeout_ms: 1000,
        epoch: None,
    };
    assert!(!adapter.capabilities().contains(&Capability::Checkpoint));
    assert!(!adapter.capabilities().contains(&Capability::CreateCheckpointOnce));
    let unsupported = SandboxError::NotSupported;
    assert_eq!(
        adapter.create_checkpoint(&handle, "c", None).await,
        Err(unsupported.clone())
    );
    assert_eq!(
        adapter.restore_checkpoint(&handle, "v1", None).await,
        Err(unsupported.clone())
    );
    assert_eq!(
        adapter.delete_checkpoint(&handle, "v1", None).await,
        Err(unsupported.clone())
    );
    assert_eq!(adapter.create_checkpoint_once(&handle, &once).await, Err(unsupported));
    assert_eq!(server.lines(), Vec::<String>::new());
}

#[actix_rt::test]
async fn rul_l_4_a_connection_that_was_never_made_is_told_from_a_lost_answer() {
    let adapter = nowhere().await;
    let handle = adapter.handle("a-b");
    let refused = adapter.get(&handle).await.unwrap_err();
    assert_eq!(refused, unavailable(NOT_CONNECTED));
    assert!(refused.is_refusal());
    let refused = adapter.exec(&handle, "true", &[], ExecOptions::default()).await;
    assert_eq!(refused, Err(unavailable(NOT_CONNECTED)));
    assert_eq!(
        adapter.restore_checkpoint(&handle, "v1", None).await,
        Err(unavailable(NOT_CONNECTED))
    );

    let server = Server::start(vec![Say::Cut(String::new()), Say::Hold(String::new())]).await;
    let adapter = impatient(&server);
    for detail in ["transport_failed", "timeout"] {
        let lost = adapter.create("a-b", None).await.unwrap_err();
        assert_eq!(lost, unavailable(detail));
        assert!(!lost.is_refusal());
    }
    server.until_closed(1).await;
}

#[actix_rt::test]
async fn rul_l_4_a_handshake_that_failed_has_sent_nothing() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("https://{}", listener.local_addr().unwrap());
    actix_rt::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let plain = tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 X\r\n\r\n");
            let _ = plain.await;
        }
    });
    let adapter = SpritesAdapter::new(settings(&base_url));
    let handle = adapter.handle("a-b");
    assert_eq!(adapter.get(&handle).await, Err(unavailable(NOT_CONNECTED)));
    let refused = adapter.exec(&handle, "true", &[], ExecOptions::default()).await;
    assert_eq!(refused, Err(unavailable(NOT_CONNECTED)));
}

#[actix_rt::test]
async fn t10_redirects_are_not_followed_anywhere() {
    let elsewhere = Server::start(vec![http(200, "{}")]).await;
    let location: &'static str = format!("Location: {}/v1/sprites/a-b\r\n", elsewhere.base_url).leak();
    let server = Server::start(vec![Say::Http(302, location, "moved".to_owned())]).await;
    let adapter = adapter(&server);
    let answer = adapter.get(&adapter.handle("a-b")).await;
    assert_eq!(answer, Err(invalid("http 302: moved")));
    assert_eq!(elsewhere.lines(), Vec::<String>::new());
}

#[actix_rt::test]
async fn a_name_that_would_climb_and_a_base_url_that_is_none_are_invalid() {
    let server = Server::start(Vec::new()).await;
    let adapter = adapter(&server);
    for name in ["", ".", ".."] {
        assert_eq!(adapter.get(&adapter.handle(name)).await, Err(invalid("sprite_name")));
        assert_eq!(adapter.create(name, None).await, Err(invalid("sprite_name")));
    }
    assert_eq!(server.lines(), Vec::<String>::new());
    let nonsense = SpritesAdapter::new(settings("not a url"));
    let handle = nonsense.handle("a-b");
    assert_eq!(nonsense.get(&handle).await, Err(invalid("sprites_settings")));
    assert_eq!(nonsense.list_sessions(&handle).await, Err(invalid("sprites_settings")));
}

#[actix_rt::test]
async fn sc_v22_the_token_is_printed_by_nothing() {
    let server = Server::start(vec![http(401, r#"{"error":"authentication failed"}"#)]).await;
    let adapter = adapter(&server);
    let handle = adapter.handle("a-b");
    let error = adapter.get(&handle).await.unwrap_err();
    assert_eq!(error, SandboxError::Denied("http 401: authentication failed".into()));
    let printed = format!("{adapter:?} {handle:?} {error:?} {:?}", settings(&server.base_url));
    assert!(!printed.contains(TOKEN), "{printed}");
    assert!(!server.lines().concat().contains(TOKEN));
}
