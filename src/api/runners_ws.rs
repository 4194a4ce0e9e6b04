//! `GET /api/runners/ws`: the place where runner daemons dial in (http-api 5.12, runner-protocol 1).
//!
//! What stands here are the checks before the upgrade that need no connection.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use fountain_actors::domain::ErrorCode;

use super::error::ApiError;
use super::state::AppState;

pub async fn connect(req: HttpRequest, _: Payload) -> Result<HttpResponse, ApiError> {
    let enabled = req
        .app_data::<Data<AppState>>()
        .is_some_and(|state| state.settings.runners_enabled);
    if !enabled {
        return Err(ErrorCode::RunnersDisabled.into());
    }
    Err(ErrorCode::NotAWebsocket.into())
}
