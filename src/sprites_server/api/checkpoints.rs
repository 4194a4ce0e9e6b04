//! Checkpoints over HTTP (providers 1.8; RUL-L-111, 114). A failure after the stream began is a line of it.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;

use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::caller::{Call, json};
use super::refusal::Refusal;
use super::sprites::rfc3339;
use crate::checkpoints;
use crate::state::record::{Checkpoint, Sprite};
use crate::world::to_the_end;

#[derive(Deserialize)]
struct Create {
    comment: Option<String>,
}

/// The lines of a stream. Whoever reads it may go; the work goes on.
#[derive(Clone)]
struct Lines(UnboundedSender<Value>);

impl Lines {
    fn say(&self, kind: &str, data: &str) {
        self.send(json!({"type": kind, "data": data, "time": rfc3339(crate::clock::now())}));
    }

    fn fail(&self, error: &str) {
        self.send(json!({"type": "error", "error": error, "time": rfc3339(crate::clock::now())}));
    }

    fn send(&self, line: Value) {
        let _ = self.0.send(line);
    }
}

fn streamed(lines: UnboundedReceiver<Value>) -> HttpResponse {
    let body = stream::unfold(lines, |mut lines| async {
        let line = lines.recv().await?;
        Some((Ok::<_, Refusal>(Bytes::from(format!("{line}\n"))), lines))
    });
    HttpResponse::Ok().content_type("application/x-ndjson").streaming(body)
}

/// `POST …/checkpoint`
pub async fn create(call: Call, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let wanted: Create = json(body).await?;
    let comment = wanted.comment.unwrap_or_default();
    let alone = call.alone(&call.caller).await?;
    let sprite = call.sprite(&call.caller)?;
    let (sender, lines) = unbounded_channel();
    let (world, lines_of) = (Arc::clone(&call.world), Lines(sender));
    actix_web::rt::spawn(async move {
        let _alone = alone;
        lines_of.say("info", "Creating checkpoint...");
        match checkpoints::create(&world, sprite, comment).await {
            Ok(made) => {
                let id = made.id();
                lines_of.say("info", "Checkpoint created successfully");
                let mut line =
                    json!({"type": "info", "data": format!("  ID: {id}"), "time": rfc3339(crate::clock::now())});
                if let Some(line) = line.as_object_mut() {
                    line.insert("global_id".to_owned(), made.global_id().into());
                }
                lines_of.send(line);
                lines_of.say("complete", &format!("Checkpoint {id} created successfully"));
            }
            Err(refusal) => lines_of.fail(&refusal.text()),
        }
    });
    Ok(streamed(lines))
}

/// `POST …/checkpoints/{id}/restore`
pub async fn restore(call: Call, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let alone = call.alone(&call.caller).await?;
    let sprite = call.sprite(&call.caller)?;
    let id = wanted(&request);
    let (sender, lines) = unbounded_channel();
    let (world, lines_of) = (Arc::clone(&call.world), Lines(sender));
    let Some(checkpoint) = checkpoints::find(&call.store, &sprite, &id) else {
        lines_of.fail(&format!("checkpoint {id} not found"));
        return Ok(streamed(lines));
    };
    actix_web::rt::spawn(async move {
        let _alone = alone;
        lines_of.say("info", &format!("Restoring from {id}..."));
        match checkpoints::restore(&world, sprite, checkpoint).await {
            Ok(()) => lines_of.say("complete", &format!("Restore from {id} complete")),
            Err(refusal) => lines_of.fail(&refusal.text()),
        }
    });
    Ok(streamed(lines))
}

/// `GET …/checkpoints`
pub async fn list(call: Call) -> Result<HttpResponse, Refusal> {
    let sprite = call.sprite(&call.caller)?;
    let made = call.store.checkpoints(&sprite.id);
    let entries: Vec<_> = std::iter::once(current(&sprite))
        .chain(made.iter().map(entry))
        .collect();
    Ok(HttpResponse::Ok().json(entries))
}

/// `GET …/checkpoints/{id}`
pub async fn get(call: Call, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let sprite = call.sprite(&call.caller)?;
    let found = checkpoints::find(&call.store, &sprite, &wanted(&request)).ok_or_else(missing)?;
    Ok(HttpResponse::Ok().json(entry(&found)))
}

/// `DELETE …/checkpoints/{id}`
pub async fn delete(call: Call, request: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (world, caller, id) = (Arc::clone(&call.world), call.caller.clone(), wanted(&request));
    let deleted = to_the_end(async move {
        let _alone = world.alone(&caller).await?;
        let sprite = world.sprite(&caller)?;
        let found = checkpoints::find(&world.store, &sprite, &id).ok_or_else(missing)?;
        let store = Arc::clone(&world.store);
        let removed = crate::world::blocking(move || store.remove_checkpoint(&found.global_id())).await?;
        removed.map_err(|error| Refusal::broken(&error))
    });
    deleted.await?;
    Ok(HttpResponse::NoContent().finish())
}

fn wanted(request: &HttpRequest) -> String {
    request.match_info().get("checkpoint").unwrap_or_default().to_owned()
}

fn missing() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "checkpoint not found")
}

fn current(sprite: &Sprite) -> Value {
    let mut entry = json!({"id": "Current", "create_time": rfc3339(sprite.updated_at), "is_auto": false});
    if let (Some(entry), Some(source)) = (entry.as_object_mut(), &sprite.source) {
        entry.insert("source_id".to_owned(), source.as_str().into());
    }
    entry
}

fn entry(checkpoint: &Checkpoint) -> Value {
    let mut entry = json!({
        "id": checkpoint.id(),
        "create_time": rfc3339(checkpoint.created_at),
        "is_auto": false,
        "global_id": checkpoint.global_id(),
    });
    if let Some(entry) = entry.as_object_mut().filter(|_| !checkpoint.comment.is_empty()) {
        entry.insert("comment".to_owned(), checkpoint.comment.as_str().into());
    }
    entry
}
