//! Network policy: applied with exactly 204, and read back (providers 1.9, RUL-64a, RUL-L-97).
//!
//! The service takes an empty rule list for no enforcement, so "nothing is allowed" is a rule that says so. The read-back
//! maps rules to hosts; a rule that we would not have sent becomes an entry that is no host, and so equals nothing.

use fountain_actors::domain::Epoch;
use fountain_actors::ports::sandbox::{NetworkPolicy, SandboxError};
use serde_json::{Value, json};

use crate::address::Target;
use crate::call::Call;
use crate::errors::{refused, unclassified};
use crate::pools::Pool;
use crate::{Core, is_exactly, named};

fn target(name: &str) -> Target {
    Target::sprite(name).segment("policy").segment("network")
}

impl Core {
    pub(crate) async fn apply_network_policy(
        &self,
        name: &str,
        policy: &NetworkPolicy,
        epoch: Option<Epoch>,
    ) -> Result<(), SandboxError> {
        named(name)?;
        let call = Call::post(target(name)).json(&rules_of(policy)).epoch(epoch);
        let reply = self.send(call, Pool::Policy, self.limits.policy).await?;
        if is_exactly(reply.status, 204) {
            Ok(())
        } else {
            Err(refused(&reply))
        }
    }

    pub(crate) async fn network_policy(&self, name: &str) -> Result<NetworkPolicy, SandboxError> {
        named(name)?;
        let reply = self
            .send(Call::get(target(name)), Pool::Policy, self.limits.policy)
            .await?;
        if !is_exactly(reply.status, 200) {
            return Err(refused(&reply));
        }
        reply
            .json()
            .and_then(|body| policy_of(&body))
            .ok_or_else(|| unclassified("malformed_policy"))
    }
}

fn rules_of(policy: &NetworkPolicy) -> Value {
    if policy.allow.is_empty() {
        return json!({"rules": [{"domain": "*", "action": "deny"}]});
    }
    let rules = policy
        .allow
        .iter()
        .map(|host| json!({"domain": host, "action": "allow"}));
    json!({"rules": rules.collect::<Vec<_>>()})
}

fn policy_of(body: &Value) -> Option<NetworkPolicy> {
    let rules = body.get("rules")?.as_array()?;
    let allow = match rules.as_slice() {
        [] => vec!["*".to_owned()],
        [only] if Rule::read(only) == Rule::DenyAll => Vec::new(),
        rules => rules.iter().map(|rule| Rule::read(rule).into_entry()).collect(),
    };
    Some(NetworkPolicy { allow })
}

#[derive(Debug, PartialEq, Eq)]
enum Rule {
    DenyAll,
    Allow(String),
    Foreign(String),
}

impl Rule {
    fn read(rule: &Value) -> Self {
        let text = |key| rule.get(key).and_then(Value::as_str);
        let includes = rule.get("include").is_some_and(|include| !include.is_null());
        match (text("domain"), text("action"), includes) {
            (Some("*"), Some("deny"), false) => Self::DenyAll,
            (Some(domain), Some("allow"), false) => Self::Allow(domain.to_owned()),
            _ => Self::Foreign(rule.to_string()),
        }
    }

    /// What stands in the list: a host, or something that no host equals.
    fn into_entry(self) -> String {
        match self {
            Self::Allow(host) => host,
            Self::DenyAll => "rule: deny *".to_owned(),
            Self::Foreign(rule) => format!("rule: {rule}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(hosts: &[&str]) -> NetworkPolicy {
        NetworkPolicy {
            allow: hosts.iter().map(|host| (*host).to_owned()).collect(),
        }
    }

    #[test]
    fn s05_sc_v13_nothing_allowed_is_the_deny_rule_alone() {
        assert_eq!(
            rules_of(&policy(&[])).to_string(),
            r#"{"rules":[{"domain":"*","action":"deny"}]}"#
        );
    }

    #[test]
    fn sc_v14_hosts_are_allow_rules_in_their_order() {
        assert_eq!(
            rules_of(&policy(&["api.example.com", "*.github.com"])).to_string(),
            r#"{"rules":[{"domain":"api.example.com","action":"allow"},{"domain":"*.github.com","action":"allow"}]}"#
        );
    }

    #[test]
    fn rul_64a_what_we_send_reads_back_as_itself() {
        for sent in [
            policy(&[]),
            policy(&["a.example"]),
            policy(&["*.b.example", "a.example"]),
        ] {
            assert_eq!(policy_of(&rules_of(&sent)), Some(sent));
        }
        assert_eq!(policy_of(&json!({"rules": []})), Some(policy(&["*"])));
    }

    #[test]
    fn rul_64a_a_rule_of_somebody_else_equals_nothing_that_we_send() {
        for foreign in [
            json!([{"include": "defaults"}]),
            json!([{"domain": "a.example", "action": "allow"}, {"include": "defaults"}]),
            json!([{"domain": "*", "action": "deny", "include": "defaults"}]),
            json!([{"domain": "a.example", "action": "allow"}, {"domain": "*", "action": "deny"}]),
            json!([{"domain": "a.example"}]),
            json!([{"domain": "a.example", "action": "deny"}]),
            json!([7]),
        ] {
            let read = policy_of(&json!({ "rules": foreign })).unwrap();
            assert!(!read.allow.is_empty(), "{foreign}");
            assert!(read.allow.iter().any(|entry| entry.starts_with("rule: ")), "{foreign}");
        }
        assert_eq!(policy_of(&json!({})), None);
        assert_eq!(policy_of(&json!({"rules": {}})), None);
    }
}
