//! Runners: machines that users bring (runner-protocol 8, http-api 4.10).

use crate::domain::*;

/// One row of `runners`. Online is never a column: it is whether a connection is registered.
#[derive(Clone, Debug, PartialEq)]
pub struct Runner {
    pub id: RunnerId,
    pub account_id: AccountId,
    /// `^[a-z0-9][a-z0-9._-]{0,62}$`, unique in its account.
    pub name: String,
    pub details: RunnerDetails,
    pub connected_at: Option<Moment>,
    pub last_seen_at: Option<Moment>,
    /// Hidden by `DELETE`; the same name connecting again finds the same row (RUL-L-95).
    pub forgotten_at: Option<Moment>,
    pub inserted_at: Moment,
}

/// What a daemon says of itself when it dials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunnerDetails {
    pub hostname: Option<String>,
    pub os: Option<String>,
    pub arch: Option<String>,
    pub version: Option<String>,
    pub root: Option<String>,
    /// Random id of the marker in its root (RUL-L-94).
    pub root_id: Option<String>,
    /// Additions that it announced: `replay_end`, `terminate` (RUL-44).
    pub features: Vec<String>,
}

impl RunnerDetails {
    pub fn offers(&self, feature: &str) -> bool {
        self.features.iter().any(|offered| offered == feature)
    }
}

/// Whether `name` may name a runner (runner-protocol 1).
pub fn is_runner_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.len() <= 63
        && bytes.first().is_some_and(plain)
        && bytes.iter().all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'))
}

/// `runner-<32 hex of the runner id>-<suffix>` (runner-protocol 8).
pub fn machine_name(runner: RunnerId, suffix: &str) -> String {
    format!("runner-{}-{suffix}", runner.0.simple())
}

/// The runner that a machine name routes to, or None when it is not a runner's machine name.
pub fn runner_of(machine_name: &str) -> Option<RunnerId> {
    let rest = machine_name.strip_prefix("runner-")?;
    let (hex, suffix) = rest.split_at_checked(32)?;
    let suffix = suffix.strip_prefix('-')?;
    if suffix.is_empty() || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    uuid::Uuid::try_parse(hex).ok().map(RunnerId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rp_v01_rp_v02_the_runner_id_rides_in_the_machine_name() {
        let id: RunnerId = "0f0e0d0c-0b0a-4908-8706-050403020100".parse().unwrap();
        assert_eq!(
            machine_name(id, "1a2b3c4d"),
            "runner-0f0e0d0c0b0a49088706050403020100-1a2b3c4d"
        );
        assert_eq!(runner_of("runner-0f0e0d0c0b0a49088706050403020100-1a2b3c4d"), Some(id));
        assert_eq!(runner_of("runner-0F0E0D0C0B0A49088706050403020100-1a2b3c4d"), Some(id));
        for wrong in [
            "runner-xyz",
            "fountain-a-b",
            "runner-0f0e0d0c0b0a49088706050403020100",
            "runner-é",
        ] {
            assert_eq!(runner_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn rp_v04_runner_names() {
        for good in ["mini", "a.b-c_1", "0"] {
            assert!(is_runner_name(good), "{good}");
        }
        for bad in ["Mini", "-a", "", "../x", "a/b", &"a".repeat(64)] {
            assert!(!is_runner_name(bad), "{bad}");
        }
    }
}
