//! Retention: what is old enough is forgotten, once a night, in batches (lifecycle 1.8, RUL-L-60).
//!
//! A batch is one short transaction, and between two of them everybody else may write. A night that ends too early is
//! made up by the next one.

use std::rc::Rc;
use std::time::Duration;

use chrono::Timelike;
use futures_util::future::LocalBoxFuture;

use super::lease::PassLease;
use super::{Pass, Tally};
use crate::domain::Moment;
use crate::ports::store::passes::Forgettable;
use crate::ports::{World, clock};

/// Between two batches, so that a writer that waits comes in.
const BREATH: Duration = Duration::from_millis(50);
/// Seconds of a day.
const DAY: u32 = 24 * 3600;

pub(super) struct Retention {
    world: World,
}

impl Retention {
    pub fn new(world: World) -> Self {
        Self { world }
    }

    fn kept_for(&self, what: Forgettable) -> Duration {
        let settings = &self.world.settings;
        match what {
            Forgettable::LogEvents => settings.keep_log_events,
            Forgettable::AuditEvents => settings.keep_audit_events,
            Forgettable::UsageEvents => settings.keep_usage_events,
            Forgettable::RevokedKeys => settings.keep_revoked_keys,
            Forgettable::Operations => settings.keep_operations,
            Forgettable::DeletionReceipts => settings.keep_deletion_receipts,
        }
    }

    /// Everything of one kind that is due.
    async fn forget(&self, what: Forgettable, lease: &PassLease) -> Tally {
        let limit = self.world.settings.retention_batch;
        let before = clock::before(self.world.now(), self.kept_for(what));
        let mut tally = Tally::default();
        while lease.guard().await.is_ok() {
            match self.world.store.forget(what, before, limit).await {
                Ok(gone) => {
                    tally.candidates += gone;
                    tally.done += gone;
                    if gone < limit.unsigned_abs() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(?what, %error, "old rows could not be deleted; the next night tries again");
                    tally.refused += 1;
                    break;
                }
            }
            tokio::time::sleep(BREATH).await;
        }
        tally
    }
}

/// From `now` to the next time of day. One that is as good as now is over.
fn until(now: Moment, (hour, minute): (u32, u32)) -> Duration {
    let wanted = hour * 3600 + minute * 60;
    let ahead = (DAY + wanted - now.num_seconds_from_midnight()) % DAY;
    Duration::from_secs(u64::from(if ahead <= 1 { ahead + DAY } else { ahead }))
}

impl Pass for Retention {
    const NAME: &'static str = "retention";

    fn every(&self) -> Duration {
        Duration::from_secs(u64::from(DAY))
    }

    fn rest(&self, now: Moment) -> Duration {
        until(now, self.world.settings.retention_at)
    }

    fn run(self: Rc<Self>, lease: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let mut sum = Tally::default();
            for what in Forgettable::ALL {
                let Tally {
                    candidates,
                    done,
                    refused,
                } = self.forget(what, &lease).await;
                sum.candidates += candidates;
                sum.done += done;
                sum.refused += refused;
            }
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_runs_once_a_night() {
        let rest = |text: &str| until(text.parse().unwrap(), (4, 23)).as_secs();
        assert_eq!(rest("2026-05-01T04:00:00Z"), 23 * 60);
        assert_eq!(rest("2026-05-01T04:23:00Z"), 24 * 3600);
        assert_eq!(rest("2026-05-01T12:23:00Z"), 16 * 3600);
    }
}
