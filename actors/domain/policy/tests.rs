use serde_json::json;

use super::*;

fn policy(value: Value) -> PermissionPolicy {
    PermissionPolicy::parse(&value).unwrap()
}

#[test]
fn a_title_counts_before_a_kind_and_a_kind_before_the_default() {
    let policy = policy(json!({"ls": "auto_allow", "execute": "ask", "default": "auto_deny"}));
    assert_eq!(policy.verdict(Some("ls"), Some("execute")), Verdict::AutoAllow);
    assert_eq!(policy.verdict(Some("rm"), Some("execute")), Verdict::Ask);
    assert_eq!(policy.verdict(Some("rm"), Some("edit")), Verdict::AutoDeny);
    assert_eq!(policy.verdict(None, None), Verdict::AutoDeny);
    assert_eq!(PermissionPolicy::default().verdict(None, None), Verdict::AutoAllow);
}

#[test]
fn wrong_shapes_have_their_own_codes() {
    let code = |value| PermissionPolicy::parse(&value).unwrap_err().code().as_str();
    assert_eq!(code(json!([])), "permission_policy_invalid");
    assert_eq!(code(json!({"execute": 1})), "permission_policy_invalid");
    assert_eq!(code(json!({"": "ask"})), "permission_policy_invalid");
    assert_eq!(code(json!({"execute": "maybe"})), "permission_policy_unbuilt");
    for bad in [json!("60"), json!(0), json!(-1), json!(31_536_001), json!(null)] {
        assert_eq!(code(json!({"ask_timeout": bad})), "permission_policy_invalid");
    }
    assert_eq!(
        policy(json!({"ask_timeout": 31_536_000})).ask_timeout(),
        Some(ASK_TIMEOUT_MAX)
    );
    assert_eq!(PermissionPolicy::parse(&Value::Null), Ok(PermissionPolicy::default()));
}

#[test]
fn a_stored_value_that_is_no_verdict_denies() {
    let stored = json!({"execute": 7, "edit": "yes", "ask_timeout": "x"})
        .as_object()
        .cloned()
        .unwrap();
    let policy = PermissionPolicy::from_stored(&stored);
    assert_eq!(policy.verdict(None, Some("execute")), Verdict::AutoDeny);
    assert_eq!(policy.verdict(None, Some("edit")), Verdict::AutoDeny);
    assert_eq!(policy.verdict(None, Some("read")), Verdict::AutoAllow);
    assert_eq!(policy.ask_timeout(), None);
}

#[test]
fn a_launch_may_narrow_and_a_loosening_names_its_key() {
    let agent = policy(json!({"execute": "ask", "default": "ask", "ask_timeout": 60}));
    let key = |launch| match agent.check_narrows(&policy(launch)) {
        Err(PolicyError::Widens { key }) => Some(key),
        Ok(()) => None,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(key(json!({})), None);
    assert_eq!(
        key(json!({"execute": "auto_deny", "default": "auto_deny", "ask_timeout": 10})),
        None
    );
    assert_eq!(key(json!({"execute": "auto_allow"})).as_deref(), Some("execute"));
    assert_eq!(
        key(json!({"edit": "auto_allow"})).as_deref(),
        Some("edit"),
        "judged against the default"
    );
    assert_eq!(key(json!({"default": "auto_allow"})).as_deref(), Some("default"));
    assert_eq!(key(json!({"ask_timeout": 61})).as_deref(), Some("ask_timeout"));
}

#[test]
fn the_stricter_layer_wins_even_when_a_title_of_one_meets_a_kind_of_the_other() {
    let agent = policy(json!({"execute": "auto_deny"}));
    let launch = policy(json!({"git status": "auto_allow", "ask_timeout": 5}));
    let turn = EffectivePolicy::of(agent, Some(launch));
    assert_eq!(turn.verdict(Some("git status"), Some("execute")), Verdict::AutoDeny);
    assert_eq!(turn.verdict(Some("git status"), Some("read")), Verdict::AutoAllow);
    assert_eq!(turn.ask_timeout(), Some(Duration::from_secs(5)));
    assert_eq!(EffectivePolicy::default().verdict(None, None), Verdict::AutoAllow);
}

#[test]
fn the_wire_form_reads_back_as_the_same_policy() {
    let value = json!({"edit": "ask", "default": "auto_deny", "ask_timeout": 1.5});
    assert_eq!(Value::Object(policy(value.clone()).to_map()), value);
    assert!(policy(value).restricts());
    assert!(!policy(json!({"edit": "auto_allow"})).restricts());
}
