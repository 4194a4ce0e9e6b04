//! The address of a sprite (providers 1.2): who may use it, and which port it leads to. No other port is ever reached.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};

use super::caller::{bearer, world};
use super::refusal::Refusal;
use crate::enclosure::Network;
use crate::state::record::{Begun, Sprite, UrlAuth};
use crate::tokens::Account;
use crate::url::{Passage, forward};
use crate::world::{Caller, World};

/// Where the address leads when no service says another port.
const PORT: u16 = 8080;
/// Something on a loopback answers at once, or it is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// Any method of `/sprites/{id}/…`
pub async fn open(request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let world = world(&request)?;
    let uri = request.uri().clone();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let (id, rest) = parts(path).ok_or_else(Refusal::no_sprite)?;
    let account = bearer(&request, &world);
    let sprite = admitted(&world, id, account.as_ref())?;
    let prefix = format!("/sprites/{id}");
    if !rest.starts_with('/') {
        let to = format!("{prefix}/{rest}");
        return Ok(HttpResponse::PermanentRedirect()
            .insert_header((header::LOCATION, to))
            .finish());
    }
    let caller = Caller {
        account: Account::recorded(&sprite.owner),
        name: sprite.name,
        epoch: None,
    };
    let (enclosure, port, auth) = {
        let _shared = world.shared(&caller).await?;
        // It may be another one, or closed to this caller, by now.
        let sprite = admitted(&world, id, account.as_ref())?;
        (world.enter(&sprite).await?.enclosure, port(&sprite), sprite.auth)
    };
    let connected = tokio::time::timeout(PATIENCE, enclosure.connect(port)).await;
    let inside = connected.ok().and_then(Result::ok).ok_or_else(|| nobody(port))?;
    let passage = Passage {
        target: rest,
        prefix: &prefix,
        // A token of this server is nobody's business inside, even where none is needed.
        authorization: auth == UrlAuth::Public && account.is_none(),
    };
    let answered = forward(inside, &request, body, &passage).await;
    answered.map_err(|failed| {
        tracing::debug!(error = %failed, port, "a request to a sprite has no answer");
        Refusal::new(failed.status(), &failed.to_string())
    })
}

/// The id, and path and query inside, as they were written.
fn parts(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix("/sprites/")?;
    let end = path.find(['/', '?']).unwrap_or(path.len());
    Some(path.split_at(end))
}

fn admitted(world: &Arc<World>, id: &str, account: Option<&Account>) -> Result<Sprite, Refusal> {
    let sprite = world
        .store
        .sprite_of(id)
        .filter(|sprite| sprite.begun != Some(Begun::Delete));
    let sprite = sprite.ok_or_else(Refusal::no_sprite)?;
    let is_owner = account.is_some_and(|account| account.as_str() == sprite.owner);
    // Where sprites share the host's loopback, an open address would open whatever else listens there.
    let is_shared = world.enclosures.facilities().network == Network::Host;
    if (is_shared || sprite.auth == UrlAuth::Sprite) && !is_owner {
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, "authentication failed"));
    }
    Ok(sprite)
}

fn port(sprite: &Sprite) -> u16 {
    sprite
        .services
        .values()
        .find_map(|service| service.http_port)
        .unwrap_or(PORT)
}

fn nobody(port: u16) -> Refusal {
    Refusal::new(StatusCode::BAD_GATEWAY, &format!("nothing listens on port {port}"))
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn the_path_inside_is_what_follows_the_id_as_it_was_written() {
        assert_eq!(parts("/sprites/a/x%2Fy?q=/z"), Some(("a", "/x%2Fy?q=/z")));
        assert_eq!(parts("/sprites/a//x/../y"), Some(("a", "//x/../y")));
        assert_eq!(parts("/sprites/a"), Some(("a", "")));
        assert_eq!(parts("/sprites/a?q"), Some(("a", "?q")));
        assert_eq!(parts("/sprite/a/"), None);
    }
}
