//! Real sockets, real processes: the doors of exec over an enclosure that is a directory of this host.

mod doors;
mod endings;
mod sockets;

use std::{io, net::SocketAddr, os::fd::OwnedFd, pin::Pin, sync::Arc, time::Duration};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, dev::ServerHandle, web};
use awc::{
    error::WsProtocolError,
    http::StatusCode,
    ws::{CloseCode, Frame, Message},
};
use bytes::Bytes;
use fountain_process::{Bound, Launch, Ledger, Local, Registry, Session, Spawner, Started, Waiting, resolve};
use futures_util::{Sink, SinkExt, StreamExt, stream::LocalBoxStream};
use serde_json::Value;
use tempfile::TempDir;
use url::form_urlencoded::Serializer;

use super::*;
use crate::{
    enclosure::{Enclosure, EnclosureError},
    policy::Policy,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of this host, which keeps nothing apart.
struct Directory(String);

/// Looks programs up as an enclosure does.
struct LookingUp;

impl Spawner for LookingUp {
    fn start(&self, mut launch: Launch, session: String) -> Waiting<io::Result<Started>> {
        let path = launch
            .env
            .iter()
            .rev()
            .find(|(name, _)| name == "PATH")
            .map(|(_, value)| value.clone());
        match resolve(&launch.program.to_string_lossy(), path.as_deref()) {
            Ok(program) => launch.program = program,
            Err(error) => return Box::pin(async move { Err(io::Error::new(io::ErrorKind::NotFound, error)) }),
        }
        Local.start(launch, session)
    }
}

impl Enclosure for Directory {
    fn spawner(&self) -> Arc<dyn Spawner> {
        Arc::new(LookingUp)
    }

    fn root(&self) -> Result<OwnedFd, EnclosureError> {
        Ok(std::fs::File::open("/")?.into())
    }

    fn home(&self) -> &str {
        &self.0
    }

    fn set_policy(&self, _: Policy) -> Waiting<Result<(), EnclosureError>> {
        Box::pin(async { Ok(()) })
    }

    fn connect(&self, _: u16) -> Waiting<Result<Box<dyn crate::enclosure::Stream>, EnclosureError>> {
        Box::pin(async { Err(EnclosureError::Closed) })
    }

    fn close(&self) -> Waiting<()> {
        Box::pin(async {})
    }

    fn closed(&self) -> Waiting<()> {
        Box::pin(std::future::pending())
    }
}

/// A server with one sprite.
struct Sprite {
    home: TempDir,
    exec: SpriteExec,
    address: SocketAddr,
    server: ServerHandle,
}

impl Sprite {
    async fn new() -> Self {
        Self::with(Settings::default(), Bound::SPRITE).await
    }

    async fn with(settings: Settings, bound: Bound) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open_durable(&home.path().join("traces"), bound).unwrap();
        let exec = SpriteExec {
            owner: "sprite-1".to_owned(),
            registry: Arc::new(Registry::new(FINISHED_KEPT)),
            attachments: Arc::default(),
            ledger,
            enclosure: Arc::new(Directory(home.path().to_str().unwrap().to_owned())),
            environment: vec![
                ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
                ("GREETING".to_owned(), "hello".to_owned()),
            ],
            settings,
        };
        let shared = exec.clone();
        let server = HttpServer::new(move || {
            App::new()
                .app_data(web::Data::new(shared.clone()))
                .route("/v1/sprites/a-b/exec", web::get().to(get_door))
                .route("/v1/sprites/a-b/exec", web::post().to(post_door))
                .route("/v1/sprites/a-b/exec/{session}", web::get().to(attach_door))
                .route("/v1/sprites/a-b/exec/{session}/kill", web::post().to(kill_door))
        })
        .workers(1)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
        let address = server.addrs()[0];
        let server = server.run();
        let handle = server.handle();
        actix_web::rt::spawn(server);
        Self {
            home,
            exec,
            address,
            server: handle,
        }
    }

    fn url(&self, rest: &str) -> String {
        format!("http://{}/v1/sprites/a-b/exec{rest}", self.address)
    }

    /// Runs a shell script.
    async fn sh(&self, script: &str, more: &[(&str, &str)]) -> Client {
        self.connect(&query(&["sh", "-c", script], more)).await
    }

    async fn connect(&self, rest: &str) -> Client {
        Client::connect(&self.url(rest)).await
    }

    async fn connect_to(&self, session: &str) -> Client {
        self.connect(&format!("/{session}")).await
    }

    /// The session, as the server sees it.
    fn session(&self, id: &str) -> Arc<Session> {
        self.exec.session(id).unwrap()
    }

    async fn ending(&self, id: &str) -> Option<i32> {
        let session = self.session(id);
        let exit = tokio::time::timeout(PATIENCE, session.ending()).await;
        exit.expect("the session goes on").verdict()
    }

    async fn list(&self) -> Value {
        let mut answer = http().get(self.url("")).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        answer.json().await.unwrap()
    }

    async fn close(self) {
        self.exec.registry.close(Duration::ZERO).await;
        self.server.stop(false).await;
    }
}

async fn get_door(sprite: web::Data<SpriteExec>, request: HttpRequest, body: web::Payload) -> HttpResponse {
    get(sprite.as_ref().clone(), request, body).await
}

async fn post_door(sprite: web::Data<SpriteExec>, request: HttpRequest, body: web::Payload) -> HttpResponse {
    post(sprite.as_ref().clone(), request, body).await
}

async fn attach_door(
    sprite: web::Data<SpriteExec>,
    session: web::Path<String>,
    request: HttpRequest,
    body: web::Payload,
) -> HttpResponse {
    attach(sprite.as_ref().clone(), &session, request, body).await
}

async fn kill_door(
    sprite: web::Data<SpriteExec>,
    session: web::Path<String>,
    request: HttpRequest,
    body: web::Payload,
) -> HttpResponse {
    kill(sprite.as_ref().clone(), &session, request, body).await
}

/// Clients want to know their cryptography before they know that they need none.
fn http() -> awc::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    awc::Client::new()
}

fn query(cmd: &[&str], more: &[(&str, &str)]) -> String {
    let words = cmd.iter().map(|word| ("cmd", *word));
    let mut query = Serializer::new(String::new());
    query.extend_pairs(words.chain(more.iter().copied()));
    format!("?{}", query.finish())
}

/// A client of the exec socket; it has read `session_info`.
struct Client {
    info: Value,
    capabilities: String,
    receiving: LocalBoxStream<'static, Result<Frame, WsProtocolError>>,
    sending: Pin<Box<dyn Sink<Message, Error = WsProtocolError>>>,
}

/// What a client saw from `session_info` to the close.
#[derive(Debug, Default)]
struct Seen {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Payloads of exit frames.
    exits: Vec<Vec<u8>>,
    /// Raw bytes of a terminal.
    texts: Vec<Value>,
    longest: usize,
    /// Data that came after an exit frame.
    late: usize,
    close: Option<CloseCode>,
}

impl Seen {
    fn code(&self) -> u8 {
        assert_eq!(self.late, 0);
        assert_eq!(self.exits.len(), 1, "{self:?}");
        assert_eq!(self.exits[0].len(), 1);
        self.exits[0][0]
    }
}

impl Client {
    async fn connect(url: &str) -> Self {
        let (response, socket) = http().ws(url).connect().await.unwrap();
        let capabilities = response.headers().get("X-Sprite-Capabilities").unwrap();
        let (sending, receiving) = socket.split();
        let mut client = Self {
            info: Value::Null,
            capabilities: capabilities.to_str().unwrap().to_owned(),
            receiving: receiving.boxed_local(),
            sending: Box::pin(sending),
        };
        client.info = match client.next().await {
            Some(Frame::Text(text)) => serde_json::from_slice(&text).unwrap(),
            other => panic!("{other:?} instead of session_info"),
        };
        assert_eq!(client.info["type"], "session_info");
        client
    }

    fn id(&self) -> String {
        self.info["session_id"].as_str().unwrap().to_owned()
    }

    async fn next(&mut self) -> Option<Frame> {
        let next = tokio::time::timeout(PATIENCE, self.receiving.next()).await;
        next.expect("nothing comes").map(|frame| frame.unwrap())
    }

    async fn send(&mut self, data: &[u8]) {
        self.sending
            .send(Message::Binary(Bytes::copy_from_slice(data)))
            .await
            .unwrap();
    }

    async fn say(&mut self, text: &str) {
        self.sending.send(Message::Text(text.to_owned().into())).await.unwrap();
    }

    /// Reads until the stream of this mark (or the terminal) has said `wanted`.
    async fn until(&mut self, wanted: &[u8]) -> Vec<u8> {
        let mut heard = Vec::new();
        while !heard.windows(wanted.len()).any(|window| window == wanted) {
            match self.next().await {
                Some(Frame::Binary(data)) if self.info["tty"] == true => heard.extend_from_slice(&data),
                Some(Frame::Binary(data)) => heard.extend_from_slice(&data[1..]),
                Some(Frame::Text(_) | Frame::Pong(_)) => {}
                other => panic!("{other:?} after {}", String::from_utf8_lossy(&heard)),
            }
        }
        heard
    }

    /// Reads to the close, which it answers by closing as soon as the exit is there.
    async fn finish(mut self) -> Seen {
        let mut seen = Seen::default();
        while let Some(frame) = self.next().await {
            match frame {
                Frame::Binary(data) if self.info["tty"] == true => seen.stdout.extend_from_slice(&data),
                Frame::Binary(data) => {
                    seen.longest = seen.longest.max(data.len());
                    seen.late += usize::from(!seen.exits.is_empty());
                    match data[0] {
                        1 => seen.stdout.extend_from_slice(&data[1..]),
                        2 => seen.stderr.extend_from_slice(&data[1..]),
                        3 => {
                            seen.exits.push(data[1..].to_vec());
                            self.sending.send(Message::Close(None)).await.unwrap();
                        }
                        other => panic!("a message of {other}"),
                    }
                }
                Frame::Text(text) => seen.texts.push(serde_json::from_slice(&text).unwrap()),
                Frame::Close(reason) => {
                    seen.close = reason.map(|reason| reason.code);
                    break;
                }
                Frame::Ping(_) | Frame::Pong(_) => {}
                Frame::Continuation(_) => panic!("a part of a message"),
            }
        }
        seen
    }
}

async fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let limit = tokio::time::Instant::now() + PATIENCE;
    while !look() {
        assert!(tokio::time::Instant::now() < limit, "{what} did not become true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
