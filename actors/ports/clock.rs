//! Time and chance. Timers come from tokio, which tests pause; a wall moment goes into rows, a monotonic one never does.

use std::time::Duration;

use crate::domain::Moment;

/// The wall clock, UTC, cut to microseconds.
pub trait Clock: Send + Sync {
    fn now(&self) -> Moment;
}

/// The one source of randomness: identifiers, keys, jitter. Tests seed it.
pub trait Rng: Send + Sync {
    /// Fills `bytes` with bytes fit for keys.
    fn fill(&self, bytes: &mut [u8]);

    /// A random (version 4) UUID.
    fn uuid(&self) -> uuid::Uuid {
        let mut bytes = [0u8; 16];
        self.fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// `2 * n` lower-case hex digits.
    fn hex(&self, n: usize) -> String {
        let mut bytes = vec![0u8; n];
        self.fill(&mut bytes);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Uniform in 0 ≤ x < 1.
    fn unit(&self) -> f64 {
        let mut bytes = [0u8; 8];
        self.fill(&mut bytes);
        // 53 bits are what a double holds exactly.
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Cuts a moment to microseconds: what both databases keep (STYLE 8).
pub fn cut(moment: Moment) -> Moment {
    chrono::DurationRound::duration_trunc(moment, chrono::TimeDelta::microseconds(1)).unwrap_or(moment)
}

/// `moment + duration`, saturating at the end of time.
pub fn after(moment: Moment, duration: Duration) -> Moment {
    chrono::TimeDelta::from_std(duration)
        .ok()
        .and_then(|delta| moment.checked_add_signed(delta))
        .unwrap_or(Moment::MAX_UTC)
}

/// `moment - duration`, saturating at the beginning of time.
pub fn before(moment: Moment, duration: Duration) -> Moment {
    chrono::TimeDelta::from_std(duration)
        .ok()
        .and_then(|delta| moment.checked_sub_signed(delta))
        .unwrap_or(Moment::MIN_UTC)
}
