//! When keys were last used: noted on the request path in memory, written off it, once a minute per key at most
//! (http-api 1.3).
//!
//! A lost note costs a stale `last_used_at`, nothing else; so it is never waited for and a failed write is not repeated
//! before the next use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use fountain_actors::domain::{KeyId, Moment};
use fountain_actors::ports::Store;
use tokio::sync::watch;

/// A key is stamped at most once in this time (http-api 1.3).
const PER_KEY: TimeDelta = TimeDelta::seconds(60);
/// How long a note waits to be written together with others.
const GATHER: Duration = Duration::from_secs(5);

/// Uses of keys since the last write, and when each key was last noted.
#[derive(Debug, Default)]
pub struct KeyStamps {
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    recent: HashMap<KeyId, Moment>,
    due: HashMap<KeyId, Moment>,
}

impl KeyStamps {
    /// Notes a use. Touches memory only.
    pub fn note(&self, key: KeyId, now: Moment) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.recent.get(&key).is_some_and(|last| now - *last < PER_KEY) {
            return;
        }
        noted.recent.insert(key, now);
        noted.due.insert(key, now);
    }

    /// What is to be written, and forgets what is older than a minute.
    pub fn take(&self, now: Moment) -> Vec<(KeyId, Moment)> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.recent.retain(|_, last| now - *last < PER_KEY);
        noted.due.drain().collect()
    }
}

/// Writes the notes until `closing` turns true, and once more then. Spawn it once per process.
pub async fn write_stamps(
    stamps: Arc<KeyStamps>,
    store: Arc<dyn Store>,
    clock: Arc<dyn fountain_actors::ports::Clock>,
    mut closing: watch::Receiver<bool>,
) {
    loop {
        let done = tokio::select! {
            () = tokio::time::sleep(GATHER) => false,
            // A dropped sender is a process that ends without saying so.
            _ = closing.wait_for(|closing| *closing) => true,
        };
        let used = stamps.take(clock.now());
        if !used.is_empty()
            && let Err(error) = store.stamp_keys(used).await
        {
            tracing::warn!(%error, "the last use of some keys was not written");
        }
        if done {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_noted_once_a_minute_and_written_once() {
        let stamps = KeyStamps::default();
        let key = KeyId(uuid::Uuid::nil());
        let start: Moment = "2026-01-02T03:04:05Z".parse().unwrap();
        stamps.note(key, start);
        stamps.note(key, start + TimeDelta::seconds(59));
        assert_eq!(stamps.take(start + TimeDelta::seconds(59)), vec![(key, start)]);
        assert_eq!(stamps.take(start + TimeDelta::seconds(59)), vec![]);
        let later = start + TimeDelta::seconds(60);
        stamps.note(key, later);
        assert_eq!(stamps.take(later), vec![(key, later)]);
    }

    #[test]
    fn notes_of_keys_that_are_not_used_any_more_cost_no_memory() {
        let stamps = KeyStamps::default();
        let start: Moment = "2026-01-02T03:04:05Z".parse().unwrap();
        stamps.note(KeyId(uuid::Uuid::nil()), start);
        stamps.take(start + TimeDelta::seconds(61));
        assert!(stamps.noted.lock().unwrap().recent.is_empty());
    }
}
