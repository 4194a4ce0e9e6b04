//! `GET /api/runners/ws`: the place where runner daemons dial in (http-api 5.12, runner-protocol 1).
//!
//! The checks of runner-protocol 1 in their order, then the socket: one task reads and hands batches of text to the
//! connection's actor, one writes with a deadline and pings. Neither waits for the other, because a peer that is slow to
//! read must still be heard, and one that is silent for 30 s is gone whatever its socket says (RUL-43, RUL-45, P68, P72).

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr};
use actix_web::http::header;
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use actix_ws::{AggregatedMessage, CloseCode, CloseReason, Session};
use fountain_actors::domain::account::Scope;
use fountain_actors::domain::runner::{RunnerDetails, is_runner_name};
use fountain_actors::domain::{ErrorCode, RunnerId};
use fountain_actors::runner::connection::{Disconnected, Registered};
use fountain_actors::runner::{CLOSE_DUPLICATE, Connections, Incoming, Outbound, RunnerConnection, RunnerRegistry};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::auth::Signed;
use super::error::{ApiError, Denial, Faults};
use super::query::Query;
use super::state::AppState;

/// Largest message either way, whole or in pieces (RUL-43a).
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;
const PING_EVERY: Duration = Duration::from_secs(10);
/// Nothing heard for this long: the peer is gone (RUL-45).
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// A write without progress for this long: the socket is stuck (RUL-43).
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Text messages handed over at once; what arrives meanwhile waits in the socket.
const BATCH: usize = 64;

/// What the door needs beside the state of the API.
pub struct RunnerDoor {
    pub connections: Arc<Connections>,
    /// Undurable bytes of one connection before it is closed (RUL-43).
    pub unsaved_limit: usize,
}

pub async fn connect(req: HttpRequest, payload: Payload) -> Result<HttpResponse, ApiError> {
    let state = req
        .app_data::<Data<AppState>>()
        .ok_or_else(|| ApiError::Internal("the state is mounted".into()))?;
    let door = req
        .app_data::<Data<RunnerDoor>>()
        .ok_or_else(|| ApiError::Internal("the door is mounted".into()))?;
    let signed = <Signed as actix_web::FromRequest>::extract(&req).await?;
    let query = Query::parse(req.query_string());
    let name = query.get("name").unwrap_or_default();
    match &signed.scope {
        Scope::Full => {}
        Scope::Runner(bound) if bound == name => {}
        Scope::Runner(_) => return Err(ErrorCode::RunnerNameMismatch.into()),
        Scope::Sprite(_) => return Err(Denial::InsufficientScope.into()),
    }
    if !state.settings.runners_enabled {
        return Err(ErrorCode::RunnersDisabled.into());
    }
    let upgrade = req.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if !upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        return Err(ErrorCode::NotAWebsocket.into());
    }
    let details = details(&query)?;
    let id = RunnerId(state.rng.uuid());
    // The row is refreshed even when the dial is refused as a duplicate (runner-protocol 1).
    let (runner, first) = state
        .store
        .dial_runner(signed.account_id(), id, name.to_owned(), details, state.now())
        .await?;
    if RunnerRegistry::is_online(&door.connections, runner.id) {
        return Err(ErrorCode::RunnerAlreadyConnected.into());
    }
    let (response, session, stream) =
        actix_ws::handle(&req, payload).map_err(|_| ApiError::from(ErrorCode::NotAWebsocket))?;
    let stream = stream
        .max_frame_size(MESSAGE_LIMIT)
        .aggregate_continuations()
        .max_continuation_size(MESSAGE_LIMIT);

    let (outbound, writes) = mpsc::unbounded_channel();
    let connection = RunnerConnection::new(
        runner.clone(),
        Arc::clone(&door.connections),
        outbound.clone(),
        door.unsaved_limit,
    )
    .start();
    match door
        .connections
        .register(runner.clone(), signed.key_id, connection.clone())
    {
        Ok(ticket) => {
            // The mailbox is empty but for this: nothing can be asked before the ticket is known.
            connection.do_send(Registered(ticket));
            tracing::info!(runner.id = %runner.id, first, "runner {} ({}) connected", runner.id, runner.name);
        }
        Err(_) => {
            let reason = format!("a runner named {} is connected already", runner.name);
            let _ = outbound.send(Outbound::Close {
                code: CLOSE_DUPLICATE,
                reason,
            });
        }
    }
    let closing = state.closing.clone();
    actix_web::rt::spawn(async move {
        let reader = read(stream, session.clone(), connection.clone());
        let writer = write(session, writes);
        let drained = async move {
            drained(closing).await;
            // Going away is a clean close: the daemon redials within a second. The writer ends with it.
            let _ = outbound.send(Outbound::Close {
                code: 1001,
                reason: "the server is going away".to_owned(),
            });
            std::future::pending::<()>().await;
        };
        // Whoever ends first ends the connection; its socket goes with the session that is dropped.
        tokio::select! {
            () = reader => {}
            () = writer => {}
            () = drained => {}
        }
        connection.do_send(Disconnected);
        tracing::info!(runner.id = %runner.id, "runner {} disconnected", runner.id);
    });
    Ok(response)
}

/// The process is shutting down.
async fn drained(mut closing: tokio::sync::watch::Receiver<bool>) {
    if closing.wait_for(|closing| *closing).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What the dial says of the machine, each within its limit (runner-protocol 1).
fn details(query: &Query) -> Result<RunnerDetails, ApiError> {
    let mut faults = Faults::new();
    if !is_runner_name(query.get("name").unwrap_or_default()) {
        let rule = "must be 1 to 63 of a-z, 0-9, '.', '_', '-', and begin with a letter or digit";
        faults.insert("name".into(), vec![rule.into()]);
    }
    let mut text = |key: &str, limit: usize| {
        let value = query.get(key).filter(|value| !value.is_empty())?;
        if value.len() > limit || value.contains('\0') {
            faults.insert(key.into(), vec![format!("must be at most {limit} bytes without NUL")]);
            return None;
        }
        Some(value.to_owned())
    };
    let details = RunnerDetails {
        hostname: text("hostname", 255),
        os: text("os", 40),
        arch: text("arch", 40),
        version: text("version", 80),
        root: text("root", 1024),
        root_id: text("root_id", 80),
        features: text("features", 400)
            .map(|list| list.split(',').map(|feature| feature.trim().to_owned()).collect())
            .unwrap_or_default(),
    };
    if faults.is_empty() {
        Ok(details)
    } else {
        Err(ApiError::Dial(faults))
    }
}

/// Reads until the peer is gone, silent, or says something that ends the connection.
async fn read(mut stream: actix_ws::AggregatedMessageStream, mut session: Session, connection: Addr<RunnerConnection>) {
    loop {
        let Ok(Some(Ok(message))) = timeout(SILENCE_LIMIT, stream.next()).await else {
            return;
        };
        let mut batch = Vec::new();
        let mut next = Some(message);
        let mut ended = false;
        while let Some(message) = next.take() {
            match message {
                AggregatedMessage::Text(text) => batch.push(text.to_string()),
                // Not a frame of this protocol: the same answer as text that is no JSON.
                AggregatedMessage::Binary(_) => batch.push("\u{0}binary".to_owned()),
                AggregatedMessage::Ping(bytes) => {
                    if timeout(WRITE_LIMIT, session.pong(&bytes)).await.is_err() {
                        return;
                    }
                }
                AggregatedMessage::Pong(_) => {}
                AggregatedMessage::Close(_) => ended = true,
            }
            if !ended && batch.len() < BATCH {
                next = match stream.next().now_or_never() {
                    Some(Some(Ok(message))) => Some(message),
                    Some(_) => {
                        ended = true;
                        None
                    }
                    None => None,
                };
            }
        }
        if !batch.is_empty() && !matches!(connection.send(Incoming(batch)).await, Ok(true)) {
            // The actor has said how to close; the writer does it, and its end ends this task.
            std::future::pending::<()>().await;
        }
        if ended {
            return;
        }
    }
}

/// Writes what the actor wants written, and pings.
async fn write(mut session: Session, mut writes: mpsc::UnboundedReceiver<Outbound>) {
    let mut ping = tokio::time::interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    loop {
        let written = tokio::select! {
            next = writes.recv() => match next {
                Some(Outbound::Text(text)) => timeout(WRITE_LIMIT, session.text(text)).await,
                Some(Outbound::Close { code, reason }) => {
                    let reason = CloseReason { code: CloseCode::from(code), description: Some(reason) };
                    let _ = timeout(WRITE_LIMIT, session.close(Some(reason))).await;
                    return;
                }
                None => return,
            },
            _ = ping.tick() => timeout(WRITE_LIMIT, session.ping(b"")).await,
        };
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}
