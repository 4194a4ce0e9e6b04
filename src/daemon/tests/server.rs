//! A control plane of one route, and a daemon that dials it.
//!
//! A [`Peer`] is one accepted connection. It keeps everything that it ever received, in order, and tests wait for a
//! *level* of that record, never for time to pass.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Write as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use base64::{Engine, engine::general_purpose::STANDARD};
use fountain_actors::retry::{Jitter, Policy};
use futures_util::StreamExt;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::daemon::{DaemonConfig, DaemonError, Endpoint, Timing, run};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const SB: &str = "runner-0f0e0d0c0b0a49088706050403020100-1a2b3c4d";

/// What the server does with the next dial; without a plan it upgrades.
#[derive(Clone, Debug)]
pub struct Refuse(pub u16, pub &'static str);

#[derive(Clone)]
struct Shared {
    plan: Arc<Mutex<VecDeque<Refuse>>>,
    dials: Arc<Mutex<Vec<Dial>>>,
    peers: mpsc::UnboundedSender<Peer>,
    /// While this is false no refusal is answered.
    refusing: watch::Receiver<bool>,
}

/// What a dial said about itself.
#[derive(Clone, Debug)]
pub struct Dial {
    pub query: HashMap<String, String>,
    pub authorization: String,
}

pub struct Server {
    pub url: String,
    shared: Shared,
    peers: mpsc::UnboundedReceiver<Peer>,
    handle: actix_web::dev::ServerHandle,
    pub refusing: watch::Sender<bool>,
}

enum Said {
    Text(String),
    Ping,
    Close(u16),
}

/// One connection, seen from the server.
pub struct Peer {
    say: mpsc::UnboundedSender<Said>,
    heard: mpsc::UnboundedReceiver<Value>,
    pub reading: watch::Sender<bool>,
    next_id: i64,
    /// Everything received so far. A close is `{"closed": code}`, a pong `{"pong": true}`.
    pub seen: Vec<Value>,
}

impl Server {
    pub fn start() -> Self {
        let (sender, peers) = mpsc::unbounded_channel();
        let (refusing, may_refuse) = watch::channel(true);
        let shared = Shared {
            plan: Arc::default(),
            dials: Arc::default(),
            peers: sender,
            refusing: may_refuse,
        };
        let data = shared.clone();
        let server = HttpServer::new(move || {
            let data = web::Data::new(data.clone());
            App::new()
                .app_data(data)
                .route("/api/runners/ws", web::get().to(accept))
        });
        let server = server
            .workers(1)
            .disable_signals()
            .shutdown_timeout(0)
            // A cut is a cut: no second of waiting for the client's side of it.
            .client_disconnect_timeout(Duration::from_millis(1))
            .bind("127.0.0.1:0")
            .unwrap();
        let url = format!("http://{}", server.addrs()[0]);
        let server = server.run();
        let handle = server.handle();
        actix_rt::spawn(server);
        Self {
            url,
            shared,
            peers,
            handle,
            refusing,
        }
    }

    /// Plans the answers to the next dials.
    pub fn refuse(&self, plan: impl IntoIterator<Item = Refuse>) {
        self.shared.plan.lock().unwrap().extend(plan);
    }

    pub fn dials(&self) -> Vec<Dial> {
        self.shared.dials.lock().unwrap().clone()
    }

    /// The next connection.
    pub async fn peer(&mut self) -> Peer {
        let peer = tokio::time::timeout(PATIENCE, self.peers.recv()).await;
        peer.expect("no daemon connected").unwrap()
    }

    pub async fn stop(self) {
        self.handle.stop(false).await;
    }
}

async fn accept(
    request: HttpRequest,
    body: web::Payload,
    shared: web::Data<Shared>,
) -> actix_web::Result<HttpResponse> {
    let query = web::Query::<HashMap<String, String>>::from_query(request.query_string())?.into_inner();
    let authorization = request
        .headers()
        .get("authorization")
        .map(|value| value.to_str().unwrap().to_owned());
    let is_first_look = request
        .headers()
        .get("sec-websocket-key")
        .is_some_and(|key| key != "Zm91bnRhaW4gcnVubmVyIQ==");
    if is_first_look {
        shared.dials.lock().unwrap().push(Dial {
            query,
            authorization: authorization.unwrap_or_default(),
        });
    }
    // A refusal stands until the daemon has asked for its body, where it does.
    let refusal = {
        let mut plan = shared.plan.lock().unwrap();
        match plan.front().cloned() {
            Some(Refuse(400 | 401 | 403 | 404, _)) if is_first_look => plan.front().cloned(),
            Some(_) => plan.pop_front(),
            None => None,
        }
    };
    if let Some(Refuse(status, body)) = refusal {
        let _ = shared.refusing.clone().wait_for(|may| *may).await;
        let status = actix_web::http::StatusCode::from_u16(status).unwrap();
        return Ok(HttpResponse::build(status).body(body));
    }
    let (response, mut session, stream) = actix_ws::handle(&request, body)?;
    let limit = 64 * 1024 * 1024;
    let mut stream = stream
        .max_frame_size(limit)
        .aggregate_continuations()
        .max_continuation_size(limit);
    let (say, mut said) = mpsc::unbounded_channel();
    let (tell, heard) = mpsc::unbounded_channel();
    let (reading, mut may_read) = watch::channel(true);
    actix_rt::spawn(async move {
        loop {
            tokio::select! {
                said = said.recv() => match said {
                    Some(Said::Text(text)) => drop(session.text(text).await),
                    Some(Said::Ping) => drop(session.ping(b"?").await),
                    Some(Said::Close(code)) => {
                        let _ = session.clone().close(Some(actix_ws::CloseCode::from(code).into())).await;
                    }
                    // The test let go of the connection: cut it.
                    None => break,
                },
                message = async {
                    let _ = may_read.wait_for(|may| *may).await;
                    stream.next().await
                } => match message {
                    Some(Ok(actix_ws::AggregatedMessage::Text(text))) => {
                        let _ = tell.send(serde_json::from_str(&text).expect("every message is JSON"));
                    }
                    Some(Ok(actix_ws::AggregatedMessage::Ping(data))) => drop(session.pong(&data).await),
                    Some(Ok(actix_ws::AggregatedMessage::Pong(_))) => drop(tell.send(json!({"pong": true}))),
                    Some(Ok(actix_ws::AggregatedMessage::Close(reason))) => {
                        let code: u16 = reason.map_or(1000, |reason| reason.code.into());
                        let _ = tell.send(json!({"closed": code}));
                        let _ = session.close(None).await;
                        break;
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        let _ = tell.send(json!({"broken": error.to_string()}));
                        break;
                    }
                    None => break,
                },
            }
        }
    });
    let _ = shared.peers.send(Peer {
        say,
        heard,
        reading,
        next_id: 1,
        seen: Vec::new(),
    });
    Ok(response)
}

impl Peer {
    /// Sends a request and answers its id.
    pub fn send(&mut self, mut request: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        request["id"] = json!(id);
        self.say(&request.to_string());
        id
    }

    pub fn say(&self, text: &str) {
        self.say.send(Said::Text(text.to_owned())).unwrap();
    }

    pub fn ping(&self) {
        self.say.send(Said::Ping).unwrap();
    }

    pub fn close(&self, code: u16) {
        self.say.send(Said::Close(code)).unwrap();
    }

    /// Sends a request and waits for its reply.
    pub async fn ask(&mut self, request: Value) -> Value {
        let id = self.send(request);
        self.reply(id).await
    }

    /// Sends a request that must succeed; answers its result.
    pub async fn get(&mut self, request: Value) -> Value {
        let reply = self.ask(request.clone()).await;
        assert_eq!(reply["ok"], true, "{request} was refused: {reply}");
        reply["result"].clone()
    }

    /// Sends a request that must be refused; answers code and detail.
    pub async fn refusal(&mut self, request: Value) -> (String, String) {
        let reply = self.ask(request.clone()).await;
        assert_eq!(reply["ok"], false, "{request} was done: {reply}");
        (
            reply["error"].as_str().unwrap().to_owned(),
            reply["detail"].as_str().unwrap().to_owned(),
        )
    }

    pub async fn reply(&mut self, id: i64) -> Value {
        self.until("a reply", |seen| {
            seen.iter().find(|message| message["id"] == id).cloned()
        })
        .await
    }

    /// Spawns and answers (request id, session id).
    pub async fn spawn(&mut self, request: Value) -> (i64, String) {
        let id = self.send(request);
        let reply = self.reply(id).await;
        (
            id,
            reply["result"]["session_id"]
                .as_str()
                .unwrap_or_else(|| panic!("{reply}"))
                .to_owned(),
        )
    }

    /// Waits until the record of this connection says something.
    pub async fn until<T>(&mut self, what: &str, look: impl Fn(&[Value]) -> Option<T>) -> T {
        loop {
            if let Some(found) = look(&self.seen) {
                return found;
            }
            match tokio::time::timeout(PATIENCE, self.heard.recv()).await {
                Ok(Some(message)) => self.seen.push(message),
                Ok(None) => panic!("the connection ended before {what}: {}", self.transcript()),
                Err(_) => panic!("{what} did not come: {}", self.transcript()),
            }
        }
    }

    /// Waits for the connection's end and keeps what came before it.
    pub async fn end(&mut self) {
        while let Some(message) = tokio::time::timeout(PATIENCE, self.heard.recv())
            .await
            .expect("still connected")
        {
            self.seen.push(message);
        }
    }

    /// Waits until untagged output of a session contains `text`.
    pub async fn shows(&mut self, session: &str, text: &str) {
        let what = format!("output {text:?} of {session}");
        self.until(&what, |seen| {
            String::from_utf8_lossy(&all_output(seen, session, "stdout"))
                .contains(text)
                .then_some(())
        })
        .await;
    }

    /// Waits for a session's exit code.
    pub async fn exit(&mut self, session: &str) -> i64 {
        self.until("an exit", |seen| {
            let exit = seen
                .iter()
                .find(|m| m["stream"] == "exit" && m["session_id"] == session);
            exit.map(|exit| exit["code"].as_i64().unwrap())
        })
        .await
    }

    fn transcript(&self) -> String {
        let tail = self.seen.iter().rev().take(20).rev();
        tail.fold(format!("{} messages", self.seen.len()), |mut text, message| {
            let _ = write!(text, "\n  {message}");
            text
        })
    }
}

/// Output of a session that a subscriber made by request `tag` gets: tagged for it, or untagged after it.
pub fn output(seen: &[Value], session: &str, stream: &str, tag: Option<i64>) -> Vec<u8> {
    let ours = seen
        .iter()
        .filter(|m| m["stream"] == stream && m["session_id"] == session);
    ours.filter(|m| m["replay_for"].as_i64() == tag)
        .flat_map(|m| bytes(&m["data"]))
        .collect()
}

/// Output of a session, tagged or not.
pub fn all_output(seen: &[Value], session: &str, stream: &str) -> Vec<u8> {
    let ours = seen
        .iter()
        .filter(|m| m["stream"] == stream && m["session_id"] == session);
    ours.flat_map(|m| bytes(&m["data"])).collect()
}

pub fn bytes(data: &Value) -> Vec<u8> {
    STANDARD.decode(data.as_str().unwrap()).unwrap()
}

pub fn base64(data: &[u8]) -> String {
    STANDARD.encode(data)
}

/// Waits for something about the machine; looks again every few milliseconds.
pub async fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let limit = tokio::time::Instant::now() + PATIENCE;
    while !look() {
        assert!(tokio::time::Instant::now() < limit, "{what} did not become true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A running daemon and its root.
pub struct Daemon {
    pub root: PathBuf,
    config: DaemonConfig,
    shutdown: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<Result<(), DaemonError>>,
    _directory: Arc<tempfile::TempDir>,
}

/// Limits for tests: the protocol's, but redials at once.
pub fn quick() -> Timing {
    let redial = Policy {
        base: Duration::from_millis(5),
        cap: Duration::from_millis(20),
        attempts: None,
        jitter: Jitter::Above(0.1),
    };
    Timing {
        redial,
        ..Timing::default()
    }
}

pub fn fixed(url: &str) -> Endpoint {
    Endpoint::Fixed {
        base_url: url.to_owned(),
        api_key: SecretString::from("ftn_test".to_owned()),
    }
}

impl Daemon {
    pub fn start(endpoint: Endpoint, timing: Timing) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = DaemonConfig {
            endpoint,
            name: "mini".to_owned(),
            root: directory.path().join("sandboxes"),
            version: "0.0.0-test".to_owned(),
            hostname: "test-host".to_owned(),
            environment: crate::config::inherited(),
            timing,
        };
        Self::with(config, Arc::new(directory))
    }

    fn with(config: DaemonConfig, directory: Arc<tempfile::TempDir>) -> Self {
        let (shutdown, asked) = oneshot::channel::<()>();
        let running = run(config.clone(), async move { drop(asked.await) });
        let task = actix_rt::spawn(running);
        Self {
            root: config.root.clone(),
            config,
            shutdown: Some(shutdown),
            task,
            _directory: directory,
        }
    }

    /// A daemon and its first connection, with the sandbox [`SB`].
    pub async fn connected() -> (Self, Server, Peer) {
        Self::connected_with(quick()).await
    }

    pub async fn connected_with(timing: Timing) -> (Self, Server, Peer) {
        let mut server = Server::start();
        let daemon = Self::start(fixed(&server.url), timing);
        let mut peer = server.peer().await;
        peer.get(json!({"op": "create", "name": SB})).await;
        (daemon, server, peer)
    }

    pub fn sandbox(&self) -> PathBuf {
        self.root.join(SB)
    }

    /// Stops it in good order and answers how it ended.
    pub async fn stop(mut self) -> Result<(), DaemonError> {
        drop(self.shutdown.take());
        self.ended().await
    }

    /// Stops it in good order and starts another one on the same root.
    pub async fn restart(mut self, endpoint: Endpoint) -> Self {
        drop(self.shutdown.take());
        self.ended().await.unwrap();
        let config = DaemonConfig {
            endpoint,
            ..self.config
        };
        Self::with(config, self._directory)
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> Result<(), DaemonError> {
        tokio::time::timeout(PATIENCE, &mut self.task)
            .await
            .expect("the daemon goes on")
            .unwrap()
    }
}

pub fn mode_of(path: impl AsRef<Path>) -> u32 {
    path.as_ref().metadata().unwrap().permissions().mode() & 0o7777
}

pub fn executable(path: &Path, script: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
