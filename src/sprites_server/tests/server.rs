//! The whole server over real HTTP, above enclosures that are directories of this host.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // a test that panics says where

#[path = "server/host.rs"]
mod host;
#[path = "server/services.rs"]
mod services;
#[path = "server/url.rs"]
mod url;
#[path = "server/watch.rs"]
mod watch;

use awc::http::{Method, StatusCode};
use host::{Host, Ports, Server};
use serde_json::{Value, json};

use fountain_sprites::enclosure::Disk;

#[actix_web::test]
async fn p_1_2_a_sprite_is_made_shown_changed_listed_and_deleted() {
    let server = Server::new(Disk::Copy).await;
    let (status, made) = server
        .call(Method::POST, "/v1/sprites", json!({"name": "a", "labels": ["x"]}))
        .await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(
        (made["name"].as_str(), made["status"].as_str()),
        (Some("a"), Some("running"))
    );
    assert!(made["id"].as_str().unwrap().starts_with("sprite-") && made["isolation"]["disk"] == "copy");
    let (status, again) = server.call(Method::POST, "/v1/sprites", json!({"name": "a"})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(
        again["error"],
        "A sprite named 'a' already exists. Please choose a different name."
    );
    let wanted = json!({"url_settings": {"auth": "public"}});
    let (status, changed) = server.call(Method::PUT, "/v1/sprites/a", wanted).await;
    assert_eq!(
        (status, &changed["url_settings"]["auth"]),
        (StatusCode::OK, &json!("public"))
    );
    let (status, wrong) = server
        .call(Method::PUT, "/v1/sprites/a", json!({"url_settings": {"auth": "x"}}))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        wrong,
        json!({"errors": ["invalid auth type, must be one of: sprite, public"]})
    );
    let (status, wrong) = server.call(Method::POST, "/v1/sprites", json!({"name": "a b"})).await;
    assert_eq!(
        (status, wrong),
        (
            StatusCode::BAD_REQUEST,
            json!({"errors": ["invalid sprite name format"]})
        )
    );
    assert_eq!(
        server.status(Method::GET, "/v1/sprites/a/control").await,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        server.status(Method::DELETE, "/v1/sprites/a").await,
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        server.status(Method::DELETE, "/v1/sprites/a").await,
        StatusCode::NOT_FOUND
    );
    assert_eq!(server.status(Method::GET, "/v1/sprites/a").await, StatusCode::NOT_FOUND);
}

#[actix_web::test]
async fn p_1_1_each_token_is_an_account_and_others_are_refused() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    let (status, body) = server.as_who("wrong", Method::GET, "/v1/sprites/a", Value::Null).await;
    assert_eq!(
        (status, body),
        (StatusCode::UNAUTHORIZED, json!({"error": "authentication failed"}))
    );
    let (status, _) = server.as_who("second", Method::GET, "/v1/sprites/a", Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = server
        .as_who("second", Method::POST, "/v1/sprites", json!({"name": "a"}))
        .await;
    assert_eq!(status, StatusCode::CREATED);
}

#[actix_web::test]
async fn p_1_2_a_list_of_120_comes_in_three_pages() {
    let server = Server::new(Disk::Copy).await;
    for number in 0..120 {
        server.create(&format!("s-{number:03}")).await;
    }
    let (mut seen, mut token) = (Vec::new(), String::new());
    for page in 1..=3 {
        let path = format!("/v1/sprites?prefix=s-&max_results=100&continuation_token={token}");
        let (_, body) = server.call(Method::GET, &path, Value::Null).await;
        seen.extend(
            body["sprites"]
                .as_array()
                .unwrap()
                .iter()
                .map(|sprite| sprite["name"].clone()),
        );
        assert_eq!(body["has_more"], json!(page < 3));
        assert_eq!((&body["org"]["running"], &body["running"]), (&json!(120), &json!(120)));
        token = body["next_continuation_token"].as_str().unwrap_or_default().to_owned();
    }
    seen.dedup();
    assert_eq!((seen.len(), token.as_str()), (120, ""));
}

async fn restores(disk: Disk) {
    let server = Server::new(disk).await;
    server.create("a").await;
    server.write("a", "kept", "one").await;
    server.write("a", "gone", "two").await;
    let (status, lines) = server.lines("/v1/sprites/a/checkpoint", json!({"comment": "c"})).await;
    assert_eq!(status, StatusCode::OK);
    let kinds: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["info", "info", "info", "complete"]);
    assert_eq!(lines[2]["data"], "  ID: v1");
    let global = lines[2]["global_id"].as_str().unwrap().to_owned();
    let (_, list) = server.call(Method::GET, "/v1/sprites/a/checkpoints", Value::Null).await;
    assert_eq!(
        (&list[0]["id"], &list[1]["id"], &list[1]["comment"]),
        (&json!("Current"), &json!("v1"), &json!("c"))
    );
    server.write("a", "kept", "changed").await;
    server.write("a", "new", "three").await;
    assert_eq!(
        server.status(Method::DELETE, "/v1/sprites/a/fs/delete?path=gone").await,
        StatusCode::OK
    );
    let (_, lines) = server.lines("/v1/sprites/a/checkpoints/v1/restore", Value::Null).await;
    assert_eq!(lines.last().unwrap()["data"], "Restore from v1 complete");
    assert_eq!(server.read("a", "kept").await, "one");
    assert_eq!(server.read("a", "gone").await, "two");
    assert_eq!(
        server.status(Method::GET, "/v1/sprites/a/fs/read?path=new").await,
        StatusCode::NOT_FOUND
    );

    // RUL-L-111: another sprite takes the global form, never a bare one; the checkpoint outlives its sprite.
    server.create("b").await;
    let (status, lines) = server.lines("/v1/sprites/b/checkpoints/v1/restore", Value::Null).await;
    assert_eq!((status, &lines[0]["type"]), (StatusCode::OK, &json!("error")));
    assert_eq!(
        server.status(Method::DELETE, "/v1/sprites/a").await,
        StatusCode::NO_CONTENT
    );
    let path = format!("/v1/sprites/b/checkpoints/{global}/restore");
    let (_, lines) = server.lines(&path, Value::Null).await;
    assert_eq!(lines.last().unwrap()["type"], "complete");
    assert_eq!(server.read("b", "kept").await, "one");
    server
        .as_who("second", Method::POST, "/v1/sprites", json!({"name": "c"}))
        .await;
    let path = format!("/v1/sprites/c/checkpoints/{global}/restore");
    let (status, body) = server.as_who("second", Method::POST, &path, Value::Null).await;
    assert_eq!((status, &body["type"]), (StatusCode::OK, &json!("error")));
}

#[actix_web::test]
async fn rul_l_111_a_checkpoint_on_plain_directories_restores() {
    restores(Disk::Copy).await;
}

#[actix_web::test]
async fn rul_l_111_a_checkpoint_on_layers_restores() {
    restores(Disk::Overlay).await;
}

#[actix_web::test]
async fn rul_l_2_a_lower_epoch_is_refused_also_after_a_destroy() {
    let server = Server::new(Disk::Copy).await;
    let with = async |epoch: &str, method, path: &str, body| server.with_epoch(epoch, method, path, body).await;
    let (status, _) = with("5", Method::POST, "/v1/sprites", json!({"name": "a"})).await;
    assert_eq!(status, StatusCode::CREATED);
    let stale = [
        (Method::POST, "/v1/sprites", json!({"name": "a"})),
        (Method::DELETE, "/v1/sprites/a", Value::Null),
        (Method::POST, "/v1/sprites/a/checkpoint", json!({})),
        (Method::POST, "/v1/sprites/a/checkpoints/v1/restore", Value::Null),
        (Method::POST, "/v1/sprites/a/policy/network", json!({"rules": []})),
        (Method::POST, "/v1/sprites/a/exec?cmd=true", Value::Null),
        (Method::GET, "/v1/sprites/a/fs/list?path=/", Value::Null),
    ];
    for (method, path, body) in stale {
        let (status, answer) = with("4", method, path, body).await;
        assert_eq!(
            (status, &answer["error"]),
            (StatusCode::CONFLICT, &json!("stale_epoch")),
            "{path}"
        );
    }
    let (status, _) = with("6", Method::DELETE, "/v1/sprites/a", Value::Null).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _) = with("5", Method::POST, "/v1/sprites", json!({"name": "a"})).await;
    assert_eq!(status, StatusCode::CONFLICT);
}

#[actix_web::test]
async fn rul_l_110_of_two_deletes_one_finds_nothing() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    let (one, two) = futures_util::join!(
        server.status(Method::DELETE, "/v1/sprites/a"),
        server.status(Method::DELETE, "/v1/sprites/a")
    );
    let mut both = [one.as_u16(), two.as_u16()];
    both.sort_unstable();
    assert_eq!(both, [204, 404]);
}

#[actix_web::test]
async fn rul_l_113_a_policy_is_stored_or_refused() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    let path = "/v1/sprites/a/policy/network";
    let open = json!({"rules": []});
    assert_eq!(
        server.call(Method::POST, path, open.clone()).await.0,
        StatusCode::NO_CONTENT
    );
    let deny = json!({"rules": [{"domain": "*", "action": "deny"}]});
    assert_eq!(
        server.call(Method::POST, path, deny).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let wrong = json!({"rules": [{"domain": "*"}]});
    assert_eq!(server.call(Method::POST, path, wrong).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(server.call(Method::GET, path, Value::Null).await.1, open);
}

#[actix_web::test]
async fn rul_l_110_a_killed_server_starts_again_with_everything_true() {
    let server = Server::new(Disk::Overlay).await;
    server.create("a").await;
    server.write("a", "f", "one").await;
    server.lines("/v1/sprites/a/checkpoint", json!({})).await;
    let server = server.killed().await;
    assert_eq!(server.read("a", "f").await, "one");
    let (_, lines) = server.lines("/v1/sprites/a/checkpoints/v1/restore", Value::Null).await;
    assert_eq!(lines.last().unwrap()["type"], "complete");
}

#[actix_web::test]
async fn p_1_7_files_have_modes_and_links_lead_nowhere_outside() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    let write = "/v1/sprites/a/fs/write?path=/d/e/f&mode=0666&mkdirParents=true";
    assert_eq!(server.put(write, "x").await.1["mode"], "0666");
    let (_, list) = server
        .call(Method::GET, "/v1/sprites/a/fs/list?path=/d/e/f", Value::Null)
        .await;
    assert_eq!(
        (&list["count"], &list["entries"][0]["mode"]),
        (&json!(1), &json!("0666"))
    );
    let (status, body) = server
        .call(Method::GET, "/v1/sprites/a/fs/read?path=/d", Value::Null)
        .await;
    assert_eq!((status, &body["code"]), (StatusCode::BAD_REQUEST, &json!("EISDIR")));
    let (status, _) = server
        .call(
            Method::GET,
            "/v1/sprites/a/fs/read?path=/../../../etc/passwd",
            Value::Null,
        )
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(
        server.put("/v1/sprites/a/fs/write?path=x&mode=9", "x").await.0,
        StatusCode::BAD_REQUEST
    );
    let full = "/v1/sprites/a/fs/delete?path=/d";
    assert_eq!(server.status(Method::DELETE, full).await, StatusCode::CONFLICT);
    assert_eq!(
        server.status(Method::DELETE, &format!("{full}&recursive=true")).await,
        StatusCode::OK
    );
}

#[test]
fn the_fake_host_says_what_it_is() {
    use fountain_sprites::enclosure::{Enclosures, Network};
    assert_eq!(
        Host::new(Disk::Copy, Ports::default()).facilities().network,
        Network::Host
    );
}

#[actix_web::test]
async fn p_1_7_a_body_that_stops_half_way_changes_nothing() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    server.write("a", "f", "old").await;
    let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let head = "PUT /v1/sprites/a/fs/write?path=f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\n\
                Content-Length: 100\r\n\r\nnew";
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 20"));
    assert_eq!(server.read("a", "f").await, "old");
}

#[actix_web::test]
async fn rul_l_111_a_checkpoint_that_is_deleted_is_gone_with_its_layer() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    server.write("a", "f", "one").await;
    server.lines("/v1/sprites/a/checkpoint", json!({})).await;
    assert_eq!(server.layers(), 1);
    let path = "/v1/sprites/a/checkpoints/v1";
    assert_eq!(server.status(Method::GET, path).await, StatusCode::OK);
    assert_eq!(server.status(Method::DELETE, path).await, StatusCode::NO_CONTENT);
    assert_eq!(server.status(Method::GET, path).await, StatusCode::NOT_FOUND);
    assert_eq!(server.layers(), 0);
}
