//! The hourly reaper, in four parts (lifecycle 7; RUL-L-12, 27, 31, 51, 52, 53, 55).
//!
//! Stuck builds are failed through their owner. Machines past a bound are parked or destroyed. What still stands at a
//! provider under the name of a row that ended is deleted. What stands there without any row is counted, noted and never
//! touched.
//!
//! The last two come from listings ([`listing`]), which prove presence and nothing else: a name that is missing from one
//! changes nothing, and one that is incomplete, or older than ten minutes, deletes nothing (INV-59). Deletes are budgeted,
//! the second part first; over budget a row is left as it is. [`plan`] says the same without doing it.

mod listing;
mod plan;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use chrono::Timelike;
use futures_util::future::LocalBoxFuture;
use futures_util::{StreamExt, stream};

use super::expiry::{self, Expired, REAPER, Verdict};
use super::lease::PassLease;
use super::{Pass, Replica, SIDE_BY_SIDE, Tally};
use crate::domain::Moment;
use crate::domain::machine::{Machine, Provider};
use crate::domain::turn::Ending;
use crate::machine::messages::{FailBuild, Leftover, MachineError, Swept};
use crate::ports::meter::Measure;
use crate::ports::{World, clock};
use listing::{Harvest, Mode};

pub use plan::{Finding, Plan, plan};

/// What a client reads when its build is given up.
const STUCK: &str = "the sandbox was not built in time; the next prompt builds it anew";

/// How the run went, in the words of its one line in the log (lifecycle 10.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    pub released: u64,
    pub parked: u64,
    /// Machines past a bound that are really gone.
    pub expired: u64,
    pub refused: u64,
    /// Came back into use, or somebody else acts.
    pub skipped: u64,
    /// Left as they were, because the budget was spent.
    pub deferred: u64,
    /// Leftovers that are gone.
    pub destroyed: u64,
    pub untracked: u64,
    /// Machines that rows hold.
    pub live: u64,
}

/// What one run may still do.
struct Budget {
    attempts: Cell<i64>,
    deletes: Cell<usize>,
}

impl Budget {
    /// Every answer of an owner counts.
    fn attempt(&self) -> bool {
        let left = self.attempts.get();
        self.attempts.set(left - 1);
        left > 0
    }

    /// Reserves one delete; a refusal gives it back.
    fn delete(&self) -> bool {
        let left = self.deletes.get();
        self.deletes.set(left.saturating_sub(1));
        left > 0
    }

    fn refund(&self) {
        self.deletes.set(self.deletes.get() + 1);
    }

    fn at_least(&self, floor: usize) {
        self.deletes.set(self.deletes.get().max(floor));
    }
}

pub(super) struct Reaper {
    world: World,
    replica: Arc<dyn Replica>,
}

/// Counts of a run that several owners answer to at once.
#[derive(Default)]
struct Count(Cell<Reaped>);

impl Count {
    fn add(&self, change: impl FnOnce(&mut Reaped)) {
        let mut reaped = self.0.get();
        change(&mut reaped);
        self.0.set(reaped);
    }
}

/// What one run works with.
struct RunOf<'a> {
    lease: &'a PassLease,
    budget: Budget,
    count: Count,
}

impl RunOf<'_> {
    /// Whether one more owner may be asked.
    async fn may_ask(&self) -> bool {
        if !self.budget.attempt() {
            self.count.add(|reaped| reaped.deferred += 1);
            return false;
        }
        self.lease.guard().await.is_ok()
    }

    fn refused(&self, machine: impl std::fmt::Display, error: &MachineError) {
        tracing::info!(machine.id = %machine, %error, "the reaper left machine {machine} to its next run");
        if expiry::is_contention(error) {
            self.count.add(|reaped| reaped.skipped += 1);
        } else {
            self.count.add(|reaped| reaped.refused += 1);
        }
    }
}

impl Reaper {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self { world, replica }
    }

    /// The line of the log, and the measures.
    fn conclude(&self, reaped: &Reaped) {
        let Reaped {
            released,
            parked,
            expired,
            refused,
            skipped,
            deferred,
            destroyed,
            untracked,
            live,
        } = *reaped;
        tracing::info!(
            "reaper: released={released} parked={parked} expired={expired} refused={refused} skipped={skipped} \
             deferred={deferred} destroyed={destroyed} untracked={untracked} live={live}"
        );
        self.world.meter.record(Measure::Reaped {
            released,
            parked,
            expired,
            refused,
        });
    }

    async fn reap(&self, lease: &PassLease) -> Reaped {
        let settings = &self.world.settings;
        let run = RunOf {
            lease,
            budget: Budget {
                attempts: Cell::new(settings.owner_attempts),
                deletes: Cell::new(settings.reaper_deletes),
            },
            count: Count::default(),
        };
        self.release_stuck(&run).await;
        self.expire(&run).await;
        run.budget.at_least(settings.leftover_floor);
        for provider in self.world.adapters.providers() {
            self.sweep_provider(&run, provider).await;
        }
        match self.world.store.census().await {
            Ok(census) => {
                let live = census.machines.iter().filter(|(_, status, _)| !status.is_terminal());
                let live: i64 = live.map(|(_, _, count)| count).sum();
                run.count.add(|reaped| reaped.live = live.unsigned_abs());
            }
            Err(error) => tracing::warn!(%error, "the reaper could not count the live machines"),
        }
        run.count.0.get()
    }

    /// The first part.
    async fn release_stuck(&self, run: &RunOf<'_>) {
        let found = stuck_builds(&self.world, self.world.settings.owner_attempts).await;
        let stuck = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "the reaper could not read which builds are stuck");
            Vec::new()
        });
        side_by_side(stuck, |machine| async move {
            if self.replica.is_occupied(machine.id).await {
                return run.count.add(|reaped| reaped.skipped += 1);
            }
            if !run.may_ask().await {
                return;
            }
            match self.release(&machine).await {
                Ok(()) => run.count.add(|reaped| reaped.released += 1),
                Err(error) => {
                    run.refused(machine.id, &error);
                    expiry::defer(&self.world, &machine).await;
                }
            }
        })
        .await;
    }

    /// Machine first: an interruption in between leaves a conversation that its next prompt repairs. Not even a first
    /// build is final here (RUL-L-31).
    async fn release(&self, machine: &Machine) -> Result<(), MachineError> {
        let world = &self.world;
        let waiting = world.store.waiting_on(machine.id).await?;
        let fail = FailBuild {
            conversation: waiting.first().map(|(conversation, _)| *conversation),
            reason: "stuck_build".into(),
            message: STUCK.into(),
            actor: REAPER,
        };
        let answer = self.replica.owner(machine.id).send(fail).await;
        answer.unwrap_or(Err(MachineError::Busy))?;
        for (conversation, turn) in waiting {
            let ending = Ending {
                message: Some(STUCK.into()),
                ..Ending::failed(turn, "provision_failed", world.now())
            };
            let closed = world
                .store
                .close_turn(conversation, ending, Some(machine.id), false)
                .await?;
            closed.announce(world.bus.as_ref());
        }
        expiry::note(world, machine, "sandbox.released_stuck", "stuck_build").await;
        Ok(())
    }

    /// The second part.
    async fn expire(&self, run: &RunOf<'_>) {
        let found = expired(&self.world, self.world.settings.owner_attempts).await;
        let past = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "the reaper could not read which machines are past a bound");
            Vec::new()
        });
        side_by_side(past, |machine| async move {
            if self.replica.is_occupied(machine.id).await {
                return run.count.add(|reaped| reaped.skipped += 1);
            }
            let verdict = expiry::verdict(&self.world.settings, &machine, self.world.now());
            let deletes = matches!(verdict, Verdict::Destroy(_));
            if deletes && !run.budget.delete() {
                return run.count.add(|reaped| reaped.deferred += 1);
            }
            if !run.may_ask().await {
                if deletes {
                    run.budget.refund();
                }
                return;
            }
            match expiry::expire(&self.world, self.replica.as_ref(), &machine, verdict).await {
                Ok(Expired::Parked) => run.count.add(|reaped| reaped.parked += 1),
                Ok(Expired::Reclaimed) => {
                    if !deletes {
                        // A park that had to be a delete is one delete more, whatever the budget says.
                        run.budget.delete();
                    }
                    run.count.add(|reaped| reaped.expired += 1);
                }
                Ok(Expired::Skipped) => run.count.add(|reaped| reaped.skipped += 1),
                Err(error) => {
                    if deletes {
                        run.budget.refund();
                    }
                    run.refused(machine.id, &error);
                    expiry::defer(&self.world, &machine).await;
                }
            }
        })
        .await;
    }

    /// The third and fourth part, for one provider. Its trouble is not the others'.
    async fn sweep_provider(&self, run: &RunOf<'_>, provider: Provider) {
        let most = usize::try_from(self.world.settings.owner_attempts).unwrap_or(usize::MAX);
        let harvest = match listing::harvest(&self.world, provider, most, Mode::Run(run.lease)).await {
            Ok(harvest) => harvest,
            Err(why) => {
                tracing::warn!(%provider, %why, "the listing of provider {provider} tells nothing; nothing is deleted from it");
                return;
            }
        };
        run.count.add(|reaped| reaped.untracked += harvest.untracked);
        self.world.meter.record(Measure::Untracked {
            provider,
            count: harvest.untracked,
        });
        if harvest.untracked > 0 {
            let sample = harvest.sample.join(" ");
            tracing::warn!(
                %provider, count = harvest.untracked, sample,
                "{} machines of provider {provider} have no row; they may cost money", harvest.untracked
            );
        }
        self.delete_leftovers(run, &harvest).await;
    }

    async fn delete_leftovers(&self, run: &RunOf<'_>, harvest: &Harvest) {
        for (name, machine) in &harvest.leftovers {
            if harvest.is_stale(&self.world) {
                tracing::warn!("the rest of a listing is thrown away: it is too old");
                return;
            }
            if !run.budget.delete() {
                run.count.add(|reaped| reaped.deferred += 1);
                continue;
            }
            if !run.may_ask().await {
                continue;
            }
            let ask = Leftover { actor: REAPER };
            let answer = self.replica.owner(*machine).send(ask).await;
            match answer.unwrap_or(Err(MachineError::Busy)) {
                Ok(Swept::Deleted) => {
                    tracing::warn!(machine.id = %machine, machine.name = %name, "a machine that outlived its row was deleted");
                    run.count.add(|reaped| reaped.destroyed += 1);
                }
                Ok(Swept::Absent | Swept::NameTaken | Swept::Owed) => {
                    run.budget.refund();
                    run.count.add(|reaped| reaped.skipped += 1);
                }
                Err(error) => {
                    run.budget.refund();
                    run.refused(machine, &error);
                }
            }
        }
    }
}

/// Builds that nobody carries.
async fn stuck_builds(world: &World, limit: i64) -> Result<Vec<Machine>, crate::ports::store::StoreError> {
    let (now, settings) = (world.now(), &world.settings);
    let ago = |age| clock::before(now, age);
    let (before, marker) = (ago(settings.stuck_build_age), ago(settings.woken_grace));
    world.store.stuck_builds(now, before, marker, limit).await
}

/// Machines that are up and past a bound.
async fn expired(world: &World, limit: i64) -> Result<Vec<Machine>, crate::ports::store::StoreError> {
    let (now, settings) = (world.now(), &world.settings);
    let ago = |age| clock::before(now, age);
    let (idle, born) = (settings.idle_timeout.map(ago), settings.max_lifetime.map(ago));
    if idle.is_none() && born.is_none() {
        return Ok(Vec::new());
    }
    let marker = ago(settings.woken_grace);
    world.store.parkable(now, idle, born, marker, limit).await
}

async fn side_by_side<T, F: Future<Output = ()>>(rows: Vec<T>, act: impl FnMut(T) -> F) {
    let mut acts = stream::iter(rows).map(act).buffer_unordered(SIDE_BY_SIDE);
    while acts.next().await.is_some() {}
}

/// From `now` to the next minute of this number. One that is as good as now is over.
fn until_minute(now: Moment, minute: u32) -> Duration {
    let past = now.minute() * 60 + now.second();
    let ahead = (3600 + minute * 60 - past) % 3600;
    Duration::from_secs(u64::from(if ahead <= 1 { ahead + 3600 } else { ahead }))
}

impl Pass for Reaper {
    const NAME: &'static str = "reaper";

    fn every(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn rest(&self, now: Moment) -> Duration {
        until_minute(now, self.world.settings.reaper_minute)
    }

    fn run(self: Rc<Self>, lease: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let reaped = self.reap(&lease).await;
            self.conclude(&reaped);
            Tally {
                candidates: reaped.released
                    + reaped.parked
                    + reaped.expired
                    + reaped.destroyed
                    + reaped.refused
                    + reaped.skipped
                    + reaped.deferred,
                done: reaped.released + reaped.parked + reaped.expired + reaped.destroyed,
                refused: reaped.refused,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Moment {
        text.parse().unwrap()
    }

    #[test]
    fn the_reaper_runs_seven_minutes_past_every_hour() {
        let rest = |text| until_minute(at(text), 7).as_secs();
        assert_eq!(rest("2026-05-01T12:00:00Z"), 7 * 60);
        assert_eq!(rest("2026-05-01T12:07:00Z"), 3600);
        assert_eq!(
            rest("2026-05-01T12:06:59Z"),
            3601,
            "a timer that is a blink early has run"
        );
        assert_eq!(rest("2026-05-01T12:07:30Z"), 3570);
        assert_eq!(rest("2026-05-01T23:59:00Z"), 8 * 60);
    }
}
