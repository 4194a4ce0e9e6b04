//! Vaults and their secrets (http-api 4.3, 5.6). A vault's values win over the environment's of the same key.

use actix_web::HttpRequest;
use actix_web::web::Data;
use fountain_actors::domain::environment::{SecretHome, Vault};
use fountain_actors::domain::{ErrorCode, VaultId};
use fountain_actors::ports::store::catalog::NewVault;
use serde_json::{Map, Value, json};

use super::agents::fields::check_name;
use super::auth::Signed;
use super::body::Body;
use super::error::ApiError;
use super::path::PathId;
use super::secrets;
use super::state::AppState;
use super::wire::{self, Reply, seconds};

fn render(vault: &Vault) -> Value {
    json!({
        "id": vault.id.to_string(),
        "name": vault.name,
        "description": vault.description,
        "metadata": vault.metadata,
        "secret_count": vault.secret_count,
        "inserted_at": seconds(vault.inserted_at),
        "updated_at": seconds(vault.updated_at),
    })
}

fn merge(mut body: Body, mut vault: NewVault) -> Result<NewVault, ApiError> {
    if let Some(name) = body.text("name") {
        check_name(&mut body, &name);
        vault.name = name;
    }
    if let Some(description) = body.text("description") {
        vault.description = description;
    }
    if let Some(metadata) = body.map("metadata") {
        vault.metadata = metadata;
    }
    body.finish()?;
    Ok(vault)
}

pub async fn list(state: Data<AppState>, caller: Signed) -> Reply {
    wire::list(&state.store.vaults(caller.account_id()).await?, render)
}

async fn find(state: &AppState, caller: &Signed, id: VaultId) -> Result<Vault, ApiError> {
    let vault = state.store.vault(caller.account_id(), id).await?;
    vault.ok_or_else(|| ErrorCode::NotFound.into())
}

pub async fn show(state: Data<AppState>, caller: Signed, id: PathId<VaultId>) -> Reply {
    wire::ok(render(&find(&state, &caller, id.0).await?))
}

pub async fn create(state: Data<AppState>, caller: Signed, mut body: Body) -> Reply {
    if !body.has("name") {
        body.fault("name", "is required");
    }
    let blank = NewVault {
        name: String::new(),
        description: String::new(),
        metadata: Map::new(),
    };
    let vault = merge(body, blank)?;
    let id: VaultId = state.id();
    let audit = state.audit(&caller, "vault.created", "vault", id);
    let vault = state
        .store
        .create_vault(caller.account_id(), id, vault, audit, state.now())
        .await?;
    wire::created(render(&vault))
}

pub async fn update(state: Data<AppState>, caller: Signed, id: PathId<VaultId>, body: Body) -> Reply {
    let current = find(&state, &caller, id.0).await?;
    let merged = merge(
        body,
        NewVault {
            name: current.name,
            description: current.description,
            metadata: current.metadata,
        },
    )?;
    let audit = state.audit(&caller, "vault.updated", "vault", id.0);
    let vault = state
        .store
        .update_vault(caller.account_id(), id.0, merged, audit, state.now())
        .await?;
    wire::ok(render(&vault))
}

pub async fn delete(state: Data<AppState>, caller: Signed, id: PathId<VaultId>) -> Reply {
    let audit = state.audit(&caller, "vault.deleted", "vault", id.0);
    let deleted = state
        .store
        .delete_vault(caller.account_id(), id.0, audit, state.now())
        .await?;
    state.doors.destroy_fenced(deleted.announce(&*state.bus));
    wire::nothing()
}

pub async fn secrets(state: Data<AppState>, caller: Signed, id: PathId<VaultId>) -> Reply {
    secrets::list(&state, &caller, SecretHome::Vault(id.0)).await
}

pub async fn put_secret(state: Data<AppState>, caller: Signed, id: PathId<VaultId>, body: Body) -> Reply {
    secrets::put(&state, &caller, SecretHome::Vault(id.0), body).await
}

pub async fn set_expiry(
    state: Data<AppState>,
    caller: Signed,
    id: PathId<VaultId>,
    req: HttpRequest,
    body: Body,
) -> Reply {
    secrets::set_expiry(&state, &caller, SecretHome::Vault(id.0), &req, body).await
}

pub async fn delete_secret(state: Data<AppState>, caller: Signed, id: PathId<VaultId>, req: HttpRequest) -> Reply {
    secrets::delete(&state, &caller, SecretHome::Vault(id.0), &req).await
}
