//! Heartbeats and homes: who is a member, and where something lives (RUL-L-6 to 8, INV-110).
//!
//! Membership is judged here, on the lease clock of the transaction that asks, and nowhere else. The row of a home is
//! written under its conversation's lock; rows of processes have one writer each.

mod homes;
mod members;

pub use homes::living_on;
pub use members::is_member;

use fountain_actors::domain::*;
use fountain_actors::ports::store::Answer;
use fountain_actors::ports::store::replicas::{Beat, Member, ReplicaStore, Resident};
use fountain_actors::ports::store::turns::Serving;

use super::SqlStore;
use super::backend::{Access, Db, Fault};

/// Boot on SQLite: no other process lives (RUL-30, RUL-L-6).
pub fn end_others(db: &mut Db, holder: &str) -> Result<(), Fault> {
    homes::clear_others(db, holder)?;
    members::inherit(db, holder)
}

impl ReplicaStore for SqlStore {
    fn beat(&self, beat: Beat) -> Answer<'_, Vec<Member>> {
        self.answer("replica.beat", Access::Write, move |db| members::beat(db, beat))
    }

    fn members(&self, now: Moment) -> Answer<'_, Vec<Member>> {
        self.answer("replica.members", Access::Read, move |db| members::all(db, now))
    }

    fn leave(&self, holder: String) -> Answer<'_, ()> {
        self.answer("replica.leave", Access::Write, move |db| {
            homes::clear(db, &holder)?;
            members::remove(db, &holder)
        })
    }

    fn register_server(&self, conversation: ConversationId, holder: String, now: Moment) -> Answer<'_, Serving> {
        self.answer("replica.register_server", Access::Write, move |db| {
            homes::register(db, conversation, &holder, now)
        })
    }

    fn leave_home(&self, conversation: ConversationId, holder: String, generation: ServerEpoch) -> Answer<'_, ()> {
        self.answer("replica.leave_home", Access::Write, move |db| {
            homes::vacate(db, Resident::Conversation(conversation), &holder, Some(generation.0))
        })
    }

    fn homes_in(&self, holder: String) -> Answer<'_, Vec<(ConversationId, ServerEpoch)>> {
        self.answer("replica.homes_in", Access::Read, move |db| homes::within(db, &holder))
    }

    fn seat_runner(&self, runner: RunnerId, holder: String) -> Answer<'_, ()> {
        self.answer("replica.seat_runner", Access::Write, move |db| {
            homes::move_in(db, Resident::Runner(runner), &holder, 0)
        })
    }

    fn unseat_runner(&self, runner: RunnerId, holder: String) -> Answer<'_, ()> {
        self.answer("replica.unseat_runner", Access::Write, move |db| {
            homes::vacate(db, Resident::Runner(runner), &holder, None)
        })
    }

    fn home(&self, resident: Resident, now: Moment) -> Answer<'_, Option<Member>> {
        self.answer("replica.home", Access::Snapshot, move |db| homes::of(db, resident, now))
    }

    fn servers_on(&self, machine: MachineId, now: Moment) -> Answer<'_, Vec<(ConversationId, String)>> {
        self.answer("replica.servers_on", Access::Snapshot, move |db| {
            homes::living_on(db, machine, now)
        })
    }
}
