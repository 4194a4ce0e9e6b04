use fountain_actors::domain::machine::Provider;
use serde_json::json;

use super::*;
use crate::api::error::faults_of;

fn facts() -> CatalogFacts {
    CatalogFacts {
        runtimes: vec![Runtime::Acp],
        providers: vec![Provider::Runner],
    }
}

fn read(value: Value) -> Result<AgentConfig, ApiError> {
    create(Body::of(value), &facts())
}

#[test]
fn rul_51_agents_of_every_runtime_can_be_stored() {
    for (runtime, model) in [
        ("claude", "anthropic/claude-sonnet-5"),
        ("codex", "openai/gpt-5"),
        ("gemini", "google/gemini-2.5-pro"),
        ("opencode", "google/gemini-2.5-pro"),
    ] {
        read(json!({"name": "a", "runtime": runtime, "model": model})).unwrap();
    }
    read(json!({"name": "a", "runtime": "acp", "runtime_command": "agent --acp"})).unwrap();
}

#[test]
fn what_a_runtime_needs_is_named() {
    let faults = |value| faults_of(read(value).unwrap_err());
    assert_eq!(faults(json!({})), ["name", "runtime"]);
    assert_eq!(faults(json!({"name": "a", "runtime": "cobol"})), ["runtime"]);
    assert_eq!(faults(json!({"name": "a", "runtime": "acp"})), ["runtime_command"]);
    assert_eq!(faults(json!({"name": "a", "runtime": "claude"})), ["model"]);
    assert_eq!(
        faults(json!({"name": "a", "runtime": "claude", "model": "openai/gpt-5"})),
        ["model"]
    );
    assert_eq!(
        faults(json!({"name": "a", "runtime": "claude", "model": "Sonnet"})),
        ["model"]
    );
    assert_eq!(
        faults(json!({"name": "", "runtime": "claude", "model": "anthropic/x", "runtime_command": "x"})),
        ["name", "runtime_command"]
    );
}

#[test]
fn nested_faults_have_paths() {
    let faults = faults_of(
        read(json!({
            "name": "a".repeat(201),
            "runtime": "acp",
            "runtime_command": "x",
            "sandbox_provider": "e2b",
            "sandbox_mode": "eternal",
            "skills": [{"content": "c"}, {"source": "owner/repo", "ref": "main"}, {"source": "nope"}],
            "mcp_servers": {"a": 1},
            "allowed_vault_ids": ["x"],
            "permission_policy": {"Bash": "perhaps"},
        }))
        .unwrap_err(),
    );
    assert_eq!(
        faults,
        [
            "allowed_vault_ids",
            "mcp_servers/a",
            "name",
            "permission_policy",
            "sandbox_mode",
            "sandbox_provider",
            "skills/0",
            "skills/2",
        ]
    );
}

#[test]
fn an_update_keeps_what_it_does_not_name_and_null_clears_what_may_be_empty() {
    let agent = read(json!({
        "name": "a", "runtime": "acp", "runtime_command": "x", "system": "be kind",
        "permission_policy": {"default": "ask"}, "allowed_vault_ids": [],
    }))
    .unwrap();
    let updated = update(
        Body::of(json!({"name": "b", "system": null, "permission_policy": null, "allowed_vault_ids": null})),
        agent,
        &facts(),
    )
    .unwrap();
    assert_eq!((updated.name.as_str(), updated.system.as_str()), ("b", "be kind"));
    assert!(updated.permission_policy.is_empty());
    assert_eq!(updated.allowed_vault_ids, None);
    assert_eq!(updated.runtime_command.as_deref(), Some("x"));
}

#[test]
fn a_provider_is_checked_only_when_it_changes() {
    let mut agent = read(json!({"name": "a", "runtime": "acp", "runtime_command": "x"})).unwrap();
    agent.sandbox_provider = Some(Provider::E2b);
    let kept = update(Body::of(json!({"sandbox_provider": "e2b"})), agent.clone(), &facts());
    assert!(kept.is_ok());
    let moved = update(Body::of(json!({"sandbox_provider": "daytona"})), agent, &facts());
    assert_eq!(faults_of(moved.unwrap_err()), ["sandbox_provider"]);
}

#[test]
fn rul_18_session_options_are_refused_and_not_ignored() {
    let refused = read(json!({"name": "a", "runtime": "acp", "session_config": {"mode": "plan"}}));
    assert!(matches!(refused, Err(ApiError::Refused(refusal)) if refusal.code() == ErrorCode::SessionConfigInvalid));
}
