//! Who calls, of which epoch, about which sprite: read once from the request (providers 1, 1.1; RUL-L-2).

use std::future::{Ready, ready};
use std::ops::Deref;
use std::sync::Arc;

use actix_web::dev::Payload;
use actix_web::http::{StatusCode, header};
use actix_web::{FromRequest, HttpRequest, web};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::refusal::Refusal;
use crate::tokens::Account;
use crate::world::{Caller, World};

/// An authenticated call. Without a name in the path, the name is empty.
pub struct Call {
    pub world: Arc<World>,
    pub caller: Caller,
}

impl Deref for Call {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl FromRequest for Call {
    type Error = Refusal;
    type Future = Ready<Result<Self, Refusal>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(read(request))
    }
}

/// What the doors share.
///
/// # Errors
/// They are not wired.
pub fn world(request: &HttpRequest) -> Result<Arc<World>, Refusal> {
    let world = request.app_data::<web::Data<World>>().map(|data| Arc::clone(data));
    world.ok_or_else(|| Refusal::broken(&"the doors are not wired"))
}

/// The account of the token that a request carries, if it is one.
pub fn bearer(request: &HttpRequest, world: &World) -> Option<Account> {
    request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .and_then(|(_, token)| world.tokens.account(token.trim()))
}

fn read(request: &HttpRequest) -> Result<Call, Refusal> {
    let world = world(request)?;
    let account =
        bearer(request, &world).ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "authentication failed"))?;
    let epoch = match request.headers().get("fountain-epoch") {
        None => None,
        Some(value) => {
            let epoch = value.to_str().ok().and_then(|value| value.trim().parse().ok());
            Some(epoch.ok_or_else(|| Refusal::invalid("invalid Fountain-Epoch header"))?)
        }
    };
    let name = request.match_info().get("name").unwrap_or_default().to_owned();
    Ok(Call {
        world,
        caller: Caller { account, name, epoch },
    })
}

/// The whole body, up to `limit` bytes. A body that stops half-way is no body.
///
/// # Errors
/// 413, 400.
pub async fn whole(body: web::Payload, limit: usize) -> Result<Bytes, Refusal> {
    match body.to_bytes_limited(limit).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(Refusal::new(StatusCode::BAD_REQUEST, "the body cannot be read")),
        Err(_) => Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large")),
    }
}

/// A JSON body of at most 1 MiB; an empty one is `{}`.
///
/// # Errors
/// 413, 400.
pub async fn json<T: DeserializeOwned>(body: web::Payload) -> Result<T, Refusal> {
    let bytes = whole(body, 1 << 20).await?;
    let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(text).map_err(|error| Refusal::invalid(&format!("invalid body: {error}")))
}
