//! Why a connection or a turn failed, told from the agent's answers (runtimes 10.5, 12.2).

use super::message::{RESOURCE_NOT_FOUND, RpcError};

/// A failure that ends the turn. [`Failure::code`] is the reason that is stored.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The transport did not take a line.
    #[error("the agent's input could not be written")]
    WriteFailed,
    /// A handshake call was not answered in time.
    #[error("the agent did not answer {request} in time")]
    Timeout { request: &'static str },
    /// The agent speaks another protocol version.
    #[error("the agent speaks protocol version {offered}, this server speaks 1")]
    ProtocolVersion { offered: String },
    /// A session is to be continued and the agent offers neither resume nor load.
    #[error("the agent cannot continue a session")]
    CannotResume,
    /// `session/new` answered without an id.
    #[error("the agent answered session/new without a session id")]
    NoSessionId,
    /// The prompt has images and the agent takes none (RUL-18).
    #[error("the agent does not accept images")]
    ImagesNotSupported,
    /// The wanted model could not be had; no prompt was written.
    #[error("model {requested} could not be selected: {detail}")]
    ModelSelection {
        requested: String,
        effective: Option<String>,
        detail: String,
    },
    /// An option was refused; no prompt was written.
    #[error("option {id} could not be set: {detail}")]
    ConfigSelection { id: String, detail: String },
    /// The organisation does not allow the OAuth token.
    #[error("the model provider refused the credential: {detail}")]
    OauthOrgNotAllowed { detail: String },
    /// The provider does not serve the model.
    #[error("the model is not available: {detail}")]
    ModelUnavailable { detail: String },
    /// Any other error response.
    #[error("{request} failed: {detail}")]
    Rpc {
        request: &'static str,
        code: Option<i64>,
        detail: String,
    },
}

impl Failure {
    /// The reason as it is stored and published.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::WriteFailed => "acp_write_failed",
            Self::Timeout { .. } => "acp_timeout",
            Self::ProtocolVersion { .. } => "acp_protocol_version",
            Self::CannotResume => "acp_agent_cannot_resume",
            Self::NoSessionId => "acp_no_session_id",
            Self::ImagesNotSupported => "images_not_supported",
            Self::ModelSelection { .. } => "model_selection_failed",
            Self::ConfigSelection { .. } => "config_selection_failed",
            Self::OauthOrgNotAllowed { .. } => "oauth_org_not_allowed",
            Self::ModelUnavailable { .. } => "model_unavailable",
            Self::Rpc { .. } => "acp_error",
        }
    }

    /// Failures that also announce themselves as stage `model/failed`.
    #[must_use]
    pub fn is_about_the_model(&self) -> bool {
        matches!(
            self,
            Self::ModelSelection { .. } | Self::ConfigSelection { .. } | Self::ModelUnavailable { .. }
        )
    }
}

/// An error answer to `session/prompt`.
#[must_use]
pub fn of_prompt(error: &RpcError) -> Failure {
    let detail = error.detail();
    let text = error.raw.to_string().to_lowercase();
    if text.contains("oauth_org_not_allowed") {
        Failure::OauthOrgNotAllowed { detail }
    } else if text.contains("model") && MODEL_UNAVAILABLE.iter().any(|phrase| text.contains(phrase)) {
        Failure::ModelUnavailable { detail }
    } else {
        of_call("session/prompt", error)
    }
}

/// An error answer to any other call.
#[must_use]
pub fn of_call(request: &'static str, error: &RpcError) -> Failure {
    Failure::Rpc {
        request,
        code: error.code(),
        detail: error.detail(),
    }
}

const MODEL_UNAVAILABLE: [&str; 7] = [
    "no longer available",
    "does not exist or you do not have access",
    "is not found for api version",
    "model_not_found",
    "model not found",
    "unknown model",
    "invalid model",
];

/// An error answer to `session/resume` or `session/load` that says: there is no such session any more.
#[must_use]
pub fn is_session_gone(error: &RpcError) -> bool {
    let text = error.raw.to_string().to_lowercase();
    error.code() == Some(RESOURCE_NOT_FOUND)
        || SESSION_GONE.iter().any(|phrase| text.contains(phrase))
        // opencode does not tell a missing session from a failing store; on these two calls it is taken as missing.
        || error.raw.pointer("/data/service").and_then(serde_json::Value::as_str) == Some("session")
}

const SESSION_GONE: [&str; 8] = [
    "no rollout found",
    "no conversation found",
    "no session found",
    "session not found",
    "resource not found",
    "no such session",
    "unknown session",
    "invalid session identifier", // gemini
];

/// An error answer that asks for `authenticate`.
#[must_use]
pub fn is_auth_required(error: &RpcError) -> bool {
    let message = error
        .raw
        .get("message")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    error.code() == Some(super::message::AUTH_REQUIRED) || message.to_lowercase().contains("auth")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn error(raw: Value) -> RpcError {
        RpcError { raw }
    }

    #[test]
    fn every_observed_answer_for_a_missing_session_is_gone() {
        for raw in [
            json!({"code": -32002, "message": "Resource not found"}),
            json!({"code": -32603, "message": "Internal error", "data": {"details": "no rollout found for thread id 1"}}),
            json!({"code": -32603, "message": "x", "data": {"details": "Invalid session identifier \"a\""}}),
            json!({"code": -32603, "message": "Internal error: OpenCode service failure", "data": {"service": "session"}}),
        ] {
            assert!(is_session_gone(&error(raw.clone())), "{raw}");
        }
        assert!(!is_session_gone(&error(
            json!({"code": -32603, "message": "disk full"})
        )));
        assert!(!is_session_gone(&error(
            json!({"code": -32000, "message": "authentication required"})
        )));
    }

    #[test]
    fn prompt_errors_have_their_own_reasons() {
        let code = |raw| of_prompt(&error(raw)).code();
        assert_eq!(
            code(json!({"message": "API Error: oauth_org_not_allowed"})),
            "oauth_org_not_allowed"
        );
        assert_eq!(
            code(json!({"message": "The model x does not exist or you do not have access to it"})),
            "model_unavailable"
        );
        assert_eq!(
            code(json!({"data": {"details": "model_not_found"}})),
            "model_unavailable"
        );
        assert_eq!(
            code(json!({"message": "this page is no longer available"})),
            "acp_error"
        );
        assert_eq!(code(json!({"code": 400, "message": "bad"})), "acp_error");
    }
}
