//! The door: what every request passes before its handler, and every answer after it (http-api 1.3; RUL-64b).
//!
//! Order: negotiation, key, scope; the handler's extractors (path, body) come after, so a 401 or 403 wins over every
//! fault of a body (RUL-8). On the way out an [`ApiError`] is rendered with the id of its request. One span per request
//! carries ids, method, route pattern and status: never a query string, a body, a key or the path as it came, because
//! a path holds whatever a client wrote into it (P80).

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, web};
use fountain_actors::domain::ErrorCode;
use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::Instrument;

use super::auth::{self, Signed};
use super::error::{ApiError, from_framework};
use super::routes::{Gate, Limit, Media, routes};
use super::state::{AppState, RequestMeasure};

/// The header that names a request, on every answer.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What the door knows of a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    pub path: &'static str,
    pub method: &'static str,
    pub gate: Gate,
    pub media: Media,
    pub limit: Limit,
}

static PASSAGES: LazyLock<HashMap<(&'static str, &'static str), Passage>> = LazyLock::new(|| {
    let rows = routes().into_iter().map(|row| {
        let method = known_method(row.method.as_str());
        let passage = Passage {
            path: row.path,
            method,
            gate: row.gate,
            media: row.media,
            limit: row.limit,
        };
        ((method, row.path), passage)
    });
    rows.collect()
});

/// A method as a label: ours, or `OTHER`.
fn known_method(method: &str) -> &'static str {
    match method {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        _ => "OTHER",
    }
}

/// The middleware. Everything inside it has been let in, or is public.
pub async fn door(
    req: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let Some(state) = req.app_data::<web::Data<AppState>>().cloned() else {
        return Err(ApiError::Internal("the doors were mounted without their state".into()).into());
    };
    let started = Instant::now();
    let request_id = state.rng.hex(8);
    let method = known_method(req.method().as_str());
    let passages: &HashMap<(&str, &str), Passage> = &PASSAGES;
    let passage = req
        .match_pattern()
        .and_then(|pattern| passages.get(&(method, pattern.as_str())).copied());
    let route = passage.map_or("unmatched", |passage| passage.path);
    let span = tracing::info_span!(
        "request",
        request.id = %request_id,
        account.id = tracing::field::Empty,
        method,
        route,
        status = tracing::field::Empty,
    );
    // A panic in a handler or behind a port is a bug, and may not take the worker with it.
    let work = AssertUnwindSafe(pass(req, next, &state, passage, &request_id)).catch_unwind();
    let answered = match work.instrument(span.clone()).await {
        Ok(answered) => answered,
        Err(_) => Err(ApiError::Crashed {
            request_id: request_id.clone(),
        }
        .into()),
    };
    let status = answered
        .as_ref()
        .map_or_else(|error| error.as_response_error().status_code(), ServiceResponse::status);
    let took = started.elapsed();
    span.record("status", status.as_u16());
    span.in_scope(|| tracing::debug!(duration_ms = took.as_millis() as u64, "request answered"));
    (state.measure)(RequestMeasure {
        route,
        method,
        status: status.as_u16(),
        took,
    });
    answered.map(|mut response| {
        if let Ok(value) = HeaderValue::from_str(&request_id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        response
    })
}

async fn pass(
    req: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
    state: &AppState,
    passage: Option<Passage>,
    request_id: &str,
) -> Result<ServiceResponse<BoxBody>, Error> {
    match admit(&req, state, passage).await {
        Err(refusal) => Ok(req.into_response(refusal.render(Some(request_id)))),
        Ok(caller) => {
            if let Some(caller) = caller {
                tracing::Span::current().record("account.id", tracing::field::display(caller.account_id()));
                req.extensions_mut().insert(caller);
            }
            if let Some(passage) = passage {
                req.extensions_mut().insert(passage);
            }
            next.call(req).await.map(|response| render(response, request_id))
        }
    }
}

/// Negotiation, key, scope. None for public routes.
async fn admit(req: &ServiceRequest, state: &AppState, passage: Option<Passage>) -> Result<Option<Signed>, ApiError> {
    let Some(passage) = passage else {
        if req.path() == "/api" || req.path().starts_with("/api/") {
            auth::authenticate(req, state).await?;
        }
        return Err(ErrorCode::NotFound.into());
    };
    if passage.media == Media::Json && !admits_json(req) {
        return Err(ApiError::NotAcceptable);
    }
    if passage.gate == Gate::Public {
        return Ok(None);
    }
    let caller = auth::authenticate(req, state).await?;
    auth::check(passage.gate, &caller)?;
    Ok(Some(caller))
}

/// Whether `Accept` is absent or one of its ranges admits JSON (http-api 1.1).
fn admits_json(req: &ServiceRequest) -> bool {
    let mut values = req.headers().get_all(header::ACCEPT).peekable();
    if values.peek().is_none() {
        return true;
    }
    values
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.trim().is_empty() || value.split(',').any(range_admits_json))
}

fn range_admits_json(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default().to_ascii_lowercase();
    let refused = parts.any(|parameter| {
        parameter
            .strip_prefix("q=")
            .is_some_and(|quality| quality.trim().parse::<f32>().is_ok_and(|quality| quality == 0.0))
    });
    !refused && matches!(media.as_str(), "*/*" | "application/*" | "application/json")
}

/// Turns an error that travelled as a response into its body. Everything else stays as the handler made it.
fn render<B: MessageBody + 'static>(response: ServiceResponse<B>, request_id: &str) -> ServiceResponse<BoxBody> {
    let rendered = response
        .response()
        .error()
        .map(|error| match error.as_error::<ApiError>() {
            Some(error) => error.render(Some(request_id)),
            None => from_framework(error.as_response_error().status_code(), error).render(Some(request_id)),
        });
    match rendered {
        Some(rendered) => response.into_response(rendered),
        None => response.map_into_boxed_body(),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn accept_admits_json_in_every_form_that_clients_send() {
        let admits = |accept: &str| {
            admits_json(
                &TestRequest::default()
                    .insert_header((header::ACCEPT, accept))
                    .to_srv_request(),
            )
        };
        assert!(admits_json(&TestRequest::default().to_srv_request()));
        for good in [
            "*/*",
            "application/json",
            "text/html, application/json;q=0.5",
            "APPLICATION/*",
            "",
        ] {
            assert!(admits(good), "{good}");
        }
        for bad in [
            "text/html",
            "text/event-stream",
            "application/json;q=0",
            "image/png, text/*",
        ] {
            assert!(!admits(bad), "{bad}");
        }
    }
}
