//! The network policy of a sprite (providers 1.9; RUL-L-113).

use std::sync::Arc;

use actix_web::{HttpResponse, web};

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
    let policy: Policy = json(body).await?;
    let is_sound = policy.rules.iter().all(|rule| match (&rule.domain, &rule.include) {
        (Some(domain), None) => !domain.is_empty() && rule.action.is_some(),
        (None, Some(include)) => include == "defaults",
        _ => false,
    });
    if !is_sound {
        return Err(Refusal::invalid(
            "a rule has a domain and an action, or includes defaults",
        ));
    }
    to_the_end(Arc::clone(&call.world).set_policy(call.caller, policy)).await?;
    Ok(HttpResponse::NoContent().finish())
}
