//! Network policies: how they come over the wire and what they say about a name (providers 1.9; RUL-L-97, RUL-L-113).
//!
//! No rules: nothing is enforced. With rules, a name that none of them speaks of is denied. Of the rules that speak of a
//! name the most special decides: the exact name, then the longest `*.suffix`, then `include: "defaults"`, then `*`. What
//! the caller wrote about a name or a suffix thereby always wins over our own list. Where two rules are equally special,
//! a deny wins, in whatever order they stand. Names are compared without case and without the dot at their end;
//! `*.example.com` does not speak of `example.com`.
//!
//! Nothing here knows addresses. A policy that did not pass [`Policy::parse`] is still judged safely: a rule that it
//! would refuse allows nothing, but the rules around it stay enforced.

mod defaults;
mod parse;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use defaults::DEFAULTS;

/// The only word that `include` knows.
const INCLUDE_DEFAULTS: &str = "defaults";

/// What a rule does with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Allow,
    Deny,
}

/// One rule. `domain` is an exact name, `*.suffix` or `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<String>,
}

/// The policy of a sprite. No rules: nothing is enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub rules: Vec<Rule>,
}

/// How special a rule is for a name; the greater one decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Any,
    Defaults,
    /// The suffix has this many bytes.
    Suffix(usize),
    Exact,
}

impl Policy {
    /// Whether anything has to be kept from getting out.
    pub fn is_enforced(&self) -> bool {
        !self.rules.is_empty()
    }

    /// What happens to this name.
    pub fn verdict(&self, name: &str) -> Action {
        if !self.is_enforced() {
            return Action::Allow;
        }
        let name = canonical(name);
        let best = self
            .rules
            .iter()
            .filter_map(|rule| rule.speaks_of(&name))
            .reduce(|a, b| {
                if b.0 > a.0 || (b.0 == a.0 && b.1 == Action::Deny) {
                    b
                } else {
                    a
                }
            });
        best.map_or(Action::Deny, |(_, action)| action)
    }
}

impl Rule {
    fn speaks_of(&self, name: &str) -> Option<(Rank, Action)> {
        match (&self.domain, &self.include, self.action) {
            (Some(domain), None, Some(action)) => Some((rank(&canonical(domain), name)?, action)),
            (None, Some(include), None | Some(Action::Allow)) if include == INCLUDE_DEFAULTS => DEFAULTS
                .iter()
                .any(|domain| rank(domain, name).is_some())
                .then_some((Rank::Defaults, Action::Allow)),
            _ => None,
        }
    }
}

/// How special the pattern is for the name; both canonical.
fn rank(pattern: &str, name: &str) -> Option<Rank> {
    if pattern == "*" {
        return Some(Rank::Any);
    }
    match pattern.strip_prefix("*.") {
        Some(suffix) => {
            let before = name.strip_suffix(suffix)?.strip_suffix('.')?;
            (!before.is_empty()).then_some(Rank::Suffix(suffix.len()))
        }
        None => (pattern == name).then_some(Rank::Exact),
    }
}

fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}
