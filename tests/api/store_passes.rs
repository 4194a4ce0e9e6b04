//! The passes' verbs of the fake store: no door uses them.

use std::time::Duration;

use fountain_actors::domain::machine::{Machine, Provider};
use fountain_actors::domain::*;
use fountain_actors::ports::store::Answer;
use fountain_actors::ports::store::passes::{Forgettable, NameHolder, PassStore, Rests};
use fountain_actors::ports::store::turns::Adoptable;

use crate::store::{Rows, not_here};

impl PassStore for Rows {
    fn take_pass(&self, _: &'static str, _: String, _: Duration, _: Moment) -> Answer<'_, Option<Epoch>> {
        not_here("take_pass")
    }
    fn renew_pass(&self, _: &'static str, _: String, _: Epoch, _: Duration, _: Moment) -> Answer<'_, ()> {
        not_here("renew_pass")
    }
    fn owes_look(&self, _: MachineId, _: Moment) -> Answer<'_, bool> {
        not_here("owes_look")
    }
    fn indebted(&self, _: Moment, _: i64) -> Answer<'_, Vec<MachineId>> {
        not_here("indebted")
    }
    fn postpone_debts(&self, _: MachineId, _: Moment) -> Answer<'_, ()> {
        not_here("postpone_debts")
    }
    fn name_probed(&self, _: MachineId, _: Epoch, _: String, _: Moment) -> Answer<'_, ()> {
        not_here("name_probed")
    }
    fn is_name_held(&self, _: Provider, _: String) -> Answer<'_, bool> {
        not_here("is_name_held")
    }
    fn waive_debts(&self, _: MachineId, _: Moment) -> Answer<'_, ()> {
        not_here("waive_debts")
    }
    fn defer(&self, _: MachineId, _: Rests, _: Moment) -> Answer<'_, Moment> {
        not_here("defer")
    }
    fn stuck_builds(&self, _: Moment, _: Moment, _: Moment, _: i64) -> Answer<'_, Vec<Machine>> {
        not_here("stuck_builds")
    }
    fn waiting_on(&self, _: MachineId) -> Answer<'_, Vec<(ConversationId, TurnId)>> {
        not_here("waiting_on")
    }
    fn name_holders(&self, _: Provider, _: Vec<String>) -> Answer<'_, Vec<(String, NameHolder)>> {
        not_here("name_holders")
    }
    fn note_untracked(&self, _: Provider, _: Vec<String>, _: Moment) -> Answer<'_, ()> {
        not_here("note_untracked")
    }
    fn count_untracked(&self, _: Provider, _: Moment) -> Answer<'_, i64> {
        not_here("count_untracked")
    }
    fn stuck_turns(&self, _: Moment, _: Moment, _: i64) -> Answer<'_, Vec<Adoptable>> {
        not_here("stuck_turns")
    }
    fn forget(&self, _: Forgettable, _: Moment, _: i64) -> Answer<'_, u64> {
        not_here("forget")
    }
}
