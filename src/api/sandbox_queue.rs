//! The launch queue: what waits, one request, and giving one up (http-api 4.9, 5.9).

use actix_web::HttpResponse;
use actix_web::web::Data;
use fountain_actors::domain::queue::RequestView;
use fountain_actors::domain::{ErrorCode, QueueRequestId};
use serde_json::{Value, json};

use super::auth::Signed;
use super::path::PathId;
use super::state::AppState;
use super::wire::{self, Reply, seconds};

/// A request on the wire: every key, always. Never what was asked: only who asked reads it back.
pub fn render(view: &RequestView) -> Value {
    let request = &view.request;
    json!({
        "id": request.id.to_string(),
        "agent_id": request.agent_id.to_string(),
        "kind": request.kind.as_str(),
        "status": request.status.as_str(),
        "position": view.position,
        "conversation_id": request.conversation_id.map(|id| id.to_string()),
        "source": request.source.as_str(),
        "error": request.error,
        "inserted_at": seconds(request.inserted_at),
    })
}

/// 202: it waits.
pub fn accepted(view: &RequestView) -> HttpResponse {
    HttpResponse::Accepted().json(json!({ "data": render(view) }))
}

pub async fn list(state: Data<AppState>, caller: Signed) -> Reply {
    let waiting = state.store.queue_requests(caller.account_id()).await?;
    wire::list(&waiting, render)
}

pub async fn show(state: Data<AppState>, caller: Signed, id: PathId<QueueRequestId>) -> Reply {
    let found = state.store.queue_request(caller.account_id(), id.0).await?;
    wire::ok(render(&found.ok_or(ErrorCode::NotFound)?))
}

pub async fn cancel(state: Data<AppState>, caller: Signed, id: PathId<QueueRequestId>) -> Reply {
    let audit = state.audit(&caller, "sandbox_request.cancelled", "sandbox_request", id.0);
    let cancelled = state
        .store
        .cancel_request(caller.account_id(), id.0, audit, state.now())
        .await?;
    cancelled.announce(&*state.bus);
    wire::nothing()
}
