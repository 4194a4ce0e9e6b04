//! Output, input, terminals: what goes over an exec socket.

use super::*;

#[actix::test]
async fn p_v3_both_streams_and_the_code_arrive_in_frames() {
    let sprite = Sprite::new().await;
    let client = sprite.sh("echo out; echo err >&2; exit 7", &[]).await;
    assert_eq!(client.capabilities, "signal");
    let seen = client.finish().await;
    assert_eq!(
        (seen.stdout.as_slice(), seen.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!((seen.code(), seen.close), (7, Some(CloseCode::Normal)));
    sprite.close().await;
}

#[actix::test]
async fn p_v4_every_exit_code_comes_through_as_one_byte() {
    let sprite = Sprite::new().await;
    for code in 0..=255_u8 {
        let seen = sprite.sh(&format!("exit {code}"), &[]).await.finish().await;
        assert_eq!(seen.code(), code);
    }
    sprite.close().await;
}

#[actix::test]
async fn p_v1_environment_and_directory_are_the_requests() {
    let sprite = Sprite::new().await;
    let script = "echo $A $GREETING; pwd";
    let seen = sprite
        .sh(
            script,
            &[("path", "sh"), ("env", "A=1"), ("dir", "/tmp"), ("stdin", "true")],
        )
        .await;
    let seen = seen.finish().await;
    assert_eq!(seen.stdout, b"1 hello\n/tmp\n");
    let seen = sprite
        .sh("echo $GREETING; pwd", &[("env", "GREETING=servus")])
        .await
        .finish()
        .await;
    let home = sprite.home.path().canonicalize().unwrap();
    assert_eq!(
        String::from_utf8(seen.stdout).unwrap(),
        format!("servus\n{}\n", home.display())
    );
    sprite.close().await;
}

#[actix::test]
async fn p_v6_input_in_pieces_with_all_byte_values_comes_back_and_ends() {
    let sprite = Sprite::new().await;
    let mut client = sprite.connect(&query(&["cat"], &[("stdin", "true")])).await;
    let all: Vec<u8> = (0..=255).cycle().take(256 * 700).collect();
    for piece in all.chunks(1009) {
        let framed: Vec<u8> = std::iter::once(0).chain(piece.iter().copied()).collect();
        client.send(&framed).await;
    }
    client.send(&[0]).await;
    client.send(&[4]).await;
    let seen = client.finish().await;
    assert!(seen.stdout == all);
    assert!(seen.longest <= 64 * 1024);
    assert_eq!(seen.code(), 0);
    sprite.close().await;
}

#[actix::test]
async fn p_v6_without_input_the_end_is_ignored_and_input_after_the_exit_too() {
    let sprite = Sprite::new().await;
    let mut client = sprite.connect(&query(&["cat"], &[])).await;
    client.send(b"\0hi").await;
    client.send(&[4]).await;
    client.send(&[]).await;
    client.send(&[9, 9]).await;
    let seen = client.finish().await;
    assert_eq!((seen.stdout.len(), seen.code()), (0, 0));
    let mut client = sprite.sh("exit 3", &[("stdin", "true")]).await;
    sprite.ending(&client.id()).await;
    client.send(b"\0late").await;
    client.send(&[4]).await;
    assert_eq!(client.finish().await.code(), 3);
    sprite.close().await;
}

#[actix::test]
async fn p_v7_a_terminal_is_raw_has_a_size_and_tells_its_exit_in_words() {
    let sprite = Sprite::new().await;
    let script = "stty -echo; stty size; while read line; do case $line in bye) exit 3;; esac; stty size; done";
    let mut client = sprite
        .sh(script, &[("tty", "true"), ("rows", "20"), ("cols", "70")])
        .await;
    assert_eq!(
        (&client.info["tty"], &client.info["rows"]),
        (&Value::Bool(true), &20.into())
    );
    client.until(b"20 70\r\n").await;
    client.say(r#"{"type":"resize","cols":100,"rows":30}"#).await;
    client.send(b"again\n").await;
    client.until(b"30 100\r\n").await;
    let guest = sprite.connect_to(&client.id()).await;
    assert_eq!(
        (&guest.info["cols"], &guest.info["is_owner"]),
        (&100.into(), &Value::Bool(false))
    );
    client.send(b"bye\n").await;
    for client in [client, guest] {
        let seen = client.finish().await;
        assert_eq!(seen.close, Some(CloseCode::Normal));
        let exit = seen.texts.last().unwrap();
        assert_eq!(
            (&exit["type"], &exit["exit_code"], &exit["code"]),
            (&"exit".into(), &3.into(), &3.into())
        );
    }
    sprite.close().await;
}

#[actix::test]
async fn p_v8_session_info_comes_first_and_says_it_all() {
    let sprite = Sprite::new().await;
    let client = sprite.connect(&query(&["sh", "-c", "true x"], &[])).await;
    let info = client.info.clone();
    assert_eq!(info["command"], "sh -c true x");
    assert_eq!((&info["cols"], &info["rows"]), (&80.into(), &24.into()));
    assert_eq!((&info["is_owner"], &info["tty"]), (&true.into(), &false.into()));
    let created = sprite.session(&client.id()).created_at();
    let created = created.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(info["created"].as_u64(), Some(created));
    let id = client.id();
    assert!(!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    sprite.close().await;
}

#[actix::test]
async fn p_v16_a_silent_command_is_kept_alive_with_words() {
    let settings = Settings {
        keepalive: Duration::from_millis(20),
        ..Settings::default()
    };
    let sprite = Sprite::with(settings, Bound::SPRITE).await;
    let mut client = sprite.sh("read line; echo $line", &[("stdin", "true")]).await;
    for _ in 0..3 {
        let Some(Frame::Text(text)) = client.next().await else {
            panic!("no keepalive")
        };
        assert_eq!(text, r#"{"type":"keepalive"}"#);
    }
    client.send(b"\0done\n").await;
    let seen = client.finish().await;
    assert_eq!((seen.stdout.as_slice(), seen.code()), (&b"done\n"[..], 0));
    sprite.close().await;
}

#[actix::test]
async fn pings_are_answered_and_signals_reach_the_command() {
    let sprite = Sprite::new().await;
    let script = "trap 'exit 44' USR1; echo ready; while :; do sleep 0.05; done";
    let mut client = sprite.sh(script, &[]).await;
    client.until(b"ready").await;
    client
        .sending
        .send(Message::Ping(Bytes::from_static(b"x")))
        .await
        .unwrap();
    let Some(Frame::Pong(data)) = client.next().await else {
        panic!("no pong")
    };
    assert_eq!(data, "x");
    for ignored in [
        "{}",
        "nonsense",
        r#"{"type":"other"}"#,
        r#"{"type":"signal","signal":"NONE"}"#,
    ] {
        client.say(ignored).await;
    }
    client.say(r#"{"type":"signal","signal":"usr1"}"#).await;
    assert_eq!(client.finish().await.code(), 44);
    let mut client = sprite.sh("echo ready; exec sleep 600", &[]).await;
    client.until(b"ready").await;
    client.say(r#"{"type":"signal","signal":"SIGTERM"}"#).await;
    assert_eq!(client.finish().await.code(), 143);
    sprite.close().await;
}

#[actix::test]
async fn a_message_beyond_the_bound_closes_its_socket_and_not_the_session() {
    let sprite = Sprite::new().await;
    let mut client = sprite.sh("wc -c", &[("stdin", "true"), ("detachable", "true")]).await;
    let id = client.id();
    client.send(&vec![0; MAX_FRAME + 1]).await;
    let seen = client.finish().await;
    assert_eq!((seen.close, seen.exits.len()), (Some(CloseCode::Size), 0));
    let mut client = sprite.connect_to(&id).await;
    client.send(&vec![0; MAX_FRAME]).await;
    client.send(&[4]).await;
    let seen = client.finish().await;
    assert_eq!(
        String::from_utf8(seen.stdout).unwrap().trim(),
        (MAX_FRAME - 1).to_string()
    );
    sprite.close().await;
}

#[actix::test]
async fn a_client_that_does_not_read_stalls_neither_command_nor_others() {
    let sprite = Sprite::new().await;
    let slow = sprite.sh("head -c 20000000 /dev/zero; exit 5", &[]).await;
    assert_eq!(sprite.ending(&slow.id()).await, Some(5));
    let quick = sprite.connect_to(&slow.id()).await.finish().await;
    assert_eq!((quick.stdout.len(), quick.code()), (20_000_000, 5));
    let seen = slow.finish().await;
    assert_eq!((seen.stdout.len(), seen.code()), (20_000_000, 5));
    sprite.close().await;
}
