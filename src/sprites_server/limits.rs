//! How many sprites an account may have and make (providers 1.1, the 429 answers). Off unless set.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use serde_json::json;

use crate::api::refusal::Refusal;
use crate::tokens::Account;

/// The limits of one account.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Sprites at the same time.
    pub sprites: Option<usize>,
    /// Creations in a window.
    pub creations: Option<(usize, Duration)>,
}

/// The creations of the last window, by account.
#[derive(Debug, Default)]
pub struct Creations(Mutex<HashMap<Account, VecDeque<Instant>>>);

impl Limits {
    /// Whether one more sprite may be.
    ///
    /// # Errors
    /// 429.
    pub fn one_more(&self, current: usize) -> Result<(), Refusal> {
        let Some(limit) = self.sprites.filter(|limit| current >= *limit) else {
            return Ok(());
        };
        let body = json!({
            "error": "concurrent_sprite_limit_exceeded",
            "message": "too many sprites at the same time",
            "limit": limit,
            "current_count": current,
            "upgrade_available": false,
        });
        Err(Refusal::with(StatusCode::TOO_MANY_REQUESTS, body))
    }
}

impl Creations {
    /// Counts a creation.
    ///
    /// # Errors
    /// 429, and it does not count.
    pub fn count(&self, account: &Account, limits: &Limits, now: Instant) -> Result<(), Refusal> {
        let Some((limit, window)) = limits.creations else {
            return Ok(());
        };
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = accounts.entry(account.clone()).or_default();
        while times.front().is_some_and(|time| now.duration_since(*time) >= window) {
            times.pop_front();
        }
        if times.len() < limit {
            times.push_back(now);
            return Ok(());
        }
        let oldest = times.front().copied().unwrap_or(now);
        let wait = (window - now.duration_since(oldest)).as_secs().max(1);
        let body = json!({
            "error": "sprite_creation_rate_limited",
            "message": "too many sprites were created in a short time",
            "limit": limit,
            "window_seconds": window.as_secs(),
            "retry_after_seconds": wait,
            "current_count": times.len(),
            "upgrade_available": false,
        });
        let reset = u64::try_from(crate::clock::now().timestamp()).unwrap_or_default() + wait;
        Err(Refusal::with(StatusCode::TOO_MANY_REQUESTS, body)
            .header("retry-after", wait)
            .header("x-ratelimit-limit", limit as u64)
            .header("x-ratelimit-remaining", 0)
            .header("x-ratelimit-reset", reset))
    }
}
