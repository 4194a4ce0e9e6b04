//! The address of a sprite over real HTTP, with servers on this host that stand for what listens inside (providers 1.2).

use std::time::Duration;

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use awc::http::{Method, StatusCode};
use awc::ws::{Frame, Message};
use bytes::Bytes;
use fountain_sprites::enclosure::Disk;
use futures_util::{SinkExt, StreamExt, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::host::Server;

/// What a server inside saw of a request.
async fn mirror(request: HttpRequest, body: Bytes) -> HttpResponse {
    let headers: serde_json::Map<_, _> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), json!(value.to_str().unwrap())))
        .collect();
    HttpResponse::Accepted().insert_header(("x-inside", "yes")).json(json!({
        "method": request.method().as_str(), "path": request.uri().to_string(), "headers": headers,
        "body": String::from_utf8_lossy(body.get(..100).unwrap_or(&body)), "length": body.len(),
    }))
}

async fn endless() -> HttpResponse {
    let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
    HttpResponse::Ok().streaming(stream::repeat(chunk).map(Ok::<_, actix_web::Error>))
}

async fn echo(request: HttpRequest, body: web::Payload) -> actix_web::Result<HttpResponse> {
    let (response, mut session, mut messages) = actix_ws::handle(&request, body)?;
    actix_web::rt::spawn(async move {
        while let Some(Ok(actix_ws::Message::Text(text))) = messages.recv().await {
            session.text(format!("you said {text}")).await.unwrap();
        }
        let _ = session.close(None).await;
    });
    Ok(response)
}

/// Something that listens; answers its port.
async fn inside() -> u16 {
    let server = HttpServer::new(|| {
        App::new()
            .app_data(web::PayloadConfig::new(64 << 20))
            .route("/endless", web::get().to(endless))
            .route("/echo", web::get().to(echo))
            .default_service(web::to(mirror))
    })
    .workers(1)
    .disable_signals()
    .bind(("127.0.0.1", 0))
    .unwrap();
    let port = server.addrs()[0].port();
    actix_web::rt::spawn(server.run());
    port
}

/// Something that answers every connection with these bytes.
async fn says(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    actix_web::rt::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    port
}

/// A sprite `a` and the path of its address.
async fn sprite(server: &Server, auth: &str) -> String {
    let wanted = json!({"name": "a", "url_settings": {"auth": auth}});
    let (status, made) = server.call(Method::POST, "/v1/sprites", wanted).await;
    assert_eq!(status, StatusCode::CREATED);
    let url = made["url"].as_str().unwrap();
    url[url.find("/sprites/").unwrap()..].to_owned()
}

async fn http_port(server: &Server, port: u16) {
    let service = json!({"cmd": "/bin/sh", "args": ["-c", "exec sleep 600"], "http_port": port});
    let path = "/v1/sprites/a/services/web?duration=0s";
    assert_eq!(server.lines_of(Method::PUT, path, service).await.0, StatusCode::OK);
}

fn client() -> awc::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    awc::Client::builder()
        .timeout(Duration::from_secs(60))
        .disable_redirects()
        .finish()
}

#[actix_web::test]
async fn p_1_2_the_address_of_a_sprite_leads_to_its_port_and_only_with_its_token() {
    let server = Server::new(Disk::Copy).await;
    let url = sprite(&server, "sprite").await;
    server.listen(8080, inside().await);
    for (who, expected) in [("wrong", 401), ("second", 401), ("first", 202)] {
        let (status, _) = server.as_who(who, Method::GET, &url, Value::Null).await;
        assert_eq!(status.as_u16(), expected, "{who}");
    }
    let anonymous = client()
        .get(format!("http://{}{url}", server.address()))
        .send()
        .await
        .unwrap();
    assert_eq!(anonymous.status(), StatusCode::UNAUTHORIZED);
    let unknown = "/sprites/sprite-00000000-0000-4000-8000-000000000000/";
    assert_eq!(server.status(Method::GET, unknown).await, StatusCode::NOT_FOUND);
    assert_eq!(server.status(Method::GET, "/sprites/a/").await, StatusCode::NOT_FOUND);

    let (_, seen) = server
        .call(Method::POST, &format!("{url}x%2Fy/../z?q=1&r"), json!("hi"))
        .await;
    assert_eq!((&seen["method"], &seen["body"]), (&json!("POST"), &json!("\"hi\"")));
    assert_eq!(seen["path"], "/x%2Fy/../z?q=1&r");
    assert_eq!(seen["headers"]["x-forwarded-prefix"], url.trim_end_matches('/'));
    assert!(seen["headers"].get("authorization").is_none());
    let bare = url.trim_end_matches('/');
    assert_eq!(server.status(Method::GET, bare).await, StatusCode::PERMANENT_REDIRECT);
    assert_eq!(
        server.status(Method::DELETE, "/v1/sprites/a").await,
        StatusCode::NO_CONTENT
    );
    assert_eq!(server.status(Method::GET, &url).await, StatusCode::NOT_FOUND);
}

#[actix_web::test]
async fn p_1_2_a_public_address_needs_no_token_and_passes_none_of_this_server_on() {
    let server = Server::new(Disk::Overlay).await;
    let url = sprite(&server, "public").await;
    server.listen(8080, inside().await);
    let url = format!("http://{}{url}", server.address());
    let seen = async |token: Option<&str>| {
        let mut request = client()
            .get(&url)
            .insert_header(("keep-alive", "5"))
            .insert_header(("te", "trailers"));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let mut answer = request.send().await.unwrap();
        assert_eq!(
            (answer.status(), answer.headers().get("x-inside").unwrap().as_bytes()),
            (StatusCode::ACCEPTED, b"yes".as_slice())
        );
        let seen: Value = answer.json().await.unwrap();
        assert!(seen["headers"].get("keep-alive").is_none() && seen["headers"].get("te").is_none());
        seen["headers"]["authorization"].clone()
    };
    assert_eq!(seen(None).await, Value::Null);
    assert_eq!(seen(Some("of the application")).await, "Bearer of the application");
    assert_eq!(seen(Some("first")).await, Value::Null);
    assert_eq!(seen(Some("second")).await, Value::Null);
}

#[actix_web::test]
async fn p_1_2_a_public_address_is_not_open_where_sprites_share_the_hosts_loopback() {
    let server = Server::new(Disk::Copy).await;
    let url = sprite(&server, "public").await;
    server.listen(8080, inside().await);
    assert_eq!(server.status(Method::GET, &url).await, StatusCode::ACCEPTED);
    let url = format!("http://{}{url}", server.address());
    let answer = client().get(&url).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
}

#[actix_web::test]
async fn p_1_2_the_port_is_that_of_a_service_or_8080_and_a_closed_one_is_502() {
    let server = Server::new(Disk::Copy).await;
    let url = sprite(&server, "sprite").await;
    assert_eq!(server.status(Method::GET, &url).await, StatusCode::BAD_GATEWAY);
    server.listen(3000, inside().await);
    assert_eq!(server.status(Method::GET, &url).await, StatusCode::BAD_GATEWAY);
    http_port(&server, 3000).await;
    assert_eq!(server.status(Method::GET, &url).await, StatusCode::ACCEPTED);
    server.listen(8080, inside().await);
    http_port(&server, 3001).await;
    assert_eq!(server.status(Method::GET, &url).await, StatusCode::BAD_GATEWAY);
}

#[actix_web::test]
async fn p_1_2_bodies_are_whole_both_ways_or_break_off() {
    let server = Server::new(Disk::Copy).await;
    let url = sprite(&server, "sprite").await;
    server.listen(8080, inside().await);
    let big = "y".repeat(5 << 20);
    let (_, seen) = server.call(Method::PUT, &url, json!(big)).await;
    assert_eq!(seen["length"], big.len() + 2);
    let chunks = stream::iter((0..100).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b'z'; 10_000]))));
    let address = format!("http://{}{url}", server.address());
    let mut answer = client()
        .put(&address)
        .bearer_auth("first")
        .send_stream(chunks)
        .await
        .unwrap();
    let seen: Value = answer.json().limit(4 << 20).await.unwrap();
    assert_eq!(
        (&seen["length"], &seen["headers"]["transfer-encoding"]),
        (&json!(1_000_000), &json!("chunked"))
    );
    let head = client().head(&address).bearer_auth("first").send().await.unwrap();
    assert_eq!(head.status(), StatusCode::ACCEPTED);

    let get = async |answer: &'static str| {
        server.listen(8080, says(answer).await);
        let mut response = client().get(&address).bearer_auth("first").send().await.unwrap();
        (response.status().as_u16(), response.body().await.ok())
    };
    let body = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    assert_eq!(
        get("HTTP/1.1 200 OK\r\n\r\nto the end").await,
        (200, body("to the end"))
    );
    assert_eq!(get("HTTP/1.0 200 OK\r\n\r\nold").await, (200, body("old")));
    assert_eq!(
        get("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await,
        (200, body(""))
    );
    assert_eq!(get("HTTP/1.1 204 No\r\n\r\n").await, (204, body("")));
    let early = "HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(get(early).await, (200, body("ok")));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    assert_eq!(get(chunked).await, (200, body("abcde")));
    // awc takes the early end of a body for its end, so these are read as bytes.
    for framing in ["Transfer-Encoding: chunked\r\n\r\n9\r\n", "Content-Length: 9\r\n\r\n"] {
        let half = format!("HTTP/1.1 200 OK\r\n{framing}half");
        server.listen(8080, says(half.leak()).await);
        let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let head = format!("GET {url} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        // It ends although nobody asked for that.
        let _ = socket.read_to_end(&mut bytes).await;
        let said = String::from_utf8_lossy(&bytes);
        assert!(!said.ends_with("0\r\n\r\n") && !said.contains(" 502 "), "{said}");
    }
    let named = "HTTP/1.1 200 OK\r\nConnection: x-secret\r\nx-secret: 1\r\nx-open: 1\r\nContent-Length: 0\r\n\r\n";
    server.listen(8080, says(named).await);
    let answer = client().get(&address).bearer_auth("first").send().await.unwrap();
    let has = |name| answer.headers().contains_key(name);
    assert!(has("x-open") && !has("x-secret"));
    for garbled in [
        "",
        "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\r\nhalf a head",
        "HTTP/1.1 101 Switch\r\n\r\n",
    ] {
        assert_eq!(get(garbled).await.0, 502, "{garbled:?}");
    }
}

#[actix_web::test]
async fn p_1_2_an_answer_without_an_end_streams_and_leaves_with_its_client() {
    let server = Server::new(Disk::Copy).await;
    let url = sprite(&server, "sprite").await;
    server.listen(8080, inside().await);
    let address = format!("http://{}{url}endless", server.address());
    let mut answer = client().get(&address).bearer_auth("first").send().await.unwrap();
    let mut seen = 0;
    while seen < 20 << 20 {
        seen += answer.next().await.unwrap().unwrap().len();
    }
    drop(answer);
    assert_eq!(server.status(Method::GET, &url).await, StatusCode::ACCEPTED);
}

#[actix_web::test]
async fn p_1_2_a_socket_goes_through_both_ways_and_needs_the_token() {
    let server = Server::new(Disk::Copy).await;
    let url = sprite(&server, "sprite").await;
    server.listen(8080, inside().await);
    let address = format!("http://{}{url}echo", server.address());
    assert!(client().ws(&address).connect().await.is_err());
    let (_, mut socket) = client().ws(&address).bearer_auth("first").connect().await.unwrap();
    for word in ["one", "two"] {
        socket.send(Message::Text(word.into())).await.unwrap();
        let heard = socket.next().await.unwrap().unwrap();
        assert_eq!(heard, Frame::Text(format!("you said {word}").into()));
    }
    socket.send(Message::Close(None)).await.unwrap();
    assert!(matches!(socket.next().await, Some(Ok(Frame::Close(_))) | None));
}
