//! The row's transactions, as `src/store/machines` has them: claim, advance, finish, release, renew, fence.
//!
//! Statuses move by the table of the domain itself ([`MachineStatus::on`]); a step that it does not have is a broken law.

use fountain_actors::domain::machine::{MachineEvent, MachineStatus, Transition};

use crate::laws::{self, Law};
use crate::rules::{Rules, World};
use crate::state::*;

/// The name that a settle would look at now; None when there is nothing to settle.
fn debt_to_look_at(state: &State) -> Option<u8> {
    let row = &state.row;
    let due = |name: Option<u8>| {
        let found = state
            .operations()
            .find(|(epoch, debt)| state.is_due(*epoch, debt) && name.is_none_or(|name| debt.name == name));
        found.map(|(_, debt)| debt.name)
    };
    if row.status.is_terminal() {
        return due(None);
    }
    let under_way = matches!(row.stamp, Some(Transition::Parking | Transition::Resuming));
    if under_way {
        Some(row.name)
    } else {
        due(Some(row.name)).or_else(|| due(None))
    }
}

/// Whether a process would claim the row for this now, and on which name it would then act.
pub fn wanted(state: &State, rules: &Rules, task: Task) -> Option<u8> {
    use {MachineStatus as S, Transition as T};
    let row = &state.row;
    if state.claims_left == 0 || state.owners.len() == 2 {
        return None;
    }
    if row.lease == Lease::Live && rules.respect_leases {
        return None;
    }
    if row.is_doomed() && task != Task::Destroy && rules.refuse_doomed {
        return None;
    }
    let usable = matches!(row.status, S::Ready | S::Suspended);
    // Without the rule a claim does not read the fence.
    let stamp = row.stamp.filter(|stamp| *stamp != T::Destroying);
    let stops = state.machine(row.name).is_some_and(|machine| !machine.running);
    let fits = match task {
        Task::Build => matches!(row.status, S::Pending | S::Starting),
        Task::Park => row.status == S::Ready && matches!(stamp, None | Some(T::Parking)),
        // A machine that is up is looked at first, and woken when it does not run.
        Task::Wake => match stamp {
            None => row.status == S::Suspended || (row.status == S::Ready && stops),
            Some(T::Resuming) => usable,
            Some(_) => false,
        },
        Task::Settle => return debt_to_look_at(state).filter(|_| usable || row.status.is_terminal()),
        Task::Destroy => row.is_doomed() || (row.status.is_terminal() && row.owes),
    };
    fits.then_some(row.name)
}

/// The first transaction.
pub fn claim(state: &mut State, rules: &Rules, task: Task, name: u8) {
    use Transition as T;
    laws::on_claim(state, task);
    let before = state.row;
    let over = before.stamp.filter(|stamp| *stamp != T::Destroying);
    let row = &mut state.row;
    row.epoch += 1;
    row.lease = Lease::Live;
    match task {
        Task::Build => row.stamp = Some(T::Provisioning),
        Task::Park => row.stamp = Some(T::Parking),
        Task::Wake => row.stamp = Some(T::Resuming),
        Task::Settle | Task::Destroy => {}
    }
    let epoch = row.epoch;
    state.claims_left -= 1;
    let is_rebuild = task == Task::Build
        && (over == Some(T::Provisioning)
            || before.status == MachineStatus::Starting
            || state
                .operations()
                .any(|(_, debt)| debt.task == Task::Build && debt.standing != Standing::Closed));
    let takeover = matches!(task, Task::Park | Task::Wake) && over.is_some() && rules.takeover_only_looks;
    let first = match task {
        Task::Build if is_rebuild => At::Sends(Call::Destroy),
        Task::Build => At::Sends(Call::Create),
        Task::Park | Task::Wake if takeover => At::Looks,
        Task::Park => At::Sends(Call::Suspend),
        Task::Wake => At::Sends(Call::Resume),
        Task::Settle => At::Looks,
        Task::Destroy => At::Sends(Call::Destroy),
    };
    if let Some(place) = state.journal.get_mut(usize::from(epoch) - 1) {
        *place = Some(Operation {
            task,
            name,
            standing: Standing::Open,
            age: Age::Young,
            lapsed: false,
            resumed: false,
        });
    }
    state.owners.push(Owner {
        epoch,
        task,
        at: first,
        name,
        takeover: over.is_some() && task != Task::Build,
        deleting: if is_rebuild { Deleting::Remnant } else { Deleting::No },
        owes: is_rebuild,
        create_lost: false,
        met: false,
        lost: false,
        was_asleep: before.status == MachineStatus::Suspended && before.stamp.is_none(),
        proof: Proof::Nothing,
        settles: 0,
        closes: 0,
    });
}

/// A renewal by the holder. Nobody else took the row, or there is nothing to renew.
pub fn renew(state: &mut State, epoch: Epoch) -> bool {
    if !state.holds(epoch) {
        return false;
    }
    if state.row.lease == Lease::Lapsed {
        state.row.lease = Lease::Live;
        if let Some(operation) = state.operation_mut(epoch) {
            operation.age = Age::Young;
            operation.lapsed = false;
        }
    }
    true
}

/// A commit between claim and finish. False: this epoch holds nothing any more.
pub fn advance(state: &mut State, rules: &Rules, epoch: Epoch, event: Option<MachineEvent>, name: Option<u8>) -> bool {
    if !state.holds(epoch) && rules.check_epochs {
        return false;
    }
    if let Some(event) = event {
        state.row.status = step(state, event);
    }
    if let Some(name) = name {
        state.row.name = name;
        if rules.journal_follows_name
            && let Some(operation) = state.operation_mut(epoch)
        {
            operation.name = name;
        }
    }
    true
}

fn step(state: &mut State, event: MachineEvent) -> MachineStatus {
    state.row.status.on(event).unwrap_or_else(|_| {
        laws::breaks(state, Law::Table);
        state.row.status
    })
}

/// The one thing that a superseded operation writes: on its own journal row, that it was superseded (RUL-L-3).
pub fn supersede(state: &mut State, rules: &Rules, epoch: Epoch) {
    // It may turn out to be the holder after all: the stamp stays for whoever comes next.
    if state.holds(epoch) {
        state.row.lease = Lease::Free;
    }
    let word = if rules.keep_debts {
        Standing::Owed
    } else {
        Standing::Closed
    };
    if let Some(operation) = state.operation_mut(epoch)
        && operation.standing == Standing::Open
    {
        operation.standing = word;
    }
}

/// The second transaction.
pub fn finish(state: &mut State, rules: &Rules, owner: &Owner, how: Finish) {
    use {Finish as F, MachineEvent as E};
    if !state.holds(owner.epoch) && rules.check_epochs {
        return supersede(state, rules, owner.epoch);
    }
    let was = state.row;
    let event = match how {
        F::Built if was.is_doomed() => None,
        F::Built => Some(E::BuildFinished),
        F::BuildFailed { .. } => Some(E::BuildFailed),
        F::Parked | F::SeenAsleep => Some(E::ParkConfirmed),
        F::Woken | F::SeenUp => Some(E::WakeConfirmed),
        F::StaysAsleep => (was.status == MachineStatus::Ready).then_some(E::ParkConfirmed),
        F::Deleted | F::Lost => (!was.status.is_terminal()).then_some(E::DeleteConfirmed),
        F::GivesWay | F::StaysUp | F::Unconfirmed | F::NothingLeft | F::Unknown | F::LookFailed => None,
    };
    laws::on_finish(state, owner, how);
    if let Some(event) = event {
        state.row.status = step(state, event);
    }
    match how {
        F::BuildFailed { owes } => state.row.owes = owes,
        F::Deleted => state.row.owes = false,
        _ => {}
    }
    let keeps_stamp = matches!(how, F::GivesWay | F::Unconfirmed | F::Unknown | F::LookFailed);
    let keeps_fence = was.is_doomed() && rules.keep_fence;
    if state.row.status.is_terminal() || !(keeps_stamp || keeps_fence) {
        state.row.stamp = None;
    }
    state.row.lease = Lease::Free;

    let own = match how {
        F::Unknown if rules.keep_debts => Standing::Owed,
        F::Unknown => Standing::Closed,
        _ if owner.lost && rules.last_look_after_lost => Standing::Settled,
        _ => Standing::Closed,
    };
    if let Some(operation) = state.operation_mut(owner.epoch) {
        operation.standing = own;
    }
    settle_debts(state, rules, owner, how, was.status.is_terminal());
}

fn settle_debts(state: &mut State, rules: &Rules, owner: &Owner, how: Finish, was_gone: bool) {
    use Finish as F;
    let all = how == F::Deleted && !was_gone && !rules.debts_outlive_delete;
    let looked = !matches!(
        how,
        F::Unknown | F::LookFailed | F::Unconfirmed | F::GivesWay | F::BuildFailed { owes: true }
    );
    let by_time = !rules.only_looks_settle && !matches!(how, F::Unknown | F::Unconfirmed);
    for (epoch, place) in (1..)
        .zip(&mut state.journal)
        .take_while(|(epoch, _)| *epoch < owner.epoch)
    {
        let Some(debt) = place.as_mut().filter(|debt| debt.standing != Standing::Closed) else {
            continue;
        };
        let bit = 1 << epoch;
        if all || (by_time && debt.age >= Age::Ripe) || (looked && owner.closes & bit != 0) {
            debt.standing = Standing::Closed;
        } else if looked && owner.settles & bit != 0 {
            debt.standing = Standing::Settled;
        }
    }
}

/// A user's fence (M15).
pub fn fence(state: &mut State) {
    state.row.stamp = Some(Transition::Destroying);
    state.fences_left -= 1;
}

/// Whether time could pass to some effect: two minutes, or a quarter of an hour.
pub fn ages(state: &State, rules: &Rules, to: Age) -> Option<State> {
    // What was sent happens within ten minutes, or never (RUL-L-122).
    if to == Age::Old && !state.requests.is_empty() {
        return None;
    }
    let mut older = state.clone();
    for (epoch, place) in (1..).zip(&mut older.journal) {
        if let Some(row) = place
            && row.standing != Standing::Closed
            && (state.has_ended(epoch) || !rules.age_from_lease_end)
        {
            row.age = row.age.max(to);
        }
    }
    (older != *state).then_some(older)
}

/// The journal says that an earlier build of this row sent a create under this name (RUL-L-22).
pub fn older_build_used(state: &State, epoch: Epoch, name: u8) -> bool {
    state
        .operations()
        .any(|(older, row)| older < epoch && row.task == Task::Build && row.name == name)
}

/// Another name for the row, while there is one.
pub fn other_name(state: &State, world: &World) -> Option<u8> {
    let next = state.row.name + 1;
    (!world.chosen_name && usize::from(next) < NAMES).then_some(next)
}
