//! What is not a socket: the list, kill, HTTP exec, refusals.

use super::*;

async fn kill_answer(sprite: &Sprite, id: &str, query: &str, body: &'static str) -> Vec<Value> {
    let request = http().post(sprite.url(&format!("/{id}/kill{query}")));
    let mut answer = request.timeout(PATIENCE).send_body(body).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let kind = answer.headers().get("Content-Type").unwrap();
    assert_eq!(kind, "application/x-ndjson");
    let body = answer.body().await.unwrap();
    let lines = std::str::from_utf8(&body).unwrap().lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn kinds(frames: &[Value]) -> Vec<&str> {
    frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect()
}

async fn sleeping(sprite: &Sprite, before: &str) -> Client {
    let mut client = sprite
        .sh(&format!("{before} echo ready; while :; do sleep 0.05; done"), &[])
        .await;
    client.until(b"ready").await;
    client
}

#[actix::test]
async fn p_v10_a_terminated_command_completes_with_143() {
    let sprite = Sprite::new().await;
    let client = sleeping(&sprite, "").await;
    let frames = kill_answer(&sprite, &client.id(), "", r#"{"signal":"SIGTERM","timeout":10}"#).await;
    assert_eq!(kinds(&frames), ["signal", "exited", "complete"]);
    assert_eq!(
        (&frames[0]["signal"], &frames[2]["exit_code"]),
        (&"SIGTERM".into(), &143.into())
    );
    assert_eq!(client.finish().await.code(), 143);
    sprite.close().await;
}

#[actix::test]
async fn p_v11_a_command_that_ignores_the_signal_is_killed_when_the_grace_is_over() {
    let sprite = Sprite::new().await;
    let client = sleeping(&sprite, "trap '' TERM;").await;
    let pid = sprite.session(&client.id()).group().unwrap().id();
    let frames = kill_answer(
        &sprite,
        &client.id(),
        "?signal=SIGTERM&timeout=0s",
        r#"{"timeout":600}"#,
    )
    .await;
    assert_eq!(kinds(&frames), ["signal", "timeout", "signal", "killed", "complete"]);
    assert_eq!(
        (&frames[2]["signal"], &frames[2]["pid"]),
        (&"SIGKILL".into(), &pid.into())
    );
    assert_eq!(frames[4]["exit_code"], 137);
    sprite.close().await;
}

#[actix::test]
async fn a_kill_proves_itself_with_the_process_id() {
    let sprite = Sprite::new().await;
    let client = sleeping(&sprite, "sleep 600 & ").await;
    let pid = sprite.session(&client.id()).group().unwrap().id();
    let frames = kill_answer(&sprite, &client.id(), "?signal=KILL", "").await;
    assert_eq!(kinds(&frames), ["signal", "killed", "complete"]);
    assert_eq!(
        (&frames[0]["signal"], &frames[0]["pid"]),
        (&"SIGKILL".into(), &pid.into())
    );
    assert!(!sprite.session(&client.id()).group().unwrap().lives().await);
    // Over already: there is nothing to kill.
    let again = http().post(sprite.url(&format!("/{}/kill", client.id()))).send().await;
    assert_eq!(again.unwrap().status(), StatusCode::NOT_FOUND);
    sprite.close().await;
}

#[actix::test]
async fn p_v18_http_exec_answers_in_frames_one_a_chunk() {
    let sprite = Sprite::new().await;
    let request = http().post(sprite.url(&query(&["sh", "-c", "printf ok"], &[])));
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let mut chunks = Vec::new();
    while let Some(chunk) = answer.next().await {
        chunks.push(chunk.unwrap().to_vec());
    }
    assert_eq!(chunks, [b"\x01ok".to_vec(), b"\x03\x00".to_vec()]);
    sprite.close().await;
}

#[actix::test]
async fn http_exec_takes_its_input_from_the_body_up_to_the_limit() {
    let sprite = Sprite::new().await;
    let url = sprite.url(&query(&["sh", "-c", "wc -c; exit 5"], &[]));
    let post = |body: Vec<u8>| http().post(&url).timeout(PATIENCE).send_body(body);
    let body = post(vec![7; BODY_LIMIT]).await.unwrap().body().await.unwrap();
    let said = String::from_utf8(body[1..body.len() - 2].to_vec()).unwrap();
    assert_eq!(said.trim(), BODY_LIMIT.to_string());
    assert_eq!((body[0], &body[body.len() - 2..]), (1, &[3, 5][..]));
    // The server may answer before it has taken all of it.
    if let Ok(answer) = post(vec![7; BODY_LIMIT + 1]).await {
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
    assert_eq!(sprite.exec.registry.of("sprite-1").len(), 1);
    sprite.close().await;
}

#[actix::test]
async fn p_v19_unknown_sessions_are_refused_before_the_upgrade() {
    let sprite = Sprite::new().await;
    for rest in ["/none", "?id=none&tty="] {
        let refused = http().ws(sprite.url(rest)).connect().await;
        let Err(awc::error::WsClientError::InvalidResponseStatus(status)) = refused else {
            panic!("{rest}")
        };
        assert_eq!(status, StatusCode::NOT_FOUND);
        let headers = [("Upgrade", "websocket"), ("Connection", "upgrade")];
        let request = http().get(sprite.url(rest));
        let mut answer = headers
            .into_iter()
            .fold(request, |request, header| request.insert_header(header))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.body().await.unwrap(), "session not found: none");
    }
    let killed = http().post(sprite.url("/none/kill")).send().await.unwrap();
    assert_eq!(killed.status(), StatusCode::NOT_FOUND);
    sprite.close().await;
}

#[actix::test]
async fn bad_requests_say_what_is_wrong() {
    let sprite = Sprite::new().await;
    for (rest, why) in [("", "cmd is required"), ("?cmd=a&env=b", "env is not valid")] {
        let mut answer = http().post(sprite.url(rest)).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"], why);
    }
    let client = sleeping(&sprite, "").await;
    let url = sprite.url(&format!("/{}/kill?signal=NONE", client.id()));
    assert_eq!(http().post(url).send().await.unwrap().status(), StatusCode::BAD_REQUEST);
    sprite.close().await;
}

#[actix::test]
async fn the_list_has_running_sessions_newest_first() {
    let sprite = Sprite::new().await;
    assert_eq!(sprite.list().await, serde_json::json!({"count": 0, "sessions": []}));
    let first = sleeping(&sprite, "").await;
    sprite.sh("exit 0", &[]).await.finish().await;
    let second = sprite.sh("read x", &[("tty", "true"), ("dir", "/tmp")]).await;
    let list = sprite.list().await;
    assert_eq!(list["count"], 2);
    let [newer, older] = [&list["sessions"][0], &list["sessions"][1]];
    assert_eq!(
        (newer["id"].as_str().unwrap(), older["id"].as_str().unwrap()),
        (&*second.id(), &*first.id())
    );
    assert_eq!(
        (&newer["tty"], &newer["workdir"], &newer["is_active"]),
        (&true.into(), &"/tmp".into(), &true.into())
    );
    assert_eq!(newer["command"], "sh -c read x");
    for field in ["created", "last_activity"] {
        chrono::DateTime::parse_from_rfc3339(newer[field].as_str().unwrap()).unwrap();
    }
    assert!(newer["bytes_per_second"].is_u64());
    sprite.close().await;
}
