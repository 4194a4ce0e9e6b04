//! Why a call is refused, as the clients read it (providers 1.1). The one place where a failure becomes HTTP.

use std::fmt;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use serde_json::{Value, json};

use crate::enclosure::EnclosureError;

/// A status and a JSON body.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    body: Value,
    headers: Vec<(&'static str, u64)>,
}

impl Refusal {
    /// `{"error": …}`.
    pub fn new(status: StatusCode, error: &str) -> Self {
        Self::with(status, json!({"error": error}))
    }

    /// A body of its own.
    pub fn with(status: StatusCode, body: Value) -> Self {
        Self {
            status,
            body,
            headers: Vec::new(),
        }
    }

    /// Adds a header.
    pub fn header(mut self, name: &'static str, value: u64) -> Self {
        self.headers.push((name, value));
        self
    }

    /// 400 with the list of what is wrong.
    pub fn invalid(what: &str) -> Self {
        Self::with(StatusCode::BAD_REQUEST, json!({"errors": [what]}))
    }

    /// No such sprite, or not this token's.
    pub fn no_sprite() -> Self {
        Self::new(StatusCode::NOT_FOUND, "sprite not found")
    }

    /// Something else holds the sprite for too long.
    pub fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the sprite is busy with another operation",
        )
        .header("retry-after", 5)
    }

    /// The host does not do what it should. Logged here, once.
    pub fn broken(error: &dyn fmt::Display) -> Self {
        tracing::error!(%error, "an operation failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    }

    /// Its text, for a line of a stream.
    pub fn text(&self) -> String {
        let error = self.body.get("error").and_then(Value::as_str);
        error.unwrap_or("the operation failed").to_owned()
    }
}

impl From<EnclosureError> for Refusal {
    fn from(error: EnclosureError) -> Self {
        match error {
            EnclosureError::Unenforceable(why) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, &why),
            EnclosureError::Closed => Self::new(StatusCode::SERVICE_UNAVAILABLE, "the sandbox is not running"),
            EnclosureError::Failed(_) | EnclosureError::Io(_) => {
                tracing::error!(%error, "a sandbox does not work");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "the sandbox could not be started")
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)
    }
}

impl std::error::Error for Refusal {}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        for (name, value) in &self.headers {
            response.insert_header((header::HeaderName::from_static(name), *value));
        }
        response.json(&self.body)
    }
}
