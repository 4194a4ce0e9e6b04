//! Labels: their rules, and the merge route (http-api 1.3, 4.12, 5.7.1).

use std::collections::BTreeMap;

use actix_web::HttpRequest;
use actix_web::web::{Data, Payload};
use fountain_actors::domain::{ConversationId, ErrorCode};
use serde_json::{Map, Value};

use super::{find, render};
use crate::api::auth::Signed;
use crate::api::body::Body;
use crate::api::path;
use crate::api::state::AppState;
use crate::api::wire::{self, Reply};

const MOST: usize = 32;
const LONGEST_KEY: usize = 64;
const LONGEST_VALUE: usize = 256;

/// Reads labels; None removes one. Faults name the key, under `labels`.
pub fn check(body: &mut Body, labels: Map<String, Value>) -> BTreeMap<String, Option<String>> {
    let mut read = BTreeMap::new();
    if labels.len() > MOST {
        body.fault("labels", "must be 32 at most");
    }
    for (key, value) in labels {
        if key.is_empty() || key.len() > LONGEST_KEY {
            let shown: String = key.chars().take(LONGEST_KEY).collect();
            body.fault("labels", format!("{shown}: a key has 1 to 64 bytes"));
        }
        match value {
            Value::Null => {
                read.insert(key, None);
            }
            Value::String(value) if value.len() <= LONGEST_VALUE => {
                read.insert(key, Some(value));
            }
            _ => body.fault("labels", format!("{key}: a value is text of 256 bytes at most")),
        }
    }
    read
}

pub async fn merge(state: Data<AppState>, caller: Signed, req: HttpRequest, payload: Payload) -> Reply {
    let id: ConversationId = path::segment(&req, "id")?;
    if caller.sprite_of().is_some_and(|own| own != id) {
        return Err(ErrorCode::SpriteMayNotLabelAnotherConversation.into());
    }
    let mut body = Body::read(&req, payload).await?;
    if !body.has("labels") {
        body.fault("labels", "is required");
    }
    let changes = body
        .map("labels")
        .map(|labels| check(&mut body, labels))
        .unwrap_or_default();
    find(&state, &caller, id).await?;
    body.finish()?;
    state
        .store
        .merge_labels(caller.account_id(), id, changes, state.now())
        .await?;
    wire::ok(render(&state, &find(&state, &caller, id).await?))
}
