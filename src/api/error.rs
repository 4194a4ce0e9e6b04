//! The one place where an error becomes HTTP (http-api 2, RUL-8, RUL-9).
//!
//! Rooms answer [`Refusal`]s and [`StoreError`]s; handlers pass them on with `?`. Here, and nowhere else, a code gets its
//! status, its `Retry-After` and its body, and an internal error is logged, once, with the id of its request. A
//! [`ErrorCode`] without a row in [`answer`] does not compile.

use std::collections::BTreeMap;
use std::fmt;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use fountain_actors::domain::{ErrorCode, Refusal};
use fountain_actors::ports::store::StoreError;
use serde_json::{Map, Value, json};

/// Field to what is wrong with it; nested keys joined with `/` (http-api 2.1).
pub type Faults = BTreeMap<String, Vec<String>>;

/// Why a key, or the lack of one, does not get in. `error` is prose on the wire and `reason` the code (http-api 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    #[error("send a valid API key as a bearer token")]
    KeyInvalid,
    #[error("this API key was revoked")]
    KeyRevoked,
    #[error("this API key has expired")]
    KeyExpired,
    #[error("this account is not available")]
    AccountUnavailable,
    #[error("verify the account's email address first")]
    EmailUnverified,
    #[error("this action needs a key of full scope")]
    InsufficientScope,
    #[error("this action needs an administrator")]
    AdminRequired,
}

impl Denial {
    fn status(self) -> StatusCode {
        match self {
            Self::KeyInvalid | Self::KeyRevoked | Self::KeyExpired | Self::AccountUnavailable => {
                StatusCode::UNAUTHORIZED
            }
            Self::EmailUnverified | Self::InsufficientScope | Self::AdminRequired => StatusCode::FORBIDDEN,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::KeyInvalid => "api_key_invalid",
            Self::KeyRevoked => "api_key_revoked",
            Self::KeyExpired => "api_key_expired",
            Self::AccountUnavailable => "account_unavailable",
            Self::EmailUnverified => "email_unverified",
            Self::InsufficientScope => "insufficient_scope",
            Self::AdminRequired => "admin_required",
        }
    }
}

/// Everything that a request can be answered with instead of its result.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error(transparent)]
    Denied(#[from] Denial),
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A refusal whose code is not `validation_failed` but which names fields all the same.
    #[error("{code}")]
    Faulty { code: ErrorCode, faults: Faults },
    /// Faults of a runner's dial: 400 instead of 422 (http-api 2.4).
    #[error("the dial is not valid")]
    Dial(Faults),
    /// The client admits no JSON (http-api 1.1): the one body without `error`.
    #[error("not acceptable")]
    NotAcceptable,
    /// The database does not answer. The detail is for the log.
    #[error("the store is unavailable: {0}")]
    StoreUnavailable(String),
    /// A bug, or a row that cannot be read. The detail is for the log.
    #[error("{0}")]
    Internal(String),
    /// A handler panicked; its request is gone, so the id travels here.
    #[error("the handler of request {request_id} panicked")]
    Crashed { request_id: String },
}

impl From<ErrorCode> for ApiError {
    fn from(code: ErrorCode) -> Self {
        Self::Refused(code.into())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unavailable { .. } => Self::StoreUnavailable(error.to_string()),
            StoreError::Internal { .. } => Self::Internal(error.to_string()),
            StoreError::Refused(_) | StoreError::NotFound(_) | StoreError::Stale(_) | StoreError::HomeTaken(_) => {
                Self::Refused(error.refusal())
            }
        }
    }
}

/// Status and `Retry-After` (seconds) of every code (http-api 2.4).
fn answer(code: ErrorCode) -> (StatusCode, Option<u32>) {
    use ErrorCode as C;
    match code {
        C::InvalidRequest | C::ConversationBusy | C::InvalidStatus | C::InvalidLabelFilter | C::NotAWebsocket => {
            (StatusCode::BAD_REQUEST, None)
        }
        C::InsufficientCredits => (StatusCode::PAYMENT_REQUIRED, None),
        C::SpriteMayNotLabelAnotherConversation
        | C::SpriteMayNotAnswer
        | C::GuestAttachRequiresFullScope
        | C::AccountSuspended
        | C::RunnerNameMismatch => (StatusCode::FORBIDDEN, None),
        C::NotFound
        | C::VaultNotFound
        | C::EnvironmentNotFound
        | C::InferenceCredentialNotFound
        | C::ParentConversationNotFound
        | C::SandboxNotFound
        | C::RunnersDisabled
        | C::BillingDisabled => (StatusCode::NOT_FOUND, None),
        C::ConversationModelDiffers
        | C::NoRunnerOnline
        | C::SandboxAtCapacity
        | C::SandboxNotAttachable
        | C::SandboxMidTurn
        | C::SandboxResetPending
        | C::PermissionRequestResolved
        | C::PermissionAnswerNotDelivered
        | C::NoTurnRunning
        | C::NotRunning
        | C::RunnerAlreadyConnected
        | C::ConfigurationChanged => (StatusCode::CONFLICT, None),
        C::ConversationTerminated => (StatusCode::GONE, None),
        C::PayloadTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, None),
        C::ValidationFailed
        | C::InvalidParameters
        | C::InvalidPrompt
        | C::InvalidImages
        | C::SessionConfigInvalid
        | C::ExecutionLimitsInvalid
        | C::ExecutionLimitsUnsupported
        | C::VaultNotAllowed
        | C::EnvironmentNotAllowed
        | C::PermissionPolicyWidens
        | C::PermissionPolicyUnbuilt
        | C::PermissionPolicyInvalid
        | C::PermissionPolicyUnenforceable
        | C::ModelInvalid
        | C::SandboxProviderDisabled
        | C::SandboxIdentityMismatch
        | C::SandboxRuntimeMismatch
        | C::SandboxNotResettable
        | C::InvalidSandboxApiAccess
        | C::InvalidSpriteName
        | C::SpriteNameNotSupported
        | C::InvalidSandboxMode
        | C::NoAgent
        | C::RuntimeDisabled
        | C::OptionIdRequired
        | C::UnknownOption
        | C::InvalidLimit
        | C::InvalidRole
        | C::CannotChangeOwnRole
        | C::CannotSuspendSelf
        | C::NotComped => (StatusCode::UNPROCESSABLE_ENTITY, None),
        C::SandboxQuotaExceeded => (StatusCode::TOO_MANY_REQUESTS, None),
        C::InternalError => (StatusCode::INTERNAL_SERVER_ERROR, None),
        C::FleetFull => (StatusCode::SERVICE_UNAVAILABLE, Some(60)),
        C::Provisioning | C::SandboxUnavailable | C::RunnerOffline => (StatusCode::SERVICE_UNAVAILABLE, Some(30)),
        C::StoreUnavailable | C::SandboxProbeFailed | C::SandboxResumeFailed => {
            (StatusCode::SERVICE_UNAVAILABLE, Some(10))
        }
    }
}

/// Whether the body carries a sentence beside the code. Two codes are pinned without one (http-api 2.2, 2.4), and the
/// fields of a validation say more than a sentence could.
fn has_message(code: ErrorCode) -> bool {
    !matches!(
        code,
        ErrorCode::NotFound | ErrorCode::ConversationBusy | ErrorCode::ValidationFailed
    )
}

/// The body of a refusal: code, sentence, and the extras of its variant.
fn refusal_body(refusal: &Refusal) -> Map<String, Value> {
    let code = refusal.code();
    let mut body = Map::new();
    body.insert("error".into(), code.as_str().into());
    if has_message(code) {
        body.insert("message".into(), refusal.to_string().into());
    }
    let mut extra = |key: &str, value: Value| body.insert(key.into(), value);
    match refusal {
        Refusal::Plain(ErrorCode::BillingDisabled) => {
            extra("billing", "disabled".into());
        }
        // Nobody can pay here yet; the field that clients look for says so.
        Refusal::Plain(ErrorCode::InsufficientCredits) => {
            extra("upgrade_url", Value::Null);
        }
        Refusal::Plain(_) | Refusal::Because { .. } => {}
        Refusal::Validation(faults) => {
            extra("errors", json!(faults));
        }
        Refusal::QuotaExceeded { active, limit } => {
            extra("active_sandboxes", (*active).into());
            extra("limit", (*limit).into());
        }
        Refusal::NotAttachable(status) => {
            extra("status", status.as_str().into());
        }
        Refusal::NotResettable(reason) => {
            extra("reason", reason.as_str().into());
        }
        Refusal::ModelDiffers(model) => {
            extra("model", json!(model));
        }
        Refusal::ScopeTooSmall(_) => {
            extra("reason", "insufficient_scope".into());
            extra("required_scope", "full".into());
        }
    }
    body
}

impl ApiError {
    /// Logs what has to be logged and builds the response. Called once for every error that reaches a client.
    pub fn render(&self, request_id: Option<&str>) -> HttpResponse {
        match self {
            Self::Denied(denial) => respond(denial.status(), None, denied(*denial)),
            Self::Refused(refusal) => {
                let (status, retry_after) = answer(refusal.code());
                let mut body = refusal_body(refusal);
                if refusal.code() == ErrorCode::InternalError {
                    tracing::error!("a door answered an internal error");
                    body.insert("request_id".into(), json!(request_id));
                }
                respond(status, retry_after, Value::Object(body))
            }
            Self::Faulty { code, faults } => {
                let (status, retry_after) = answer(*code);
                let mut body = refusal_body(&Refusal::Plain(*code));
                body.insert("errors".into(), json!(faults));
                respond(status, retry_after, Value::Object(body))
            }
            Self::Dial(faults) => respond(
                StatusCode::BAD_REQUEST,
                None,
                json!({"error": "validation_failed", "errors": faults}),
            ),
            Self::NotAcceptable => respond(
                StatusCode::NOT_ACCEPTABLE,
                None,
                json!({"errors": {"detail": "Not Acceptable"}}),
            ),
            Self::StoreUnavailable(detail) => {
                tracing::warn!(detail, "the store is unavailable");
                let (status, retry_after) = answer(ErrorCode::StoreUnavailable);
                let body = refusal_body(&ErrorCode::StoreUnavailable.into());
                respond(status, retry_after, Value::Object(body))
            }
            Self::Internal(detail) => {
                tracing::error!(detail, "internal error");
                internal(request_id)
            }
            Self::Crashed { request_id } => {
                tracing::error!("a handler panicked");
                internal(Some(request_id))
            }
        }
    }
}

fn denied(denial: Denial) -> Value {
    let mut body = json!({"error": denial.to_string(), "reason": denial.reason()});
    if let (Denial::InsufficientScope, Some(map)) = (denial, body.as_object_mut()) {
        map.insert("required_scope".into(), "full".into());
    }
    body
}

fn internal(request_id: Option<&str>) -> HttpResponse {
    let (status, retry_after) = answer(ErrorCode::InternalError);
    let mut body = refusal_body(&ErrorCode::InternalError.into());
    body.insert("request_id".into(), json!(request_id));
    respond(status, retry_after, Value::Object(body))
}

fn respond(status: StatusCode, retry_after_s: Option<u32>, body: Value) -> HttpResponse {
    let mut response = HttpResponse::build(status);
    if let Some(seconds) = retry_after_s {
        response.insert_header((header::RETRY_AFTER, seconds.to_string()));
    }
    response.json(body)
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::Denied(denial) => denial.status(),
            Self::Refused(refusal) => answer(refusal.code()).0,
            Self::Faulty { code, .. } => answer(*code).0,
            Self::Dial(_) => StatusCode::BAD_REQUEST,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::StoreUnavailable(_) => answer(ErrorCode::StoreUnavailable).0,
            Self::Internal(_) | Self::Crashed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// A bare status: the door renders the error itself, with the id of the request, and only then is it logged. What
    /// the door cannot see (a crash) is rendered here.
    fn error_response(&self) -> HttpResponse {
        match self {
            Self::Crashed { request_id } => {
                let mut response = self.render(None);
                if let Ok(value) = header::HeaderValue::from_str(request_id) {
                    response.headers_mut().insert(super::door::REQUEST_ID, value);
                }
                response
            }
            _ => HttpResponse::new(self.status_code()),
        }
    }
}

/// A framework's own refusal, in our words (http-api 7, caution 2).
pub fn from_framework(status: StatusCode, cause: &dyn fmt::Display) -> ApiError {
    match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => ErrorCode::NotFound.into(),
        StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::PayloadTooLarge.into(),
        status if status.is_client_error() => ErrorCode::InvalidRequest.into(),
        _ => ApiError::Internal(cause.to_string()),
    }
}

/// The fields that an error names.
#[cfg(test)]
pub fn faults_of(error: ApiError) -> Vec<String> {
    match error {
        ApiError::Refused(Refusal::Validation(faults)) => faults.into_keys().collect(),
        other => panic!("not a validation: {other:?}"),
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
