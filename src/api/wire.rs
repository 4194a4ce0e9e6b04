//! Spellings that every resource shares: envelopes, moments (http-api 1.1, 1.2).

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use chrono::SecondsFormat;
use fountain_actors::domain::Moment;
use serde_json::{Value, json};

use super::error::ApiError;

/// What a handler answers.
pub type Reply = Result<HttpResponse, ApiError>;

/// RFC 3339, whole seconds.
pub fn seconds(moment: Moment) -> String {
    moment.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// RFC 3339, microseconds: `last_read_at`, `last_active_at`, the `ts` of events.
pub fn micros(moment: Moment) -> String {
    moment.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// `{"data": …}` with 200.
pub fn ok(data: Value) -> Reply {
    Ok(HttpResponse::Ok().json(json!({ "data": data })))
}

/// `{"data": …}` with 201.
pub fn created(data: Value) -> Reply {
    Ok(HttpResponse::Created().json(json!({ "data": data })))
}

/// A list is never null.
pub fn list<T>(items: &[T], render: impl Fn(&T) -> Value) -> Reply {
    ok(Value::Array(items.iter().map(render).collect()))
}

/// The object itself, for the few routes that wrap nothing.
pub fn bare(status: StatusCode, body: Value) -> Reply {
    Ok(HttpResponse::build(status).json(body))
}

/// 204.
pub fn nothing() -> Reply {
    Ok(HttpResponse::NoContent().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_the_precision_of_their_field() {
        let moment: Moment = "2026-01-02T03:04:05.123456Z".parse().unwrap();
        assert_eq!(seconds(moment), "2026-01-02T03:04:05Z");
        assert_eq!(micros(moment), "2026-01-02T03:04:05.123456Z");
    }
}
