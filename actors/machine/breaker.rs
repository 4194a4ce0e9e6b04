//! When many machines are suddenly "not found", it is the question that is wrong (RUL-L-28, field-lessons P30).
//!
//! A wrong token looks like mass deletion. Once more than half of at least five distinct machines of one provider
//! answered not-found within ten minutes, further not-founds of that provider count as "unavailable": no row retires
//! until somebody confirms. Runners are judged by their root instead (RUL-49, RUL-L-94), and a not-found that confirms
//! our own delete neither counts nor is held back. One per replica; it forgets with its process, which only delays it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::holdings::Holdings;
use crate::domain::MachineId;
use crate::domain::machine::Provider;

/// How far back answers count (RUL-L-28).
const WINDOW: Duration = Duration::from_secs(10 * 60);
/// Fewer distinct machines than this are no evidence of anything (RUL-L-28).
const ENOUGH: usize = 5;

#[derive(Default)]
struct Record {
    /// The newest answer of each machine: when, and whether it was not-found.
    answers: HashMap<MachineId, (Instant, bool)>,
    tripped: bool,
}

/// The not-found breaker of this replica.
#[derive(Default)]
pub struct Breaker {
    /// The replica's other memory of machines: which leases are its own.
    pub(super) holdings: Holdings,
    records: Mutex<HashMap<&'static str, Record>>,
}

impl Breaker {
    fn with<T>(&self, provider: Provider, change: impl FnOnce(&mut Record) -> T) -> T {
        // A panic under this lock leaves the map whole.
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        change(records.entry(provider.as_str()).or_default())
    }

    /// Notes that a machine was found.
    pub fn present(&self, provider: Provider, machine: MachineId) {
        self.with(provider, |record| {
            record.answers.insert(machine, (Instant::now(), false));
        });
    }

    /// Notes a not-found and says whether it may be believed.
    #[must_use]
    pub fn believes_absent(&self, provider: Provider, machine: MachineId) -> bool {
        if provider == Provider::Runner {
            return true;
        }
        let now = Instant::now();
        self.with(provider, |record| {
            record.answers.insert(machine, (now, true));
            record.answers.retain(|_, (at, _)| now.duration_since(*at) <= WINDOW);
            let absent = record.answers.values().filter(|(_, absent)| *absent).count();
            if !record.tripped && record.answers.len() >= ENOUGH && absent * 2 > record.answers.len() {
                record.tripped = true;
                tracing::error!(
                    %provider,
                    absent,
                    asked = record.answers.len(),
                    "{provider} says that most machines do not exist; nothing is retired until an operator confirms"
                );
            }
            !record.tripped
        })
    }

    /// An operator has looked: not-founds of this provider are believed again.
    pub fn confirm(&self, provider: Provider) {
        self.with(provider, |record| *record = Record::default());
    }

    /// Providers whose not-founds are held back.
    pub fn tripped(&self) -> Vec<&'static str> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tripped: Vec<_> = records
            .iter()
            .filter(|(_, r)| r.tripped)
            .map(|(name, _)| *name)
            .collect();
        tripped.sort_unstable();
        tripped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> MachineId {
        MachineId(uuid::Uuid::from_u128(n))
    }

    #[tokio::test(start_paused = true)]
    async fn rul_l_28_mass_not_found_retires_nothing_until_an_operator_confirms() {
        let breaker = Breaker::default();
        for n in 0..4 {
            assert!(breaker.believes_absent(Provider::Sprites, id(n)), "{n}");
        }
        assert!(!breaker.believes_absent(Provider::Sprites, id(4)));
        assert!(
            breaker.believes_absent(Provider::E2b, id(5)),
            "another provider is another matter"
        );
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(
            !breaker.believes_absent(Provider::Sprites, id(6)),
            "time alone heals nothing"
        );
        assert_eq!(breaker.tripped(), ["sprites"]);
        breaker.confirm(Provider::Sprites);
        assert!(breaker.believes_absent(Provider::Sprites, id(4)));
    }

    #[tokio::test(start_paused = true)]
    async fn rul_l_28_five_lost_machines_among_many_found_ones_are_believed() {
        let breaker = Breaker::default();
        for n in 0..6 {
            breaker.present(Provider::Sprites, id(100 + n));
        }
        for n in 0..6 {
            assert!(breaker.believes_absent(Provider::Sprites, id(n)), "{n}");
        }
        assert!(
            !breaker.believes_absent(Provider::Sprites, id(6)),
            "seven of thirteen is more than half"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn rul_l_28_answers_older_than_ten_minutes_do_not_count() {
        let breaker = Breaker::default();
        for n in 0..20 {
            assert!(breaker.believes_absent(Provider::Sprites, id(n)));
            tokio::time::advance(Duration::from_secs(151)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rul_l_28_runners_are_judged_by_their_root() {
        let breaker = Breaker::default();
        for n in 0..50 {
            assert!(breaker.believes_absent(Provider::Runner, id(n)));
        }
    }
}
