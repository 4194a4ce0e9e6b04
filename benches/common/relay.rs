//! The bare relay that streaming is compared with: process -> WebSocket -> relay -> WebSocket -> client, where the relay
//! appends what it has to a file and syncs it before it passes it on, as the store does with its rows.
//!
//! It knows no protocol, no tenants, no rows and no replay: what is left is what any such path must pay.

use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ChildStdout;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::web::{self, Data};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use actix_ws::Message;
use anyhow::Context as _;
use awc::error::WsProtocolError as ProtocolError;
use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

use crate::common::acp::Agent;
use crate::common::{PATIENCE, say};

/// Largest frame either way.
const FRAME: usize = 1024 * 1024;
/// What one read of the process may bring.
const READ: usize = 64 * 1024;
/// Frames between the socket and the disk.
const QUEUE: usize = 64;
/// What ends a prompt's answer on the wire.
const END: &[u8] = b"\"stopReason\"";

/// What arrived at the client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrived {
    pub bytes: usize,
    pub lines: usize,
    pub took: Duration,
}

struct Relay {
    queue: mpsc::Sender<Bytes>,
    reader: Mutex<Option<oneshot::Sender<actix_ws::Session>>>,
}

/// Streams one prompt's answer through a relay of its own.
pub fn run(home: &Path, prompt: &str) -> anyhow::Result<Arrived> {
    // awc panics on its first request without one, plain HTTP included.
    let _ = rustls::crypto::ring::default_provider().install_default(); // installed by an earlier round: fine
    let agent = Agent::start(home)?;
    actix_rt::System::new().block_on(async {
        tokio::time::timeout(PATIENCE, stream(agent, home, prompt))
            .await
            .context("the relay did not finish")?
    })
}

async fn stream(agent: Agent, home: &Path, prompt: &str) -> anyhow::Result<Arrived> {
    let (queue, jobs) = mpsc::channel(QUEUE);
    let (reader, session) = oneshot::channel();
    let file = tempfile::tempfile_in(home)?;
    let disk = actix_rt::Arbiter::new();
    disk.spawn_fn(move || {
        actix_rt::spawn(persist(file, jobs, session));
    });
    let relay = Arc::new(Relay {
        queue,
        reader: Mutex::new(Some(reader)),
    });
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let server = HttpServer::new(move || {
        App::new()
            .app_data(Data::from(Arc::clone(&relay)))
            .route("/source", web::get().to(source))
            .route("/reader", web::get().to(reads))
    })
    .workers(2)
    .disable_signals()
    .listen(listener)?
    .run();
    let handle = server.handle();
    actix_rt::spawn(server);

    let client = actix_rt::Arbiter::new();
    let (ready, is_ready) = oneshot::channel();
    let (send, arrived) = oneshot::channel();
    client.spawn_fn(move || {
        actix_rt::spawn(async move {
            let _ = send.send(receive(address, ready).await); // the round may be over
        });
    });
    is_ready.await.context("the client did not connect")?;
    let daemon = actix_rt::Arbiter::new();
    let (mut prompter, stdout) = agent.split()?;
    let (ready, is_ready) = oneshot::channel();
    daemon.spawn_fn(move || {
        actix_rt::spawn(async move {
            if let Err(error) = forward(address, stdout, ready).await {
                say(&format!("the relay's source ended: {error:#}"));
            }
        });
    });
    is_ready.await.context("the source did not connect")?;
    let started = Instant::now();
    prompter.prompt(prompt)?;
    let (mut arrived, at) = arrived.await.context("the client went away")??;
    arrived.took = at.duration_since(started);
    for arbiter in [&client, &daemon, &disk] {
        arbiter.stop();
    }
    handle.stop(false).await;
    Ok(arrived)
}

/// The process's end: whatever a read brings is one frame.
async fn forward(address: SocketAddr, stdout: ChildStdout, ready: oneshot::Sender<()>) -> anyhow::Result<()> {
    let mut socket = connect(address, "source").await?;
    let mut pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?;
    let _ = ready.send(()); // the round may be over
    let mut buffer = vec![0; READ];
    loop {
        let read = pipe.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let frame = Bytes::copy_from_slice(buffer.get(..read).unwrap_or_default());
        socket.send(awc::ws::Message::Binary(frame)).await?;
    }
}

async fn connect(
    address: SocketAddr,
    path: &str,
) -> anyhow::Result<
    impl Sink<awc::ws::Message, Error = ProtocolError> + Stream<Item = Result<awc::ws::Frame, ProtocolError>>,
> {
    let connected = awc::Client::new()
        .ws(format!("ws://{address}/{path}"))
        .max_frame_size(FRAME)
        .connect()
        .await;
    let (_, socket) = connected.map_err(|error| anyhow::anyhow!("{path}: {error}"))?;
    Ok(socket)
}

async fn source(req: HttpRequest, body: web::Payload, relay: Data<Relay>) -> actix_web::Result<HttpResponse> {
    let (response, _session, stream) = actix_ws::handle(&req, body)?;
    let mut stream = stream.max_frame_size(FRAME);
    actix_web::rt::spawn(async move {
        let _session = _session;
        while let Some(Ok(message)) = stream.next().await {
            let Message::Binary(bytes) = message else { continue };
            if relay.queue.send(bytes).await.is_err() {
                return;
            }
        }
    });
    Ok(response)
}

async fn reads(req: HttpRequest, body: web::Payload, relay: Data<Relay>) -> actix_web::Result<HttpResponse> {
    let (response, session, mut stream) = actix_ws::handle(&req, body)?;
    if let Some(reader) = relay.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = reader.send(session); // the round may be over
    }
    actix_web::rt::spawn(async move { while let Some(Ok(_)) = stream.next().await {} });
    Ok(response)
}

/// The group commit: whatever is queued is written and synced together, then passed on.
async fn persist(file: File, mut jobs: mpsc::Receiver<Bytes>, session: oneshot::Receiver<actix_ws::Session>) {
    let Ok(mut session) = session.await else { return };
    let file = Arc::new(file);
    while let Some(first) = jobs.recv().await {
        let mut group = vec![first];
        while let Ok(next) = jobs.try_recv() {
            group.push(next);
        }
        let (to_write, target) = (group.clone(), Arc::clone(&file));
        let written = web::block(move || {
            let mut target = target.as_ref();
            to_write.iter().try_for_each(|bytes| target.write_all(bytes))?;
            target.sync_data()
        });
        if !matches!(written.await, Ok(Ok(()))) {
            return;
        }
        for bytes in group {
            if session.binary(bytes).await.is_err() {
                return;
            }
        }
    }
}

/// The client's end: counts until the prompt's answer has passed.
async fn receive(address: SocketAddr, ready: oneshot::Sender<()>) -> anyhow::Result<(Arrived, Instant)> {
    let mut socket = connect(address, "reader").await?;
    let _ = ready.send(()); // the round may be over
    let mut arrived = Arrived::default();
    // The end may lie across two frames.
    let mut tail = Vec::new();
    while let Some(frame) = socket.next().await {
        let awc::ws::Frame::Binary(bytes) = frame? else {
            continue;
        };
        arrived.bytes += bytes.len();
        arrived.lines += bytes.iter().filter(|byte| **byte == b'\n').count();
        tail.extend_from_slice(bytes.get(bytes.len().saturating_sub(256)..).unwrap_or_default());
        if tail.windows(END.len()).any(|window| window == END) {
            return Ok((arrived, Instant::now()));
        }
        let surplus = tail.len().saturating_sub(256);
        tail.drain(..surplus);
    }
    anyhow::bail!("the relay closed the stream")
}
