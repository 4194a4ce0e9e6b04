//! One request and its answer, apart from the transport that carries them.

use actix_http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_http::{Method, StatusCode};
use bytes::Bytes;
use fountain_actors::domain::Epoch;
use serde_json::Value;

use crate::address::Target;

/// Names the sender's epoch to a server that keeps them (RUL-L-2).
const EPOCH: HeaderName = HeaderName::from_static("fountain-epoch");

/// A request. It is sent once: nothing here retries.
#[derive(Clone)]
pub(crate) struct Call {
    pub method: Method,
    pub path: String,
    pub body: Option<(Bytes, &'static str)>,
    epoch: Option<Epoch>,
}

impl Call {
    fn new(method: Method, target: Target) -> Self {
        Self {
            method,
            path: target.into_text(),
            body: None,
            epoch: None,
        }
    }

    pub fn get(target: Target) -> Self {
        Self::new(Method::GET, target)
    }

    pub fn delete(target: Target) -> Self {
        Self::new(Method::DELETE, target)
    }

    pub fn post(target: Target) -> Self {
        Self::new(Method::POST, target)
    }

    pub fn put(target: Target) -> Self {
        Self::new(Method::PUT, target)
    }

    pub fn json(mut self, body: &Value) -> Self {
        self.body = Some((body.to_string().into(), "application/json"));
        self
    }

    pub fn bytes(mut self, body: Bytes) -> Self {
        self.body = Some((body, "application/octet-stream"));
        self
    }

    pub fn epoch(mut self, epoch: Option<Epoch>) -> Self {
        self.epoch = epoch;
        self
    }

    /// The headers of this request, the credential among them. None: the token cannot stand in a header.
    pub fn headers(&self, token: &str) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
        headers.insert(header::USER_AGENT, HeaderValue::from_static("fountain"));
        if let Some((_, kind)) = &self.body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        if let Some(Epoch(epoch)) = self.epoch {
            headers.insert(EPOCH, HeaderValue::from(epoch));
        }
        Some(headers)
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// Why there is no whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// No connection could be made: nothing was sent (RUL-L-4).
    NotConnected,
    /// The connection ended, or what came was no HTTP. The fate of the request is unknown.
    Broken,
    /// The body is longer than it may be.
    TooLong,
    /// The limit passed.
    Late,
    /// The adapter's own settings cannot make a request.
    Unsendable,
}
