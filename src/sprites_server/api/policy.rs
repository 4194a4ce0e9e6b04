//! The network policy of a sprite (providers 1.9; RUL-L-113).

use std::sync::Arc;

use actix_web::{HttpResponse, web};
use serde_json::Value;

use super::caller::{Call, json};
use super::refusal::Refusal;
use crate::policy::Policy;
use crate::world::to_the_end;

/// `GET …/policy/network`
pub async fn get(call: Call) -> Result<HttpResponse, Refusal> {
    let sprite = call.sprite(&call.caller)?;
    Ok(HttpResponse::Ok().json(sprite.policy))
}

/// `POST …/policy/network`
pub async fn set(call: Call, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let value: Value = json(body).await?;
    let policy = Policy::parse(&value).map_err(|faults| Refusal::invalid(&faults.join("; ")))?;
    to_the_end(Arc::clone(&call.world).set_policy(call.caller, policy)).await?;
    Ok(HttpResponse::NoContent().finish())
}
