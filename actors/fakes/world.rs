//! Time and chance for tests.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};
use tokio::time::Instant;

use crate::domain::Moment;
use crate::ports::clock::{self, Clock, Rng};

/// A wall clock that follows tokio's clock, which a test pauses and moves.
#[derive(Debug)]
pub struct FakeClock {
    start: Moment,
    origin: Instant,
    jumped: Mutex<Duration>,
}

impl FakeClock {
    /// A clock that shows `start` now. Call it inside the test's runtime, after pausing.
    pub fn at(start: Moment) -> Self {
        Self {
            start: clock::cut(start),
            origin: Instant::now(),
            jumped: Mutex::default(),
        }
    }

    /// Somebody sets the wall clock forward; timers do not notice.
    pub fn jump(&self, by: Duration) {
        *self.jumped.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }
}

impl Default for FakeClock {
    /// The first of May 2026, noon.
    fn default() -> Self {
        Self::at(Moment::from_timestamp(1_777_636_800, 0).unwrap_or(Moment::UNIX_EPOCH))
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Moment {
        let jumped = *self.jumped.lock().unwrap_or_else(PoisonError::into_inner);
        clock::cut(clock::after(self.start, self.origin.elapsed() + jumped))
    }
}

/// Randomness that one number reproduces.
#[derive(Debug)]
pub struct SeededRng(Mutex<StdRng>);

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Rng for SeededRng {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_moves_with_the_timers_and_only_with_them() {
        let clock = FakeClock::default();
        let before = clock.now();
        assert_eq!(clock.now(), before);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now() - before, chrono::TimeDelta::hours(1));
    }

    #[test]
    fn a_seed_reproduces_a_run() {
        let (one, other) = (SeededRng::new(7), SeededRng::new(7));
        assert_eq!(one.hex(16), other.hex(16));
        assert_ne!(SeededRng::new(8).uuid(), other.uuid());
    }
}
