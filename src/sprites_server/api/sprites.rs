//! The sprites themselves (providers 1.2; RUL-L-110, 115).

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Deserialize;
use serde_json::{Value, json};

use super::caller::{Call, json};
use super::name;
use super::refusal::Refusal;
use crate::state::record::{Sprite, UrlAuth};
use crate::world::{World, to_the_end};

const PAGE: usize = 50;

#[derive(Deserialize)]
struct Create {
    name: Option<Value>,
    config: Option<Value>,
    #[serde(default)]
    environment: Option<BTreeMap<String, String>>,
    url_settings: Option<UrlSettings>,
    labels: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct UrlSettings {
    auth: Option<Value>,
}

#[derive(Deserialize)]
struct Update {
    url_settings: Option<UrlSettings>,
    labels: Option<Vec<String>>,
    clear_labels: Option<bool>,
}

#[derive(Deserialize)]
pub struct Listing {
    prefix: Option<String>,
    max_results: Option<String>,
    continuation_token: Option<String>,
}

impl UrlSettings {
    fn auth(self) -> Result<Option<UrlAuth>, Refusal> {
        let read = self.auth.map(serde_json::from_value).transpose();
        read.map_err(|_| Refusal::invalid("invalid auth type, must be one of: sprite, public"))
    }
}

/// `POST /v1/sprites`
pub async fn create(mut call: Call, request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let wanted: Create = json(body).await?;
    let name = wanted
        .name
        .as_ref()
        .and_then(Value::as_str)
        .filter(|name| name::is_valid(name));
    let name = name
        .ok_or_else(|| Refusal::invalid("invalid sprite name format"))?
        .to_owned();
    let auth = wanted.url_settings.map(UrlSettings::auth).transpose()?.flatten();
    let environment = wanted.environment.unwrap_or_default();
    if environment
        .iter()
        .any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'))
    {
        return Err(Refusal::invalid("invalid environment"));
    }
    let now = crate::clock::now();
    let sprite = Sprite {
        id: id(),
        name: name.clone(),
        owner: call.caller.account.as_str().to_owned(),
        created_at: now,
        updated_at: now,
        auth: auth.unwrap_or_default(),
        labels: wanted.labels.unwrap_or_default(),
        environment,
        config: wanted.config,
        policy: Default::default(),
        layers: Vec::new(),
        next_checkpoint: 1,
        source: None,
        begun: None,
        services: BTreeMap::new(),
    };
    call.caller.name = name;
    let made = to_the_end(Arc::clone(&call.world).create(call.caller.clone(), sprite)).await?;
    Ok(HttpResponse::Created().json(shown(&call.world, &made, &request)))
}

/// `GET /v1/sprites/{name}`
pub async fn get(call: Call, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let sprite = call.sprite(&call.caller)?;
    Ok(HttpResponse::Ok().json(shown(&call.world, &sprite, &request)))
}

/// `DELETE /v1/sprites/{name}`
pub async fn delete(call: Call) -> Result<HttpResponse, Refusal> {
    to_the_end(Arc::clone(&call.world).destroy(call.caller)).await?;
    Ok(HttpResponse::NoContent().finish())
}

/// `PUT /v1/sprites/{name}`
pub async fn update(call: Call, request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let wanted: Update = json(body).await?;
    let auth = wanted.url_settings.map(UrlSettings::auth).transpose()?.flatten();
    let (world, caller) = (Arc::clone(&call.world), call.caller.clone());
    let updated = to_the_end(async move {
        let _alone = world.alone(&caller).await?;
        let mut sprite = world.sprite(&caller)?;
        sprite.auth = auth.unwrap_or(sprite.auth);
        if wanted.clear_labels == Some(true) {
            sprite.labels.clear();
        }
        if let Some(labels) = wanted.labels {
            sprite.labels = labels;
        }
        sprite.updated_at = crate::clock::now();
        world.save(&sprite).await?;
        Ok(sprite)
    });
    let sprite = updated.await?;
    Ok(HttpResponse::Ok().json(shown(&call.world, &sprite, &request)))
}

/// `GET /v1/sprites`
pub async fn list(call: Call, query: web::Query<Listing>, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let wanted = match &query.max_results {
        None => PAGE,
        Some(text) => text.parse().map_err(|_| Refusal::invalid("invalid max_results"))?,
    };
    let all = call.store.sprites(call.caller.account.as_str());
    let total = all.len();
    let prefix = query.prefix.as_deref().unwrap_or_default();
    let after = query.continuation_token.as_deref().unwrap_or_default();
    let mut left = all
        .iter()
        .filter(|sprite| sprite.name.starts_with(prefix) && sprite.name.as_str() > after);
    let page: Vec<_> = left.by_ref().take(wanted.clamp(1, PAGE)).collect();
    let has_more = left.next().is_some();
    let next = page.last().filter(|_| has_more).map(|sprite| &sprite.name);
    let sprites: Vec<_> = page.iter().map(|sprite| shown(&call.world, sprite, &request)).collect();
    let mut org = json!({
        "name": "fountain", "running": total, "warm": 0, "cold": 0,
        "running_limit": call.limits.sprites, "warm_limit": 0,
    });
    let mut body = json!({"sprites": sprites, "has_more": has_more, "next_continuation_token": next});
    if let (Some(body), Some(counters)) = (body.as_object_mut(), org.as_object_mut()) {
        body.insert("org".to_owned(), Value::Object(counters.clone()));
        body.append(counters);
    }
    Ok(HttpResponse::Ok().json(body))
}

/// `POST /v1/sprites/{name}/upgrade`: there is one version.
pub async fn upgrade(call: Call) -> Result<HttpResponse, Refusal> {
    call.sprite(&call.caller)?;
    Ok(HttpResponse::NoContent().finish())
}

/// `POST /v1/sprites/{name}/restart`
pub async fn restart(call: Call) -> Result<HttpResponse, Refusal> {
    let sprite = to_the_end(Arc::clone(&call.world).restart(call.caller)).await?;
    let body = json!({"sprite_name": sprite.name, "machine_id": sprite.id, "message": "the sprite was restarted"});
    Ok(HttpResponse::Ok().json(body))
}

/// `GET /v1/sprites/{name}/check`: healthy when it can be entered.
pub async fn check(call: Call) -> Result<HttpResponse, Refusal> {
    let begun = std::time::Instant::now();
    let _shared = call.shared(&call.caller).await?;
    let sprite = call.sprite(&call.caller)?;
    let (status, reason) = match call.enter(&sprite).await {
        Ok(_) => ("healthy", String::new()),
        Err(refusal) => ("unhealthy", refusal.text()),
    };
    Ok(HttpResponse::Ok().json(json!({
        "sprite_name": sprite.name, "sprite_id": sprite.id, "status": status, "reason": reason,
        "checked_at": rfc3339(crate::clock::now()), "elapsed": format!("{}ms", begun.elapsed().as_millis()),
    })))
}

/// The sprite as clients see it.
fn shown(world: &World, sprite: &Sprite, request: &HttpRequest) -> Value {
    let connection = request.connection_info();
    json!({
        "id": sprite.id,
        "name": sprite.name,
        "status": "running",
        "version": null,
        "url": format!("{}://{}/sprites/{}/", connection.scheme(), connection.host(), sprite.id),
        "organization": "fountain",
        "url_settings": {"auth": sprite.auth},
        "created_at": rfc3339(sprite.created_at),
        "updated_at": rfc3339(sprite.updated_at),
        "environment_version": null,
        "config": sprite.config,
        "labels": sprite.labels,
        "isolation": world.enclosures.facilities(),
    })
}

/// A time as Go parses it.
pub fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// A new incarnation: `sprite-` and a random UUID.
fn id() -> String {
    let bits = rand::random::<u128>();
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let mut id = "sprite-".to_owned();
    for (position, digit) in hex.chars().enumerate() {
        if matches!(position, 8 | 12 | 16 | 20) {
            id.push('-');
        }
        id.push(digit);
    }
    id
}
