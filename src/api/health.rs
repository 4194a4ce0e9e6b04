//! Liveness, readiness and the page at `/` (http-api 5.1, RUL-19b, RUL-31).
//!
//! Liveness touches nothing. Readiness asks what is configured, which is the database; providers are not asked, because
//! a provider that is down is no reason to take the control plane out of service.

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::web::Data;
use actix_web::{HttpResponse, Responder};
use serde_json::json;

use super::state::AppState;
use super::wire::{Reply, bare};

pub async fn alive() -> Reply {
    bare(StatusCode::OK, json!({"status": "ok"}))
}

pub async fn ready(state: Data<AppState>) -> Reply {
    let (status, word) = match tokio::time::timeout(state.api.ready_timeout, state.store.ping()).await {
        Ok(Ok(())) => (StatusCode::OK, "ok"),
        Ok(Err(error)) => {
            tracing::warn!(%error, "not ready");
            (StatusCode::SERVICE_UNAVAILABLE, "error")
        }
        Err(_) => {
            tracing::warn!("not ready: the database did not answer in time");
            (StatusCode::SERVICE_UNAVAILABLE, "error")
        }
    };
    // A full disk keeps heartbeats from being written and answers reads: that does not turn this red (RUL-31).
    let checks = if state.doors.is_member() {
        json!({"database": word})
    } else {
        json!({"database": word, "heartbeat": "error"})
    };
    bare(status, json!({"status": word, "checks": checks}))
}

pub async fn landing(state: Data<AppState>) -> impl Responder {
    HttpResponse::Ok()
        .content_type(ContentType::html())
        .body(state.landing.to_string())
}
