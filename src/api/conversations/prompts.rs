//! Prompts: text, images and the client's own id, of a create and of a prompt (http-api 4.12, 5.7.4; RUL-4, RUL-19a).

use actix_web::http::StatusCode;
use actix_web::web::{self, Data};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fountain_actors::domain::turn::{Prompt, PromptImage};
use fountain_actors::domain::{ConversationId, ErrorCode};
use serde_json::{Value, json};

use crate::api::agents::fields::no_session_config;
use crate::api::auth::Signed;
use crate::api::body::Body;
use crate::api::error::ApiError;
use crate::api::path::PathId;
use crate::api::state::AppState;
use crate::api::wire::{Reply, bare};

/// Longest `client_request_id`, in characters (http-api 1.9).
const LONGEST_REQUEST_ID: usize = 200;
/// Largest image, decoded (http-api 4.12).
const LARGEST_IMAGE: usize = 10 * 1024 * 1024;
/// Above this, images are decoded on the blocking pool.
const DECODE_INLINE: usize = 64 * 1024;

/// The prompt fields of a body, typed and not yet judged.
pub struct Draft {
    pub text: Option<String>,
    images: Vec<Value>,
    client_request_id: Option<String>,
}

impl Draft {
    /// Takes the fields; faults of type and length stay in the body.
    pub fn of(body: &mut Body) -> Self {
        let text = body.text("prompt");
        let images = body.list("images").unwrap_or_default();
        let client_request_id = body.text("client_request_id");
        let length = client_request_id.as_ref().map(|id| id.chars().count());
        if length.is_some_and(|length| !(1..=LONGEST_REQUEST_ID).contains(&length)) {
            body.fault("client_request_id", "must have 1 to 200 characters");
        }
        Self {
            text,
            images,
            client_request_id,
        }
    }

    /// None when there is no prompt. `invalid_prompt` when it is blank, or when images come without one.
    pub async fn judge(self) -> Result<Option<Prompt>, ApiError> {
        let Some(text) = self.text else {
            if !self.images.is_empty() {
                return Err(ErrorCode::InvalidPrompt.into());
            }
            return Ok(None);
        };
        if text.trim().is_empty() {
            return Err(ErrorCode::InvalidPrompt.into());
        }
        Ok(Some(Prompt {
            text,
            images: decode(self.images).await?,
            client_request_id: self.client_request_id,
        }))
    }
}

async fn decode(images: Vec<Value>) -> Result<Vec<PromptImage>, ApiError> {
    let encoded: usize = images
        .iter()
        .filter_map(|image| image.get("data")?.as_str())
        .map(str::len)
        .sum();
    let work = move || images.iter().map(decode_one).collect::<Option<Vec<_>>>();
    let decoded = if encoded <= DECODE_INLINE {
        work()
    } else {
        web::block(work)
            .await
            .map_err(|error| ApiError::Internal(error.to_string()))?
    };
    decoded.ok_or_else(|| ErrorCode::InvalidImages.into())
}

fn decode_one(image: &Value) -> Option<PromptImage> {
    let media_type = image.get("media_type")?.as_str()?;
    let known = ["image/png", "image/jpeg", "image/gif", "image/webp"];
    let bytes = STANDARD.decode(image.get("data")?.as_str()?).ok()?;
    let fits = (1..=LARGEST_IMAGE).contains(&bytes.len()) && known.contains(&media_type);
    // An image that says of itself to be another kind is refused by the model later, in the middle of a turn.
    let honest = magic(&bytes).is_none_or(|found| found == media_type);
    (fits && honest).then(|| PromptImage {
        media_type: media_type.to_owned(),
        bytes: bytes.into(),
    })
}

/// What the first bytes say, for the four kinds that we take.
fn magic(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if bytes.starts_with(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        Some("image/gif")
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Some("image/webp")
    } else {
        None
    }
}

/// Answered once the turn is durable (RUL-4).
pub async fn prompt(state: Data<AppState>, caller: Signed, id: PathId<ConversationId>, mut body: Body) -> Reply {
    if !body.has("prompt") {
        body.fault("prompt", "is required");
    }
    let draft = Draft::of(&mut body);
    let session_config = no_session_config(&mut body);
    body.finish()?;
    session_config?;
    let prompt = draft.judge().await?.ok_or(ErrorCode::InvalidPrompt)?;
    let client_request_id = prompt.client_request_id.clone();
    state.doors.prompt(caller.caller, id.0, prompt).await?;
    bare(
        StatusCode::OK,
        json!({"status": "queued", "client_request_id": client_request_id}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(media_type: &str, bytes: &[u8]) -> Value {
        json!({"media_type": media_type, "data": STANDARD.encode(bytes)})
    }

    #[test]
    fn images_are_decoded_and_bounded() {
        assert!(decode_one(&image("image/png", b"\x89PNG\r\n\x1a\nrest")).is_some());
        assert!(decode_one(&image("image/png", &vec![7; LARGEST_IMAGE])).is_some());
        assert!(decode_one(&image("image/png", &vec![7; LARGEST_IMAGE + 1])).is_none());
        assert!(decode_one(&image("image/png", b"")).is_none());
        assert!(decode_one(&image("image/svg+xml", b"<svg/>")).is_none());
        assert!(decode_one(&json!({"media_type": "image/png", "data": "not base64!"})).is_none());
        assert!(decode_one(&json!({"media_type": "image/png"})).is_none());
    }

    #[test]
    fn an_image_that_is_another_kind_than_it_says_is_refused() {
        assert!(decode_one(&image("image/png", b"\xff\xd8\xff\xe0")).is_none());
        assert!(decode_one(&image("image/webp", b"RIFF0000WEBPVP8 ")).is_some());
    }
}
