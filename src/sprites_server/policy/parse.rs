//! Reads a policy as a caller sent it, and says everything that is wrong with it (the texts of the 400; providers 1.9).

use std::net::Ipv4Addr;

use serde_json::{Map, Value};

use super::{Action, INCLUDE_DEFAULTS, Policy, Rule};

/// More than any list that people keep; every connection is judged by all rules.
const RULES: usize = 1024;
/// RFC 1035, 2.3.4, without the dot at the end.
const NAME_LENGTH: usize = 253;
const LABEL_LENGTH: usize = 63;

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// A sentence for every fault, each beginning with the field that it is about.
    pub fn parse(body: &Value) -> Result<Self, Vec<String>> {
        let Value::Object(fields) = body else {
            return Err(vec!["the body must be an object".to_owned()]);
        };
        let mut faults = unknown(fields, &["rules"], "");
        let mut rules = Vec::new();
        match fields.get("rules") {
            Some(Value::Array(found)) if found.len() > RULES => {
                faults.push(format!("rules: at most {RULES} are taken"));
            }
            Some(Value::Array(found)) => {
                for (index, rule) in found.iter().enumerate() {
                    match read(rule, &format!("rules[{index}]")) {
                        Ok(rule) => rules.push(rule),
                        Err(found) => faults.extend(found),
                    }
                }
            }
            Some(_) => faults.push("rules: must be a list".to_owned()),
            None => faults.push("rules: is required".to_owned()),
        }
        if faults.is_empty() {
            Ok(Self { rules })
        } else {
            Err(faults)
        }
    }
}

fn read(rule: &Value, at: &str) -> Result<Rule, Vec<String>> {
    let Value::Object(fields) = rule else {
        return Err(vec![format!("{at}: must be an object")]);
    };
    let mut faults = unknown(fields, &["domain", "action", "include"], &format!("{at}."));
    let mut text = |field: &str| match fields.get(field) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => {
            faults.push(format!("{at}.{field}: must be a string"));
            None
        }
    };
    let (domain, action, include) = (text("domain"), text("action"), text("include"));
    // A field of another type is already a fault; it would only be called missing besides.
    if !faults.is_empty() {
        return Err(faults);
    }
    let action = match action.as_deref() {
        None => None,
        Some("allow") => Some(Action::Allow),
        Some("deny") => Some(Action::Deny),
        Some(_) => {
            return Err(vec![format!("{at}.action: must be allow or deny")]);
        }
    };
    match (&domain, &include) {
        (Some(_), Some(_)) => faults.push(format!("{at}: takes either domain or include")),
        (None, None) => faults.push(format!("{at}: needs domain or include")),
        (Some(domain), None) => {
            if action.is_none() {
                faults.push(format!("{at}.action: is required"));
            }
            if !is_pattern(domain) {
                faults.push(format!("{at}.domain: must be a host name, *.suffix or *"));
            }
        }
        (None, Some(include)) => {
            if include != INCLUDE_DEFAULTS {
                faults.push(format!("{at}.include: only {INCLUDE_DEFAULTS} is known"));
            }
            if action == Some(Action::Deny) {
                faults.push(format!("{at}.action: what is included can only be allowed"));
            }
        }
    }
    if faults.is_empty() {
        Ok(Rule {
            domain,
            action,
            include,
        })
    } else {
        Err(faults)
    }
}

fn unknown(fields: &Map<String, Value>, known: &[&str], at: &str) -> Vec<String> {
    let names = fields.keys().filter(|name| !known.contains(&name.as_str()));
    names.map(|name| format!("{at}{name}: is not known")).collect()
}

/// An address is not a name: it would be taken and never match. Names beyond ASCII come in the form that DNS carries
/// (`xn--…`) for the same reason.
fn is_pattern(text: &str) -> bool {
    if text == "*" {
        return true;
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    let name = name.strip_suffix('.').unwrap_or(name);
    name.len() <= NAME_LENGTH && name.parse::<Ipv4Addr>().is_err() && name.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=LABEL_LENGTH).contains(&label.len())
        && label.bytes().all(is_plain)
        && !label.starts_with('-')
        && !label.ends_with('-')
}
