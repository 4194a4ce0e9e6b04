//! Denying permission requests past their deadline when no server is there to do it (RUL-L-57, RUL-56).
//!
//! A live server has a timer of its own and tells its agent; this is for requests whose server is gone. The denial is
//! stored, first answer wins, and whoever reattaches the turn delivers it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use super::lease::PassLease;
use super::{Pass, Replica, Step, Tally};
use crate::ports::World;

/// Requests in one run.
const AT_ONCE: i64 = 500;

pub(super) struct Permissions {
    world: World,
    replica: Arc<dyn Replica>,
}

impl Permissions {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self { world, replica }
    }
}

impl Pass for Permissions {
    const NAME: &'static str = "permissions";

    fn every(&self) -> Duration {
        self.world.settings.permission_sweep_interval
    }

    fn run(self: Rc<Self>, _: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let store = &self.world.store;
            let expired = match store.expired_permissions(self.world.now(), AT_ONCE).await {
                Ok(expired) => expired,
                Err(error) => {
                    tracing::warn!(%error, "expired permission requests could not be read");
                    return Tally::default();
                }
            };
            let mut tally = Tally {
                candidates: expired.len() as u64,
                ..Tally::default()
            };
            for (conversation, turn, request) in expired {
                if self.replica.is_live(conversation).await {
                    continue;
                }
                tally.add(match store.expire_permission(turn, request, self.world.now()).await {
                    Ok(Some(_)) => Step::Done,
                    Ok(None) => Step::Skipped,
                    Err(error) => {
                        tracing::warn!(conversation.id = %conversation, turn.id = %turn, %error, "a request could not be denied");
                        Step::Refused
                    }
                });
            }
            tally
        })
    }
}
