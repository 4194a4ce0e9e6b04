//! Billing closed turns and ending grants (lifecycle 7, 8; INV-83). Does nothing while credits are off.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use super::lease::PassLease;
use super::{Pass, Replica, Tally};
use crate::ports::World;

/// How often (lifecycle 7). Grants end in the same run: an unspent rest is not worth a timer of its own.
const EVERY: Duration = Duration::from_secs(10 * 60);
/// Rows in one transaction.
const AT_ONCE: i64 = 500;

pub(super) struct Credits {
    world: World,
}

impl Credits {
    pub fn new((world, _): (World, Arc<dyn Replica>)) -> Self {
        Self { world }
    }
}

impl Pass for Credits {
    const NAME: &'static str = "credits";

    fn every(&self) -> Duration {
        EVERY
    }

    fn run(self: Rc<Self>, _: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let mut tally = Tally::default();
            let Some(credits) = &self.world.settings.credits else {
                return tally;
            };
            let store = &self.world.store;
            loop {
                match store
                    .bill_turns(credits.turn_hour_cents, self.world.now(), AT_ONCE)
                    .await
                {
                    Ok(billed) => {
                        tally.done += billed;
                        if billed < AT_ONCE.unsigned_abs() {
                            break;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "closed turns could not be billed; they are due again");
                        break;
                    }
                }
            }
            match store.expire_grants(self.world.now(), AT_ONCE).await {
                Ok(expired) => tally.done += expired,
                Err(error) => tracing::warn!(%error, "grants could not be ended; they are due again"),
            }
            tally.candidates = tally.done;
            tally
        })
    }
}
