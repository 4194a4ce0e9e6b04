//! What policies say, by example and by property.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Action, DEFAULTS, Policy};

fn policy(rules: Value) -> Policy {
    Policy::parse(&json!({ "rules": rules })).unwrap()
}

fn faults(body: Value) -> Vec<String> {
    Policy::parse(&body).unwrap_err()
}

#[test]
fn rul_l_113_no_rules_enforce_nothing_and_one_rule_denies_the_rest() {
    assert_eq!(policy(json!([])).verdict("anything.example"), Action::Allow);
    let one = policy(json!([{"domain": "api.example.com", "action": "allow"}]));
    assert_eq!(one.verdict("API.example.COM."), Action::Allow);
    for other in [
        "example.com",
        "x.api.example.com",
        "api.example.com.evil.test",
        "xapi.example.com",
        "",
    ] {
        assert_eq!(one.verdict(other), Action::Deny, "{other}");
    }
}

#[test]
fn the_most_special_rule_decides_in_any_order() {
    let rules = [
        json!({"domain": "*", "action": "deny"}),
        json!({"domain": "*.example.com", "action": "allow"}),
        json!({"domain": "*.secret.example.com", "action": "deny"}),
        json!({"domain": "open.secret.example.com", "action": "allow"}),
    ];
    let forward = policy(Value::Array(rules.to_vec()));
    let backward = policy(Value::Array(rules.into_iter().rev().collect()));
    for policy in [forward, backward] {
        assert_eq!(policy.verdict("a.b.example.com"), Action::Allow);
        assert_eq!(policy.verdict("a.secret.example.com"), Action::Deny);
        assert_eq!(policy.verdict("open.secret.example.com"), Action::Allow);
        assert_eq!(policy.verdict("example.com"), Action::Deny);
        assert_eq!(policy.verdict("notexample.com"), Action::Deny);
        assert_eq!(policy.verdict(".example.com"), Action::Deny);
    }
}

#[test]
fn defaults_yield_to_what_the_caller_wrote_and_win_over_the_rest() {
    let rules = json!([{"include": "defaults"}, {"domain": "*", "action": "deny"}, {"domain": "*.github.com", "action": "deny"}]);
    let policy = policy(rules);
    assert_eq!(policy.verdict("pypi.org"), Action::Allow);
    assert_eq!(policy.verdict("raw.githubusercontent.com"), Action::Allow);
    assert_eq!(policy.verdict("api.github.com"), Action::Deny);
    assert_eq!(policy.verdict("example.com"), Action::Deny);
    assert!(DEFAULTS.is_sorted());
}

#[test]
fn of_two_equal_rules_the_deny_wins() {
    let allow = json!({"domain": "a.example", "action": "allow"});
    let deny = json!({"domain": "A.example.", "action": "deny"});
    assert_eq!(policy(json!([allow, deny])).verdict("a.example"), Action::Deny);
    assert_eq!(policy(json!([deny, allow])).verdict("a.example"), Action::Deny);
}

#[test]
fn every_fault_has_its_text() {
    assert_eq!(faults(json!([])), ["the body must be an object"]);
    assert_eq!(
        faults(json!({"rule": []})),
        ["rule: is not known", "rules: is required"]
    );
    assert_eq!(faults(json!({"rules": {}})), ["rules: must be a list"]);
    assert_eq!(
        faults(json!({"rules": vec![json!({}); 1025]})),
        ["rules: at most 1024 are taken"]
    );
    let one = |rule: Value| faults(json!({ "rules": [rule] }));
    assert_eq!(one(json!(1)), ["rules[0]: must be an object"]);
    assert_eq!(one(json!({})), ["rules[0]: needs domain or include"]);
    assert_eq!(one(json!({"domain": 1})), ["rules[0].domain: must be a string"]);
    assert_eq!(one(json!({"domain": "a.b"})), ["rules[0].action: is required"]);
    assert_eq!(
        one(json!({"domain": "a.b", "action": "drop"})),
        ["rules[0].action: must be allow or deny"]
    );
    assert_eq!(
        one(json!({"domain": "a.b", "action": "deny", "port": 1})),
        ["rules[0].port: is not known"]
    );
    assert_eq!(
        one(json!({"include": "all"})),
        ["rules[0].include: only defaults is known"]
    );
    assert_eq!(
        one(json!({"include": "defaults", "action": "deny"})),
        ["rules[0].action: what is included can only be allowed"]
    );
    assert_eq!(
        one(json!({"include": "defaults", "domain": "*", "action": "allow"})),
        ["rules[0]: takes either domain or include"]
    );
}

#[test]
fn a_domain_is_a_host_name_a_suffix_or_everything() {
    let long = "a".repeat(64);
    let bad = [
        "", ".", "*.", "**", "a*.b", "*.*.b", "a..b", "-a.b", "a-.b", "a b", "10.0.0.1", "::1", "http://a", "a:80",
        "ä.de", &long,
    ];
    for domain in bad {
        let found = faults(json!({"rules": [{"domain": domain, "action": "allow"}]}));
        assert_eq!(
            found,
            ["rules[0].domain: must be a host name, *.suffix or *"],
            "{domain}"
        );
    }
    for domain in ["*", "localhost", "*.com", "a.b.", "_srv.A-1.b", "xn--bcher-kva.example"] {
        policy(json!([{"domain": domain, "action": "allow"}]));
    }
}

#[test]
fn what_was_not_parsed_allows_nothing() {
    let policy = Policy {
        rules: vec![Default::default()],
    };
    assert!(policy.is_enforced());
    assert_eq!(policy.verdict("pypi.org"), Action::Deny);
}

fn name() -> impl Strategy<Value = String> {
    proptest::collection::vec("[ab]{1,2}", 1..5).prop_map(|labels| labels.join("."))
}

fn rules() -> impl Strategy<Value = Vec<(String, bool)>> {
    let pattern = prop_oneof![4 => name(), 4 => name().prop_map(|name| format!("*.{name}")), 1 => Just("*".to_owned())];
    proptest::collection::vec((pattern, any::<bool>()), 1..8)
}

fn of(rules: &[(String, bool)]) -> Policy {
    let one =
        |(domain, allow): &(String, bool)| json!({"domain": domain, "action": if *allow { "allow" } else { "deny" }});
    policy(rules.iter().map(one).collect())
}

proptest! {
    #[test]
    fn the_verdict_knows_neither_order_nor_case_nor_the_last_dot(rules in rules(), name in name()) {
        let expected = of(&rules).verdict(&name);
        let reversed: Vec<_> = rules.iter().rev().map(|(domain, allow)| (domain.to_uppercase(), *allow)).collect();
        prop_assert_eq!(of(&reversed).verdict(&format!("{}.", name.to_uppercase())), expected);
    }

    /// Walks from the name towards the root and takes the first pattern that has rules: another way to the same answer.
    #[test]
    fn the_verdict_is_that_of_the_first_pattern_on_the_way_up(rules in rules(), name in name()) {
        let mut patterns = vec![name.clone()];
        let mut rest = name.as_str();
        while let Some((_, parent)) = rest.split_once('.') {
            patterns.push(format!("*.{parent}"));
            rest = parent;
        }
        patterns.push("*".to_owned());
        let expected = patterns.iter().find_map(|pattern| {
            let found: Vec<_> = rules.iter().filter(|(domain, _)| domain == pattern).collect();
            (!found.is_empty()).then(|| found.iter().all(|(_, allow)| *allow))
        });
        let expected = if expected == Some(true) { Action::Allow } else { Action::Deny };
        prop_assert_eq!(of(&rules).verdict(&name), expected);
    }

    #[test]
    fn whatever_comes_is_read_or_refused_with_a_reason(domain in ".{0,12}", action in ".{0,6}") {
        if let Err(faults) = Policy::parse(&json!({"rules": [{"domain": domain, "action": action}]})) {
            prop_assert!(!faults.is_empty());
        }
    }

    #[test]
    fn what_was_read_is_told_as_it_was_sent(rules in rules()) {
        let policy = of(&rules);
        let told = serde_json::to_value(&policy).unwrap();
        prop_assert_eq!(Policy::parse(&told).unwrap(), policy);
    }
}
