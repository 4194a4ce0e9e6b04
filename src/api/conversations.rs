//! Conversations: list, show, and the actions that only pass on a wish (http-api 4.4, 5.7).
//!
//! `create`, `prompts` and `labels` have bodies worth a file each. What an action means is decided behind
//! [`fountain_actors::doors::Doors`]; what a sandbox key may not do is decided here (http-api 1.3).

pub mod create;
pub mod labels;
pub mod prompts;

use actix_web::http::StatusCode;
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use fountain_actors::domain::conversation::{ConversationFilter, ConversationView};
use fountain_actors::domain::turn::PendingPermission;
use fountain_actors::domain::{ConversationId, ErrorCode, Refusal, TurnId};
use serde_json::{Value, json};

use super::auth::Signed;
use super::body::Body;
use super::error::ApiError;
use super::path::{self, PathId};
use super::query::Query;
use super::sandboxes;
use super::state::AppState;
use super::wire::{self, Reply, bare, micros, seconds};

const LONGEST_LIST: i64 = 500;

fn id(id: Option<impl ToString>) -> Value {
    id.map_or(Value::Null, |id| id.to_string().into())
}

fn pending(turn: TurnId, permission: &PendingPermission) -> Value {
    json!({
        "request_id": permission.request_id,
        "tool": permission.tool,
        "options": permission.options,
        "asked_at": micros(permission.asked_at),
        "deadline": micros(permission.deadline),
        "turn_id": turn.to_string(),
    })
}

/// A conversation on the wire: every key, always (http-api 4.4).
pub fn render(state: &AppState, view: &ConversationView) -> Value {
    let row = &view.conversation;
    let unread = match (row.last_active_at, row.last_read_at) {
        (Some(active), Some(read)) => active > read,
        (_, None) => true,
        (None, Some(_)) => false,
    };
    json!({
        "id": row.id.to_string(),
        "title": row.title,
        "first_prompt": view.first_prompt,
        "status": row.status.as_str(),
        "runtime": row.runtime.as_str(),
        "acp": true,
        "agent_id": id(row.agent_id),
        "agent_version_id": id(row.agent_version_id),
        "agent_version": view.agent_version,
        "environment_id": id(row.environment_id),
        "vault_id": id(row.vault_id),
        "model": row.model,
        "sandbox_api_access": row.sandbox_api_access.as_str(),
        "permission_policy": row.permission_policy,
        "session_config": {},
        "session_config_options": [],
        "runtime_session_id": row.runtime_session_id,
        "source": row.source.as_str(),
        "parent_conversation_id": id(row.parent_conversation_id),
        "channel_id": row.channel_id,
        "labels": row.labels,
        "turn_count": view.turn_count,
        "last_active_at": row.last_active_at.map(micros),
        "last_read_at": row.last_read_at.map(micros),
        "unread": unread,
        "usage_total": {"input": row.usage_input_tokens, "output": row.usage_output_tokens},
        "pending_requests": view.pending_requests.iter().map(|(turn, asked)| pending(*turn, asked)).collect::<Value>(),
        "sandbox_id": row.machine_id.to_string(),
        "sandbox": sandboxes::render(&view.machine, view.runner.as_ref(), &*state.runners),
        "inserted_at": seconds(row.inserted_at),
        "updated_at": seconds(row.updated_at),
    })
}

fn filter(query: &Query) -> Result<ConversationFilter, ApiError> {
    let limit = match query.get("limit").filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(
            text.parse()
                .ok()
                .filter(|limit| (1..=LONGEST_LIST).contains(limit))
                .ok_or_else(|| Refusal::field("limit", "must be 1 to 500"))?,
        ),
    };
    let labels = query.all("label").map(|pair| match pair.split_once(':') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ApiError::from(ErrorCode::InvalidLabelFilter)),
    });
    Ok(ConversationFilter {
        roots_only: query.flag("roots_only").unwrap_or(false),
        agent_id: query.id("agent_id")?,
        machine_id: query.id("sandbox_id")?,
        channel_id: query
            .get("channel_id")
            .filter(|text| !text.is_empty())
            .map(str::to_owned),
        statuses: query.words("status", ErrorCode::InvalidStatus)?,
        labels: labels.collect::<Result<_, _>>()?,
        limit,
    })
}

pub async fn list(state: Data<AppState>, caller: Signed, query: Query) -> Reply {
    let views = state
        .store
        .conversation_views(caller.account_id(), filter(&query)?)
        .await?;
    wire::list(&views, |view| render(&state, view))
}

/// The view of one conversation, or 404.
async fn find(state: &AppState, caller: &Signed, id: ConversationId) -> Result<ConversationView, ApiError> {
    let view = state.store.conversation_view(caller.account_id(), id).await?;
    view.ok_or_else(|| ErrorCode::NotFound.into())
}

pub async fn show(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>) -> Reply {
    wire::ok(render(&state, &find(&state, &caller, id.0).await?))
}

pub async fn delete(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>) -> Reply {
    state.doors.delete_conversation(caller.caller, id.0).await?;
    wire::nothing()
}

pub async fn interrupt(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>) -> Reply {
    state.doors.interrupt(caller.caller, id.0).await?;
    wire::nothing()
}

pub async fn terminate(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>) -> Reply {
    state.doors.terminate(caller.caller, id.0).await?;
    wire::nothing()
}

pub async fn read(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>) -> Reply {
    state.store.mark_read(caller.account_id(), id.0, state.now()).await?;
    wire::nothing()
}

/// The answer to a permission request; the first one wins (http-api 5.7.8, RUL-10).
pub async fn answer(state: Data<AppState>, caller: Signed, req: HttpRequest, payload: Payload) -> Reply {
    // Whoever runs in the sandbox must not allow itself what it asked for; that wins over any fault of the body.
    if caller.sprite_of().is_some() {
        return Err(ErrorCode::SpriteMayNotAnswer.into());
    }
    let id: ConversationId = path::segment(&req, "id")?;
    let request_id = path::text(&req, "request_id")?;
    let mut body = Body::read(&req, payload).await?;
    let option = body.text("option_id");
    body.finish()?;
    let option = option
        .filter(|option| !option.is_empty())
        .ok_or(ErrorCode::OptionIdRequired)?;
    state
        .doors
        .answer_permission(caller.caller, id, request_id, option)
        .await?;
    bare(StatusCode::OK, json!({"ok": true}))
}

/// `{"data": conversation, "meta": {"resumed": …}}`.
fn launched(state: &AppState, view: &ConversationView, resumed: bool) -> HttpResponse {
    let status = if resumed { StatusCode::OK } else { StatusCode::CREATED };
    HttpResponse::build(status).json(json!({"data": render(state, view), "meta": {"resumed": resumed}}))
}
