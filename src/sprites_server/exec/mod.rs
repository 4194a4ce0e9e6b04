//! Commands of a sprite: the exec WebSocket, its sessions, kill, and the HTTP exec (providers 1.3 to 1.5).
//!
//! These are the doors of one sprite that was already found, authorised and opened: the server mounts them and hands in a
//! [`SpriteExec`]. A session is a `fountain_process::Session` with a durable journal; a client is a cursor into it, so
//! attach and live output are the same walk from byte zero, and a slow client costs a few messages of memory. Nothing
//! here ends a socket without a verdict unless the verdict is lost (RUL-L-112).

mod attachments;
pub mod duration;
mod kill;
mod once;
pub mod query;
mod socket;

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use actix_web::{
    HttpRequest, HttpResponse,
    http::{StatusCode, header},
    web,
};
use fountain_process::{Launch, Ledger, Leftovers, Registry, Session, StartError, Stderr, Stdin, Stream};
use serde_json::json;

pub use attachments::{Attachment, Attachments};
pub use kill::kill;
pub use once::{BODY_LIMIT, post};
use query::{ExecQuery, Run};

use crate::enclosure::Enclosure;

/// Largest message from a client, in bytes. A larger one closes its socket with 1009.
pub const MAX_FRAME: usize = 10 * 1024 * 1024 + 1;
/// Finished sessions that one sprite keeps (RUL-L-112).
pub const FINISHED_KEPT: usize = 100;
/// How long a finished session stays attachable (RUL-L-112); for `Registry::forget_older`.
pub const FINISHED_FOR: Duration = Duration::from_secs(24 * 3600);
/// What a shell answers for a program that is not there.
const NOT_FOUND: i32 = 127;
/// What a shell answers for a program that cannot be run.
const NOT_RUNNABLE: i32 = 126;

/// Times of an exec socket.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Silence after which a keepalive is sent. The JS client gives up after 45 s.
    pub keepalive: Duration,
    /// How long a socket stays open after the exit frame, for the client to close it.
    pub hold: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            keepalive: Duration::from_secs(10),
            hold: Duration::from_secs(5),
        }
    }
}

/// The commands of one sprite.
#[derive(Clone)]
pub struct SpriteExec {
    /// The sprite's id: the owner of its sessions in the registry.
    pub owner: String,
    /// The sessions of all sprites.
    pub registry: Arc<Registry>,
    /// The clients of all sprites.
    pub attachments: Arc<Attachments>,
    /// Where this sprite's sessions leave their journals; a durable one.
    pub ledger: Arc<Ledger>,
    /// Where its commands run.
    pub enclosure: Arc<dyn Enclosure>,
    /// What every command gets; the variables of a request win.
    pub environment: Vec<(String, String)>,
    pub settings: Settings,
}

/// `GET /v1/sprites/{n}/exec`: a socket when it asks to be one, else the list of sessions.
pub async fn get(sprite: SpriteExec, request: HttpRequest, body: web::Payload) -> HttpResponse {
    if !wants_socket(&request) {
        return list(&sprite);
    }
    match ExecQuery::parse(request.query_string()) {
        Ok(ExecQuery::Attach(id)) => socket::attach(&sprite, &id, &request, body),
        Ok(ExecQuery::Run(run)) => socket::run(sprite, run, &request, body).await,
        Err(error) => refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

/// `GET /v1/sprites/{n}/exec/{session}`: attaches.
pub async fn attach(sprite: SpriteExec, session: &str, request: HttpRequest, body: web::Payload) -> HttpResponse {
    if wants_socket(&request) {
        socket::attach(&sprite, session, &request, body)
    } else {
        refuse(StatusCode::BAD_REQUEST, "attaching needs a WebSocket")
    }
}

/// The running sessions, newest first (providers 1.4).
pub fn list(sprite: &SpriteExec) -> HttpResponse {
    let sessions = sprite.registry.of(&sprite.owner);
    let running = sessions.iter().filter(|session| session.exit().is_none());
    let shown: Vec<_> = running.map(|session| entry(sprite, session)).collect();
    HttpResponse::Ok().json(json!({"count": shown.len(), "sessions": shown}))
}

fn entry(sprite: &SpriteExec, session: &Session) -> serde_json::Value {
    let age = session.created_at().elapsed().unwrap_or_default().as_secs().max(1);
    json!({
        "id": session.id(),
        "command": session.command(),
        "workdir": session.cwd(),
        "created": rfc3339(session.created_at()),
        "bytes_per_second": session.tail().output() / age,
        "is_active": sprite.attachments.is_watched(session.id()),
        "last_activity": rfc3339(session.last_activity_at()),
        "tty": session.has_terminal(),
    })
}

impl SpriteExec {
    /// Starts a session. A program that cannot run is one as well: already over, with the reason on its standard error.
    async fn start(&self, run: &Run) -> Result<Arc<Session>, StartError> {
        let (id, shown) = (format!("{:016x}", rand::random::<u64>()), run.shown());
        let spawner = self.enclosure.spawner();
        let starting = async {
            let started = Session::start(&spawner, id.clone(), shown.clone(), self.launch(run), &self.ledger).await;
            let error = match started {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            let code = match error.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => NOT_RUNNABLE,
            };
            let line = format!("{}: {error}\n", run.path);
            Ok(Session::ended_with(id.clone(), shown.clone(), (Stream::Stderr, &line), code, &self.ledger).await)
        };
        self.registry.start(&self.owner, starting).await
    }

    fn launch(&self, run: &Run) -> Launch {
        let home = self.enclosure.home();
        let mut env = self.environment.clone();
        if run.terminal.is_some() && env.iter().all(|(name, _)| name != "TERM") {
            env.push(("TERM".to_owned(), "xterm-256color".to_owned()));
        }
        env.extend(run.env.iter().cloned());
        let dir = run.dir.as_deref().unwrap_or(home);
        Launch {
            program: run.path.clone().into(),
            args: run.args.iter().map(Into::into).collect(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            cwd: std::path::Path::new(home).join(dir),
            stdin: if run.stdin { Stdin::Pipe } else { Stdin::Null },
            stderr: Stderr::Journal,
            leftovers: Leftovers::SESSION,
            terminal: run.terminal,
        }
    }

    fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.registry.get(Some(&self.owner), id)
    }
}

fn wants_socket(request: &HttpRequest) -> bool {
    let upgrade = request.headers().get(header::UPGRADE);
    upgrade
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

fn refuse(status: StatusCode, why: &str) -> HttpResponse {
    HttpResponse::build(status).json(json!({"error": why}))
}

fn not_started(error: &StartError) -> HttpResponse {
    tracing::warn!(%error, "a command was not started");
    refuse(StatusCode::SERVICE_UNAVAILABLE, "the sprite is being stopped")
}

fn no_session(id: &str) -> HttpResponse {
    HttpResponse::NotFound()
        .content_type("text/plain; charset=utf-8")
        .body(format!("session not found: {id}"))
}

fn rfc3339(time: SystemTime) -> String {
    chrono::DateTime::<chrono::Utc>::from(time).to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests;
