//! The programs: what an operation does next, as `actors/machine/{provision,park,wake,settle,destroy}.rs` have it.

use fountain_actors::domain::machine::MachineEvent;

use crate::laws;
use crate::provider::Answer;
use crate::rules::{Rules, World};
use crate::state::*;
use crate::store;

/// What came of a call, to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Answer(Answer),
    /// A timeout, a closed socket, a 5xx (RUL-L-4).
    Nothing,
}

/// What becomes of an operation.
enum Next {
    On(At),
    Superseded,
    Over,
}

fn then(at: At) -> Next {
    Next::On(at)
}

fn put(state: &mut State, rules: &Rules, mut owner: Owner, next: Next) {
    match next {
        Next::On(at) => {
            owner.at = at;
            state.owners.push(owner);
        }
        Next::Superseded => store::supersede(state, rules, owner.epoch),
        Next::Over => {}
    }
}

/// One step that no answer is needed for. None: it waits.
pub fn step(state: &mut State, rules: &Rules, world: &World, slot: usize) -> Option<()> {
    let mut owner = *state.owners.get(slot)?;
    let has_room = state.requests.len() < REQUESTS;
    if matches!(owner.at, At::Awaits(_)) || (!has_room && matches!(owner.at, At::Sends(_) | At::Passed(_))) {
        return None;
    }
    state.owners.remove(slot);
    let next = match owner.at {
        At::Sends(call) => {
            if rules.guard && !store::renew(state, owner.epoch) {
                Next::Superseded
            } else if world.stops_after_guard {
                then(At::Passed(call))
            } else {
                send(state, world, &mut owner, call)
            }
        }
        At::Passed(call) => send(state, world, &mut owner, call),
        At::Awaits(_) => return None,
        At::Looks => look(state, rules, world, &mut owner),
        At::Advances => {
            if !store::advance(state, rules, owner.epoch, Some(MachineEvent::CreateAnswered), None) {
                Next::Superseded
            } else if state.row.is_doomed() {
                then(At::Finishes(Finish::GivesWay))
            } else {
                laws::on_pipeline(state, &owner);
                then(At::Finishes(Finish::Built))
            }
        }
        At::Renames => rename(state, rules, world, &mut owner),
        At::Finishes(how) => {
            store::finish(state, rules, &owner, how);
            Next::Over
        }
    };
    put(state, rules, owner, next);
    Some(())
}

fn send(state: &mut State, world: &World, owner: &mut Owner, call: Call) -> Next {
    laws::on_send(state, world, owner, call);
    if call == Call::Create {
        owner.owes = true;
    }
    if call == Call::Resume
        && let Some(operation) = state.operation_mut(owner.epoch)
    {
        operation.resumed = true;
    }
    state.requests.push(Request {
        epoch: owner.epoch,
        call,
        name: owner.name,
        fate: Fate::Awaited,
        only: None,
    });
    then(At::Awaits(call))
}

fn rename(state: &mut State, rules: &Rules, world: &World, owner: &mut Owner) -> Next {
    let Some(name) = store::other_name(state, world) else {
        return then(At::Sends(Call::Create));
    };
    if !store::advance(state, rules, owner.epoch, None, Some(name)) {
        return Next::Superseded;
    }
    owner.name = name;
    if state.row.is_doomed() {
        return then(At::Finishes(Finish::GivesWay));
    }
    then(At::Sends(Call::Create))
}

/// A call was answered, or given up.
pub fn hear(state: &mut State, rules: &Rules, world: &World, slot: usize, heard: Heard) -> Option<()> {
    let mut owner = *state.owners.get(slot)?;
    let At::Awaits(call) = owner.at else { return None };
    state.owners.remove(slot);
    owner.lost |= heard == Heard::Nothing;
    if call == Call::Suspend && heard == Heard::Answer(Answer::Ok) {
        owner.proof = Proof::Suspended;
    }
    let next = match heard {
        Heard::Answer(Answer::Stale) => Next::Superseded,
        heard => match call {
            Call::Create => created(state, rules, world, &mut owner, heard),
            Call::Destroy => deleted(rules, &owner, heard),
            Call::Suspend => match (heard, rules.look_after_lost) {
                (Heard::Answer(Answer::Ok), _) | (Heard::Nothing, false) => then(At::Finishes(Finish::Parked)),
                (Heard::Nothing, true) if owner.task == Task::Settle => then(At::Finishes(Finish::Unknown)),
                (Heard::Nothing, true) => then(At::Looks),
                // A settle that may not suspend again writes what it saw.
                (_, _) if owner.task == Task::Settle => then(At::Finishes(Finish::SeenUp)),
                (_, _) => then(At::Finishes(Finish::StaysUp)),
            },
            Call::Resume => match heard {
                Heard::Answer(Answer::Ok) => then(At::Finishes(Finish::Woken)),
                Heard::Answer(_) => then(At::Finishes(Finish::StaysAsleep)),
                Heard::Nothing => then(At::Looks),
            },
        },
    };
    put(state, rules, owner, next);
    Some(())
}

/// M3 and RUL-L-22.
fn created(state: &mut State, rules: &Rules, world: &World, owner: &mut Owner, heard: Heard) -> Next {
    match heard {
        Heard::Answer(Answer::Ok) => then(At::Advances),
        Heard::Nothing if !owner.create_lost => {
            owner.create_lost = true;
            then(At::Sends(Call::Create))
        }
        Heard::Answer(Answer::Exists) => {
            let remnant = store::older_build_used(state, owner.epoch, owner.name);
            let is_kept = owner.create_lost || (!remnant && world.chosen_name);
            if is_kept || !rules.judge_adoption {
                return then(At::Advances);
            }
            // Met once, never chased.
            let again = !std::mem::replace(&mut owner.met, true);
            if remnant {
                owner.deleting = if again { Deleting::Remnant } else { Deleting::OwnMachine };
                return then(At::Sends(Call::Destroy));
            }
            owner.owes = false;
            if again && store::other_name(state, world).is_some() {
                return then(At::Renames);
            }
            then(At::Finishes(Finish::BuildFailed { owes: false }))
        }
        Heard::Answer(_) if !owner.create_lost => {
            owner.owes = false;
            then(At::Finishes(Finish::BuildFailed { owes: false }))
        }
        Heard::Answer(_) | Heard::Nothing => {
            owner.deleting = Deleting::OwnMachine;
            then(At::Sends(Call::Destroy))
        }
    }
}

/// A step of a build failed: what was made is deleted first.
pub fn fail_build(state: &mut State, slot: usize) -> Option<()> {
    let owner = state.owners.get_mut(slot)?;
    if owner.at != At::Advances {
        return None;
    }
    owner.deleting = Deleting::OwnMachine;
    owner.at = At::Sends(Call::Destroy);
    Some(())
}

/// A delete was answered or not: a look decides in each case (RUL-L-91).
fn deleted(rules: &Rules, owner: &Owner, heard: Heard) -> Next {
    if heard == Heard::Answer(Answer::Ok) && !rules.confirm_deletes {
        return absent(owner);
    }
    then(At::Looks)
}

/// The machine under the name is not there.
fn absent(owner: &Owner) -> Next {
    match (owner.task, owner.deleting) {
        (Task::Build, Deleting::OwnMachine) => then(At::Finishes(Finish::BuildFailed { owes: false })),
        (Task::Build, _) => then(At::Renames),
        (Task::Destroy, _) => then(At::Finishes(Finish::Deleted)),
        (Task::Settle, _) => then(At::Finishes(Finish::NothingLeft)),
        // Absence that a park finds out about changes nothing (M10).
        (Task::Park, _) if owner.takeover => then(At::Finishes(Finish::SeenUp)),
        (Task::Park, _) => then(At::Finishes(Finish::StaysUp)),
        (Task::Wake, _) => then(At::Finishes(Finish::Lost)),
    }
}

/// A look that answered.
fn look(state: &mut State, rules: &Rules, world: &World, owner: &mut Owner) -> Next {
    let mut bits = (0, 0);
    for (epoch, debt) in state.operations().take_while(|(epoch, _)| *epoch < owner.epoch) {
        if debt.name == owner.name && state.is_debt(epoch, debt) {
            bits.0 |= u8::from(debt.age >= Age::Ripe) << epoch;
            bits.1 |= u8::from(debt.age == Age::Old) << epoch;
        }
    }
    (owner.settles, owner.closes) = bits;
    let found = state.machine(owner.name).copied();
    owner.proof = match found {
        None => Proof::Absent,
        Some(machine) if !machine.running => Proof::Suspended,
        Some(_) => Proof::Nothing,
    };
    // The row's own machine, while the row lives; else what was left under a name.
    let is_own = owner.name == state.row.name && !state.row.status.is_terminal();
    let Some(machine) = found else {
        if owner.task == Task::Build && owner.deleting == Deleting::Remnant {
            owner.deleting = Deleting::No;
            owner.owes = false;
            let renames = store::other_name(state, world).is_some();
            return then(if renames { At::Renames } else { At::Sends(Call::Create) });
        }
        return match owner.task {
            Task::Settle if is_own => then(At::Finishes(Finish::Lost)),
            _ => absent(owner),
        };
    };
    let asleep = !machine.running;
    match owner.task {
        Task::Build => then(At::Finishes(Finish::BuildFailed { owes: true })),
        Task::Destroy => then(At::Finishes(Finish::Unconfirmed)),
        Task::Settle if !is_own => match owner.deleting {
            Deleting::No => {
                owner.deleting = Deleting::Remnant;
                then(At::Sends(Call::Destroy))
            }
            _ => then(At::Finishes(Finish::Unconfirmed)),
        },
        Task::Settle if owner.was_asleep && !asleep => then(At::Sends(Call::Suspend)),
        _ if !rules.takeover_only_looks && owner.takeover && asleep => then(At::Sends(Call::Resume)),
        Task::Settle => then(At::Finishes(if asleep { Finish::SeenAsleep } else { Finish::SeenUp })),
        Task::Park | Task::Wake if owner.takeover => {
            then(At::Finishes(if asleep { Finish::SeenAsleep } else { Finish::SeenUp }))
        }
        Task::Park => then(At::Finishes(if asleep { Finish::Parked } else { Finish::StaysUp })),
        Task::Wake => then(At::Finishes(if asleep { Finish::StaysAsleep } else { Finish::Woken })),
    }
}

/// A look that did not answer.
pub fn look_fails(state: &mut State, rules: &Rules, slot: usize) -> Option<()> {
    let owner = *state.owners.get(slot)?;
    if owner.at != At::Looks {
        return None;
    }
    state.owners.remove(slot);
    let how = match owner.task {
        Task::Build => Finish::BuildFailed { owes: true },
        Task::Destroy => Finish::Unconfirmed,
        Task::Settle if owner.deleting != Deleting::No => Finish::Unconfirmed,
        Task::Settle => Finish::LookFailed,
        Task::Park | Task::Wake if owner.takeover => Finish::LookFailed,
        Task::Park | Task::Wake => Finish::Unknown,
    };
    put(state, rules, owner, then(At::Finishes(how)));
    Some(())
}
