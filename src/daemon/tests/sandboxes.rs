//! Sandboxes as directories.

use std::fs;

use serde_json::json;

use super::server::*;

#[actix::test]
async fn rp_v05_create_adopts_and_says_so() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    // The first create was made by `connected`.
    let again = peer.ask(json!({"op": "create", "name": SB})).await;
    assert_eq!(again, json!({"id": 2, "ok": true, "result": {"existed": true}}));
    let fresh = peer.get(json!({"op": "create", "name": "runner-x-1"})).await;
    assert_eq!(fresh, json!({"existed": false}));
    assert_eq!(mode_of(daemon.sandbox()), 0o700);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v06_a_name_that_leaves_the_root_is_invalid() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    for name in ["../escape", ".x", "a/b", ""] {
        for op in [
            "create",
            "get",
            "destroy",
            "exec",
            "spawn",
            "write_file",
            "list_sessions",
        ] {
            let (code, detail) = peer.refusal(json!({"op": op, "name": name})).await;
            assert_eq!((code.as_str(), detail.as_str()), ("invalid", "bad sandbox name"));
        }
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v07_get_tells_status_and_directory() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let got = peer.get(json!({"op": "get", "name": SB})).await;
    assert_eq!(got, json!({"status": "running", "path": daemon.sandbox()}));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v08_a_missing_sandbox_is_not_found() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    for op in [
        "get",
        "suspend",
        "resume",
        "write_file",
        "exec",
        "spawn",
        "list_sessions",
    ] {
        let (code, detail) = peer.refusal(json!({"op": op, "name": "runner-gone-1"})).await;
        assert_eq!(
            (code.as_str(), detail.as_str()),
            ("not_found", "no sandbox runner-gone-1"),
            "{op}"
        );
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v09_suspend_and_resume_set_and_take_the_mark() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let get = json!({"op": "get", "name": SB});
    peer.get(json!({"op": "suspend", "name": SB})).await;
    assert_eq!(peer.get(get.clone()).await["status"], "suspended");
    assert_eq!(mode_of(daemon.sandbox().join(".fountain-suspended")), 0o600);
    for _ in 0..2 {
        peer.get(json!({"op": "resume", "name": SB})).await;
        assert_eq!(peer.get(get.clone()).await["status"], "running");
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v10_a_written_file_has_its_content_and_exactly_its_mode() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let write = json!({"op": "write_file", "name": SB, "path": "/home/sprite/.env", "data": "QT0xCg==", "mode": 384});
    peer.get(write).await;
    let file = daemon.sandbox().join(".env");
    assert_eq!(fs::read(&file).unwrap(), b"A=1\n");
    assert_eq!(mode_of(&file), 0o600);
    // A mode that no umask lets through, on the same file, with less in it.
    peer.get(json!({"op": "write_file", "name": SB, "path": "~/.env", "data": "QQ==", "mode": 0o666}))
        .await;
    assert_eq!((fs::read(&file).unwrap(), mode_of(&file)), (b"A".to_vec(), 0o666));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v11_parents_of_a_written_file_are_made() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let path = ".claude/skills/x/SKILL.md";
    peer.get(json!({"op": "write_file", "name": SB, "path": path, "data": base64(b"skill")}))
        .await;
    assert_eq!(fs::read(daemon.sandbox().join(path)).unwrap(), b"skill");
    assert_eq!(mode_of(daemon.sandbox().join(path)), 0o644);
    assert_eq!(mode_of(daemon.sandbox().join(".claude/skills")), 0o755);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v12_data_that_is_not_base64_is_invalid() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let refused = peer
        .refusal(json!({"op": "write_file", "name": SB, "path": "x", "data": "%%"}))
        .await;
    assert_eq!(refused, ("invalid".to_owned(), "data is not base64".to_owned()));
    assert!(!daemon.sandbox().join("x").exists());
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn a_file_that_cannot_be_written_is_told_with_its_path_and_reason() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    fs::write(daemon.sandbox().join("file"), "").unwrap();
    let (code, detail) = peer
        .refusal(json!({"op": "write_file", "name": SB, "path": "file/x", "data": ""}))
        .await;
    assert_eq!(code, "write_failed");
    assert!(detail.starts_with("file/x: "), "{detail}");
    for (path, mode) in [("a\0b", json!(null)), ("x", json!(-1)), ("x", json!(0o10000))] {
        let write = json!({"op": "write_file", "name": SB, "path": path, "data": "", "mode": mode});
        assert_eq!(peer.refusal(write).await.0, "invalid");
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_43a_a_file_far_beyond_the_codecs_own_limit_arrives_whole() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let content: Vec<u8> = (0..20 * 1024 * 1024_u32).map(|n| (n % 251) as u8).collect();
    peer.get(json!({"op": "write_file", "name": SB, "path": "large", "data": base64(&content)}))
        .await;
    assert!(fs::read(daemon.sandbox().join("large")).unwrap() == content);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn a_listing_is_sorted_and_holds_sandboxes_only() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    peer.get(json!({"op": "create", "name": "b"})).await;
    peer.get(json!({"op": "create", "name": "a"})).await;
    fs::write(daemon.root.join("a-file"), "").unwrap();
    fs::create_dir(daemon.root.join(".hidden")).unwrap();
    assert_eq!(peer.get(json!({"op": "list"})).await, json!({"names": ["a", "b", SB]}));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn destroy_removes_the_tree_even_a_read_only_one_and_a_missing_one_is_fine() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let deep = daemon.sandbox().join("go/pkg/mod");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("x"), "").unwrap();
    for directory in ["go/pkg/mod", "go/pkg", "go"] {
        let path = daemon.sandbox().join(directory);
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o500)).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(peer.get(json!({"op": "destroy", "name": SB})).await, json!({}));
        assert!(!daemon.sandbox().exists());
    }
    assert_eq!(peer.refusal(json!({"op": "get", "name": SB})).await.0, "not_found");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_l_94_without_its_marker_a_root_answers_unavailable_and_never_absent() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let away = daemon.root.with_extension("unmounted");
    fs::rename(&daemon.root, &away).unwrap();
    fs::create_dir(&daemon.root).unwrap();
    let ops = [
        "get",
        "list",
        "create",
        "destroy",
        "suspend",
        "resume",
        "write_file",
        "exec",
        "spawn",
        "list_sessions",
    ];
    for op in ops {
        assert_eq!(
            peer.refusal(json!({"op": op, "name": SB})).await.0,
            "unavailable",
            "{op}"
        );
    }
    fs::remove_dir_all(&daemon.root).unwrap();
    assert_eq!(peer.refusal(json!({"op": "list"})).await.0, "unavailable");
    fs::rename(&away, &daemon.root).unwrap();
    assert_eq!(peer.get(json!({"op": "list"})).await, json!({"names": [SB]}));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_l_2_an_older_epoch_is_refused_whatever_it_asks_and_after_a_restart() {
    let (daemon, server, mut peer) = Daemon::connected().await;
    let with =
        |op: &str, epoch: u64| json!({"op": op, "name": SB, "epoch": epoch, "cmd": "true", "data": "", "path": "x"});
    peer.get(with("create", 7)).await;
    for op in ["create", "destroy", "suspend", "resume", "exec", "write_file"] {
        let refused = peer.refusal(with(op, 6)).await;
        assert_eq!(refused, ("invalid".to_owned(), "stale_epoch".to_owned()), "{op}");
    }
    peer.get(with("suspend", 7)).await;
    // No epoch at all is what published servers and turn commands send.
    peer.get(json!({"op": "resume", "name": SB})).await;
    peer.get(with("destroy", 8)).await;
    assert_eq!(peer.refusal(with("create", 7)).await.1, "stale_epoch");

    drop(peer);
    let mut second = Server::start();
    let daemon = daemon.restart(fixed(&second.url)).await;
    let mut peer = second.peer().await;
    assert_eq!(peer.refusal(with("create", 7)).await.1, "stale_epoch");
    peer.get(with("create", 9)).await;
    daemon.stop().await.unwrap();
    server.stop().await;
}
