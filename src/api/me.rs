//! `GET /api/auth/me`: the key check of every client, and so a bare object (http-api 1.1, 5.2).

use actix_web::http::StatusCode;
use actix_web::web::Data;
use serde_json::json;

use super::auth::Signed;
use super::state::AppState;
use super::wire::{Reply, bare, seconds};
use fountain_actors::domain::account::Account;

/// What is switched off here is told as absent: billing without credits, broker, connections.
pub async fn show(state: Data<AppState>, caller: Signed) -> Reply {
    let account = &caller.account;
    let comped = state.settings.credits.is_some().then_some(account.comped);
    bare(
        StatusCode::OK,
        json!({
            "id": account.id.to_string(),
            "email": account.email,
            "role": role(account),
            "email_verified": account.email_verified_at.is_some(),
            "onboarding_completed": true,
            "comped": comped,
            "brokered": false,
            "connections_enabled": false,
            "connections_manageable": false,
            "chatgpt_subscriptions_enabled": false,
            "expires_at": caller.expires_at.map(seconds),
        }),
    )
}

fn role(account: &Account) -> &'static str {
    if account.is_admin { "admin" } else { "user" }
}
