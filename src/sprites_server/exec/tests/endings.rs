//! How sessions end, are left and are found again.

use super::*;

#[actix::test]
async fn p_v5_rul_l_114_a_lost_session_replays_and_closes_without_an_exit() {
    let bound = Bound {
        bytes: 100_000,
        patience: Duration::from_millis(50),
    };
    let sprite = Sprite::with(Settings::default(), bound).await;
    let client = sprite.sh("head -c 1000000 /dev/zero; exec sleep 600", &[]).await;
    let id = client.id();
    for client in [client, sprite.connect_to(&id).await] {
        let seen = client.finish().await;
        assert_eq!((seen.exits.len(), seen.close), (0, Some(CloseCode::Error)));
        assert!(seen.stdout.len() > 60_000);
    }
    sprite.close().await;
}

#[actix::test]
async fn rul_l_112_sessions_of_an_earlier_server_replay_and_only_ended_ones_have_a_code() {
    let sprite = Sprite::new().await;
    let ended = sprite.sh("echo one; exit 6", &[]).await;
    let ended_id = ended.id();
    assert_eq!(ended.finish().await.code(), 6);
    let mut running = sprite.sh("echo two; exec sleep 600", &[("detachable", "true")]).await;
    let running_id = running.id();
    running.until(b"two\n").await;
    // The files as a killed server leaves them.
    let after = tempfile::tempdir().unwrap();
    for id in [&ended_id, &running_id] {
        for file in [format!("{id}.json"), format!("{id}.journal")] {
            std::fs::copy(sprite.home.path().join("traces").join(&file), after.path().join(&file)).unwrap();
        }
    }
    sprite.exec.registry.stop("sprite-1", Duration::ZERO).await;
    sprite.exec.registry.forget("sprite-1");
    let (ledger, _) = Ledger::open_durable(after.path(), Bound::SPRITE).unwrap();
    sprite
        .exec
        .registry
        .adopt("sprite-1", Session::recover(&ledger).unwrap());
    assert_eq!(sprite.list().await["count"], 0);
    let seen = sprite.connect_to(&ended_id).await.finish().await;
    assert_eq!((seen.stdout.as_slice(), seen.code()), (&b"one\n"[..], 6));
    let seen = sprite.connect_to(&running_id).await.finish().await;
    assert_eq!((seen.stdout.as_slice(), seen.exits.len()), (&b"two\n"[..], 0));
    assert_eq!(seen.close, Some(CloseCode::Error));
    sprite.close().await;
}

#[actix::test]
async fn p_v20_a_detached_session_replays_every_byte_and_goes_on_live() {
    let sprite = Sprite::new().await;
    let script = "i=0; while [ $i -lt 10240 ]; do printf 'line %05d' $i; i=$((i+1)); done; read go; echo live; exit 2";
    let client = sprite.sh(script, &[("stdin", "true"), ("detachable", "true")]).await;
    let id = client.id();
    drop(client);
    let session = sprite.session(&id);
    tokio::time::timeout(PATIENCE, session.growing_beyond(102_399))
        .await
        .unwrap();
    eventually("the client is gone", || !sprite.exec.attachments.is_watched(&id)).await;
    assert_eq!(sprite.list().await["sessions"][0]["is_active"], false);
    let mut client = sprite.connect(&format!("?id={id}&tty=")).await;
    assert_eq!(client.info["is_owner"], false);
    let replay = client.until(b"line 10239").await;
    let expected: String = (0..10_240).map(|i| format!("line {i:05}")).collect();
    assert!(replay == expected.as_bytes());
    client.send(b"\0\n").await;
    let seen = client.finish().await;
    assert_eq!((seen.stdout.as_slice(), seen.code()), (&b"live\n"[..], 2));
    sprite.close().await;
}

#[actix::test]
async fn rul_l_112_a_finished_session_is_attached_to_as_often_as_one_likes() {
    let sprite = Sprite::new().await;
    let first = sprite.sh("echo a; echo b >&2; exit 9", &[]).await;
    let id = first.id();
    assert_eq!(first.finish().await.code(), 9);
    for _ in 0..2 {
        let seen = sprite.connect_to(&id).await.finish().await;
        assert_eq!(
            (seen.stdout.as_slice(), seen.stderr.as_slice(), seen.code()),
            (&b"a\n"[..], &b"b\n"[..], 9)
        );
    }
    assert_eq!(sprite.list().await["count"], 0);
    sprite.close().await;
}

#[actix::test]
async fn two_clients_see_the_same_and_either_may_write() {
    let sprite = Sprite::new().await;
    let mut owner = sprite
        .sh("while read line; do echo got $line; done; exit 1", &[("stdin", "true")])
        .await;
    let mut guest = sprite.connect_to(&owner.id()).await;
    owner.send(b"\0one\n").await;
    owner.until(b"got one\n").await;
    guest.send(b"\0two\n").await;
    owner.until(b"got two\n").await;
    guest.until(b"got one\ngot two\n").await;
    guest.send(&[4]).await;
    assert_eq!(owner.finish().await.code(), 1);
    assert_eq!(guest.finish().await.code(), 1);
    sprite.close().await;
}

#[actix::test]
async fn a_command_nobody_comes_back_to_is_stopped_after_its_limit() {
    let sprite = Sprite::new().await;
    let client = sprite
        .sh("exec sleep 600", &[("max_run_after_disconnect", "50ms")])
        .await;
    let id = client.id();
    drop(client);
    assert_eq!(sprite.ending(&id).await, Some(137));
    sprite.close().await;
}

#[actix::test]
async fn who_comes_back_in_time_keeps_the_command_and_a_terminal_waits_for_ever() {
    let sprite = Sprite::new().await;
    let attachments = &sprite.exec.attachments;
    let mut client = sprite
        .sh(
            "read line; exit 4",
            &[("stdin", "true"), ("max_run_after_disconnect", "1s")],
        )
        .await;
    let id = client.id();
    let terminal = sprite.sh("read line; exit 4", &[("tty", "true")]).await;
    let terminal_id = terminal.id();
    drop(terminal);
    for _ in 0..2 {
        drop(client);
        eventually("the client is gone", || !attachments.is_watched(&id)).await;
        client = sprite.connect_to(&id).await;
    }
    // Both limits that began have passed when one that began later has.
    let witness = sprite
        .sh("exec sleep 600", &[("max_run_after_disconnect", "1200ms")])
        .await;
    let witness_id = witness.id();
    drop(witness);
    assert_eq!(sprite.ending(&witness_id).await, Some(137));
    client.send(b"\0\n").await;
    assert_eq!(client.finish().await.code(), 4);
    let mut terminal = sprite.connect_to(&terminal_id).await;
    terminal.send(b"\n").await;
    terminal.finish().await;
    assert_eq!(sprite.ending(&terminal_id).await, Some(4));
    sprite.close().await;
}

#[actix::test]
async fn after_the_exit_the_socket_is_held_and_then_closed() {
    let settings = Settings {
        hold: Duration::from_millis(300),
        ..Settings::default()
    };
    let sprite = Sprite::with(settings, Bound::SPRITE).await;
    let mut client = sprite.sh("exit 8", &[]).await;
    let Some(Frame::Binary(exit)) = client.next().await else {
        panic!("no exit")
    };
    assert_eq!(exit.as_ref(), [3, 8]);
    let since = tokio::time::Instant::now();
    client.sending.send(Message::Ping(Bytes::new())).await.unwrap();
    assert!(matches!(client.next().await, Some(Frame::Pong(_))));
    let Some(Frame::Close(Some(reason))) = client.next().await else {
        panic!("no close")
    };
    assert_eq!(reason.code, CloseCode::Normal);
    assert!(since.elapsed() >= Duration::from_millis(250));
    sprite.close().await;
}

#[actix::test]
async fn a_program_that_cannot_run_says_so_and_gives_127() {
    let sprite = Sprite::new().await;
    let seen = sprite.connect(&query(&["no-such-program"], &[])).await.finish().await;
    assert_eq!(seen.code(), 127);
    let said = String::from_utf8(seen.stderr).unwrap();
    assert!(
        said.starts_with("no-such-program: ") && said.ends_with('\n'),
        "{said:?}"
    );
    std::fs::write(sprite.home.path().join("data"), "").unwrap();
    let seen = sprite.connect(&query(&["./data"], &[])).await.finish().await;
    assert_eq!(seen.code(), 126);
    sprite.close().await;
}
