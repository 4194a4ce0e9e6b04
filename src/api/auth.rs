//! Who is calling: bearer keys, and the result that handlers read (http-api 1.3, 2.3; RUL-19, RUL-64b).
//!
//! The key itself is hashed at once and goes no further: not into a log, an error or a span. The look-up is by its
//! SHA-256, so what the database compares is the digest of 32 random bytes and its timing tells nothing about the key.

use std::future::{Ready, ready};
use std::ops::Deref;

use actix_web::dev::{Payload, ServiceRequest};
use actix_web::http::header;
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fountain_actors::domain::account::{Account, ApiKey, Caller, Scope};
use fountain_actors::domain::{ConversationId, Moment};
use fountain_actors::ports::Rng;
use secrecy::SecretString;
use sha2::{Digest, Sha256};

use super::error::{ApiError, Denial};
use super::routes::Gate;
use super::state::AppState;

/// Longest credential that is looked at. Ours have 47 characters.
const LONGEST_KEY: usize = 512;

/// Characters of a key that are kept in clear (RUL-19).
const PREFIX_LENGTH: usize = 12;

/// The authenticated caller, as the door left it. A handler that asks for it on a public route gets 401.
#[derive(Clone, Debug)]
pub struct Signed {
    pub caller: Caller,
    /// When the key that was shown ends.
    pub expires_at: Option<Moment>,
}

impl Deref for Signed {
    type Target = Caller;
    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Signed {
    /// The conversation that a sandbox key was minted for.
    pub fn sprite_of(&self) -> Option<ConversationId> {
        match self.scope {
            Scope::Sprite(conversation) => Some(conversation),
            Scope::Full | Scope::Runner(_) => None,
        }
    }
}

impl FromRequest for Signed {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(req: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(
            req.extensions()
                .get::<Signed>()
                .cloned()
                .ok_or(ApiError::Denied(Denial::KeyInvalid)),
        )
    }
}

/// SHA-256 of a key: how it is stored and found.
pub fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// A fresh key and what of it may be shown: `ftn_` and 32 random bytes in url-safe base64 (RUL-19).
pub fn mint(rng: &dyn Rng) -> MintedKey {
    let mut bytes = [0u8; 32];
    rng.fill(&mut bytes);
    let key = format!("ftn_{}", URL_SAFE_NO_PAD.encode(bytes));
    MintedKey {
        prefix: key.chars().take(PREFIX_LENGTH).collect(),
        sha256: digest(&key),
        key: SecretString::from(key),
    }
}

/// A key that exists in clear only until its answer is sent.
pub struct MintedKey {
    pub key: SecretString,
    pub prefix: String,
    pub sha256: [u8; 32],
}

/// Finds the caller of a request, or says why there is none. Notes the use of the key.
pub async fn authenticate(req: &ServiceRequest, state: &AppState) -> Result<Signed, ApiError> {
    let sha256 = bearer(req).ok_or(Denial::KeyInvalid)?;
    let now = state.now();
    let (key, account) = state.store.key_by_hash(sha256).await?.ok_or(Denial::KeyInvalid)?;
    judge(&key, &account, now)?;
    state.stamps.note(key.id, now);
    Ok(Signed {
        expires_at: key.expires_at,
        caller: Caller {
            account,
            key_id: key.id,
            scope: key.scope,
            remote_ip: req.peer_addr().map(|address| address.ip().to_string()),
        },
    })
}

/// The digest of the bearer key; None when the header is missing or malformed.
fn bearer(req: &ServiceRequest) -> Option<[u8; 32]> {
    let value = req.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.trim().split_once(' ')?;
    let key = key.trim();
    let usable = scheme.eq_ignore_ascii_case("bearer") && !key.is_empty() && key.len() <= LONGEST_KEY;
    usable.then(|| digest(key))
}

/// Whether a key that was found gets in (http-api 2.3, in this order).
fn judge(key: &ApiKey, account: &Account, now: Moment) -> Result<(), Denial> {
    if key.revoked_at.is_some() {
        return Err(Denial::KeyRevoked);
    }
    if key.expires_at.is_some_and(|end| end <= now) {
        return Err(Denial::KeyExpired);
    }
    if !account.is_active() {
        return Err(Denial::AccountUnavailable);
    }
    // An account without an address (a claimable principal) has nothing to verify.
    if account.email.is_some() && account.email_verified_at.is_none() {
        return Err(Denial::EmailUnverified);
    }
    Ok(())
}

/// Whether this caller may pass a gate.
pub fn check(gate: Gate, caller: &Caller) -> Result<(), Denial> {
    let allowed = match (gate, &caller.scope) {
        (Gate::Public | Gate::Dial, _) | (Gate::Any, Scope::Full | Scope::Sprite(_)) => true,
        (Gate::Any, Scope::Runner(_)) => false,
        (Gate::Full | Gate::Keys | Gate::Admin, scope) => *scope == Scope::Full,
    };
    if !allowed {
        return Err(Denial::InsufficientScope);
    }
    if gate == Gate::Admin && !caller.account.is_admin {
        return Err(Denial::AdminRequired);
    }
    Ok(())
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
