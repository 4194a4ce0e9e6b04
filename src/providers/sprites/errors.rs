//! Answers of the service as errors of the contract (sandbox-contract 6).
//!
//! A detail is `http <status>`, and for ordinary calls a short cleaned text of the provider. A receipt's detail never
//! holds provider prose. No detail holds a URL: an exec URL names the command.

use actix_http::StatusCode;
use actix_http::header::{self, HeaderMap};
use fountain_actors::domain::machine::Provider;
use fountain_actors::ports::sandbox::{NOT_CONNECTED, STALE_EPOCH, SandboxError};
use serde_json::Value;

use crate::call::{Lost, Reply};

/// Most characters of a provider's text.
const LONGEST_TEXT: usize = 200;

impl From<Lost> for SandboxError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::NotConnected => unavailable(NOT_CONNECTED),
            Lost::Broken => unavailable("transport_failed"),
            Lost::Late => unavailable("timeout"),
            Lost::TooLong => unclassified("oversized_body"),
            Lost::Unsendable => SandboxError::Invalid("sprites_settings".to_owned()),
        }
    }
}

pub(crate) fn unavailable(detail: &str) -> SandboxError {
    SandboxError::Unavailable(detail.to_owned())
}

pub(crate) fn unclassified(detail: &str) -> SandboxError {
    SandboxError::Provider {
        provider: Provider::Sprites,
        detail: detail.to_owned(),
    }
}

/// The error that an answer means, with the provider's own words.
pub(crate) fn refused(reply: &Reply) -> SandboxError {
    if is_stale(reply) {
        return SandboxError::Invalid(STALE_EPOCH.to_owned());
    }
    let said = said(&reply.body);
    let detail = if said.is_empty() {
        format!("http {}", reply.status.as_u16())
    } else {
        format!("http {}: {said}", reply.status.as_u16())
    };
    classified(reply.status, retry_after(&reply.headers, &reply.body), detail)
}

/// The error that a status means, for a receipt: no prose, no hint.
pub(crate) fn refused_bare(status: StatusCode) -> SandboxError {
    classified(status, None, format!("http {}", status.as_u16()))
}

fn classified(status: StatusCode, retry_after_s: Option<u64>, detail: String) -> SandboxError {
    match status.as_u16() {
        404 => SandboxError::NotFound,
        401 | 403 => SandboxError::Denied(detail),
        429 => SandboxError::RateLimited { retry_after_s },
        500.. => SandboxError::Unavailable(detail),
        // A success that is not the one that was asked for.
        200..=299 => unclassified(&detail),
        _ => SandboxError::Invalid(detail),
    }
}

/// Whether a server that keeps epochs has refused ours (RUL-L-2). Never the same as "exists".
pub(crate) fn is_stale(reply: &Reply) -> bool {
    reply.status == StatusCode::CONFLICT && stale_body(&reply.body)
}

/// The body of that refusal.
pub(crate) fn stale_body(body: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return false;
    };
    ["error", "code"]
        .iter()
        .any(|key| body.get(key).and_then(Value::as_str) == Some(STALE_EPOCH))
}

fn retry_after(headers: &HeaderMap, body: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|body| body.get("retry_after_seconds")?.as_u64())
        .or_else(|| headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok())
}

/// What the provider said, short and printable.
pub(crate) fn said(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(body)) => ["error", "message"]
            .iter()
            .find_map(|key| body.get(*key)?.as_str())
            .or_else(|| body.get("errors")?.as_array()?.first()?.as_str())
            .unwrap_or_default()
            .to_owned(),
        Ok(Value::String(text)) => text,
        Ok(_) => String::new(),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    clean(&text)
}

/// At most [`LONGEST_TEXT`] characters, none of them a control character.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(LONGEST_TEXT)
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, body: &'static str) -> Reply {
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.into(),
        }
    }

    #[test]
    fn sc_v07_to_v10_statuses_become_the_closed_taxonomy() {
        let limited = r#"{"error":"sprite_creation_rate_limited","retry_after_seconds":17}"#;
        let of = |status, body| refused(&reply(status, body));
        assert_eq!(
            of(429, limited),
            SandboxError::RateLimited {
                retry_after_s: Some(17)
            }
        );
        assert_eq!(
            of(429, r#"{"message":"x"}"#),
            SandboxError::RateLimited { retry_after_s: None }
        );
        assert_eq!(
            of(418, r#"{"error":"teapot"}"#),
            SandboxError::Invalid("http 418: teapot".into())
        );
        assert_eq!(
            of(503, r#"{"error":"down"}"#),
            SandboxError::Unavailable("http 503: down".into())
        );
        assert_eq!(of(404, "x"), SandboxError::NotFound);
        assert_eq!(of(401, ""), SandboxError::Denied("http 401".into()));
        assert_eq!(of(403, ""), SandboxError::Denied("http 403".into()));
        assert_eq!(of(302, ""), SandboxError::Invalid("http 302".into()));
        assert_eq!(of(500, "[]"), SandboxError::Unavailable("http 500".into()));
        assert_eq!(
            of(400, r#"{"errors":["bad name"]}"#),
            SandboxError::Invalid("http 400: bad name".into())
        );
    }

    #[test]
    fn a_retry_hint_may_stand_in_the_header() {
        let mut limited = reply(429, "{}");
        limited
            .headers
            .insert(header::RETRY_AFTER, header::HeaderValue::from_static("9"));
        assert_eq!(refused(&limited), SandboxError::RateLimited { retry_after_s: Some(9) });
    }

    #[test]
    fn a_stale_epoch_is_not_a_conflict_of_names() {
        let stale = reply(409, r#"{"error":"stale_epoch"}"#);
        assert!(refused(&stale).is_stale_epoch());
        assert!(!is_stale(&reply(
            409,
            r#"{"error":"A sprite named 'stale_epoch' already exists."}"#
        )));
        assert!(!is_stale(&reply(400, r#"{"error":"stale_epoch"}"#)));
    }

    #[test]
    fn what_the_provider_said_is_short_and_printable() {
        let long = "x".repeat(1000);
        assert_eq!(said(long.as_bytes()).len(), LONGEST_TEXT);
        assert_eq!(clean("a\x1b[31m\r\nb"), "a[31mb");
        assert_eq!(
            refused_bare(StatusCode::SERVICE_UNAVAILABLE),
            SandboxError::Unavailable("http 503".into())
        );
    }
}
