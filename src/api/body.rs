//! JSON bodies, read field by field so that one answer names every fault (RUL-8, http-api 1.1, 2.1).
//!
//! Not JSON, or a content type that is not: 400. Too large: 413. JSON with a wrong type, a missing field or a NUL in any
//! text: 422, keyed by path. No body at all counts as `{}`, because action routes are called without one; a route that
//! needs fields then names them. Unknown fields are ignored.

use std::future::Future;
use std::pin::Pin;

use actix_web::dev::Payload;
use actix_web::http::header;
use actix_web::{FromRequest, HttpMessage, HttpRequest, web};
use fountain_actors::domain::{ErrorCode, Moment, Refusal};
use futures_util::StreamExt;
use serde_json::{Map, Value};

use super::door::Passage;
use super::error::{ApiError, Faults};
use super::routes::Limit;
use super::state::AppState;

/// A field of a partial update.
#[derive(Clone, Debug, PartialEq)]
pub enum Given<T> {
    /// Not in the body, or wrong (then it stands among the faults).
    Absent,
    Null,
    Value(T),
}

/// A JSON object and what was found wrong with it so far.
#[derive(Debug, Default)]
pub struct Body {
    fields: Map<String, Value>,
    faults: Faults,
}

impl Body {
    /// Takes an object apart; the whole is a fault when it is no object.
    pub fn of(value: Value) -> Self {
        let mut body = Self::default();
        find_nul(&value, &mut String::new(), &mut body.faults);
        match value {
            Value::Object(fields) => body.fields = fields,
            _ => body.fault("body", "must be an object"),
        }
        body
    }

    /// Names a fault.
    pub fn fault(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.faults.entry(field.into()).or_default().push(message.into());
    }

    /// Names every key that is not in `known` (the strict routes, http-api 1.2).
    pub fn only(&mut self, known: &[&str]) {
        let unknown: Vec<String> = self
            .fields
            .keys()
            .filter(|key| !known.contains(&key.as_str()))
            .cloned()
            .collect();
        for key in unknown {
            self.fault(key, "is not a field of this request");
        }
    }

    /// The raw value: None when absent.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.fields.remove(field)
    }

    /// A field whose null clears.
    pub fn given<T>(&mut self, field: &str, read: impl FnOnce(Value) -> Result<T, &'static str>) -> Given<T> {
        match self.take(field) {
            None => Given::Absent,
            Some(Value::Null) => Given::Null,
            Some(value) => match read(value) {
                Ok(read) => Given::Value(read),
                Err(message) => {
                    self.fault(field, message);
                    Given::Absent
                }
            },
        }
    }

    /// A word of a closed vocabulary.
    pub fn word<T: std::str::FromStr>(&mut self, field: &str) -> Option<T> {
        self.optional(field, |value| word_of(&value))
    }

    /// Nothing wrong so far.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    /// Something is wrong with this field or with a part of it.
    pub fn has_fault(&self, field: &str) -> bool {
        let part = format!("{field}/");
        self.faults.keys().any(|key| key == field || key.starts_with(&part))
    }

    /// Text, or None when absent or null.
    pub fn text(&mut self, field: &str) -> Option<String> {
        self.optional(field, text_of)
    }

    /// Text that must be there.
    pub fn required_text(&mut self, field: &str) -> String {
        if !self.fields.contains_key(field) || self.fields.get(field).is_some_and(Value::is_null) {
            self.fault(field, "is required");
            return String::new();
        }
        self.text(field).unwrap_or_default()
    }

    pub fn flag(&mut self, field: &str) -> Option<bool> {
        self.optional(field, |value| value.as_bool().ok_or("must be true or false"))
    }

    pub fn integer(&mut self, field: &str) -> Option<i64> {
        self.optional(field, |value| value.as_i64().ok_or("must be an integer"))
    }

    pub fn map(&mut self, field: &str) -> Option<Map<String, Value>> {
        self.optional(field, |value| match value {
            Value::Object(map) => Ok(map),
            _ => Err("must be an object"),
        })
    }

    pub fn list(&mut self, field: &str) -> Option<Vec<Value>> {
        self.optional(field, |value| match value {
            Value::Array(items) => Ok(items),
            _ => Err("must be a list"),
        })
    }

    /// An id, or None when absent or null.
    pub fn id<T: std::str::FromStr>(&mut self, field: &str) -> Option<T> {
        self.optional(field, |value| id_of(&value))
    }

    /// Whether the field is there and not null.
    pub fn has(&self, field: &str) -> bool {
        self.fields.get(field).is_some_and(|value| !value.is_null())
    }

    pub fn optional<T>(&mut self, field: &str, read: impl FnOnce(Value) -> Result<T, &'static str>) -> Option<T> {
        let value = self.take(field).filter(|value| !value.is_null())?;
        match read(value) {
            Ok(read) => Some(read),
            Err(message) => {
                self.fault(field, message);
                None
            }
        }
    }

    /// All faults at once, or none.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.faults.is_empty() {
            return Ok(());
        }
        Err(Refusal::Validation(self.faults).into())
    }
}

/// Reads text out of a value.
pub fn text_of(value: Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err("must be a string"),
    }
}

/// Reads a word of a closed vocabulary. The words themselves stand in the catalog and the documentation.
pub fn word_of<T: std::str::FromStr>(value: &Value) -> Result<T, &'static str> {
    value
        .as_str()
        .and_then(|word| word.parse().ok())
        .ok_or("is not one of the known words")
}

/// Reads a list of ids.
pub fn ids_of<T: std::str::FromStr>(value: &Value) -> Result<Vec<T>, &'static str> {
    let ids = value
        .as_array()
        .and_then(|items| items.iter().map(|item| id_of(item).ok()).collect());
    ids.ok_or("must be a list of ids")
}

/// Reads an id out of a value.
pub fn id_of<T: std::str::FromStr>(value: &Value) -> Result<T, &'static str> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or("must be an id")
}

/// Reads an RFC 3339 moment, cut to microseconds.
pub fn moment_of(value: &Value) -> Result<Moment, &'static str> {
    let moment = value
        .as_str()
        .and_then(|text| chrono::DateTime::parse_from_rfc3339(text).ok());
    moment
        .map(|moment| fountain_actors::ports::clock::cut(moment.to_utc()))
        .ok_or("must be a time such as 2026-01-02T03:04:05Z")
}

/// PostgreSQL text cannot hold a NUL, and neither can an environment variable or an argument.
fn find_nul(value: &Value, path: &mut String, faults: &mut Faults) {
    match value {
        Value::String(text) if text.contains('\0') => nul_at(path, faults),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                descend(item, &index.to_string(), path, faults);
            }
        }
        Value::Object(fields) => {
            for (key, item) in fields {
                if key.contains('\0') {
                    nul_at(path, faults);
                }
                descend(item, key, path, faults);
            }
        }
        _ => {}
    }
}

fn nul_at(path: &str, faults: &mut Faults) {
    let field = if path.is_empty() { "body" } else { path };
    let messages = faults.entry(field.replace('\0', "\u{fffd}")).or_default();
    messages.push("must not contain a NUL character".into());
}

fn descend(value: &Value, step: &str, path: &mut String, faults: &mut Faults) {
    let length = path.len();
    if length > 0 {
        path.push('/');
    }
    path.push_str(step);
    find_nul(value, path, faults);
    path.truncate(length);
}

impl Body {
    /// Reads the body of a request whose handler had something to check first.
    pub async fn read(req: &HttpRequest, payload: web::Payload) -> Result<Self, ApiError> {
        Self::from_request(req, &mut payload.into_inner()).await
    }
}

impl FromRequest for Body {
    type Error = ApiError;
    type Future = Pin<Box<dyn Future<Output = Result<Self, ApiError>>>>;

    fn from_request(req: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let limit = limit_of(req);
        let length = req.headers().get(header::CONTENT_LENGTH);
        let declared: Option<usize> = length.and_then(|value| value.to_str().ok()?.parse().ok());
        let is_json = is_json(req);
        let payload = payload.take();
        Box::pin(async move {
            if declared.is_some_and(|length| length > limit) {
                return Err(ErrorCode::PayloadTooLarge.into());
            }
            let bytes = read_all(payload, limit).await?;
            if bytes.is_empty() {
                return Ok(Self::default());
            }
            if !is_json {
                return Err(ErrorCode::InvalidRequest.into());
            }
            parse(bytes).await
        })
    }
}

/// Above this a body is parsed on the blocking pool: a megabyte of JSON takes longer than an arbiter may stall.
const PARSE_INLINE: usize = 64 * 1024;

async fn parse(bytes: web::BytesMut) -> Result<Body, ApiError> {
    let inline = bytes.len() <= PARSE_INLINE;
    let read = move || {
        serde_json::from_slice::<Value>(&bytes)
            .map(Body::of)
            .map_err(|_| ErrorCode::InvalidRequest)
    };
    if inline {
        return read().map_err(Into::into);
    }
    let read = web::block(read)
        .await
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    read.map_err(Into::into)
}

async fn read_all(mut payload: Payload, limit: usize) -> Result<web::BytesMut, ApiError> {
    let mut bytes = web::BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|_| ErrorCode::InvalidRequest)?;
        if bytes.len() + chunk.len() > limit {
            return Err(ErrorCode::PayloadTooLarge.into());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn limit_of(req: &HttpRequest) -> usize {
    let Some(state) = req.app_data::<web::Data<AppState>>() else {
        return 0;
    };
    match req.extensions().get::<Passage>().map(|passage| passage.limit) {
        Some(Limit::Large) => state.api.large_body,
        Some(Limit::Small) | None => state.api.small_body,
    }
}

/// Absent counts as JSON: a body says by itself whether it is.
fn is_json(req: &HttpRequest) -> bool {
    let Some(value) = req.headers().get(header::CONTENT_TYPE) else {
        return true;
    };
    let media = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    media == "application/json" || (media.starts_with("application/") && media.ends_with("+json"))
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
