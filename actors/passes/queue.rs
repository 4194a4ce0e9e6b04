//! Draining the launch queue (lifecycle 2.7, 7; INV-102, INV-103, R-105).
//!
//! Runs when a slot became free and every five minutes. Each account's line is walked in its order until there is no room;
//! lines of several accounts are walked side by side, so that a slow start holds up its own account only. A request is
//! claimed before it is touched, and an outcome is written by its claim or not at all.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream;

use super::lease::PassLease;
use super::{Pass, Replica, Run, Step, Tally};
use crate::directory::{Engine, Replayed};
use crate::domain::queue::{RequestKind, Setback};
use crate::domain::{AccountId, ErrorCode, Moment, QueueRequestId};
use crate::ports::store::queue::{ClaimedRequest, RequestOutcome};
use crate::ports::{World, clock};

/// How often without a freed slot (lifecycle 7).
const EVERY: Duration = Duration::from_secs(5 * 60);
/// Accounts in one run.
const ACCOUNTS: i64 = 1_000;
/// Requests that end for their age in one transaction.
const EXPIRED: i64 = 100;
/// Accounts whose lines are walked side by side.
const SIDE_BY_SIDE: usize = 8;
/// How long a request that is over is kept (lifecycle 1.8).
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

pub(super) struct Queue {
    world: World,
    engine: Option<Engine>,
}

impl Queue {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self {
            world,
            engine: replica.engine(),
        }
    }

    fn ago(&self, duration: Duration) -> Moment {
        clock::before(self.world.now(), duration)
    }

    /// Ends what has waited too long, and forgets what ended long ago.
    async fn tidy(&self) -> u64 {
        let (store, now) = (&self.world.store, self.world.now());
        let wait = self.world.settings.queue_max_wait;
        let mut all = 0;
        loop {
            match store.expire_requests(self.ago(wait), now, EXPIRED).await {
                Ok(committed) => {
                    let expired = committed.announce(self.world.bus.as_ref());
                    all += expired;
                    if expired == 0 {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "overdue requests could not be ended");
                    break;
                }
            }
        }
        if let Err(error) = store.forget_requests(self.ago(KEPT), EXPIRED).await {
            tracing::warn!(%error, "old requests could not be forgotten");
        }
        all
    }

    /// Walks one account's line. `full` is set once the whole deployment has no room.
    async fn walk(&self, engine: &Engine, account: AccountId, full: &Cell<bool>) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut skip: Vec<QueueRequestId> = Vec::new();
        while !full.get() {
            let stale = self.ago(self.world.settings.queue_claim_timeout);
            let claimed = self
                .world
                .store
                .claim_request(account, skip.clone(), stale, self.world.now())
                .await;
            let claim = match claimed {
                Ok(Some(claim)) => claim,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(account.id = %account, %error, "the queue of an account could not be read");
                    break;
                }
            };
            let (outcome, step, goes_on) = match engine.replay(&claim).await {
                Replayed::Started(_) => {
                    steps.push(Step::Done);
                    continue;
                }
                Replayed::Delivered(conversation) => (RequestOutcome::Started(conversation), Step::Done, true),
                Replayed::Refused(refusal) => match Setback::of(refusal.code()) {
                    Setback::NoRoom => {
                        full.set(full.get() || refusal.code() == ErrorCode::FleetFull);
                        (RequestOutcome::Back, Step::Skipped, false)
                    }
                    Setback::Passing => (RequestOutcome::Back, Step::Refused, true),
                    Setback::Lasting => {
                        let code = refusal.code().as_str().to_owned();
                        (RequestOutcome::Failed(code), Step::Done, true)
                    }
                },
            };
            if outcome == RequestOutcome::Back {
                skip.push(claim.request.id);
            }
            let written = self.write(claim, outcome).await;
            steps.push(if written { step } else { Step::Skipped });
            if !(written && goes_on) {
                break;
            }
        }
        steps
    }

    /// Writes an outcome under its claim. One that was lost is somebody else's to write.
    async fn write(&self, claim: ClaimedRequest, outcome: RequestOutcome) -> bool {
        let (store, now) = (&self.world.store, self.world.now());
        let request = claim.request.clone();
        let written = match store.finish_request(claim, outcome.clone(), now).await {
            Ok(committed) => committed.announce(self.world.bus.as_ref()),
            Err(error) => {
                // The claim lapses, and whoever takes it up finds what was done.
                tracing::warn!(request.id = %request.id, %error, "the outcome of a queued launch was not written");
                false
            }
        };
        if let (true, RequestKind::ScheduleRun, Some(schedule)) = (written, request.kind, request.schedule_id) {
            let noted = match outcome {
                RequestOutcome::Started(conversation) => store.note_run(schedule, Ok(conversation), now).await,
                RequestOutcome::Failed(code) => store.note_run(schedule, Err(code), now).await,
                RequestOutcome::Back => Ok(()),
            };
            if let Err(error) = noted {
                tracing::warn!(%error, "a schedule's run was not noted");
            }
        }
        written
    }
}

impl Pass for Queue {
    const NAME: &'static str = "queue";
    /// A slot that became free in one process must not wait for the one that holds a lease.
    const SHARED: bool = true;

    fn every(&self) -> Duration {
        EVERY
    }

    fn run(self: Rc<Self>, _: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let mut tally = Tally {
                done: self.tidy().await,
                ..Tally::default()
            };
            let Some(engine) = &self.engine else { return tally };
            let stale = self.ago(self.world.settings.queue_claim_timeout);
            let accounts = match self.world.store.waiting_accounts(stale, ACCOUNTS).await {
                Ok(accounts) => accounts,
                Err(error) => {
                    tracing::warn!(%error, "the launch queue could not be read");
                    return tally;
                }
            };
            let full = Cell::new(false);
            let (pass, full) = (&self, &full);
            let mut walks = stream::iter(accounts)
                .map(|account| pass.walk(engine, account, full))
                .buffer_unordered(SIDE_BY_SIDE);
            while let Some(steps) = walks.next().await {
                tally.candidates += steps.len() as u64;
                for step in steps {
                    tally.add(step);
                }
            }
            drop(walks);
            tally
        })
    }
}

/// A freed slot is a reason to look at once. Ends with the pass or with the bus.
pub(super) fn follow_slots(world: &World, pass: Recipient<Run>) {
    let mut slots = world.bus.slots();
    actix_rt::spawn(async move {
        while slots.changed().await.is_ok() {
            if pass.send(Run).await.is_err() {
                return;
            }
        }
    });
}
