//! Finds and enters the sprite of an exec call, and hands it to the room of commands (providers 1.3 to 1.5).

use actix_web::{HttpRequest, HttpResponse, web};

use super::caller::Call;
use super::refusal::Refusal;
use crate::exec;

/// `GET …/exec`
pub async fn get(call: Call, request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let _shared = call.shared(&call.caller).await?;
    let sprite = call.enter(&call.sprite(&call.caller)?).await?;
    Ok(exec::get(sprite, request, body).await)
}

/// `POST …/exec`. The body comes at the client's pace, so the name is not held meanwhile: a command that a restore
/// overtakes is refused by the registry.
pub async fn post(call: Call, request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let sprite = {
        let _shared = call.shared(&call.caller).await?;
        call.enter(&call.sprite(&call.caller)?).await?
    };
    Ok(exec::post(sprite, request, body).await)
}

/// `GET …/exec/{session}`
pub async fn attach(call: Call, request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let _shared = call.shared(&call.caller).await?;
    let sprite = call.enter(&call.sprite(&call.caller)?).await?;
    let session = request.match_info().get("session").unwrap_or_default().to_owned();
    Ok(exec::attach(sprite, &session, request, body).await)
}

/// `POST …/exec/{session}/kill`
pub async fn kill(call: Call, request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let sprite = {
        let _shared = call.shared(&call.caller).await?;
        call.enter(&call.sprite(&call.caller)?).await?
    };
    let session = request.match_info().get("session").unwrap_or_default().to_owned();
    Ok(exec::kill(sprite, &session, request, body).await)
}
