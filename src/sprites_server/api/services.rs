//! Services over HTTP (providers 1.10). The record changes with the sprite held; what follows is watched without it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream;
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::caller::{Call, json};
use super::refusal::Refusal;
use super::sprites::rfc3339;
use crate::exec::duration;
use crate::services::log::{Log, event};
use crate::services::{Fault, GRACE, Service, Slot, State, Status, check};
use crate::world::{World, to_the_end};

/// How long output is shown after a start when nothing else is asked for.
const SHOWN: Duration = Duration::from_secs(5);
/// How long a start may take before its stream ends without it; what is needed may be slow.
const STARTING: Duration = Duration::from_secs(60);
/// Lines of a log when nothing else is asked for, and at most.
const LINES: (usize, usize) = (100, 10_000);

#[derive(Deserialize)]
struct Wanted {
    cmd: Option<String>,
    args: Option<Vec<String>>,
    needs: Option<Vec<String>>,
    http_port: Option<u16>,
    env: Option<BTreeMap<String, String>>,
    dir: Option<String>,
}

#[derive(Deserialize)]
struct Signalled {
    name: String,
    signal: String,
}

/// What may stand in a query.
#[derive(Deserialize)]
pub struct Times {
    duration: Option<String>,
    timeout: Option<String>,
    lines: Option<String>,
}

impl Times {
    fn read(text: Option<&String>, otherwise: Duration) -> Result<Duration, Refusal> {
        let Some(text) = text else { return Ok(otherwise) };
        duration::parse(text).map_err(|error| Refusal::invalid(&error.to_string()))
    }

    fn shown(&self) -> Result<Duration, Refusal> {
        Self::read(self.duration.as_ref(), SHOWN)
    }

    fn grace(&self) -> Result<Duration, Refusal> {
        Self::read(self.timeout.as_ref(), GRACE)
    }
}

/// `GET …/services`
pub async fn list(call: Call) -> Result<HttpResponse, Refusal> {
    let sprite = call.sprite(&call.caller)?;
    let shown = sprite.services.iter();
    let shown: Vec<_> = shown
        .map(|(name, service)| entry(name, service, call.services.slot(&sprite.id, name)))
        .collect();
    Ok(HttpResponse::Ok().json(shown))
}

/// `GET …/services/{service}`
pub async fn get(call: Call, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (sprite, name) = (call.sprite(&call.caller)?, wanted(&request));
    let service = sprite.services.get(&name).ok_or_else(missing)?;
    Ok(HttpResponse::Ok().json(entry(&name, service, call.services.slot(&sprite.id, &name))))
}

/// `PUT …/services/{service}`: makes or replaces it, and starts it. One that is the same and runs goes on.
pub async fn put(
    call: Call,
    request: HttpRequest,
    times: web::Query<Times>,
    body: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let (shown, grace, name) = (times.shown()?, times.grace()?, wanted(&request));
    let asked: Wanted = json(body).await?;
    let service = Service {
        cmd: asked.cmd.unwrap_or_default(),
        args: asked.args.unwrap_or_default(),
        needs: asked.needs.unwrap_or_default(),
        http_port: asked.http_port,
        env: asked.env.unwrap_or_default(),
        dir: asked.dir.filter(|dir| !dir.is_empty()),
        stopped: false,
    };
    let key = name.clone();
    let slot = started(&call, name, grace, move |services| {
        check(services, &key, &service).map_err(|fault| refused(&fault))?;
        let old = services.insert(key, service.clone());
        Ok(old.is_some_and(|old| Service { stopped: false, ..old } != service))
    });
    let (slot, _) = slot.await?;
    Ok(streamed(|lines| async move { follow(&slot, shown, &lines).await }))
}

/// `DELETE …/services/{service}`
pub async fn delete(call: Call, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (world, caller, name) = (Arc::clone(&call.world), call.caller.clone(), wanted(&request));
    let deleted = to_the_end(async move {
        let _alone = world.alone(&caller).await?;
        let mut sprite = world.sprite(&caller)?;
        sprite.services.remove(&name).ok_or_else(missing)?;
        let mut others = sprite.services.iter();
        if let Some((other, _)) = others.find(|(_, other)| other.needs.contains(&name)) {
            return Err(Refusal::new(
                StatusCode::CONFLICT,
                &format!("service '{other}' needs it"),
            ));
        }
        world.save(&sprite).await?;
        if let Some(slot) = world.services.stop(&sprite.id, &name, GRACE) {
            slot.over().await;
        }
        world.services.forget(&sprite.id, &name);
        Ok(())
    });
    deleted.await?;
    Ok(HttpResponse::NoContent().finish())
}

/// `POST …/services/{service}/start`
pub async fn start(call: Call, request: HttpRequest, times: web::Query<Times>) -> Result<HttpResponse, Refusal> {
    let (shown, name) = (times.shown()?, wanted(&request));
    let key = name.clone();
    let (slot, _) = started(&call, name, GRACE, move |services| wake(services, &key).map(|()| false)).await?;
    Ok(streamed(|lines| async move { follow(&slot, shown, &lines).await }))
}

/// `POST …/services/{service}/restart`
pub async fn restart(call: Call, request: HttpRequest, times: web::Query<Times>) -> Result<HttpResponse, Refusal> {
    let (shown, grace, name) = (times.shown()?, times.grace()?, wanted(&request));
    let key = name.clone();
    let (slot, before) = started(&call, name, grace, move |services| wake(services, &key).map(|()| true)).await?;
    Ok(streamed(|lines| async move {
        if let Some(before) = before {
            farewell(&before, &lines).await;
        }
        follow(&slot, shown, &lines).await;
    }))
}

/// `POST …/services/{service}/stop`: it stays stopped until somebody starts it.
pub async fn stop(call: Call, request: HttpRequest, times: web::Query<Times>) -> Result<HttpResponse, Refusal> {
    let (grace, name) = (times.grace()?, wanted(&request));
    let (world, caller) = (Arc::clone(&call.world), call.caller.clone());
    let slot = to_the_end(async move {
        let _alone = world.alone(&caller).await?;
        let mut sprite = world.sprite(&caller)?;
        sprite.services.get_mut(&name).ok_or_else(missing)?.stopped = true;
        world.save(&sprite).await?;
        Ok(world.services.stop(&sprite.id, &name, grace))
    });
    let slot = slot.await?;
    Ok(streamed(|lines| async move {
        match slot {
            Some(slot) => farewell(&slot, &lines).await,
            None => lines.tell("stopped", json!({})).await,
        }
        lines.complete().await;
    }))
}

/// `GET …/services/{service}/logs`
pub async fn logs(call: Call, request: HttpRequest, times: web::Query<Times>) -> Result<HttpResponse, Refusal> {
    let (sprite, name) = (call.sprite(&call.caller)?, wanted(&request));
    sprite.services.get(&name).ok_or_else(missing)?;
    let shown = Times::read(times.duration.as_ref(), Duration::ZERO)?;
    let count = match &times.lines {
        None => LINES.0,
        Some(text) => text.parse().map_err(|_| Refusal::invalid("invalid lines"))?,
    };
    let slot = call.services.slot(&sprite.id, &name);
    Ok(streamed(|lines| async move {
        if let Some(session) = slot.and_then(|slot| slot.state().session) {
            let mut log = Log::of(&session);
            match log.last(&session, count.min(LINES.1)).await {
                Ok(events) => {
                    for event in events {
                        lines.send(&event).await;
                    }
                    show(log, shown, &lines).await;
                }
                Err(error) => unreadable(&error, &lines).await,
            }
        }
        lines.complete().await;
    }))
}

/// `POST …/services/signal`
pub async fn signal(call: Call, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let asked: Signalled = json(body).await?;
    let which = asked.signal.trim().to_ascii_uppercase();
    let which = if which.starts_with("SIG") {
        which
    } else {
        format!("SIG{which}")
    };
    let which = Signal::from_str(&which).map_err(|_| Refusal::invalid("invalid signal"))?;
    let _shared = call.shared(&call.caller).await?;
    let sprite = call.sprite(&call.caller)?;
    sprite.services.get(&asked.name).ok_or_else(missing)?;
    let state = call.services.slot(&sprite.id, &asked.name).map(|slot| slot.state());
    let running = state.filter(|state| matches!(state.status, Status::Running | Status::Stopping));
    let session = running.and_then(|state| state.session);
    let not_running = || Refusal::new(StatusCode::CONFLICT, "the service is not running");
    session.ok_or_else(not_running)?.signal(which);
    Ok(HttpResponse::NoContent().finish())
}

fn wanted(request: &HttpRequest) -> String {
    request.match_info().get("service").unwrap_or_default().to_owned()
}

fn missing() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "service not found")
}

fn refused(fault: &Fault) -> Refusal {
    match fault {
        Fault::SecondPort(_) => Refusal::new(StatusCode::CONFLICT, &fault.to_string()),
        _ => Refusal::invalid(&fault.to_string()),
    }
}

fn wake(services: &mut BTreeMap<String, Service>, name: &str) -> Result<(), Refusal> {
    services.get_mut(name).ok_or_else(missing)?.stopped = false;
    Ok(())
}

fn entry(name: &str, service: &Service, slot: Option<Arc<Slot>>) -> Value {
    let state = slot.map(|slot| slot.state()).unwrap_or_default();
    let State {
        status,
        pid,
        started_at,
        error,
        restart_count,
        next_restart_at,
        exit_code: _,
        session: _,
        is_over: _,
    } = state;
    let mut entry = serde_json::to_value(service).unwrap_or_default();
    if let Some(fields) = entry.as_object_mut() {
        fields.remove("stopped");
        fields.insert("name".to_owned(), name.into());
        let state = json!({
            "name": name, "status": status, "pid": pid, "started_at": started_at.map(rfc3339), "error": error,
            "restart_count": restart_count, "next_restart_at": next_restart_at.map(rfc3339),
        });
        fields.insert("state".to_owned(), state);
    }
    entry
}

/// Changes the record, then starts the service; when the change says so, what runs is stopped first. Answers the slot, and
/// the one that was stopped.
async fn started(
    call: &Call,
    name: String,
    grace: Duration,
    change: impl FnOnce(&mut BTreeMap<String, Service>) -> Result<bool, Refusal> + 'static,
) -> Result<(Arc<Slot>, Option<Arc<Slot>>), Refusal> {
    let (world, caller) = (Arc::clone(&call.world), call.caller.clone());
    to_the_end(async move {
        let _alone = world.alone(&caller).await?;
        let mut sprite = world.sprite(&caller)?;
        let stops = change(&mut sprite.services)?;
        world.save(&sprite).await?;
        start_again(&world, &sprite, &name, stops.then_some(grace)).await
    })
    .await
}

async fn start_again(
    world: &World,
    sprite: &crate::state::record::Sprite,
    name: &str,
    stops: Option<Duration>,
) -> Result<(Arc<Slot>, Option<Arc<Slot>>), Refusal> {
    let before = stops.and_then(|grace| world.services.stop(&sprite.id, name, grace));
    let inside = world.enter_services(sprite).await?;
    let slot = world.services.start(&inside, &sprite.services, name);
    Ok((slot.ok_or_else(missing)?, before))
}

/// Where lines go. A client that left is nobody's news.
struct Lines(mpsc::Sender<Bytes>);

impl Lines {
    async fn send(&self, line: &Value) {
        let _ = self.0.send(Bytes::from(format!("{line}\n"))).await;
    }

    async fn tell(&self, kind: &str, more: Value) {
        self.send(&event(kind, more)).await;
    }

    /// Logs are no files inside; the map of them is empty.
    async fn complete(&self) {
        self.tell("complete", json!({"log_files": {}})).await;
    }
}

fn streamed<F: Future<Output = ()> + 'static>(tell: impl FnOnce(Lines) -> F) -> HttpResponse {
    let (sender, lines) = mpsc::channel(8);
    let gone = sender.clone();
    let telling = tell(Lines(sender));
    actix_web::rt::spawn(async move {
        tokio::select! { () = telling => {}, () = gone.closed() => {} }
    });
    let body = stream::unfold(lines, |mut lines| async move {
        let line = lines.recv().await?;
        Some((Ok::<_, Refusal>(line), lines))
    });
    HttpResponse::Ok().content_type("application/x-ndjson").streaming(body)
}

/// A start, its first output, and its end if it comes so soon.
async fn follow(slot: &Slot, shown: Duration, lines: &Lines) {
    let mut state = slot.watch();
    let begun = state.wait_for(|state| state.is_over || state.started_at.is_some() || state.status == Status::Failed);
    let begun = match tokio::time::timeout(STARTING, begun).await {
        Ok(Ok(state)) => state.clone(),
        Ok(Err(_)) | Err(_) => slot.state(),
    };
    match begun.session.filter(|_| begun.started_at.is_some()) {
        Some(session) => {
            lines.tell("started", json!({})).await;
            show(Log::of(&session), shown, lines).await;
        }
        None => {
            let error = begun.error.unwrap_or_else(|| "it has not started yet".to_owned());
            lines.tell("error", json!({"data": error})).await;
        }
    }
    lines.complete().await;
}

/// Output for a while, or to its end.
async fn show(mut log: Log, shown: Duration, lines: &Lines) {
    let until = Instant::now() + shown;
    loop {
        match tokio::time::timeout_at(until, log.next()).await {
            Err(_) => return,
            Ok(Ok(Ok(event))) => lines.send(&event).await,
            Ok(Ok(Err(exit))) => return lines.tell("exit", json!({"exit_code": exit.verdict()})).await,
            Ok(Err(error)) => return unreadable(&error, lines).await,
        }
    }
}

async fn unreadable(error: &std::io::Error, lines: &Lines) {
    tracing::error!(%error, "the log of a service cannot be read");
    lines.tell("error", json!({"data": "the log cannot be read"})).await;
}

/// A stop, to its end.
async fn farewell(slot: &Slot, lines: &Lines) {
    if !slot.is_over() {
        lines.tell("stopping", json!({})).await;
    }
    slot.over().await;
    lines
        .tell("stopped", json!({"exit_code": slot.state().exit_code}))
        .await;
}
