//! The socket of `fs/watch` (providers 1.7): one subscription, then what happens. The sprite is shared only while watches
//! are added, so nothing here holds a disk that is being closed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseCode, CloseReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::caller::Call;
use super::files::Place;
use super::refusal::Refusal;
use super::sprites::rfc3339;
use crate::enclosure::Enclosure;
use crate::files::watch::{Change, Watcher, What};
use crate::world::blocking;

/// How long a client may take to say what it wants to see.
const PATIENCE: Duration = Duration::from_secs(30);
const MAX_MESSAGE: usize = 64 * 1024;
/// Paths of one subscription.
const MOST: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscribe {
    r#type: String,
    paths: Vec<String>,
    recursive: Option<bool>,
    working_dir: Option<String>,
}

/// `GET …/fs/watch`
pub async fn open(call: Call, request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let enclosure = {
        let _shared = call.shared(&call.caller).await?;
        call.enter(&call.sprite(&call.caller)?).await?.enclosure
    };
    let upgrade = actix_ws::handle(&request, body);
    let (response, mut socket, messages) =
        upgrade.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "watching needs a WebSocket"))?;
    let messages = messages
        .max_frame_size(MAX_MESSAGE)
        .aggregate_continuations()
        .max_continuation_size(MAX_MESSAGE);
    actix_web::rt::spawn(async move {
        let reason = match converse(&call, &*enclosure, &mut socket, messages).await {
            Ok(()) => CloseReason::from(CloseCode::Normal),
            Err(why) => {
                let error = json!({"type": "error", "message": why});
                let _ = socket.text(error.to_string()).await;
                CloseReason::from((CloseCode::Error, why))
            }
        };
        let _ = socket.close(Some(reason)).await;
    });
    Ok(response)
}

async fn converse(
    call: &Call,
    enclosure: &dyn Enclosure,
    socket: &mut actix_ws::Session,
    mut messages: AggregatedMessageStream,
) -> Result<(), String> {
    let first = tokio::time::timeout(PATIENCE, messages.recv()).await;
    let asked = match first {
        Ok(Some(Ok(AggregatedMessage::Text(text)))) => serde_json::from_str::<Subscribe>(&text).ok(),
        _ => None,
    };
    let asked = asked.filter(|asked| asked.r#type == "subscribe" && (1..=MOST).contains(&asked.paths.len()));
    let asked = asked.ok_or("the first message must subscribe to 1 to 64 paths")?;
    let recursive = asked.recursive == Some(true);
    let mut watcher = Watcher::new().map_err(|error| error.to_string())?;
    for path in &asked.paths {
        let at = At::Asked(path.clone(), asked.working_dir.clone());
        watcher = add(call, enclosure, watcher, at, recursive).await?;
    }
    say(socket, &json!({"type": "subscribed", "paths": asked.paths})).await?;
    let prefix = Place::at(enclosure, call.enclosures.facilities(), None)
        .ok()
        .and_then(|place| place.prefix);
    loop {
        tokio::select! {
            seen = watcher.next() => {
                let seen = seen.map_err(|error| error.to_string())?;
                for change in seen.changes {
                    say(socket, &shown(&change, prefix.as_deref())).await?;
                    if recursive && change.is_directory && change.what == What::Create {
                        watcher = add(call, enclosure, watcher, At::Found(change.path), true).await?;
                    }
                }
                if seen.overflowed {
                    return Err("too much changed at once; some of it was lost".to_owned());
                }
            }
            message = messages.recv() => match message {
                Some(Ok(AggregatedMessage::Ping(data))) => socket.pong(&data).await.map_err(|_| "gone")?,
                Some(Ok(AggregatedMessage::Text(_) | AggregatedMessage::Binary(_) | AggregatedMessage::Pong(_))) => {}
                Some(Ok(AggregatedMessage::Close(_)) | Err(_)) | None => return Ok(()),
            },
            () = enclosure.closed() => return Err("the sprite was closed".to_owned()),
        }
    }
}

/// What is to be watched.
enum At {
    Asked(String, Option<String>),
    /// A directory that appeared below one that is watched. It may be gone already.
    Found(PathBuf),
}

/// The root is held with the sprite shared: no close waits for it, or finds it in use.
async fn add(
    call: &Call,
    enclosure: &dyn Enclosure,
    mut watcher: Watcher,
    at: At,
    recursive: bool,
) -> Result<Watcher, String> {
    let _shared = call.shared(&call.caller).await.map_err(|refusal| refusal.text())?;
    let facilities = call.enclosures.facilities();
    let working_dir = match &at {
        At::Asked(_, working_dir) => working_dir.clone(),
        At::Found(_) => None,
    };
    let place = Place::at(enclosure, facilities, working_dir).map_err(|refusal| refusal.text())?;
    let (path, is_found) = match at {
        At::Asked(text, _) => {
            let path = place.path(&text).map_err(|refusal| refusal.text())?;
            // `.` leads nowhere and would be told with every event.
            (path.components().collect(), false)
        }
        At::Found(path) => (path, true),
    };
    let added = blocking(move || match watcher.add(&place.root, &path, recursive) {
        Err(error) if is_found && error.kind() == std::io::ErrorKind::NotFound => Ok(watcher),
        other => other.map(|()| watcher).map_err(|error| (error, path)),
    });
    let added = added.await.map_err(|refusal| refusal.text())?;
    added.map_err(|(error, path)| format!("{}: {error}", path.display()))
}

fn shown(change: &Change, prefix: Option<&Path>) -> Value {
    let below = change.path.strip_prefix("/").unwrap_or(&change.path);
    let path = prefix.map_or_else(|| change.path.clone(), |prefix| prefix.join(below));
    json!({
        "type": "event",
        "event": change.what.word(),
        "path": path.to_string_lossy(),
        "isDir": change.is_directory,
        "timestamp": rfc3339(crate::clock::now()),
    })
}

async fn say(socket: &mut actix_ws::Session, line: &Value) -> Result<(), String> {
    socket.text(line.to_string()).await.map_err(|_| "gone".to_owned())
}
