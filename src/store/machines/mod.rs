//! Machines: leases, operations, the fence, what the sweeps look for, and the views.
//!
//! An operation is two transactions: `claim` and `finish` (RUL-28, RUL-L-10). Status moves only through
//! `MachineStatus::on`; a `destroying` stamp leaves a live row never (INV-02). Follows lifecycle 2, 3.3, 7, 8 and
//! rulings-lifecycle 1 to 4.

mod fence;
pub(super) mod finish;
mod handover;
pub(super) mod journal;
mod lease;
pub mod quota;
pub mod rows;
pub(super) mod sweeps;
pub mod views;

pub(super) use fence::doom;
pub(super) use handover::hand_over;

use std::collections::BTreeSet;
use std::time::Duration;

use fountain_actors::domain::event::NewStage;
use fountain_actors::domain::machine::{Machine, MachineEvent, MachineStatus, Provider};
use fountain_actors::domain::operation::Operation;
use fountain_actors::domain::*;
use fountain_actors::ports::store::machines::{
    Census, Claim, ClaimAnswer, Fence, FenceAnswer, Finish, Finished, MachineStore, MachineView, Patch,
};
use fountain_actors::ports::store::{Answer, Committed, StoreError};

use super::SqlStore;
use super::backend::{Access, lease_clock};
use super::turns::commit;

impl MachineStore for SqlStore {
    fn machine(&self, id: MachineId) -> Answer<'_, Option<Machine>> {
        self.answer("machine.read", Access::Read, move |db| rows::find(db, id))
    }

    fn lease_clock(&self, now: Moment) -> Answer<'_, Moment> {
        self.answer("machine.lease_clock", Access::Read, move |db| lease_clock(db, now))
    }

    fn machine_views(&self, account: AccountId, statuses: Vec<MachineStatus>) -> Answer<'_, Vec<MachineView>> {
        self.answer("machine.views", Access::Snapshot, move |db| {
            views::all(db, account, statuses)
        })
    }

    fn machine_view(&self, account: AccountId, id: MachineId) -> Answer<'_, Option<MachineView>> {
        self.answer("machine.view", Access::Snapshot, move |db| views::one(db, account, id))
    }

    fn claim(&self, claim: Claim) -> Answer<'_, Committed<ClaimAnswer>> {
        self.answer("machine.claim", Access::Write, move |db| {
            let (answer, outbox) = lease::claim(db, claim)?;
            commit(db, answer, outbox)
        })
    }

    fn renew(&self, machine: MachineId, epoch: Epoch, holder: String, ttl: Duration, now: Moment) -> Answer<'_, ()> {
        self.answer("machine.renew", Access::Write, move |db| {
            lease::renew(db, machine, epoch, &holder, ttl, now)
        })
    }

    fn advance(
        &self,
        machine: MachineId,
        epoch: Epoch,
        event: Option<MachineEvent>,
        patch: Patch,
        stages: Vec<(ConversationId, NewStage)>,
        now: Moment,
    ) -> Answer<'_, Committed<Machine>> {
        self.answer("machine.advance", Access::Write, move |db| {
            let (machine, outbox) = lease::advance(db, machine, epoch, event, patch, stages, now)?;
            commit(db, machine, outbox)
        })
    }

    fn finish(&self, finish: Finish) -> Answer<'_, Committed<Finished>> {
        let done = self.run("machine.finish", Access::Write, move |db| {
            let (verdict, outbox) = finish::finish(db, finish)?;
            commit(db, verdict, outbox)
        });
        Box::pin(async move { verdict(done.await) })
    }

    fn release(&self, machine: MachineId, epoch: Epoch) -> Answer<'_, ()> {
        self.answer("machine.release", Access::Write, move |db| {
            lease::release(db, machine, epoch)
        })
    }

    fn fence(&self, fence: Fence) -> Answer<'_, Committed<FenceAnswer>> {
        self.answer("machine.fence", Access::Write, move |db| {
            let (answer, outbox) = fence::fence(db, fence)?;
            commit(db, answer, outbox)
        })
    }

    fn retire_lost(&self, finish: Finish) -> Answer<'_, Committed<Finished>> {
        let done = self.run("machine.retire_lost", Access::Write, move |db| {
            let (verdict, outbox) = finish::retire_lost(db, finish)?;
            commit(db, verdict, outbox)
        });
        Box::pin(async move { verdict(done.await) })
    }

    fn postpone(&self, machine: MachineId, until: Moment) -> Answer<'_, ()> {
        self.answer("machine.postpone", Access::Write, move |db| {
            sweeps::postpone(db, machine, until)
        })
    }

    fn doomed(&self, now: Moment, stamped_before: Moment, limit: i64) -> Answer<'_, Vec<Machine>> {
        self.answer("machine.doomed", Access::Snapshot, move |db| {
            sweeps::doomed(db, now, stamped_before, limit)
        })
    }

    fn parkable(
        &self,
        now: Moment,
        idle_before: Option<Moment>,
        born_before: Option<Moment>,
        marker_before: Moment,
        limit: i64,
    ) -> Answer<'_, Vec<Machine>> {
        self.answer("machine.parkable", Access::Snapshot, move |db| {
            sweeps::parkable(db, now, idle_before, born_before, marker_before, limit)
        })
    }

    fn abandoned(&self, now: Moment, before: Moment, limit: i64) -> Answer<'_, Vec<Machine>> {
        self.answer("machine.abandoned", Access::Read, move |db| {
            sweeps::abandoned(db, now, before, limit)
        })
    }

    fn end_dead_leases(&self, holder: String) -> Answer<'_, u64> {
        self.answer("machine.end_dead_leases", Access::Write, move |db| {
            sweeps::end_dead_leases(db, &holder)
        })
    }

    fn operations(&self, account: AccountId, machine: MachineId, limit: i64) -> Answer<'_, Vec<Operation>> {
        self.answer("machine.operations", Access::Snapshot, move |db| {
            journal::of_machine(db, account, machine, limit)
        })
    }

    fn live_names(&self, provider: Provider) -> Answer<'_, BTreeSet<String>> {
        self.answer("machine.live_names", Access::Read, move |db| {
            sweeps::live_names(db, provider)
        })
    }

    fn census(&self) -> Answer<'_, Census> {
        self.answer("machine.census", Access::Snapshot, sweeps::census)
    }
}

/// A refusal whose journal row was committed becomes the error that the caller sees.
pub(super) fn verdict(
    done: Result<Committed<finish::Verdict<Finished>>, StoreError>,
) -> Result<Committed<Finished>, StoreError> {
    let Committed { value, cursors } = done?;
    Ok(Committed { value: value?, cursors })
}
