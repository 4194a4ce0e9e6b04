//! The same adapter over TLS: both ways of sending, against a server that knows nothing but this one exchange.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::*;

/// A certificate of 127.0.0.1 that only this test trusts, and its key.
const CERTIFICATE: &[u8] = include_bytes!("loopback.cert.der");
const KEY: &[u8] = include_bytes!("loopback.key.der");

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_slice(CERTIFICATE)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Answers each connection's one request: an upgrade with exit 5, all else with a running machine.
fn serve(listener: TcpListener, connections: usize) -> std::thread::JoinHandle<Vec<String>> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(KEY));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let config = Arc::new(config);
    std::thread::spawn(move || {
        (0..connections)
            .map(|_| answer(&listener, Arc::clone(&config)))
            .collect()
    })
}

fn answer(listener: &TcpListener, config: Arc<ServerConfig>) -> String {
    let (socket, _) = listener.accept().unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: "));
    let reply = match key {
        Some(key) => {
            let accept = actix_http::ws::hash_key(key.as_bytes());
            let mut reply =
                b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ".to_vec();
            reply.extend(accept);
            reply.extend(b"\r\n\r\n\x82\x02\x03\x05");
            reply
        }
        None => b"HTTP/1.1 200 X\r\nContent-Length: 20\r\n\r\n{\"status\":\"running\"}".to_vec(),
    };
    stream.write_all(&reply).unwrap();
    stream.conn.send_close_notify();
    let _ = stream.flush();
    head
}

#[actix_rt::test]
async fn a_service_behind_tls_is_reached_over_http_1_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base_url = format!("https://{}", listener.local_addr().unwrap());
    let server = serve(listener, 2);
    let mut roots = RootCertStore::empty();
    roots.add(certificate()).unwrap();
    let adapter = SpritesAdapter::with_limits(settings(&base_url), LIMITS, tls(roots));
    let handle = adapter.handle("a-b");
    let info = adapter.get(&handle).await.unwrap();
    assert_eq!(info.state, fountain_actors::ports::sandbox::RunState::Running);
    let done = adapter
        .exec(&handle, "true", &[], ExecOptions::default())
        .await
        .unwrap();
    assert_eq!(done.code, 5);
    let heads = server.join().unwrap();
    assert!(heads[0].starts_with("GET /v1/sprites/a-b HTTP/1.1\r\n"), "{}", heads[0]);
    assert!(
        heads[1].contains("authorization: Bearer sekrit-token\r\n"),
        "{}",
        heads[1]
    );
}

#[actix_rt::test]
async fn rul_l_4_a_certificate_that_nobody_vouches_for_is_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base_url = format!("https://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(KEY));
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate()], key)
            .unwrap();
        let (socket, _) = listener.accept().unwrap();
        let mut stream = StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), socket);
        let mut rest = Vec::new();
        (stream.read_to_end(&mut rest).is_err(), rest)
    });
    let adapter = SpritesAdapter::new(settings(&base_url));
    let answer = adapter.get(&adapter.handle("a-b")).await;
    assert_eq!(answer, Err(unavailable(fountain_actors::ports::sandbox::NOT_CONNECTED)));
    assert_eq!(
        server.join().unwrap(),
        (true, Vec::new()),
        "no byte of the request was sent"
    );
}
