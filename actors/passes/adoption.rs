//! Finding servers for conversations whose turn waits for one (RUL-36, RUL-L-50).
//!
//! Runs at boot, every ten seconds, when a runner comes and when another process goes or drains. It starts servers and nothing else; what they find is theirs
//! to judge. A turn that waits for a build on a runner that is away is not touched: there is nothing to ask.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use futures_util::future::LocalBoxFuture;

use super::lease::PassLease;
use super::{Pass, Replica, Run, Tally};
use crate::domain::RunnerId;
use crate::domain::machine::Provider;
use crate::domain::runner::runner_of;
use crate::domain::turn::TurnStatus;
use crate::ports::World;
use crate::ports::meter::Measure;
use crate::ports::store::replicas::Resident;
use crate::ports::store::turns::Adoptable;

/// Conversations in one run. More than a replica serves; the next run comes in ten seconds.
const AT_ONCE: i64 = 1_000;

pub(super) struct Adoption {
    world: World,
    replica: Arc<dyn Replica>,
}

impl Adoption {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self { world, replica }
    }

    /// Whether a server started now, here, could do anything.
    async fn is_ripe(&self, waiting: &Adoptable) -> bool {
        let Some(runner) = runner_under(waiting) else {
            return true;
        };
        if self.world.runners.is_online(runner) {
            return true;
        }
        // Its turn goes on where the runner is connected, if it is anywhere.
        waiting.turn.status == TurnStatus::Running && !is_seated_elsewhere(&self.world, runner).await
    }
}

impl Pass for Adoption {
    const NAME: &'static str = "adoption";

    fn every(&self) -> Duration {
        self.world.settings.adoption_interval
    }

    fn run(self: Rc<Self>, _: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            if !self.replica.may_adopt() {
                return Tally::default();
            }
            let waiting = match self.world.store.adoptable(AT_ONCE).await {
                Ok(waiting) => waiting,
                Err(error) => {
                    tracing::warn!(%error, "adoption could not read which turns wait");
                    return Tally::default();
                }
            };
            let mut tally = Tally {
                candidates: waiting.len() as u64,
                ..Tally::default()
            };
            for turn in waiting {
                if self.is_ripe(&turn).await && !self.replica.is_live(turn.conversation_id).await {
                    self.replica.adopt(turn.conversation_id, turn.machine_id);
                    tally.done += 1;
                }
            }
            if tally.done > 0 {
                self.world.meter.record(Measure::Rehydrated {
                    candidates: tally.candidates,
                    started: tally.done,
                });
            }
            tally
        })
    }
}

fn runner_under(waiting: &Adoptable) -> Option<RunnerId> {
    match waiting.provider {
        Provider::Runner => runner_of(&waiting.machine_name),
        _ => None,
    }
}

/// Another member has the runner's newest connection, or it cannot be read whether one has.
async fn is_seated_elsewhere(world: &World, runner: RunnerId) -> bool {
    match world.store.home(Resident::Runner(runner), world.now()).await {
        Ok(home) => home.is_some_and(|member| *member.holder != *world.holder),
        Err(error) => {
            tracing::warn!(runner.id = %runner, %error, "it could not be read where a runner is connected");
            true
        }
    }
}

/// A runner that comes is a reason to look at once, and its conversations move to where it is: not under the lease of
/// the pass, which another process may hold, and whether or not a server lives elsewhere, because that one's generation
/// ends with it (RUL-L-50, RUL-L-8). Ends when the pass has.
pub(super) fn follow_runners(world: &World, replica: Arc<dyn Replica>, pass: Recipient<Run>) {
    let world = world.clone();
    let mut changes = world.runners.changes();
    actix_rt::spawn(async move {
        let mut seated = BTreeSet::new();
        loop {
            let online: BTreeSet<RunnerId> = world.runners.online().into_iter().collect();
            seat(&world, &mut seated, &online).await;
            if !online.is_empty() && replica.may_adopt() {
                move_in(&world, &*replica, &seated).await;
            }
            let has_changed = tokio::select! {
                biased;
                changed = changes.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => return,
                },
                // A server here that died, or a seat that could not be written, is found again.
                () = tokio::time::sleep(world.settings.adoption_interval), if !online.is_empty() => false,
            };
            let is_over = if has_changed {
                pass.send(Run).await.is_err()
            } else {
                !pass.connected()
            };
            if is_over {
                return;
            }
        }
    });
}

/// Writes down which runners are connected here: the last process to say so has the newest connection.
async fn seat(world: &World, seated: &mut BTreeSet<RunnerId>, online: &BTreeSet<RunnerId>) {
    for runner in online.difference(&seated.clone()) {
        match world.store.seat_runner(*runner, world.holder.to_string()).await {
            Ok(()) => {
                seated.insert(*runner);
            }
            Err(error) => tracing::warn!(runner.id = %runner, %error, "a runner's seat was not written"),
        }
    }
    let gone: Vec<_> = seated.difference(online).copied().collect();
    for runner in gone {
        seated.remove(&runner);
        if let Err(error) = world.store.unseat_runner(runner, world.holder.to_string()).await {
            tracing::debug!(runner.id = %runner, %error, "a runner's seat was not cleared");
        }
    }
}

/// Starts servers for open turns on runners whose newest connection is here.
async fn move_in(world: &World, replica: &dyn Replica, seated: &BTreeSet<RunnerId>) {
    let waiting = match world.store.adoptable(AT_ONCE).await {
        Ok(waiting) => waiting,
        Err(error) => return tracing::warn!(%error, "it could not be read which turns wait for a runner"),
    };
    for turn in waiting {
        let Some(runner) = runner_under(&turn).filter(|runner| seated.contains(runner)) else {
            continue;
        };
        if !is_seated_elsewhere(world, runner).await {
            replica.adopt(turn.conversation_id, turn.machine_id);
        }
    }
}

/// Another process that went, or hands over, is a reason to look at once.
pub(super) fn follow_handovers(replica: &dyn Replica, pass: Recipient<Run>) {
    let Some(mut handovers) = replica.handovers() else {
        return;
    };
    actix_rt::spawn(async move {
        while handovers.changed().await.is_ok() {
            if pass.send(Run).await.is_err() {
                return;
            }
        }
    });
}
