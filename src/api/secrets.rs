//! Secrets of environments and vaults: the same four verbs for both homes (http-api 4.3, 5.5, 5.6).
//!
//! A value is wrapped the moment it is read out of the body and is never rendered, logged or put into an audit row.

use actix_web::HttpRequest;
use fountain_actors::domain::ErrorCode;
use fountain_actors::domain::environment::{SecretHome, SecretInfo};
use secrecy::SecretString;
use serde_json::{Value, json};

use super::auth::Signed;
use super::body::{Body, Given, moment_of};
use super::path;
use super::state::AppState;
use super::wire::{self, Reply, seconds};

const LONGEST_KEY: usize = 200;

/// What the control plane itself puts into a machine: a secret of that name would take its place.
const RESERVED: &[&str] = &["FOUNTAIN_TOKEN", "FOUNTAIN_BASE_URL", "FOUNTAIN_CONVERSATION_ID"];

fn render(secret: &SecretInfo) -> Value {
    let mut rendered = json!({
        "id": secret.id.to_string(),
        "key": secret.key,
        "inserted_at": seconds(secret.inserted_at),
        "updated_at": seconds(secret.updated_at),
    });
    if let Some(map) = rendered.as_object_mut() {
        match secret.home {
            SecretHome::Environment(id) => {
                map.insert("environment_id".into(), id.to_string().into());
            }
            SecretHome::Vault(id) => {
                map.insert("vault_id".into(), id.to_string().into());
                map.insert("expires_at".into(), json!(secret.expires_at.map(seconds)));
            }
        }
    }
    rendered
}

/// `^[A-Z][A-Z0-9_]*$`, 1 to 200 characters (http-api 4.3).
pub fn is_secret_key(key: &str) -> bool {
    let bytes = key.as_bytes();
    bytes.len() <= LONGEST_KEY
        && bytes.first().is_some_and(u8::is_ascii_uppercase)
        && bytes
            .iter()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_')
}

pub async fn list(state: &AppState, caller: &Signed, home: SecretHome) -> Reply {
    wire::list(&state.store.secrets(caller.account_id(), home).await?, render)
}

/// Creates or overwrites; 201 both times.
pub async fn put(state: &AppState, caller: &Signed, home: SecretHome, mut body: Body) -> Reply {
    // The home first: a foreign id is 404, whatever the body says.
    state.store.secrets(caller.account_id(), home).await?;
    let key = body.required_text("key");
    let value = SecretString::from(body.required_text("value"));
    let expires_at = match home {
        SecretHome::Environment(_) => None,
        SecretHome::Vault(_) => body.optional("expires_at", |value| moment_of(&value)),
    };
    check_key(&mut body, &key);
    if !body.has_fault("value") && secrecy::ExposeSecret::expose_secret(&value).is_empty() {
        body.fault("value", "must not be empty");
    }
    body.finish()?;
    let audit = state.audit(caller, "secret.stored", resource(home), home_id(home));
    let stored = state
        .store
        .put_secret(caller.account_id(), home, key, value, expires_at, audit, state.now())
        .await?;
    wire::created(render(&stored))
}

fn check_key(body: &mut Body, key: &str) {
    if body.has_fault("key") {
        return;
    }
    if !is_secret_key(key) {
        body.fault("key", "must be 1 to 200 of A-Z, 0-9 and _, starting with a letter");
    } else if RESERVED.contains(&key) {
        body.fault("key", "is reserved for what Fountain itself gives to a sandbox");
    }
}

/// Only `expires_at`; null clears it. The one strict body (http-api 1.2).
pub async fn set_expiry(
    state: &AppState,
    caller: &Signed,
    home: SecretHome,
    req: &HttpRequest,
    mut body: Body,
) -> Reply {
    let key = path::text(req, "key")?;
    body.only(&["expires_at"]);
    let expires_at = match body.given("expires_at", |value| moment_of(&value)) {
        Given::Absent => {
            if body.is_sound() {
                body.fault("expires_at", "is required; null clears it");
            }
            None
        }
        Given::Null => None,
        Given::Value(moment) => Some(moment),
    };
    let known = state.store.secrets(caller.account_id(), home).await?;
    if !known.iter().any(|secret| secret.key == key) {
        return Err(ErrorCode::NotFound.into());
    }
    body.finish()?;
    let stored = state
        .store
        .set_secret_expiry(caller.account_id(), home, key, expires_at, state.now())
        .await?;
    wire::ok(render(&stored))
}

pub async fn delete(state: &AppState, caller: &Signed, home: SecretHome, req: &HttpRequest) -> Reply {
    let key = path::text(req, "key")?;
    let audit = state.audit(caller, "secret.deleted", resource(home), home_id(home));
    state
        .store
        .delete_secret(caller.account_id(), home, key, audit, state.now())
        .await?;
    wire::nothing()
}

fn resource(home: SecretHome) -> &'static str {
    match home {
        SecretHome::Environment(_) => "environment",
        SecretHome::Vault(_) => "vault",
    }
}

fn home_id(home: SecretHome) -> String {
    match home {
        SecretHome::Environment(id) => id.to_string(),
        SecretHome::Vault(id) => id.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_keys_are_environment_names_in_capitals() {
        for good in ["A", "GITHUB_TOKEN", "A1_"] {
            assert!(is_secret_key(good), "{good}");
        }
        for bad in ["", "a", "1A", "A-B", "A B", "Ä", &"A".repeat(201)] {
            assert!(!is_secret_key(bad), "{bad}");
        }
    }
}
