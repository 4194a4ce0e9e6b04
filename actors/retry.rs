//! The one retry policy: how long to wait, how often to try, and what is worth trying again.
//!
//! The only user of the `backoff` crate, which serves as a bare schedule: its own jitter draws from a hidden generator
//! and its clock is real, so both are off. Jitter comes from the caller's randomness, attempts are counted here, and a
//! seed reproduces every delay. Follows sandbox-contract 8 ("Retry") and runner-protocol 1.3; nothing here decides
//! *what* may be retried beyond asking the caller.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use backoff::{ExponentialBackoff, backoff::Backoff};
use futures_util::FutureExt;

/// No schedule here is still growing after this many doublings; a longer row of failures changes nothing (RP P7).
const LAST_DOUBLING: u32 = 32;

/// How chance changes a delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Uniform between half the ceiling and the ceiling.
    UpperHalf,
    /// The ceiling and up to this fraction of it more.
    Above(f64),
}

/// A row of growing delays with a cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Ceiling of the first delay.
    pub base: Duration,
    /// No ceiling is larger.
    pub cap: Duration,
    /// Calls in all, the first one included; `None` never gives up.
    pub attempts: Option<u32>,
    /// What chance adds or takes.
    pub jitter: Jitter,
}

impl Policy {
    /// Idempotent provider calls while a machine is built (sandbox-contract 8): three calls, 250 ms doubling to 2 s.
    pub const CONTRACT: Self = Self {
        base: Duration::from_millis(250),
        cap: Duration::from_secs(2),
        attempts: Some(3),
        jitter: Jitter::UpperHalf,
    };

    /// A runner daemon that dials again (runner-protocol 1.3): 1, 2, 4, 8, 16, 30, 30… seconds and up to 10 % more, so
    /// that a fleet that was dropped together does not come back together.
    pub const REDIAL: Self = Self {
        base: Duration::from_secs(1),
        cap: Duration::from_secs(30),
        attempts: None,
        jitter: Jitter::Above(0.1),
    };

    /// The delay after `failures` failures in a row, before chance. Zero failures count as one.
    pub fn ceiling(&self, failures: u32) -> Duration {
        let mut schedule = ExponentialBackoff {
            current_interval: self.base.min(self.cap),
            initial_interval: self.base.min(self.cap),
            randomization_factor: 0.0,
            multiplier: 2.0,
            max_interval: self.cap,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        (0..failures.clamp(1, LAST_DOUBLING)).fold(self.base, |_, _| schedule.next_backoff().unwrap_or(self.cap))
    }

    /// The delay after `failures` failures in a row. `chance` answers a number in `[0, 1)`.
    pub fn delay(&self, failures: u32, chance: &mut dyn FnMut() -> f64) -> Duration {
        let ceiling = self.ceiling(failures);
        match self.jitter {
            Jitter::UpperHalf => ceiling / 2 + (ceiling / 2).mul_f64(chance().clamp(0.0, 1.0)),
            Jitter::Above(fraction) => ceiling + ceiling.mul_f64(fraction * chance().clamp(0.0, 1.0)),
        }
    }

    /// Whether another call is allowed after `made` calls.
    fn allows_another(&self, made: u32) -> bool {
        self.attempts.is_none_or(|attempts| made < attempts)
    }
}

/// Whether an error may go away by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Worth another call.
    Transient,
    /// Another call would answer the same.
    Permanent,
}

/// Calls `operation` until it succeeds, fails for good, or the policy's calls are used up; the last error is returned.
///
/// `operation` gets the number of the call, from 1. A panic counts as transient, because a bug in one answer must not
/// decide a build; the last one is raised again. Sleeps on tokio's clock, which tests pause.
///
/// # Errors
/// The error of the last call.
pub async fn retry<T, E, Call>(
    policy: Policy,
    chance: &mut dyn FnMut() -> f64,
    classify: impl Fn(&E) -> Verdict,
    mut operation: impl FnMut(u32) -> Call,
) -> Result<T, E>
where
    E: std::fmt::Display,
    Call: Future<Output = Result<T, E>>,
{
    let mut made = 0;
    loop {
        made += 1;
        let answer = AssertUnwindSafe(operation(made)).catch_unwind().await;
        match answer {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) if classify(&error) == Verdict::Permanent || !policy.allows_another(made) => {
                return Err(error);
            }
            Err(panic) if !policy.allows_another(made) => std::panic::resume_unwind(panic),
            failed => {
                let delay = policy.delay(made, chance);
                let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                match failed {
                    Ok(Err(error)) => tracing::debug!(attempt = made, delay_ms, %error, "call failed, trying again"),
                    _ => tracing::warn!(attempt = made, delay_ms, "call panicked, trying again"),
                }
                tokio::time::sleep(delay).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What a scripted call does.
    #[derive(Clone, Copy)]
    enum Step {
        Ok,
        Fail(&'static str),
        Panic,
    }

    /// Runs a script under the contract's policy (with `attempts`) on a paused clock; answers result and calls made.
    async fn run(attempts: u32, script: &[Step], classify: impl Fn(&&'static str) -> Verdict) -> (Outcome, u32) {
        tokio::time::pause();
        let calls = Cell::new(0);
        let policy = Policy {
            attempts: Some(attempts),
            ..Policy::CONTRACT
        };
        let mut chance = || 0.5;
        let work = retry(policy, &mut chance, classify, |n| {
            calls.set(n);
            let step = script[(n - 1) as usize];
            async move {
                match step {
                    Step::Ok => Ok(()),
                    Step::Fail(why) => Err(why),
                    Step::Panic => panic!("scripted panic"),
                }
            }
        });
        let outcome = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(answer) => Outcome::Answer(answer),
            Err(_) => Outcome::Panicked,
        };
        (outcome, calls.get())
    }

    #[derive(Debug, PartialEq)]
    enum Outcome {
        Answer(Result<(), &'static str>),
        Panicked,
    }

    fn only_slow_passes(error: &&'static str) -> Verdict {
        if *error == "slow" {
            Verdict::Transient
        } else {
            Verdict::Permanent
        }
    }

    #[actix::test]
    async fn r1_a_first_success_is_one_call() {
        assert_eq!(
            run(3, &[Step::Ok], only_slow_passes).await,
            (Outcome::Answer(Ok(())), 1)
        );
    }

    #[actix::test]
    async fn r2_one_transient_error_then_success_is_two_calls() {
        let script = [Step::Fail("slow"), Step::Ok];
        assert_eq!(run(3, &script, only_slow_passes).await, (Outcome::Answer(Ok(())), 2));
    }

    #[actix::test]
    async fn r3_the_last_error_surfaces_after_three_calls() {
        let script = [Step::Fail("slow"); 5];
        assert_eq!(
            run(3, &script, only_slow_passes).await,
            (Outcome::Answer(Err("slow")), 3)
        );
    }

    #[actix::test]
    async fn r4_a_permanent_error_is_one_call() {
        let script = [Step::Fail("denied"), Step::Ok];
        assert_eq!(
            run(3, &script, only_slow_passes).await,
            (Outcome::Answer(Err("denied")), 1)
        );
    }

    #[actix::test]
    async fn r5_the_last_panic_surfaces() {
        assert_eq!(
            run(2, &[Step::Panic, Step::Panic, Step::Ok], only_slow_passes).await,
            (Outcome::Panicked, 2)
        );
    }

    #[actix::test]
    async fn r6_a_panic_then_success_is_a_success() {
        assert_eq!(
            run(3, &[Step::Panic, Step::Ok], only_slow_passes).await,
            (Outcome::Answer(Ok(())), 2)
        );
    }

    #[actix::test]
    async fn r7_the_caller_decides_what_is_transient() {
        let script = [Step::Fail("denied"), Step::Ok];
        assert_eq!(
            run(3, &script, |_| Verdict::Transient).await,
            (Outcome::Answer(Ok(())), 2)
        );
    }

    #[actix::test]
    async fn the_waits_are_the_policys_and_nothing_else() {
        tokio::time::pause();
        let started = tokio::time::Instant::now();
        let mut chance = || 1.0;
        let _: Result<(), &str> = retry(
            Policy::CONTRACT,
            &mut chance,
            |_| Verdict::Transient,
            |_| async { Err("slow") },
        )
        .await;
        // The timer rounds each wait up to its next millisecond.
        let rounding = started.elapsed() - Duration::from_millis(250 + 500);
        assert!(rounding <= Duration::from_millis(4), "{rounding:?}");
    }

    #[test]
    fn the_contracts_delay_lies_in_the_upper_half_of_its_ceiling() {
        let ceilings = [250, 500, 1000, 2000, 2000, 2000];
        for (failures, ceiling) in (1..).zip(ceilings) {
            let ceiling = Duration::from_millis(ceiling);
            assert_eq!(Policy::CONTRACT.ceiling(failures), ceiling);
            assert_eq!(Policy::CONTRACT.delay(failures, &mut || 0.0), ceiling / 2);
            assert_eq!(Policy::CONTRACT.delay(failures, &mut || 0.5), ceiling * 3 / 4);
            assert_eq!(Policy::CONTRACT.delay(failures, &mut || 1.0), ceiling);
        }
    }

    #[test]
    fn rp_v39_a_daemon_waits_1_2_4_8_16_30_30_seconds() {
        let waits: Vec<_> = (1..=7)
            .map(|n| Policy::REDIAL.delay(n, &mut || 0.0).as_secs())
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn the_redial_jitter_is_at_most_a_tenth() {
        assert_eq!(Policy::REDIAL.delay(3, &mut || 0.5), Duration::from_millis(4200));
        assert_eq!(Policy::REDIAL.delay(9, &mut || 1.0), Duration::from_secs(33));
    }

    #[test]
    fn rp_p7_a_very_long_row_of_failures_still_waits_the_cap() {
        for failures in [34, 35, 36, 64, 1_000_000, u32::MAX] {
            assert_eq!(Policy::REDIAL.ceiling(failures), Duration::from_secs(30));
        }
        assert_eq!(Policy::REDIAL.ceiling(0), Duration::from_secs(1));
    }
}
