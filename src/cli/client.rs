//! The HTTP client of the commands. Every failure says what to do about it.

use std::time::Duration;

use anyhow::Context as _;
use awc::http::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{Context, profile};

/// The published CLI's own limit (http-api 6.1).
const CALL_LIMIT: Duration = Duration::from_secs(60);
const DEFAULT_URL: &str = "http://127.0.0.1:4000";
/// More than the largest page of events.
const BODY_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{base} does not answer ({detail}); is the server running? `fountain dev` starts one on this machine")]
    Unreachable { base: String, detail: String },
    #[error("no API key; run `fountain auth login --api-key KEY`, or set FOUNTAIN_API_KEY{0}")]
    NotSignedIn(String),
    /// A refusal of the server, with its code.
    #[error("{message} ({code})")]
    Api {
        status: u16,
        code: String,
        message: String,
        body: Value,
    },
    #[error("the server answered something that is not the API; is the base URL right?")]
    NotTheApi,
}

pub struct Client {
    http: awc::Client,
    pub base: String,
    key: SecretString,
    parent: Option<String>,
}

impl Client {
    /// A client for the server and key that flags, environment and profile name, in that order.
    ///
    /// # Errors
    /// [`ClientError::NotSignedIn`] when there is no key anywhere.
    pub fn new(context: &Context) -> anyhow::Result<Self> {
        let name = context.profile.as_deref().unwrap_or(profile::DEFAULT);
        let stored = profile::load(context.variables.home.as_deref(), name)?;
        let base = context
            .variables
            .base_url
            .clone()
            .or(stored.base_url)
            .unwrap_or_else(|| DEFAULT_URL.to_owned());
        let hint = if name == profile::DEFAULT {
            String::new()
        } else {
            format!(" (profile {name})")
        };
        let key = context
            .variables
            .api_key
            .clone()
            .or(stored.api_key)
            .ok_or(ClientError::NotSignedIn(hint))?;
        Ok(Self::at(base, key, context.variables.conversation_id.clone()))
    }

    /// A client for exactly this server and key.
    pub fn at(base: String, key: SecretString, parent: Option<String>) -> Self {
        let http = awc::Client::builder()
            .disable_timeout()
            .max_http_version(awc::http::Version::HTTP_11)
            .finish();
        Self {
            http,
            base,
            key,
            parent,
        }
    }

    /// A request to `path`, authenticated.
    pub fn request(&self, method: Method, path: &str) -> awc::ClientRequest {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(self.key.expose_secret())
            .insert_header(("User-Agent", concat!("fountain-cli/", env!("CARGO_PKG_VERSION"))));
        if let Some(parent) = &self.parent {
            request = request.insert_header(("X-Fountain-Parent-Conversation-Id", parent.as_str()));
        }
        request
    }

    /// One call; the body as JSON, null for 204.
    ///
    /// # Errors
    /// [`ClientError`] for everything that is no success.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        let request = self.request(method, path).insert_header(("Accept", "application/json"));
        let sent = match body {
            Some(body) => request.send_json(body),
            None => request.send(),
        };
        let mut response = tokio::time::timeout(CALL_LIMIT, sent)
            .await
            .map_err(|_| self.unreachable("no answer within 60 s"))?
            .map_err(|error| self.unreachable(&error.to_string()))?;
        let status = response.status();
        let bytes = tokio::time::timeout(CALL_LIMIT, response.body().limit(BODY_LIMIT))
            .await
            .map_err(|_| self.unreachable("the answer stopped half-way"))?
            .map_err(|error| self.unreachable(&error.to_string()))?;
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        let body: Value = serde_json::from_slice(&bytes).map_err(|_| ClientError::NotTheApi)?;
        if status.is_success() {
            Ok(body)
        } else {
            Err(refusal(status, body))
        }
    }

    /// `GET`, unwrapped from `data`.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.call(Method::GET, path, None).await.map(data)
    }

    /// `POST`, whole body.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub fn unreachable(&self, detail: &str) -> ClientError {
        ClientError::Unreachable {
            base: self.base.clone(),
            detail: detail.to_owned(),
        }
    }

    /// The id of a named thing: an id is taken as it is, a name is looked up in the whole list (http-api 6.1).
    ///
    /// # Errors
    /// When no name or more than one fits.
    pub async fn resolve(&self, collection: &str, what: &str, given: &str) -> anyhow::Result<String> {
        if uuid::Uuid::try_parse(given).is_ok() {
            return Ok(given.to_owned());
        }
        let list = self.get(collection).await?;
        let list = list.as_array().context("the list is no list")?;
        let name = |row: &Value| {
            row.get("name")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_lowercase()
        };
        let wanted = given.to_lowercase();
        let exact: Vec<&Value> = list.iter().filter(|row| name(row) == wanted).collect();
        let fits = if exact.is_empty() {
            list.iter().filter(|row| name(row).starts_with(&wanted)).collect()
        } else {
            exact
        };
        match fits.as_slice() {
            [one] => Ok(one
                .get("id")
                .and_then(Value::as_str)
                .context("it has no id")?
                .to_owned()),
            [] => anyhow::bail!("there is no {what} named {given:?}; `fountain {what}s list` shows what there is"),
            _ => anyhow::bail!("{given:?} fits more than one {what}; give its id"),
        }
    }
}

/// Takes an answer out of its envelope.
pub fn data(mut body: Value) -> Value {
    match body.get_mut("data") {
        Some(data) => data.take(),
        None => body,
    }
}

/// A refusal as the server worded it; field errors are spelled out.
pub fn refusal(status: StatusCode, body: Value) -> ClientError {
    let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
    let code = text("reason")
        .filter(|_| status.as_u16() == 401)
        .or_else(|| text("error"))
        .unwrap_or_default();
    let mut message = text("message")
        .or_else(|| text("error"))
        .unwrap_or_else(|| status.to_string());
    if let Some(errors) = body.get("errors").and_then(Value::as_object) {
        let fields = errors.iter().map(|(field, why)| {
            let why = why
                .as_array()
                .map(|list| list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "));
            format!("{field}: {}", why.unwrap_or_default())
        });
        message = fields.collect::<Vec<_>>().join("; ");
    }
    ClientError::Api {
        status: status.as_u16(),
        code,
        message,
        body,
    }
}
