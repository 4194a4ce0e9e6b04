//! The fake store knows no other process.

use fountain_actors::domain::*;
use fountain_actors::ports::store::Answer;
use fountain_actors::ports::store::replicas::{Beat, Member, ReplicaStore, Resident};
use fountain_actors::ports::store::turns::Serving;

use crate::store::{Rows, not_here};

impl ReplicaStore for Rows {
    fn beat(&self, _: Beat) -> Answer<'_, Vec<Member>> {
        not_here("beat")
    }

    fn members(&self, _: Moment) -> Answer<'_, Vec<Member>> {
        not_here("members")
    }

    fn leave(&self, _: String) -> Answer<'_, ()> {
        not_here("leave")
    }

    fn register_server(&self, _: ConversationId, _: String, _: Moment) -> Answer<'_, Serving> {
        not_here("register_server")
    }

    fn leave_home(&self, _: ConversationId, _: String, _: ServerEpoch) -> Answer<'_, ()> {
        not_here("leave_home")
    }

    fn homes_in(&self, _: String) -> Answer<'_, Vec<(ConversationId, ServerEpoch)>> {
        not_here("homes_in")
    }

    fn seat_runner(&self, _: RunnerId, _: String) -> Answer<'_, ()> {
        not_here("seat_runner")
    }

    fn unseat_runner(&self, _: RunnerId, _: String) -> Answer<'_, ()> {
        not_here("unseat_runner")
    }

    fn home(&self, _: Resident, _: Moment) -> Answer<'_, Option<Member>> {
        not_here("home")
    }

    fn servers_on(&self, _: MachineId, _: Moment) -> Answer<'_, Vec<(ConversationId, String)>> {
        not_here("servers_on")
    }
}
