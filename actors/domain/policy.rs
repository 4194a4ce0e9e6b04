//! Permission policies: who may let an agent use a tool without asking (runtimes 8.2, http-api 4.12).
//!
//! A policy maps a tool's title or kind to a verdict. The agent has one and a launch may add a second, which may only
//! narrow. The two are never merged into one map: each judges a request by itself and the stricter verdict wins. A
//! merged map would let a title key of one policy hide a kind key of the other.
//!
//! Writes go through [`PermissionPolicy::parse`], which is strict. What is already stored goes through
//! [`PermissionPolicy::from_stored`], which never fails: a value that is no verdict denies.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{ErrorCode, Refusal};

/// Longest `ask_timeout`: one year (http-api 4.12).
pub const ASK_TIMEOUT_MAX: Duration = Duration::from_secs(31_536_000);

/// How long a request waits for an answer when nobody says otherwise (runtimes 8.2).
pub const ASK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(300);

const DEFAULT: &str = "default";
const ASK_TIMEOUT: &str = "ask_timeout";

/// What happens when an agent asks to use a tool. Ordered from loose to strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Answered at once with the widest allowing option.
    AutoAllow,
    /// Held until a person answers, denied when time runs out.
    Ask,
    /// Answered at once with a rejecting option.
    AutoDeny,
}

impl Verdict {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AutoAllow => "auto_allow",
            Self::Ask => "ask",
            Self::AutoDeny => "auto_deny",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::AutoAllow, Self::Ask, Self::AutoDeny]
            .into_iter()
            .find(|verdict| verdict.as_str() == word)
    }
}

/// Why a policy is refused. Every variant is a 422 (http-api 2.4).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not a map of key to verdict.
    #[error("permission_policy must map a tool to auto_allow, ask or auto_deny{}", .key.as_deref().map(|key| format!(" (key {key:?})")).unwrap_or_default())]
    Invalid { key: Option<String> },
    /// A word that is no verdict we act on.
    #[error("permission_policy: the verdict of {key:?} is not supported; use auto_allow, ask or auto_deny")]
    Unbuilt { key: String },
    /// The launch is looser than its agent.
    #[error("permission_policy: {key:?} would loosen the agent's policy")]
    Widens { key: String },
}

impl PolicyError {
    /// The error code on the wire.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid { .. } => ErrorCode::PermissionPolicyInvalid,
            Self::Unbuilt { .. } => ErrorCode::PermissionPolicyUnbuilt,
            Self::Widens { .. } => ErrorCode::PermissionPolicyWidens,
        }
    }
}

impl From<PolicyError> for Refusal {
    fn from(error: PolicyError) -> Self {
        Self::because(error.code(), error.to_string())
    }
}

/// One policy. Empty means "no opinion".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermissionPolicy {
    verdicts: BTreeMap<String, Verdict>,
    default: Option<Verdict>,
    ask_timeout: Option<Duration>,
}

impl PermissionPolicy {
    /// Reads a policy that somebody wants to store. `null` is the empty policy.
    ///
    /// # Errors
    /// `Invalid` for a wrong shape, `Unbuilt` for an unknown verdict.
    pub fn parse(value: &Value) -> Result<Self, PolicyError> {
        let map = match value {
            Value::Null => return Ok(Self::default()),
            Value::Object(map) => map,
            _ => return Err(PolicyError::Invalid { key: None }),
        };
        let mut policy = Self::default();
        for (key, value) in map {
            if key == ASK_TIMEOUT {
                let timeout = seconds(value).ok_or_else(|| PolicyError::Invalid { key: Some(key.clone()) })?;
                policy.ask_timeout = Some(timeout);
                continue;
            }
            let word = match value {
                Value::String(word) if !key.is_empty() => word,
                _ => return Err(PolicyError::Invalid { key: Some(key.clone()) }),
            };
            let verdict = Verdict::from_word(word).ok_or_else(|| PolicyError::Unbuilt { key: key.clone() })?;
            policy.set(key, verdict);
        }
        Ok(policy)
    }

    /// Reads what a row holds. Never fails; a value that is no verdict denies, an unreadable time is ignored.
    #[must_use]
    pub fn from_stored(stored: &Map<String, Value>) -> Self {
        let mut policy = Self::default();
        for (key, value) in stored {
            if key == ASK_TIMEOUT {
                policy.ask_timeout = seconds(value);
            } else {
                policy.set(
                    key,
                    value.as_str().and_then(Verdict::from_word).unwrap_or(Verdict::AutoDeny),
                );
            }
        }
        policy
    }

    fn set(&mut self, key: &str, verdict: Verdict) {
        if key == DEFAULT {
            self.default = Some(verdict);
        } else {
            self.verdicts.insert(key.to_owned(), verdict);
        }
    }

    /// The stored and wire form, keys sorted, `default` and `ask_timeout` last.
    #[must_use]
    pub fn to_map(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for (key, verdict) in &self.verdicts {
            map.insert(key.clone(), verdict.as_str().into());
        }
        if let Some(verdict) = self.default {
            map.insert(DEFAULT.into(), verdict.as_str().into());
        }
        if let Some(timeout) = self.ask_timeout {
            let whole = timeout.subsec_nanos() == 0;
            map.insert(
                ASK_TIMEOUT.into(),
                if whole {
                    timeout.as_secs().into()
                } else {
                    timeout.as_secs_f64().into()
                },
            );
        }
        map
    }

    /// The verdict on one request: tool title, then kind, then `default`, then allow.
    #[must_use]
    pub fn verdict(&self, title: Option<&str>, kind: Option<&str>) -> Verdict {
        title
            .and_then(|title| self.verdicts.get(title))
            .or_else(|| kind.and_then(|kind| self.verdicts.get(kind)))
            .copied()
            .unwrap_or_else(|| self.default.unwrap_or(Verdict::AutoAllow))
    }

    /// True when some tool could get a stricter verdict than allow. Such a policy is useless on a runtime that never
    /// asks, and refused there (`permission_policy_unenforceable`).
    #[must_use]
    pub fn restricts(&self) -> bool {
        self.verdicts
            .values()
            .chain(&self.default)
            .any(|verdict| *verdict > Verdict::AutoAllow)
    }

    /// How long a request of this policy may wait for its answer, if the policy says so.
    #[must_use]
    pub fn ask_timeout(&self) -> Option<Duration> {
        self.ask_timeout
    }

    /// Checks that a launch with `launch` loosens nothing of this (the agent's) policy.
    ///
    /// # Errors
    /// `Widens` with the first key that does.
    pub fn check_narrows(&self, launch: &Self) -> Result<(), PolicyError> {
        let widened = |key: &str| Err(PolicyError::Widens { key: key.to_owned() });
        for (key, verdict) in &launch.verdicts {
            if *verdict < self.verdict(Some(key), None) {
                return widened(key);
            }
        }
        if let Some(verdict) = launch.default
            && verdict < self.default.unwrap_or(Verdict::AutoAllow)
        {
            return widened(DEFAULT);
        }
        match (self.ask_timeout, launch.ask_timeout) {
            (Some(agent), Some(launch)) if launch > agent => widened(ASK_TIMEOUT),
            _ => Ok(()),
        }
    }
}

/// The policy of one turn: every layer judges, the strictest verdict counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EffectivePolicy {
    layers: Vec<PermissionPolicy>,
}

impl EffectivePolicy {
    /// The policy of a turn: the agent's, and the launch's if there is one. Computed anew for each turn.
    #[must_use]
    pub fn of(agent: PermissionPolicy, launch: Option<PermissionPolicy>) -> Self {
        Self {
            layers: std::iter::once(agent).chain(launch).collect(),
        }
    }

    /// The strictest verdict of all layers.
    #[must_use]
    pub fn verdict(&self, title: Option<&str>, kind: Option<&str>) -> Verdict {
        self.layers
            .iter()
            .map(|layer| layer.verdict(title, kind))
            .max()
            .unwrap_or(Verdict::AutoAllow)
    }

    /// The shortest `ask_timeout` of all layers.
    #[must_use]
    pub fn ask_timeout(&self) -> Option<Duration> {
        self.layers.iter().filter_map(PermissionPolicy::ask_timeout).min()
    }
}

/// Positive seconds up to a year; fractions count. Used for `ask_timeout` and for a request's own `_meta`.
#[must_use]
pub fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value.as_f64().filter(|seconds| *seconds > 0.0)?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| *timeout <= ASK_TIMEOUT_MAX)
}

#[cfg(test)]
mod tests;
