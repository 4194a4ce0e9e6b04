//! Turns of a conversation and the images of their prompts (http-api 4.5, 5.7.1).

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use fountain_actors::domain::turn::Turn;
use fountain_actors::domain::{ConversationId, ErrorCode, TurnId};
use serde_json::{Value, json};

use super::auth::Signed;
use super::path::{self, PathId};
use super::state::AppState;
use super::wire::{self, Reply, seconds};

fn render(turn: &Turn) -> Value {
    json!({
        "id": turn.id.to_string(),
        "turn_number": turn.number,
        "prompt": turn.prompt,
        "status": turn.status.as_str(),
        "origin": turn.origin.as_str(),
        "client_request_id": turn.client_request_id,
        "waiting": turn.waiting,
        "exit_code": turn.exit_code,
        "limit_reason": turn.limit_reason,
        "started_at": turn.started_at.map(seconds),
        "ended_at": turn.ended_at.map(seconds),
        "inserted_at": seconds(turn.inserted_at),
        "image_count": turn.image_count,
        "model_selection": turn.model_selection,
        "config_selection": null,
        "inference": null,
        "usage": turn.usage,
    })
}

pub async fn list(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>) -> Reply {
    wire::list(&state.store.turns(caller.account_id(), id.0).await?, render)
}

/// The bytes of one image; every miss is 404.
pub async fn image(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>, req: HttpRequest) -> Reply {
    let turn: TurnId = path::segment(&req, "turn_id")?;
    let position: usize = path::segment(&req, "position")?;
    // The turn's images are read by the turn alone, so that it is this account's has to be shown first.
    let turns = state.store.turns(caller.account_id(), id.0).await?;
    if !turns.iter().any(|known| known.id == turn) {
        return Err(ErrorCode::NotFound.into());
    }
    let images = state.store.prompt_images(turn).await?;
    let image = images.into_iter().nth(position).ok_or(ErrorCode::NotFound)?;
    Ok(HttpResponse::Ok()
        .content_type(image.media_type)
        // A browser must not guess a page out of what somebody uploaded.
        .insert_header(("x-content-type-options", "nosniff"))
        .body(image.bytes))
}
