//! When to dial again, and when to give up (runner-protocol 1.3). Decides only; waits and dials are the caller's.

use std::time::Duration;

use fountain_actors::retry::Policy;

use super::DaemonError;

/// How an attempt to be connected ended.
#[derive(Debug)]
pub enum Attempt {
    /// The server refused in a way that does not change by itself.
    Refused {
        /// 400, 401, 403 or 404.
        status: u16,
        /// The beginning of the body.
        body: String,
    },
    /// No connection came about.
    Failed,
    /// A connection ended. `was_good`: the server had said something on it.
    Ended {
        /// The close code, if the server closed.
        code: Option<u16>,
        /// Whether it counts as a success.
        was_good: bool,
    },
}

/// What to do next.
#[derive(Debug)]
pub enum Next {
    /// Dial again after this.
    DialAfter(Duration),
    /// Stop for good.
    GiveUp(DaemonError),
}

/// Counts failures in a row.
#[derive(Debug)]
pub struct Redial {
    policy: Policy,
    failures: u32,
}

impl Redial {
    /// No failures yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, failures: 0 }
    }

    /// Forgets the failures so far, because the next dial will be another one.
    pub fn start_anew(&mut self) {
        self.failures = 0;
    }

    /// Judges an attempt. `chance` answers a number in `[0, 1)`.
    pub fn after(&mut self, attempt: Attempt, chance: &mut dyn FnMut() -> f64) -> Next {
        match attempt {
            Attempt::Refused { status, body } => return Next::GiveUp(DaemonError::Refused { status, body }),
            Attempt::Failed => self.failures = self.failures.saturating_add(1),
            Attempt::Ended {
                code: Some(1000 | 1001),
                ..
            }
            | Attempt::Ended { was_good: true, .. } => self.failures = 1,
            Attempt::Ended { .. } => self.failures = self.failures.saturating_add(1),
        }
        Next::DialAfter(self.policy.delay(self.failures, chance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(redial: &mut Redial, attempt: Attempt) -> u64 {
        match redial.after(attempt, &mut || 0.0) {
            Next::DialAfter(delay) => delay.as_secs(),
            Next::GiveUp(error) => panic!("gave up: {error}"),
        }
    }

    fn dropped(code: Option<u16>, was_good: bool) -> Attempt {
        Attempt::Ended { code, was_good }
    }

    #[test]
    fn rp_v39_failures_in_a_row_wait_longer_and_a_clean_close_starts_anew() {
        let mut redial = Redial::new(Policy::REDIAL);
        let waits: Vec<_> = (0..7).map(|_| seconds(&mut redial, Attempt::Failed)).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(seconds(&mut redial, dropped(Some(1000), true)), 1);
        assert_eq!(seconds(&mut redial, dropped(Some(1001), false)), 1);
        assert_eq!(seconds(&mut redial, Attempt::Failed), 2);
    }

    #[test]
    fn rp_v38_refusals_of_the_key_or_the_name_are_final() {
        for status in [400, 401, 403, 404] {
            let next = Redial::new(Policy::REDIAL).after(
                Attempt::Refused {
                    status,
                    body: "why".to_owned(),
                },
                &mut || 0.0,
            );
            assert!(matches!(next, Next::GiveUp(DaemonError::Refused { status: s, .. }) if s == status));
        }
    }

    #[test]
    fn rp_v36_a_deleted_runner_and_a_lost_race_dial_again() {
        let mut redial = Redial::new(Policy::REDIAL);
        assert_eq!(seconds(&mut redial, dropped(Some(4404), true)), 1);
        assert_eq!(seconds(&mut redial, dropped(Some(4409), false)), 2);
        assert_eq!(seconds(&mut redial, dropped(Some(4409), false)), 4);
        assert_eq!(seconds(&mut redial, dropped(Some(1003), true)), 1);
    }

    #[test]
    fn a_connection_that_worked_ends_the_row_of_failures() {
        let mut redial = Redial::new(Policy::REDIAL);
        for _ in 0..5 {
            seconds(&mut redial, Attempt::Failed);
        }
        assert_eq!(seconds(&mut redial, dropped(None, true)), 1);
    }
}
