//! Environments and their secrets (http-api 4.2, 4.3, 5.5).
//!
//! A secret's value goes in and never comes out. `POST` on secrets is an upsert by key and answers 201 always; `DELETE`
//! takes the key, not an id (caution 11).

pub mod fields;

use actix_web::HttpRequest;
use actix_web::web::Data;
use fountain_actors::domain::environment::{Environment, SecretHome};
use fountain_actors::domain::{EnvironmentId, ErrorCode};
use serde_json::{Value, json};

use super::auth::Signed;
use super::body::Body;
use super::error::ApiError;
use super::path::PathId;
use super::secrets;
use super::state::AppState;
use super::wire::{self, Reply, seconds};

fn render(environment: &Environment) -> Value {
    let config = &environment.config;
    json!({
        "id": environment.id.to_string(),
        "name": config.name,
        "packages": config.packages,
        "env_vars": config.env_vars,
        "setup_script": config.setup_script,
        "setup_timeout_seconds": config.setup_timeout_seconds,
        "networking_type": config.networking_type.as_str(),
        "networking_config": config.networking_config,
        "repositories": config.repositories,
        "metadata": config.metadata,
        "secret_count": environment.secret_count,
        "agent_count": environment.agent_count,
        "inserted_at": seconds(environment.inserted_at),
        "updated_at": seconds(environment.updated_at),
    })
}

pub async fn list(state: Data<AppState>, caller: Signed) -> Reply {
    wire::list(&state.store.environments(caller.account_id()).await?, render)
}

async fn find(state: &AppState, caller: &Signed, id: EnvironmentId) -> Result<Environment, ApiError> {
    let environment = state.store.environment(caller.account_id(), id).await?;
    environment.ok_or_else(|| ErrorCode::NotFound.into())
}

pub async fn show(state: Data<AppState>, caller: Signed, id: PathId<EnvironmentId>) -> Reply {
    wire::ok(render(&find(&state, &caller, id.0).await?))
}

pub async fn create(state: Data<AppState>, caller: Signed, body: Body) -> Reply {
    let config = fields::create(body)?;
    let id: EnvironmentId = state.id();
    let audit = state.audit(&caller, "environment.created", "environment", id);
    let environment = state
        .store
        .create_environment(caller.account_id(), id, config, audit, state.now())
        .await?;
    wire::created(render(&environment))
}

pub async fn update(state: Data<AppState>, caller: Signed, id: PathId<EnvironmentId>, body: Body) -> Reply {
    let current = find(&state, &caller, id.0).await?;
    let config = fields::merge(body, current.config)?;
    let audit = state.audit(&caller, "environment.updated", "environment", id.0);
    let environment = state
        .store
        .update_environment(caller.account_id(), id.0, config, audit, state.now())
        .await?;
    wire::ok(render(&environment))
}

pub async fn delete(state: Data<AppState>, caller: Signed, id: PathId<EnvironmentId>) -> Reply {
    let audit = state.audit(&caller, "environment.deleted", "environment", id.0);
    let deleted = state
        .store
        .delete_environment(caller.account_id(), id.0, audit, state.now())
        .await?;
    state.doors.destroy_fenced(deleted.announce(&*state.bus));
    wire::nothing()
}

pub async fn secrets(state: Data<AppState>, caller: Signed, id: PathId<EnvironmentId>) -> Reply {
    secrets::list(&state, &caller, SecretHome::Environment(id.0)).await
}

pub async fn put_secret(state: Data<AppState>, caller: Signed, id: PathId<EnvironmentId>, body: Body) -> Reply {
    secrets::put(&state, &caller, SecretHome::Environment(id.0), body).await
}

pub async fn delete_secret(
    state: Data<AppState>,
    caller: Signed,
    id: PathId<EnvironmentId>,
    req: HttpRequest,
) -> Reply {
    secrets::delete(&state, &caller, SecretHome::Environment(id.0), &req).await
}
