//! What each request does (runner-protocol 3), and in which order the quick ones happen.
//!
//! Requests run concurrently and may be answered in any order. What must keep the order of arrival (the epoch of a name,
//! the place in an input queue, attach and detach) is done before [`Operations::begin`] returns; the rest is the future
//! that it answers.

use std::{future::Future, pin::Pin, rc::Rc, sync::Arc, time::Duration};

use serde_json::json;

use super::{
    State,
    commands::{self, on_pool},
    epochs::{self, Standing},
    paths, sandboxes,
    subscriptions::{Outbound, Subscriptions},
    wire::{self, Answer, Code, Refusal, Request},
};
use crate::process::{Session, StdinError};

/// Grace of a `terminate` that names none, and the longest that is granted.
const GRACE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// The requests of one connection.
pub struct Operations {
    state: Arc<State>,
    subscriptions: Rc<Subscriptions>,
    out: Outbound,
}

/// The rest of a request: its answer, or nothing when an emitter answers.
type Rest = Pin<Box<dyn Future<Output = Option<Answer>>>>;

impl Operations {
    /// For a connection that hears through `subscriptions` and answers through `out`.
    pub fn new(state: Arc<State>, subscriptions: Rc<Subscriptions>, out: Outbound) -> Self {
        Self {
            state,
            subscriptions,
            out,
        }
    }

    /// Begins a request now and finishes it on its own; the reply goes to the socket unless nobody reads it.
    pub fn run(&self, request: Request) {
        let id = request.id;
        let rest = self.begin(request);
        let out = self.out.clone();
        actix_rt::spawn(async move {
            let Some(answer) = rest.await else { return };
            if id == 0 {
                return;
            }
            let is_large = answer.as_ref().is_ok_and(|result| result.get("output").is_some());
            let text = if is_large {
                on_pool(move || Ok(wire::reply(id, &answer))).await
            } else {
                Ok(wire::reply(id, &answer))
            };
            // The connection may be gone; the deed is done all the same.
            let _ = out
                .send(text.unwrap_or_else(|refusal| wire::reply(id, &Err(refusal))))
                .await;
        });
    }

    fn begin(&self, request: Request) -> Rest {
        match self.by_session(&request) {
            Some(rest) => rest,
            None => self.by_name(request),
        }
    }

    /// Requests about a session; `None` for all others.
    fn by_session(&self, request: &Request) -> Option<Rest> {
        let session_id = request.session_id.as_deref().unwrap_or_default();
        let find = || {
            let owner = request.name.as_deref().filter(|name| !name.is_empty());
            let found = self.state.registry.get(owner, session_id);
            found.ok_or_else(|| Refusal::new(Code::NotFound, format!("no session {session_id}")))
        };
        Some(match request.op.as_str() {
            "detach" => {
                self.subscriptions.detach(session_id);
                done(Ok(json!({})))
            }
            "attach" => match find() {
                Ok(session) => {
                    self.subscriptions.attach(request.id, session);
                    Box::pin(async { None })
                }
                Err(refusal) => done(Err(refusal)),
            },
            "stdin" => match find().and_then(|session| Ok((session, wire::decode(request.data.clone())?))) {
                Ok((session, data)) => {
                    let writing = session.write(data);
                    Box::pin(async { Some(writing.await.map(|()| json!({})).map_err(refused_input)) })
                }
                Err(refusal) => done(Err(refusal)),
            },
            "stdin_close" => match find() {
                Ok(session) => {
                    let closing = session.close_stdin();
                    Box::pin(async { Some(closing.await.map(|()| json!({})).map_err(refused_input)) })
                }
                Err(refusal) => done(Err(refusal)),
            },
            "terminate" => match find() {
                Ok(session) => {
                    let grace = request.grace_ms.map_or(GRACE.0, Duration::from_millis).min(GRACE.1);
                    Box::pin(async move { Some(terminate(&session, grace).await) })
                }
                Err(refusal) => done(Err(refusal)),
            },
            _ => return None,
        })
    }

    /// Requests about a sandbox, or about all of them.
    fn by_name(&self, request: Request) -> Rest {
        const KNOWN: [&str; 10] = [
            "create",
            "get",
            "destroy",
            "list",
            "suspend",
            "resume",
            "write_file",
            "exec",
            "spawn",
            "list_sessions",
        ];
        if !KNOWN.contains(&request.op.as_str()) {
            return done(Err(Refusal::new(Code::NotSupported, request.op)));
        }
        let name = request.name.clone().unwrap_or_default();
        if request.op != "list" && !paths::is_sandbox_name(&name) {
            return done(Err(Refusal::new(Code::Invalid, "bad sandbox name")));
        }
        let standing = request.epoch.map(|epoch| self.state.epochs.judge(&name, epoch));
        let state = Arc::clone(&self.state);
        match standing {
            Some(Standing::Stale) => return done(Err(Refusal::new(Code::Invalid, epochs::STALE))),
            Some(Standing::Unsaved) => {
                let subscriptions = Rc::clone(&self.subscriptions);
                return Box::pin(async move {
                    match state.save_epochs().await {
                        Ok(()) => perform(state, subscriptions, name, request).await,
                        Err(refusal) => Some(Err(refusal)),
                    }
                });
            }
            Some(Standing::Current) | None => {}
        }
        Box::pin(perform(state, Rc::clone(&self.subscriptions), name, request))
    }
}

async fn perform(
    state: Arc<State>,
    subscriptions: Rc<Subscriptions>,
    name: String,
    request: Request,
) -> Option<Answer> {
    let answer = match request.op.as_str() {
        "create" => state.on_root(move |root| sandboxes::create(root, &name)).await,
        "get" => state.on_root(move |root| sandboxes::get(root, &name)).await,
        "list" => state.on_root(sandboxes::list).await,
        "resume" => state.on_root(move |root| sandboxes::resume(root, &name)).await,
        "suspend" => suspend(&state, name).await,
        "destroy" => destroy(&state, name).await,
        "write_file" => write_file(&state, name, request).await,
        "exec" => commands::exec(&state, &name, request).await,
        "list_sessions" => {
            let sessions = state.registry.of(&name);
            let found = state.on_root(move |root| sandboxes::find(root, &name)).await;
            found.map(|_| commands::listing(&sessions))
        }
        _ => {
            let id = request.id;
            match commands::spawn(&state, &name, request).await {
                Ok(session) => {
                    subscriptions.attach(id, session);
                    return None;
                }
                Err(refusal) => Err(refusal),
            }
        }
    };
    Some(answer)
}

async fn suspend(state: &Arc<State>, name: String) -> Answer {
    let sandbox = name.clone();
    state.on_root(move |root| sandboxes::find(root, &sandbox)).await?;
    state.registry.stop(&name, state.timing.stop_grace).await;
    state.on_root(move |root| sandboxes::suspend(root, &name)).await
}

async fn destroy(state: &Arc<State>, name: String) -> Answer {
    // Under another root nothing may be reported as destroyed, so that is looked at before anything is stopped.
    state.on_root(|_| Ok(())).await?;
    state.registry.stop(&name, state.timing.stop_grace).await;
    state.registry.forget(&name);
    let sandbox = name.clone();
    let answer = state.on_root(move |root| sandboxes::destroy(root, &sandbox)).await?;
    if state.epochs.destroyed(&name, std::time::SystemTime::now()) {
        state.save_epochs().await?;
    }
    Ok(answer)
}

async fn write_file(state: &Arc<State>, name: String, request: Request) -> Answer {
    let path = request.path.unwrap_or_default();
    if path.contains('\0') {
        return Err(Refusal::new(Code::Invalid, "a path cannot hold a NUL byte"));
    }
    let (data, mode) = (request.data, request.mode);
    state
        .on_root(move |root| sandboxes::write_file(root, &name, &path, &wire::decode(data)?, mode))
        .await
}

async fn terminate(session: &Session, grace: Duration) -> Answer {
    if session.stop(grace).await {
        Ok(json!({}))
    } else {
        Err(Refusal::new(
            Code::Unavailable,
            "the command is still running after SIGKILL",
        ))
    }
}

fn refused_input(error: StdinError) -> Refusal {
    let code = match error {
        StdinError::Exited => Code::CommandExited,
        StdinError::NotOpen | StdinError::Broken(_) => Code::WriteFailed,
        StdinError::Backlog => Code::Unavailable,
    };
    Refusal::new(code, error.to_string())
}

fn done(answer: Answer) -> Rest {
    Box::pin(std::future::ready(Some(answer)))
}
