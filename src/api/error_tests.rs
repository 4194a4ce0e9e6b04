//! Pins status, headers and body of every code (http-api 2.4), and of the refusals that are no codes (2.3).

use actix_web::body::to_bytes;
use fountain_actors::domain::machine::MachineStatus;
use futures_util::FutureExt;

use super::*;

/// `status retry-after body`, with the sentence of the code left out.
fn shown(error: &ApiError) -> String {
    let response = error.render(Some("r1"));
    let status = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .map(|value| value.to_str().unwrap().to_owned());
    let media = response
        .headers()
        .get(header::CONTENT_TYPE)
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(media, "application/json");
    let bytes = to_bytes(response.into_body()).now_or_never().unwrap().unwrap();
    let mut body: Value = serde_json::from_slice(&bytes).unwrap();
    let message = body.as_object_mut().unwrap().shift_remove("message");
    let message = message.map_or("", |message| {
        assert!(message.as_str().unwrap().len() > 10);
        " +message"
    });
    format!("{status} {} {body}{message}", retry_after.as_deref().unwrap_or("-"))
}

/// Every code of the vocabulary, in its order.
const CODES: &str = "\
validation_failed 422 -
not_found 404 -
invalid_request 400 - +message
payload_too_large 413 - +message
internal_error 500 - +message
store_unavailable 503 10 +message
conversation_busy 400 -
invalid_status 400 - +message
invalid_label_filter 400 - +message
invalid_parameters 422 - +message
invalid_prompt 422 - +message
invalid_images 422 - +message
session_config_invalid 422 - +message
execution_limits_invalid 422 - +message
execution_limits_unsupported 422 - +message
vault_not_found 404 - +message
vault_not_allowed 422 - +message
environment_not_found 404 - +message
environment_not_allowed 422 - +message
inference_credential_not_found 404 - +message
permission_policy_widens 422 - +message
permission_policy_unbuilt 422 - +message
permission_policy_invalid 422 - +message
permission_policy_unenforceable 422 - +message
model_invalid 422 - +message
conversation_model_differs 409 - +message
sprite_may_not_label_another_conversation 403 - +message
sprite_may_not_answer 403 - +message
guest_attach_requires_full_scope 403 - +message
parent_conversation_not_found 404 - +message
sandbox_provider_disabled 422 - +message
no_runner_online 409 - +message
insufficient_credits 402 - +message
account_suspended 403 - +message
sandbox_quota_exceeded 429 - +message
fleet_full 503 60 +message
provisioning 503 30 +message
sandbox_unavailable 503 30 +message
sandbox_probe_failed 503 10 +message
sandbox_resume_failed 503 10 +message
runner_offline 503 30 +message
sandbox_at_capacity 409 - +message
sandbox_not_found 404 - +message
sandbox_not_attachable 409 - +message
sandbox_identity_mismatch 422 - +message
sandbox_runtime_mismatch 422 - +message
sandbox_not_resettable 422 - +message
sandbox_mid_turn 409 - +message
sandbox_reset_pending 409 - +message
invalid_sandbox_api_access 422 - +message
invalid_sprite_name 422 - +message
sprite_name_not_supported 422 - +message
invalid_sandbox_mode 422 - +message
conversation_terminated 410 - +message
no_agent 422 - +message
runtime_disabled 422 - +message
option_id_required 422 - +message
unknown_option 422 - +message
permission_request_resolved 409 - +message
permission_answer_not_delivered 409 - +message
no_turn_running 409 - +message
not_running 409 - +message
runners_disabled 404 - +message
not_a_websocket 400 - +message
runner_already_connected 409 - +message
runner_name_mismatch 403 - +message
configuration_changed 409 - +message
billing_disabled 404 - +message
invalid_limit 422 - +message
invalid_role 422 - +message
cannot_change_own_role 422 - +message
cannot_suspend_self 422 - +message
not_comped 422 - +message
";

#[test]
fn every_code_has_its_status_and_retry_after() {
    let mut table = String::new();
    for code in ErrorCode::ALL {
        let shown = shown(&(*code).into());
        let body = match code {
            ErrorCode::InternalError => r#"{"error":"internal_error","request_id":"r1"}"#.to_owned(),
            ErrorCode::BillingDisabled => r#"{"error":"billing_disabled","billing":"disabled"}"#.to_owned(),
            ErrorCode::InsufficientCredits => r#"{"error":"insufficient_credits","upgrade_url":null}"#.to_owned(),
            code => format!(r#"{{"error":"{code}"}}"#),
        };
        table.push_str(&format!("{code} {}\n", shown.replacen(&format!(" {body}"), "", 1)));
    }
    assert_eq!(table, CODES);
}

#[test]
fn refusals_with_extras_carry_them() {
    let model = Refusal::ModelDiffers(None);
    let attach = Refusal::ScopeTooSmall(ErrorCode::GuestAttachRequiresFullScope);
    let rows: Vec<(ApiError, &str)> = vec![
        (
            Refusal::QuotaExceeded { active: 3, limit: 3 }.into(),
            r#"429 - {"error":"sandbox_quota_exceeded","active_sandboxes":3,"limit":3} +message"#,
        ),
        (
            Refusal::NotAttachable(MachineStatus::Pending).into(),
            r#"409 - {"error":"sandbox_not_attachable","status":"pending"} +message"#,
        ),
        (
            Refusal::NotResettable("ephemeral".into()).into(),
            r#"422 - {"error":"sandbox_not_resettable","reason":"ephemeral"} +message"#,
        ),
        (
            model.into(),
            r#"409 - {"error":"conversation_model_differs","model":null} +message"#,
        ),
        (
            attach.into(),
            r#"403 - {"error":"guest_attach_requires_full_scope","reason":"insufficient_scope","required_scope":"full"} +message"#,
        ),
        (
            Refusal::field("repositories/0/url", "must be https").into(),
            r#"422 - {"error":"validation_failed","errors":{"repositories/0/url":["must be https"]}}"#,
        ),
        (
            ApiError::Faulty {
                code: ErrorCode::ExecutionLimitsInvalid,
                faults: Faults::from([("execution_limits".into(), vec!["no".into()])]),
            },
            r#"422 - {"error":"execution_limits_invalid","errors":{"execution_limits":["no"]}} +message"#,
        ),
        (
            ApiError::Dial(Faults::from([("name".into(), vec!["no".into()])])),
            r#"400 - {"error":"validation_failed","errors":{"name":["no"]}}"#,
        ),
        (
            ApiError::NotAcceptable,
            r#"406 - {"errors":{"detail":"Not Acceptable"}}"#,
        ),
        (
            ApiError::Internal("the reason".into()),
            r#"500 - {"error":"internal_error","request_id":"r1"} +message"#,
        ),
        (
            ApiError::Crashed {
                request_id: "r2".into(),
            },
            r#"500 - {"error":"internal_error","request_id":"r2"} +message"#,
        ),
        (
            ApiError::StoreUnavailable("down".into()),
            r#"503 10 {"error":"store_unavailable"} +message"#,
        ),
    ];
    for (error, expected) in rows {
        assert_eq!(shown(&error), expected);
    }
}

#[test]
fn key_and_scope_refusals_are_prose_with_a_reason() {
    let rows = [
        (Denial::KeyInvalid, 401, "api_key_invalid"),
        (Denial::KeyRevoked, 401, "api_key_revoked"),
        (Denial::KeyExpired, 401, "api_key_expired"),
        (Denial::AccountUnavailable, 401, "account_unavailable"),
        (Denial::EmailUnverified, 403, "email_unverified"),
        (Denial::AdminRequired, 403, "admin_required"),
    ];
    for (denial, status, reason) in rows {
        assert_eq!(
            shown(&denial.into()),
            format!(r#"{status} - {{"error":"{denial}","reason":"{reason}"}}"#)
        );
    }
    assert_eq!(
        shown(&Denial::InsufficientScope.into()),
        r#"403 - {"error":"this action needs a key of full scope","reason":"insufficient_scope","required_scope":"full"}"#
    );
}

#[test]
fn rul_09_a_store_fault_is_never_a_sandbox_fault_and_its_detail_stays_here() {
    let secret = "connection to db.internal refused";
    let down: ApiError = StoreError::Unavailable {
        op: "x",
        detail: secret.into(),
    }
    .into();
    let broken: ApiError = StoreError::Internal {
        op: "x",
        detail: secret.into(),
    }
    .into();
    for (error, code) in [(down, "store_unavailable"), (broken, "internal_error")] {
        let shown = shown(&error);
        assert!(shown.contains(code), "{shown}");
        assert!(!shown.contains("db.internal"), "{shown}");
    }
    assert!(shown(&StoreError::NotFound("agent").into()).starts_with("404"));
}
