//! The properties, by their numbers, and where a step would break one.
//!
//! Laws about steps leave a bit in the state that the step led to, and nothing follows such a state; laws about states
//! are read from the state itself.

use fountain_actors::domain::machine::{MachineStatus, Transition};
use stateright::Property;

use crate::Protocol;
use crate::rules::World;
use crate::state::*;

macro_rules! laws {
    ($($law:ident = $name:literal),+ $(,)?) => {
        /// A law about steps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Law { $($law),+ }

        /// Every law: those about steps, then those about states.
        pub fn properties() -> Vec<Property<Protocol>> {
            vec![
                $(Property::always($name, |_, state: &State| state.broken & (1 << Law::$law as u32) == 0),)+
                Property::always(LEDGER, |_, state: &State| covers_its_costs(state)),
                Property::always(PROMISE_1, |_, state: &State| !state.is_quiet() || is_true(state)),
            ]
        }
    };
}

laws! {
    Inv01 = "INV-01 terminal never becomes live",
    Inv02 = "INV-02 a fence goes only with the row's end",
    Inv03 = "INV-03 no two claims have one epoch",
    Inv04 = "INV-04 one holder",
    Inv05 = "INV-05 status and stamp are the holder's",
    Inv06 = "INV-06 an old epoch writes nothing",
    Inv21 = "INV-21 no pipeline runs on an earlier attempt's machine",
    Inv24 = "INV-24 a superseded builder deletes nothing",
    Inv31 = "INV-31 suspended is proved",
    Inv32 = "INV-32 a takeover never resumes",
    Inv33 = "INV-33 one resume an epoch",
    Inv50 = "INV-50 one delete at a time",
    Inv51 = "INV-51 capacity is freed by proof",
    Inv53 = "INV-53 nothing uses a fenced machine",
    Inv60 = "INV-60 somebody else's machine is never deleted",
    Inv115 = "INV-115 every effect is guarded",
    Inv118 = "INV-118 no old delete reaches a live row's machine",
    RulL5 = "RUL-L-5 no call beside another epoch's before its lease ran out",
    Table = "lifecycle 2.2 nothing outside the table",
}

/// INV-117, promise 7.
pub const LEDGER: &str = "INV-117 counted and open debts cover what runs";
/// Promise 1.
pub const PROMISE_1: &str = "promise 1 when nothing is owed, the row is true";

pub fn breaks(state: &mut State, law: Law) {
    state.broken |= 1 << law as u32;
}

fn breaks_if(state: &mut State, law: Law, broken: bool) {
    if broken {
        breaks(state, law);
    }
}

/// RUL-L-73.
fn covers_its_costs(state: &State) -> bool {
    let ours = state
        .provider
        .machines
        .iter()
        .flatten()
        .filter(|machine| machine.running && machine.maker != 0);
    usize::from(state.row.is_counted()) + state.debts() >= ours.count()
}

/// The row says what is, and nothing of ours is anywhere else.
fn is_true(state: &State) -> bool {
    use MachineStatus as S;
    let own = state.machine(state.row.name);
    let row_is_true = match state.row.status {
        S::Ready => own.is_some_and(|machine| machine.running),
        S::Suspended => own.is_some_and(|machine| !machine.running),
        S::Terminated | S::Failed | S::Pending | S::Starting => own.is_none_or(|machine| machine.maker == 0),
    };
    let strays = (0..)
        .zip(&state.provider.machines)
        .any(|(name, place)| name != state.row.name && place.is_some_and(|machine| machine.maker != 0));
    row_is_true && !strays
}

/// What a step may not do to the row, whoever made it. `by` is the epoch of the operation that stepped.
pub fn on_step(before: &State, after: &mut State, by: Option<Epoch>, fences: bool) {
    let (was, is) = (before.row, after.row);
    breaks_if(after, Law::Inv01, was.status.is_terminal() && !is.status.is_terminal());
    breaks_if(
        after,
        Law::Inv02,
        was.is_doomed() && is.stamp != Some(Transition::Destroying) && !is.status.is_terminal(),
    );
    breaks_if(after, Law::Inv03, is.epoch < was.epoch);
    let Some(by) = by else { return };
    let moved = was.status != is.status || was.stamp != is.stamp;
    breaks_if(after, Law::Inv05, moved && by != was.epoch && !fences);
    breaks_if(after, Law::Inv06, by < was.epoch && was != is);
}

pub fn on_claim(state: &mut State, task: Task) {
    let row = state.row;
    breaks_if(state, Law::Inv04, row.lease == Lease::Live);
    breaks_if(state, Law::Inv03, state.operation(row.epoch + 1).is_some());
    breaks_if(state, Law::Inv53, row.is_doomed() && task != Task::Destroy);
}

pub fn on_send(state: &mut State, world: &World, owner: &Owner, call: Call) {
    let holds = state.holds(owner.epoch);
    if !world.stops_after_guard {
        breaks_if(state, Law::Inv115, !holds);
        let is_builder = owner.task == Task::Build && call == Call::Destroy;
        breaks_if(state, Law::Inv24, is_builder && state.row.epoch != owner.epoch);
    }
    let resumed = state.operation(owner.epoch).is_some_and(|operation| operation.resumed);
    breaks_if(
        state,
        Law::Inv32,
        call == Call::Resume && (owner.takeover || owner.task != Task::Wake),
    );
    breaks_if(state, Law::Inv33, call == Call::Resume && resumed);
    // A call that nobody gave up and whose lease never ran out may meet this one at the provider.
    let meets = |request: &&Request| {
        request.epoch != owner.epoch
            && request.fate != Fate::Stray
            && state
                .operation(request.epoch)
                .is_some_and(|operation| !operation.lapsed)
    };
    let beside = state.requests.iter().filter(meets).any(|_| true);
    let twice = call == Call::Destroy
        && state
            .requests
            .iter()
            .filter(meets)
            .any(|other| other.call == Call::Destroy);
    if !world.stops_after_guard {
        breaks_if(state, Law::RulL5, beside);
        breaks_if(state, Law::Inv50, twice);
    }
}

/// A request is about to take effect.
pub fn on_landing(state: &mut State, request: &Request) {
    let Some(machine) = state
        .machine(request.name)
        .copied()
        .filter(|_| request.call == Call::Destroy)
    else {
        return;
    };
    breaks_if(state, Law::Inv60, machine.maker == 0);
    let row = state.row;
    let is_live = !row.status.is_terminal() && !row.is_doomed() && row.name == request.name;
    let in_use = matches!(row.status, MachineStatus::Ready | MachineStatus::Suspended) || machine.maker == row.epoch;
    breaks_if(state, Law::Inv118, is_live && in_use && request.epoch != row.epoch);
}

/// A build takes the machine under its name for its own.
pub fn on_pipeline(state: &mut State, owner: &Owner) {
    let foreign = state
        .machine(owner.name)
        .is_some_and(|machine| machine.maker != owner.epoch && machine.maker != 0);
    breaks_if(state, Law::Inv21, foreign);
}

/// An outcome is about to be written.
pub fn on_finish(state: &mut State, owner: &Owner, how: Finish) {
    let unproved = matches!(how, Finish::Parked | Finish::SeenAsleep) && owner.proof != Proof::Suspended;
    breaks_if(state, Law::Inv31, unproved);
    let frees = matches!(how, Finish::Deleted | Finish::Lost);
    breaks_if(state, Law::Inv51, frees && owner.proof != Proof::Absent);
}
