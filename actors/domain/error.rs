//! What a caller can be refused, and the wire code of each (http-api 2.4, RUL-8, RUL-9).
//!
//! A [`Refusal`] is data: rooms produce it, and `src/api/error.rs` alone turns it into a status, headers and a body.

use std::collections::BTreeMap;

use crate::domain::machine::MachineStatus;
use crate::vocabulary;

vocabulary! {
    /// The codes that clients branch on (http-api 2.4). Messages are free text; these are exact.
    ErrorCode {
        ValidationFailed = "validation_failed",
        NotFound = "not_found",
        InvalidRequest = "invalid_request",
        PayloadTooLarge = "payload_too_large",
        InternalError = "internal_error",
        StoreUnavailable = "store_unavailable",
        ConversationBusy = "conversation_busy",
        InvalidStatus = "invalid_status",
        InvalidLabelFilter = "invalid_label_filter",
        InvalidParameters = "invalid_parameters",
        InvalidPrompt = "invalid_prompt",
        InvalidImages = "invalid_images",
        SessionConfigInvalid = "session_config_invalid",
        ExecutionLimitsInvalid = "execution_limits_invalid",
        ExecutionLimitsUnsupported = "execution_limits_unsupported",
        VaultNotFound = "vault_not_found",
        VaultNotAllowed = "vault_not_allowed",
        EnvironmentNotFound = "environment_not_found",
        EnvironmentNotAllowed = "environment_not_allowed",
        InferenceCredentialNotFound = "inference_credential_not_found",
        PermissionPolicyWidens = "permission_policy_widens",
        PermissionPolicyUnbuilt = "permission_policy_unbuilt",
        PermissionPolicyInvalid = "permission_policy_invalid",
        PermissionPolicyUnenforceable = "permission_policy_unenforceable",
        ModelInvalid = "model_invalid",
        ConversationModelDiffers = "conversation_model_differs",
        SpriteMayNotLabelAnotherConversation = "sprite_may_not_label_another_conversation",
        SpriteMayNotAnswer = "sprite_may_not_answer",
        GuestAttachRequiresFullScope = "guest_attach_requires_full_scope",
        ParentConversationNotFound = "parent_conversation_not_found",
        SandboxProviderDisabled = "sandbox_provider_disabled",
        NoRunnerOnline = "no_runner_online",
        InsufficientCredits = "insufficient_credits",
        AccountSuspended = "account_suspended",
        SandboxQuotaExceeded = "sandbox_quota_exceeded",
        FleetFull = "fleet_full",
        Provisioning = "provisioning",
        SandboxUnavailable = "sandbox_unavailable",
        SandboxProbeFailed = "sandbox_probe_failed",
        SandboxResumeFailed = "sandbox_resume_failed",
        RunnerOffline = "runner_offline",
        SandboxAtCapacity = "sandbox_at_capacity",
        SandboxNotFound = "sandbox_not_found",
        SandboxNotAttachable = "sandbox_not_attachable",
        SandboxIdentityMismatch = "sandbox_identity_mismatch",
        SandboxRuntimeMismatch = "sandbox_runtime_mismatch",
        SandboxNotResettable = "sandbox_not_resettable",
        SandboxMidTurn = "sandbox_mid_turn",
        SandboxResetPending = "sandbox_reset_pending",
        InvalidSandboxApiAccess = "invalid_sandbox_api_access",
        InvalidSpriteName = "invalid_sprite_name",
        SpriteNameNotSupported = "sprite_name_not_supported",
        InvalidSandboxMode = "invalid_sandbox_mode",
        ConversationTerminated = "conversation_terminated",
        NoAgent = "no_agent",
        RuntimeDisabled = "runtime_disabled",
        OptionIdRequired = "option_id_required",
        UnknownOption = "unknown_option",
        PermissionRequestResolved = "permission_request_resolved",
        PermissionAnswerNotDelivered = "permission_answer_not_delivered",
        NoTurnRunning = "no_turn_running",
        NotRunning = "not_running",
        RunnersDisabled = "runners_disabled",
        NotAWebsocket = "not_a_websocket",
        RunnerAlreadyConnected = "runner_already_connected",
        RunnerNameMismatch = "runner_name_mismatch",
        ConfigurationChanged = "configuration_changed",
        BillingDisabled = "billing_disabled",
        InvalidLimit = "invalid_limit",
        InvalidRole = "invalid_role",
        CannotChangeOwnRole = "cannot_change_own_role",
        CannotSuspendSelf = "cannot_suspend_self",
        NotComped = "not_comped",
    }
}

/// Why something was not done. Every variant is an answer that a client can act on.
///
/// A plain refusal is its code alone; a variant of its own exists where the wire carries more than the code.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// A refusal without extras.
    #[error("{}", sentence(*.0))]
    Plain(ErrorCode),
    /// A refusal whose sentence says more than the code does. Never a secret, never a prompt.
    #[error("{message}")]
    Because { code: ErrorCode, message: String },
    /// Fields that did not validate; nested keys are joined with `/` (http-api 2.1).
    #[error("some fields are not valid")]
    Validation(BTreeMap<String, Vec<String>>),
    #[error("{active} of {limit} sandboxes are in use")]
    QuotaExceeded { active: i64, limit: i64 },
    #[error("the sandbox is {0} and cannot be attached to")]
    NotAttachable(MachineStatus),
    /// `reason` on the wire: `ephemeral`, or the status (http-api 2.4).
    #[error("the sandbox cannot be reset ({0})")]
    NotResettable(String),
    /// `model` on the wire: the current override or null.
    #[error("the conversation of this channel runs another model")]
    ModelDiffers(Option<String>),
    /// The key's scope is too small for this action; `reason` and `required_scope` on the wire.
    #[error("this action needs a key of full scope")]
    ScopeTooSmall(ErrorCode),
}

impl Refusal {
    /// The wire code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Plain(code) | Self::Because { code, .. } | Self::ScopeTooSmall(code) => *code,
            Self::Validation(_) => ErrorCode::ValidationFailed,
            Self::QuotaExceeded { .. } => ErrorCode::SandboxQuotaExceeded,
            Self::NotAttachable(_) => ErrorCode::SandboxNotAttachable,
            Self::NotResettable(_) => ErrorCode::SandboxNotResettable,
            Self::ModelDiffers(_) => ErrorCode::ConversationModelDiffers,
        }
    }

    /// A refusal with its own sentence.
    pub fn because(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Because {
            code,
            message: message.into(),
        }
    }

    /// One field that did not validate.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Validation(BTreeMap::from([(field.into(), vec![message.into()])]))
    }
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Self::Plain(code)
    }
}

/// The sentence of a code, for people; every one names what can be done about it where something can.
fn sentence(code: ErrorCode) -> &'static str {
    use ErrorCode as C;
    match code {
        C::ValidationFailed => "some fields are not valid",
        C::NotFound => "there is no such thing in this account",
        C::InvalidRequest => "the request could not be read; send JSON with content type application/json",
        C::PayloadTooLarge => "the request body is too large",
        C::InternalError => "something went wrong on our side; quote the request id when you report it",
        C::StoreUnavailable => "the database does not answer right now; nothing was changed, try again",
        C::ConversationBusy => "a turn is running on this conversation; wait for its end or interrupt it",
        C::InvalidStatus => "the status filter has a word that is no status",
        C::InvalidLabelFilter => "a label filter reads key:value",
        C::InvalidParameters => "these parameters do not go together",
        C::InvalidPrompt => "a prompt needs text that is not blank",
        C::InvalidImages => "an image is 1 byte to 10 MB of base64 png, jpeg, gif or webp",
        C::SessionConfigInvalid => "session options are not supported by this server yet",
        C::ExecutionLimitsInvalid => "execution limits have the wrong form",
        C::ExecutionLimitsUnsupported => "execution limits are not enforced by this server yet",
        C::VaultNotFound => "there is no such vault in this account",
        C::VaultNotAllowed => "the agent does not allow this vault",
        C::EnvironmentNotFound => "there is no such environment in this account",
        C::EnvironmentNotAllowed => "the agent does not allow this environment",
        C::InferenceCredentialNotFound => "there is no such inference credential set in this account",
        C::PermissionPolicyWidens => "a launch may only narrow the agent's permission policy",
        C::PermissionPolicyUnbuilt => "the permission policy uses a verdict that does not exist",
        C::PermissionPolicyInvalid => "a permission policy maps keys to auto_allow, ask or auto_deny",
        C::PermissionPolicyUnenforceable => "this runtime never asks, so the policy could not be enforced",
        C::ModelInvalid => "the runtime cannot drive this model",
        C::ConversationModelDiffers => "the conversation of this channel runs another model",
        C::SpriteMayNotLabelAnotherConversation => "a sandbox key may label only its own conversation",
        C::SpriteMayNotAnswer => "a sandbox key may not answer permission requests",
        C::GuestAttachRequiresFullScope => "attaching another agent needs a key of full scope",
        C::ParentConversationNotFound => "the parent conversation is not in this account",
        C::SandboxProviderDisabled => "this sandbox provider is not configured on this server",
        C::NoRunnerOnline => "no runner of this account is connected; start `fountain runner` on a machine",
        C::InsufficientCredits => "the account has no credit left",
        C::AccountSuspended => "the account is suspended",
        C::SandboxQuotaExceeded => "the account's sandboxes are all in use",
        C::FleetFull => "the deployment's sandboxes are all in use; try again in a minute",
        C::Provisioning => "the sandbox is still being built; try again shortly",
        C::SandboxUnavailable => "another operation holds the sandbox; try again shortly",
        C::SandboxProbeFailed => "the provider did not answer when the sandbox was checked; try again shortly",
        C::SandboxResumeFailed => "the provider would not wake the sandbox; its disk is intact, try again",
        C::RunnerOffline => "the runner that holds this sandbox is not connected",
        C::SandboxAtCapacity => "another conversation runs a turn on this sandbox",
        C::SandboxNotFound => "there is no such sandbox in this account",
        C::SandboxNotAttachable => "the sandbox cannot be attached to in its state",
        C::SandboxIdentityMismatch => "the sandbox was built for another agent, environment or vault",
        C::SandboxRuntimeMismatch => "the agent's runtime changed since the sandbox was built",
        C::SandboxNotResettable => "the sandbox cannot be reset",
        C::SandboxMidTurn => "a turn runs on the sandbox; wait for its end or interrupt it",
        C::SandboxResetPending => "the sandbox is being reset or torn down",
        C::InvalidSandboxApiAccess => "sandbox_api_access none needs a fresh ephemeral sandbox without a chosen name",
        C::InvalidSpriteName => "a sandbox name is 1 to 40 of A-Z a-z 0-9 _ -, the first one a letter or digit",
        C::SpriteNameNotSupported => "a sandbox on a runner cannot be given a name",
        C::InvalidSandboxMode => "the sandbox mode is ephemeral or persistent",
        C::ConversationTerminated => "the conversation has ended",
        C::NoAgent => "the conversation's agent was deleted",
        C::RuntimeDisabled => "this runtime is not enabled on this server; see GET /api/catalog",
        C::OptionIdRequired => "option_id is required",
        C::UnknownOption => "the agent did not offer this option",
        C::PermissionRequestResolved => "the request was answered, timed out, or its turn is over",
        C::PermissionAnswerNotDelivered => "the answer is stored but its turn could not be opened",
        C::NoTurnRunning => "no turn is running on this conversation",
        C::NotRunning => "the conversation is not running",
        C::RunnersDisabled => "runners are switched off on this server",
        C::NotAWebsocket => "this address speaks WebSocket; send an upgrade",
        C::RunnerAlreadyConnected => "a runner of this name is connected already",
        C::RunnerNameMismatch => "the key is bound to another runner name",
        C::ConfigurationChanged => "the configuration changed meanwhile; try again",
        C::BillingDisabled => "this server has no billing",
        C::InvalidLimit => "the limit is a whole number, 0 or more, or null",
        C::InvalidRole => "the role is admin or user",
        C::CannotChangeOwnRole => "administrators cannot change their own role",
        C::CannotSuspendSelf => "administrators cannot suspend themselves",
        C::NotComped => "the account is not comped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_snake_case_and_has_a_sentence() {
        for code in ErrorCode::ALL {
            assert!(
                code.as_str().chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{code}"
            );
            assert!(sentence(*code).len() > 10, "{code}");
        }
    }
}
