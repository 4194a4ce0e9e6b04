//! What the passes remember and look for (lifecycle 7, 1.8): their leases, debts, rows that the reaper judges, turns
//! without a server, and what is forgotten.
//!
//! Selections are guesses found through partial indexes; whoever acts reads again under a lease (INV-114). Nothing here
//! holds the writer for longer than one bounded batch.

mod leases;
mod reaper;
mod retention;

use std::time::Duration;

use fountain_actors::domain::machine::{Machine, Provider};
use fountain_actors::domain::*;
use fountain_actors::ports::store::Answer;
use fountain_actors::ports::store::passes::{Forgettable, NameHolder, PassStore, Rests};
use fountain_actors::ports::store::turns::Adoptable;

use super::SqlStore;
use super::backend::Access;
use super::machines::{journal, rows, sweeps};
use super::turns::stuck;

impl PassStore for SqlStore {
    fn take_pass(&self, pass: &'static str, holder: String, ttl: Duration, now: Moment) -> Answer<'_, Option<Epoch>> {
        self.answer("pass.take", Access::Write, move |db| {
            leases::take(db, pass, &holder, ttl, now)
        })
    }

    fn renew_pass(
        &self,
        pass: &'static str,
        holder: String,
        epoch: Epoch,
        ttl: Duration,
        now: Moment,
    ) -> Answer<'_, ()> {
        self.answer("pass.renew", Access::Write, move |db| {
            leases::renew(db, pass, &holder, epoch, ttl, now)
        })
    }

    fn owes_look(&self, machine: MachineId, now: Moment) -> Answer<'_, bool> {
        self.answer("pass.owes_look", Access::Snapshot, move |db| {
            let clock = super::backend::lease_clock(db, now)?;
            match rows::find(db, machine)? {
                Some(machine) => journal::owes_look(db, &machine, clock),
                None => Ok(false),
            }
        })
    }

    fn indebted(&self, now: Moment, limit: i64) -> Answer<'_, Vec<MachineId>> {
        self.answer("pass.indebted", Access::Snapshot, move |db| {
            journal::indebted(db, now, limit)
        })
    }

    fn postpone_debts(&self, machine: MachineId, until: Moment) -> Answer<'_, ()> {
        self.answer("pass.postpone_debts", Access::Write, move |db| {
            journal::postpone(db, machine, until)
        })
    }

    fn name_probed(&self, machine: MachineId, epoch: Epoch, name: String, now: Moment) -> Answer<'_, ()> {
        self.answer("pass.name_probed", Access::Write, move |db| {
            journal::name_probed(db, machine, epoch, &name, now)
        })
    }

    fn is_name_held(&self, provider: Provider, name: String) -> Answer<'_, bool> {
        self.answer("pass.is_name_held", Access::Read, move |db| {
            rows::is_held(db, provider, &name)
        })
    }

    fn waive_debts(&self, machine: MachineId, now: Moment) -> Answer<'_, ()> {
        self.answer("pass.waive_debts", Access::Write, move |db| {
            journal::waive(db, machine, now)
        })
    }

    fn defer(&self, machine: MachineId, rests: Rests, now: Moment) -> Answer<'_, Moment> {
        self.answer("pass.defer", Access::Write, move |db| {
            sweeps::defer(db, machine, &rests, now)
        })
    }

    fn stuck_builds(&self, now: Moment, before: Moment, marker_before: Moment, limit: i64) -> Answer<'_, Vec<Machine>> {
        self.answer("pass.stuck_builds", Access::Snapshot, move |db| {
            reaper::stuck_builds(db, now, before, marker_before, limit)
        })
    }

    fn waiting_on(&self, machine: MachineId) -> Answer<'_, Vec<(ConversationId, TurnId)>> {
        self.answer("pass.waiting_on", Access::Read, move |db| {
            stuck::waiting_on(db, machine)
        })
    }

    fn name_holders(&self, provider: Provider, names: Vec<String>) -> Answer<'_, Vec<(String, NameHolder)>> {
        self.answer("pass.name_holders", Access::Read, move |db| {
            reaper::holders(db, provider, &names)
        })
    }

    fn note_untracked(&self, provider: Provider, names: Vec<String>, now: Moment) -> Answer<'_, ()> {
        self.answer("pass.note_untracked", Access::Write, move |db| {
            reaper::note_untracked(db, provider, &names, now)
        })
    }

    fn count_untracked(&self, provider: Provider, since: Moment) -> Answer<'_, i64> {
        self.answer("pass.count_untracked", Access::Read, move |db| {
            reaper::count_untracked(db, provider, since)
        })
    }

    fn stuck_turns(&self, started_before: Moment, quiet_before: Moment, limit: i64) -> Answer<'_, Vec<Adoptable>> {
        self.answer("pass.stuck_turns", Access::Read, move |db| {
            stuck::running(db, started_before, quiet_before, limit)
        })
    }

    fn forget(&self, what: Forgettable, before: Moment, limit: i64) -> Answer<'_, u64> {
        self.answer("pass.forget", Access::Write, move |db| {
            retention::forget(db, what, before, limit)
        })
    }
}
