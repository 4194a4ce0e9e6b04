//! Permission requests: the automatic verdicts, the held ones, and the answers (runtimes 8.2, RUL-10, RUL-56).
//!
//! An id or option is never invented: a denial without a rejecting option is the outcome `cancelled`.

use std::time::Duration;

use serde_json::{Value, json};

use super::report::{HeldPermission, PermissionAsk};
use crate::domain::event::ByteRange;
use crate::domain::policy::{ASK_TIMEOUT_DEFAULT, EffectivePolicy, Verdict, seconds};

/// Why an answer was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No such request is held: unknown, late, or answered before.
    #[error("no permission request with this id is waiting")]
    NotPending,
    /// The agent did not offer that option.
    #[error("the agent did not offer this option")]
    UnknownOption,
    /// The connection takes no more lines.
    #[error("the connection to the agent has ended")]
    Closed,
}

/// What to do with a request.
#[derive(Debug)]
pub(super) enum Ruling {
    /// Send this result. `denied`: by policy, to be audited.
    Answer {
        result: Value,
        denied: bool,
        tool: Option<String>,
    },
    /// Hold it and ask a person.
    Ask(Box<PermissionAsk>),
}

/// The option that a denial picks: a single refusal before a standing one, else none.
#[must_use]
pub fn denial_option(options: &[Value]) -> Option<String> {
    let reject = |exact: &str| options.iter().find(|option| kind_of(option) == Some(exact));
    let any = || {
        options
            .iter()
            .find(|option| kind_of(option).is_some_and(|kind| kind.starts_with("reject")))
    };
    reject("reject_once").or_else(any).and_then(option_id)
}

fn allowing_option(options: &[Value]) -> Option<String> {
    let allow = |exact: &str| options.iter().find(|option| kind_of(option) == Some(exact));
    allow("allow_always")
        .or_else(|| allow("allow_once"))
        .or_else(|| options.first())
        .and_then(option_id)
}

fn kind_of(option: &Value) -> Option<&str> {
    option.get("kind").and_then(Value::as_str)
}

fn option_id(option: &Value) -> Option<String> {
    option.get("optionId").and_then(Value::as_str).map(str::to_owned)
}

/// True when the agent offered the option.
#[must_use]
pub fn is_offered(options: &[Value], option: &str) -> bool {
    options
        .iter()
        .any(|offered| offered.get("optionId").and_then(Value::as_str) == Some(option))
}

/// The result of `session/request_permission`: the option, or `cancelled`.
pub(super) fn outcome(option: Option<&str>) -> Value {
    match option {
        Some(option) => json!({"outcome": {"outcome": "selected", "optionId": option}}),
        None => json!({"outcome": {"outcome": "cancelled"}}),
    }
}

/// What to judge a request by.
pub(super) struct Request<'a> {
    pub id: &'a Value,
    pub params: &'a Value,
    pub whole: Value,
    pub range: ByteRange,
}

/// The verdict on one request.
pub(super) fn verdict(request: &Request<'_>, policy: &EffectivePolicy) -> Verdict {
    policy.verdict(call_text(request, "title"), call_text(request, "kind"))
}

fn call_text<'a>(request: &Request<'a>, key: &str) -> Option<&'a str> {
    let text = request.params.get("toolCall")?.get(key)?.as_str()?;
    (!text.is_empty()).then_some(text)
}

/// Judges one request.
pub(super) fn rule(
    request: Request<'_>,
    policy: &EffectivePolicy,
    ceiling: Duration,
    mint: &mut dyn FnMut() -> String,
) -> Ruling {
    let options = request
        .params
        .get("options")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let named = ["title", "name", "kind"]
        .into_iter()
        .find_map(|key| call_text(&request, key));
    let tool = named.map(str::to_owned);
    match verdict(&request, policy) {
        Verdict::AutoAllow => Ruling::Answer {
            result: outcome(allowing_option(&options).as_deref()),
            denied: false,
            tool,
        },
        Verdict::AutoDeny => Ruling::Answer {
            result: outcome(denial_option(&options).as_deref()),
            denied: true,
            tool,
        },
        Verdict::Ask => {
            let own = request.params.pointer("/_meta/fountain/timeout").and_then(seconds);
            let detached = own.into_iter().chain(policy.ask_timeout()).min();
            let request_id = public_id(request.id, &mint());
            let mut whole = request.whole;
            if let Some(id) = whole.get_mut("id") {
                *id = request_id.as_str().into();
            }
            Ruling::Ask(Box::new(PermissionAsk {
                request_id,
                raw_id: request.id.clone(),
                tool,
                options,
                timeout: detached.map_or(ceiling, |detached| detached.min(ceiling)),
                detached_timeout: detached.unwrap_or(ASK_TIMEOUT_DEFAULT),
                line: format!("{whole}\n"),
                range: request.range,
            }))
        }
    }
}

fn public_id(raw: &Value, random: &str) -> String {
    match raw {
        Value::String(text) => format!("{text}.{random}"),
        other => format!("{other}.{random}"),
    }
}

/// The requests that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<HeldPermission>);

impl Held {
    pub fn new(held: Vec<HeldPermission>) -> Self {
        Self(held)
    }

    /// True when a request with this raw id is held already: a replay.
    pub fn has_raw(&self, id: &Value) -> bool {
        self.0.iter().any(|held| held.raw_id == *id)
    }

    pub fn push(&mut self, held: HeldPermission) {
        self.0.push(held);
    }

    pub fn get(&self, request_id: &str) -> Option<&HeldPermission> {
        self.0.iter().find(|held| held.request_id == request_id)
    }

    pub fn remove(&mut self, request_id: &str) {
        self.0.retain(|held| held.request_id != request_id);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self) -> Vec<HeldPermission> {
        std::mem::take(&mut self.0)
    }

    pub fn ids(&self) -> Vec<String> {
        self.0.iter().map(|held| held.request_id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kinds: &[&str]) -> Vec<Value> {
        kinds
            .iter()
            .map(|kind| json!({"optionId": format!("id-{kind}"), "kind": kind, "name": kind}))
            .collect()
    }

    #[test]
    fn allowing_prefers_always_then_once_then_the_first() {
        assert_eq!(
            allowing_option(&options(&["allow_once", "allow_always"])).as_deref(),
            Some("id-allow_always")
        );
        assert_eq!(
            allowing_option(&options(&["reject_once", "allow_once"])).as_deref(),
            Some("id-allow_once")
        );
        assert_eq!(
            allowing_option(&options(&["odd", "reject_once"])).as_deref(),
            Some("id-odd")
        );
        assert_eq!(allowing_option(&[]), None);
    }

    #[test]
    fn denying_prefers_once_and_never_invents_an_option() {
        assert_eq!(
            denial_option(&options(&["reject_always", "reject_once"])).as_deref(),
            Some("id-reject_once")
        );
        assert_eq!(
            denial_option(&options(&["allow_once", "reject_always"])).as_deref(),
            Some("id-reject_always")
        );
        assert_eq!(denial_option(&options(&["allow_once"])), None);
        assert_eq!(outcome(None), json!({"outcome": {"outcome": "cancelled"}}));
    }

    #[test]
    fn rul_10_the_public_id_is_the_agents_id_a_dot_and_16_hex_digits() {
        assert_eq!(public_id(&json!(0), "00000000000000ff"), "0.00000000000000ff");
        assert_eq!(public_id(&json!("a"), "ffffffffffffffff"), "a.ffffffffffffffff");
    }
}
