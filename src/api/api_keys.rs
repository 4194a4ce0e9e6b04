//! API keys: list, mint, revoke (http-api 5.3, RUL-19). The key itself is answered once, by its creation.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use fountain_actors::domain::KeyId;
use fountain_actors::domain::account::{ApiKey, NewApiKey, Scope};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::auth::{self, MintedKey, Signed};
use super::body::Body;
use super::error::ApiError;
use super::path::PathId;
use super::state::AppState;
use super::wire::{self, Reply, bare, seconds};

/// Longest name of a key, in characters: the rule of every other name.
const LONGEST_NAME: usize = 200;

fn render(key: &ApiKey) -> Value {
    json!({
        "id": key.id.to_string(),
        "name": key.name,
        "prefix": key.prefix,
        "scopes": [key.scope.wire()],
        "created_at": seconds(key.inserted_at),
        "last_used_at": key.last_used_at.map(seconds),
        "expires_at": key.expires_at.map(seconds),
    })
}

pub async fn list(state: Data<AppState>, caller: Signed) -> Reply {
    let keys = state.store.keys(caller.account_id(), state.now()).await?;
    wire::list(&keys, render)
}

pub async fn create(state: Data<AppState>, caller: Signed, mut body: Body) -> Reply {
    let name = body.required_text("name");
    if body.is_sound() && (name.trim().is_empty() || name.chars().count() > LONGEST_NAME) {
        body.fault("name", "must have 1 to 200 characters");
    }
    body.finish()?;
    let (key, minted) = mint(&state, &caller, name, Scope::Full, "api_key.created").await?;
    bare(
        StatusCode::CREATED,
        json!({
            "id": key.id.to_string(),
            "name": key.name,
            "key": minted.key.expose_secret(),
            "prefix": key.prefix,
            "created_at": seconds(key.inserted_at),
        }),
    )
}

/// Stores a fresh key of this account.
pub async fn mint(
    state: &AppState,
    caller: &Signed,
    name: String,
    scope: Scope,
    action: &'static str,
) -> Result<(ApiKey, MintedKey), ApiError> {
    let minted = auth::mint(&*state.rng);
    let id: KeyId = state.id();
    let new = NewApiKey {
        id,
        account_id: caller.account_id(),
        name,
        prefix: minted.prefix.clone(),
        sha256: minted.sha256,
        scope,
        expires_at: None,
    };
    let audit = state.audit(caller, action, "api_key", id);
    let key = state.store.create_key(new, Some(audit), state.now()).await?;
    Ok((key, minted))
}

/// Effective at once; may revoke the key that asks. What dialled with it is disconnected (runner-protocol 1.1).
pub async fn revoke(state: Data<AppState>, caller: Signed, id: PathId<KeyId>) -> Reply {
    let audit = state.audit(&caller, "api_key.revoked", "api_key", id.0);
    let key = state
        .store
        .revoke_key(caller.account_id(), id.0, Some(audit), state.now())
        .await?;
    state.runners.key_revoked(key.id);
    wire::nothing()
}
