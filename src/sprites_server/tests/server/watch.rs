//! `fs/watch` over a real socket (providers 1.7).

use std::time::Duration;

use actix_codec::Framed;
use awc::http::{Method, StatusCode};
use awc::ws::{Codec, Frame, Message};
use fountain_sprites::enclosure::Disk;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};

use crate::host::Server;

type Socket = Framed<awc::BoxedSocket, Codec>;

async fn watch(server: &Server, subscribe: Value) -> Socket {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = format!("http://{}/v1/sprites/a/fs/watch", server.address());
    let client = awc::Client::builder().timeout(Duration::from_secs(30)).finish();
    let (_, mut socket) = client.ws(url).bearer_auth("first").connect().await.unwrap();
    socket.send(Message::Text(subscribe.to_string().into())).await.unwrap();
    socket
}

async fn next(socket: &mut Socket) -> Value {
    let heard = tokio::time::timeout(Duration::from_secs(30), socket.next()).await;
    match heard.unwrap() {
        Some(Ok(Frame::Text(text))) => serde_json::from_slice(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn until(socket: &mut Socket, event: &str, path: &str) {
    loop {
        let heard = next(socket).await;
        assert_eq!(heard["type"], "event", "{heard}");
        if heard["event"] == event && heard["path"] == path {
            return;
        }
    }
}

#[actix_web::test]
async fn p_1_7_a_watch_tells_what_happens_also_in_directories_that_appear() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    server.write("a", "sub/old&mkdirParents=true", "x").await;
    let subscribe = json!({"type": "subscribe", "paths": ["."], "recursive": true});
    let mut socket = watch(&server, subscribe).await;
    assert_eq!(next(&mut socket).await, json!({"type": "subscribed", "paths": ["."]}));
    server.write("a", "sub/f", "x").await;
    until(&mut socket, "create", "/home/sub/f").await;
    assert_eq!(
        server
            .status(Method::DELETE, "/v1/sprites/a/fs/delete?path=sub/f")
            .await,
        StatusCode::OK
    );
    until(&mut socket, "remove", "/home/sub/f").await;
    server.write("a", "new/g&mkdirParents=true", "x").await;
    until(&mut socket, "create", "/home/new").await;
    let rename = json!({"source": "sub/old", "dest": "sub/other"});
    assert_eq!(
        server.call(Method::POST, "/v1/sprites/a/fs/rename", rename).await.0,
        StatusCode::OK
    );
    until(&mut socket, "rename", "/home/sub/old").await;
    until(&mut socket, "create", "/home/sub/other").await;
    // It holds no disk: the sprite goes, and the watch with it.
    assert_eq!(
        server.status(Method::DELETE, "/v1/sprites/a").await,
        StatusCode::NO_CONTENT
    );
    loop {
        let heard = next(&mut socket).await;
        if heard["type"] == "error" {
            break;
        }
    }
}

#[actix_web::test]
async fn p_1_7_a_watch_of_nothing_is_an_error() {
    let server = Server::new(Disk::Copy).await;
    server.create("a").await;
    for wrong in [
        json!({"type": "subscribe", "paths": ["/no/such"]}),
        json!({"type": "subscribe", "paths": []}),
        json!({"type": "other", "paths": ["."]}),
    ] {
        let mut socket = watch(&server, wrong).await;
        assert_eq!(next(&mut socket).await["type"], "error");
    }
}
