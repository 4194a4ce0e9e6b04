//! Denying permission requests past their deadline when no server is there to do it (RUL-L-57, RUL-56).
//!
//! A live server has a timer of its own and tells its agent; this is for requests whose server is gone. The denial is
//! stored, first answer wins, and whoever reattaches the turn delivers it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream;

use super::lease::PassLease;
use super::{Pass, Replica, Step, Tally};
use crate::directory::Engine;
use crate::domain::ErrorCode;
use crate::domain::queue::Setback;
use crate::ports::World;
use crate::ports::store::detached::Detached;

/// Denials side by side: each may wake a machine.
const SIDE_BY_SIDE: usize = 16;
/// Requests in one run.
const AT_ONCE: i64 = 500;

pub(super) struct Permissions {
    world: World,
    replica: Arc<dyn Replica>,
    /// The doors, for denials that open a turn.
    engine: Option<Engine>,
}

impl Permissions {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        let engine = replica.engine();
        Self { world, replica, engine }
    }

    /// Detached requests past their deadline: the denial is a turn of its own (runtimes 8.2). What stands in its way for
    /// now is tried again in the next minute; what stands there for good ends the request without one.
    async fn deny_detached(&self, tally: &mut Tally) {
        let (store, now) = (&self.world.store, self.world.now());
        let late = match store.expired_detached(now, AT_ONCE).await {
            Ok(late) => late,
            Err(error) => {
                tracing::warn!(%error, "expired detached requests could not be read");
                return;
            }
        };
        tally.candidates += late.len() as u64;
        let steps: Vec<Step> = stream::iter(&late)
            .map(|request| self.deny_one(request))
            .buffer_unordered(SIDE_BY_SIDE)
            .collect()
            .await;
        for step in steps {
            tally.add(step);
        }
    }

    async fn deny_one(&self, late: &Detached) -> Step {
        let Some(engine) = &self.engine else {
            return Step::Skipped;
        };
        let Err(refusal) = engine.deny_detached(late).await else {
            return Step::Done;
        };
        if refusal.code() == ErrorCode::PermissionRequestResolved {
            return Step::Skipped;
        }
        if Setback::of(refusal.code()) != Setback::Lasting {
            return Step::Refused;
        }
        let (store, request) = (&self.world.store, late.permission.request_id.clone());
        match store
            .deny_detached(late.conversation_id, request, self.world.now())
            .await
        {
            Ok(denied) => match denied.announce(self.world.bus.as_ref()) {
                true => Step::Done,
                false => Step::Skipped,
            },
            Err(error) => {
                tracing::warn!(conversation.id = %late.conversation_id, turn.id = %late.turn_id, %error, "a detached request could not be denied");
                Step::Refused
            }
        }
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
            self.deny_detached(&mut tally).await;
            tally
        })
    }
}
