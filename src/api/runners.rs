//! Runners: list, forget, and keys that may dial as one of them (http-api 4.10, 5.12; RUL-19, RUL-L-95).

use actix_web::http::StatusCode;
use actix_web::web::Data;
use fountain_actors::domain::RunnerId;
use fountain_actors::domain::account::Scope;
use fountain_actors::domain::runner::{Runner, is_runner_name};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::api_keys;
use super::auth::Signed;
use super::body::Body;
use super::path::PathId;
use super::state::AppState;
use super::wire::{self, Reply, bare, seconds};

fn render(runner: &Runner, online: bool) -> Value {
    let details = &runner.details;
    json!({
        "id": runner.id.to_string(),
        "name": runner.name,
        "hostname": details.hostname,
        "os": details.os,
        "arch": details.arch,
        "version": details.version,
        "root": details.root,
        "online": online,
        "connected_at": runner.connected_at.map(seconds),
        "last_seen_at": runner.last_seen_at.map(seconds),
        "created_at": seconds(runner.inserted_at),
    })
}

pub async fn list(state: Data<AppState>, caller: Signed) -> Reply {
    let runners = state.store.runners(caller.account_id()).await?;
    wire::list(&runners, |runner| render(runner, state.runners.is_online(runner.id)))
}

/// Hides the row and ends a live connection. Its sandboxes stay where they are.
pub async fn delete(state: Data<AppState>, caller: Signed, id: PathId<RunnerId>) -> Reply {
    state
        .store
        .forget_runner(caller.account_id(), id.0, state.now())
        .await?;
    state.runners.disconnect(id.0);
    // What was fenced on it ended with it (RUL-L-95).
    state.bus.slot_freed();
    wire::nothing()
}

/// A key that can do nothing but dial as the runner of this name (runner-protocol 1.1).
pub async fn create_key(state: Data<AppState>, caller: Signed, mut body: Body) -> Reply {
    let name = body.required_text("name");
    if !body.has_fault("name") && !is_runner_name(&name) {
        body.fault(
            "name",
            "must be 1 to 63 of a-z, 0-9, . _ -, starting with a letter or digit",
        );
    }
    body.finish()?;
    let label = format!("runner:{name}");
    let (key, minted) = api_keys::mint(
        &state,
        &caller,
        label,
        Scope::Runner(name.clone()),
        "api_key.runner_created",
    )
    .await?;
    bare(
        StatusCode::CREATED,
        json!({
            "id": key.id.to_string(),
            "runner_name": name,
            "key": minted.key.expose_secret(),
            "prefix": key.prefix,
        }),
    )
}
