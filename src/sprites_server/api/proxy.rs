//! A socket into a sprite (providers 1.10): only to what listens on the sprite's own loopback.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseCode, CloseReason};
use bytes::BytesMut;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::caller::Call;
use super::refusal::Refusal;
use crate::enclosure::{Enclosure, Stream};

/// How long a client may take to say where it wants to go.
const PATIENCE: Duration = Duration::from_secs(30);
const CHUNK: usize = 64 * 1024;
const MAX_MESSAGE: usize = 1 << 20;

#[derive(Deserialize)]
struct Target {
    host: String,
    port: u16,
}

/// `GET …/proxy`
pub async fn open(call: Call, request: HttpRequest, body: web::Payload) -> Result<HttpResponse, Refusal> {
    let sprite = {
        let _shared = call.shared(&call.caller).await?;
        call.enter(&call.sprite(&call.caller)?).await?
    };
    let upgrade = actix_ws::handle(&request, body);
    let (response, socket, messages) =
        upgrade.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "a proxy needs a WebSocket"))?;
    let messages = messages
        .max_frame_size(MAX_MESSAGE)
        .aggregate_continuations()
        .max_continuation_size(MAX_MESSAGE);
    actix_web::rt::spawn(converse(sprite.enclosure, socket, messages));
    Ok(response)
}

async fn converse(enclosure: Arc<dyn Enclosure>, mut socket: actix_ws::Session, mut messages: AggregatedMessageStream) {
    let ending = match reach(&*enclosure, &mut socket, &mut messages).await {
        Ok(stream) => {
            carry(stream, socket.clone(), messages).await;
            CloseReason::from(CloseCode::Normal)
        }
        Err(why) => {
            let _ = socket.text(json!({"status": "error", "error": why}).to_string()).await;
            CloseReason::from((CloseCode::Error, why.to_owned()))
        }
    };
    let _ = socket.close(Some(ending)).await;
}

async fn reach(
    enclosure: &dyn Enclosure,
    socket: &mut actix_ws::Session,
    messages: &mut AggregatedMessageStream,
) -> Result<Box<dyn Stream>, &'static str> {
    let first = tokio::time::timeout(PATIENCE, messages.recv()).await;
    let Ok(Some(Ok(AggregatedMessage::Text(text)))) = first else {
        return Err("the first message must say host and port");
    };
    let target: Target = serde_json::from_str(&text).map_err(|_| "the first message must say host and port")?;
    if !matches!(target.host.as_str(), "localhost" | "127.0.0.1" | "::1" | "") || target.port == 0 {
        return Err("only the sprite's own loopback can be reached");
    }
    let stream = enclosure
        .connect(target.port)
        .await
        .map_err(|_| "nothing listens there")?;
    let told = json!({"status": "connected", "target": format!("{}:{}", target.host, target.port)});
    socket.text(told.to_string()).await.map_err(|_| "gone")?;
    Ok(stream)
}

async fn carry(stream: Box<dyn Stream>, mut socket: actix_ws::Session, mut messages: AggregatedMessageStream) {
    let (mut inside, mut into) = tokio::io::split(stream);
    let mut answers = socket.clone();
    let outward = async {
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            match inside.read_buf(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(_) if answers.binary(chunk.freeze()).await.is_err() => return,
                Ok(_) => {}
            }
        }
    };
    let inward = async {
        while let Some(Ok(message)) = messages.recv().await {
            let went_well = match message {
                AggregatedMessage::Binary(data) => into.write_all(&data).await.is_ok(),
                AggregatedMessage::Ping(data) => socket.pong(&data).await.is_ok(),
                AggregatedMessage::Close(_) => false,
                AggregatedMessage::Text(_) | AggregatedMessage::Pong(_) => true,
            };
            if !went_well {
                return;
            }
        }
    };
    tokio::select! { () = outward => {}, () = inward => {} }
}
