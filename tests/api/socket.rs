//! What only a real socket shows: when bytes leave, and what becomes of bodies that nobody reads.

use std::time::Duration;

use actix_web::{App, HttpServer, dev::ServerHandle};
use fountain::api;
use fountain_actors::domain::event::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::world::*;

/// Longest that anything here may take before the test fails.
const LIMIT: Duration = Duration::from_secs(20);

async fn serve(world: &World) -> (ServerHandle, std::net::SocketAddr) {
    let state = world.state.clone();
    let server = HttpServer::new(move || {
        let state = state.clone();
        App::new().configure(move |config| api::configure(config, state.clone()))
    })
    .workers(1)
    .disable_signals()
    .bind(("127.0.0.1", 0))
    .unwrap();
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    actix_web::rt::spawn(server);
    (handle, address)
}

struct Client {
    socket: TcpStream,
    /// Everything that arrived.
    text: String,
    /// Up to where nothing is looked for any more.
    looked: usize,
}

impl Client {
    async fn send(address: std::net::SocketAddr, head: &str) -> Self {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        Self {
            socket,
            text: String::new(),
            looked: 0,
        }
    }

    /// Reads until `wanted` has arrived after what was found last.
    async fn until(&mut self, wanted: &str) -> &str {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            if let Some(at) = self.text[self.looked..].find(wanted) {
                self.looked += at + wanted.len();
                return &self.text;
            }
            // A piece of it may have arrived.
            self.looked = self.looked.max(self.text.len().saturating_sub(wanted.len()));
            let read = timeout(LIMIT, self.socket.read(&mut bytes)).await;
            let count = read.unwrap_or_else(|_| panic!("{wanted:?} did not come")).unwrap();
            assert!(count > 0, "closed before {wanted:?}");
            self.text
                .push_str(std::str::from_utf8(&bytes[..count]).expect("these tests write ASCII"));
        }
    }
}

fn get(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream\r\n\r\n")
}

#[actix_web::test]
async fn caution_4_headers_leave_at_once_each_event_as_it_comes_and_nothing_is_compressed() {
    let world = World::default();
    let (server, address) = serve(&world).await;
    let path = format!("/api/conversations/{}/stream", world.ann.conversation);
    let gzip = get(&path, &world.ann.full).replace("Accept:", "Accept-Encoding: gzip, br\r\nAccept:");
    let mut client = Client::send(address, &gzip).await;
    let head = client.until(": connected\n\n").await.to_ascii_lowercase();
    assert!(
        head.starts_with("http/1.1 200") && head.contains("transfer-encoding: chunked"),
        "{head}"
    );
    assert!(!head.contains("gzip"), "{head}");
    for text in ["one", "two", "three"] {
        world.say(&world.ann, Stream::Stdout, text);
        client.until(&format!("\"data\":\"{text}\"")).await;
    }
    world.closing.send_replace(true);
    client.until("\r\n0\r\n\r\n").await;
    server.stop(true).await;
}

#[actix_web::test]
async fn p65_a_stalled_reader_of_a_long_backlog_holds_up_nobody() {
    let world = World::default();
    for _ in 0..400 {
        world.say(&world.ann, Stream::Stdout, &"x".repeat(50_000));
    }
    let (server, address) = serve(&world).await;
    let path = format!("/api/conversations/{}/stream?wait=false", world.ann.conversation);
    let mut stalled = Client::send(address, &get(&path, &world.ann.full)).await;
    stalled.until(": connected").await;
    let mut other = Client::send(address, &get(&path, &world.ann.full)).await;
    other.until("id: 400\n").await;
    other.until("\r\n0\r\n\r\n").await;
    stalled.until("id: 400\n").await;
    server.stop(false).await;
}

#[actix_web::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
    let world = World::default();
    let (server, address) = serve(&world).await;
    let post = |path: &str, key: &str, length: u64| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{{"
        )
    };
    let huge = 64 * 1024 * 1024 + 1;
    let mut client = Client::send(address, &post("/api/conversations", &world.ann.full, huge)).await;
    client.until("payload_too_large").await;
    let mut client = Client::send(address, &post("/api/vaults", &world.ann.full, 1024 * 1024 + 1)).await;
    client.until("HTTP/1.1 413").await;
    let mut client = Client::send(address, &post("/api/conversations", "ftn_nobody", huge)).await;
    client.until("api_key_invalid").await;
    server.stop(false).await;
}

#[actix_web::test]
async fn a_connection_is_kept_for_the_next_request() {
    let world = World::default();
    let (server, address) = serve(&world).await;
    let request = get("/api/auth/me", &world.ann.full).replace("text/event-stream", "application/json");
    let mut client = Client::send(address, &request.repeat(2)).await;
    for _ in 0..2 {
        client.until("\"role\":\"admin\"").await;
    }
    server.stop(false).await;
}
