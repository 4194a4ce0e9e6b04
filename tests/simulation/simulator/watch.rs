//! The watch: judges every commit against the one before, and every request at the moment in which it is sent.
//!
//! Nothing here follows from the code that it judges: rows are read from the database as plain values, and what
//! happened at the provider is told by the provider. Each violation carries the number of the invariant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fountain::store::SqlStore;
use fountain::store::inspect::{Fleet, Talk};
use fountain_actors::domain::machine::{Machine, MachineStatus, Transition};
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::{AccountId, Epoch, MachineId, Moment, TurnId};
use fountain_actors::fakes::{FakeSandbox, Op};
use fountain_actors::ports::Clock;
use fountain_actors::ports::sandbox::RunState;

use crate::gate::Gate;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `INV-33`, `RUL-L-73`, `panic`, …
    pub number: String,
    pub what: String,
}

/// Numbers of the quota transaction, as the world of the run sets them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub fleet: usize,
    pub cap: usize,
}

#[derive(Default)]
struct Seen {
    fleet: Fleet,
    talk: Talk,
    violations: Vec<Violation>,
    notes: Vec<String>,
    commits: u64,
    checks: u64,
    /// Names that are not ours: machines of others, and what `Exists` put in our way.
    strangers: BTreeSet<String>,
    /// Machines that the provider denied although they exist: no row can know better than that.
    denied: BTreeSet<String>,
    /// Names whose machine was seen suspended, ever.
    suspended: BTreeSet<String>,
    /// Wakes that took over from a dead operation (INV-32).
    takeovers: BTreeSet<(MachineId, Epoch)>,
    resumes: BTreeMap<(String, Epoch), u32>,
    /// Which build wrote to which disk (INV-20, INV-21).
    builders: BTreeMap<(MachineId, u64), Epoch>,
    /// Gates by holder, to know who is dead (INV-04).
    gates: BTreeMap<String, Arc<Gate>>,
}

pub struct Watch {
    clock: Arc<dyn Clock>,
    fake: FakeSandbox,
    limits: Limits,
    seen: Mutex<Seen>,
}

impl Watch {
    pub fn new(clock: Arc<dyn Clock>, fake: FakeSandbox, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            clock,
            fake,
            limits,
            seen: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn join(&self, holder: &str, gate: Arc<Gate>) {
        self.lock().gates.insert(holder.to_owned(), gate);
    }

    /// A name that is nobody's, or another's: it must never be deleted (INV-60).
    pub fn stranger(&self, name: &str) {
        self.lock().strangers.insert(name.to_owned());
    }

    /// The provider is about to say that a machine which exists does not.
    pub fn denied(&self, name: &str) {
        if self.fake.disk(name).is_some() {
            self.lock().denied.insert(name.to_owned());
        }
    }

    pub fn is_stranger(&self, name: &str) -> bool {
        self.lock().strangers.contains(name)
    }

    pub fn note(&self, note: String) {
        self.lock().notes.push(note);
    }

    pub fn notes(&self) -> Vec<String> {
        self.lock().notes.clone()
    }

    pub fn violate(&self, number: &str, what: String) {
        self.lock().violate(number, what);
    }

    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Commits that were judged, and single checks made.
    pub fn counts(&self) -> (u64, u64) {
        let seen = self.lock();
        (seen.commits, seen.checks)
    }

    /// The rows as of the last commit.
    pub fn fleet(&self) -> Fleet {
        self.lock().fleet.clone()
    }

    /// A write of a replica has committed.
    pub async fn committed(&self, op: &'static str, store: &SqlStore) {
        let Ok(fleet) = store.fleet().await else { return };
        // Turns are many and rarely matter; these are the verbs that open, end or bind them.
        let talk = if op.starts_with("turn.") || op.starts_with("conversation.") || op.starts_with("machine.finish") {
            store.talk().await.ok()
        } else {
            None
        };
        let now = self.clock.now();
        let mut seen = self.lock();
        seen.commits += 1;
        for machine in &fleet.machines {
            if self.fake.run_state(&machine.name) == Some(RunState::Suspended) {
                seen.suspended.insert(machine.name.clone());
            }
        }
        let before = std::mem::take(&mut seen.fleet);
        seen.machines(op, &before, &fleet, now);
        seen.quota(op, &before, &fleet, self.limits);
        self.ledger(&mut seen, op, &fleet);
        seen.fleet = fleet;
        if let Some(talk) = talk {
            let before = std::mem::take(&mut seen.talk);
            seen.talk(op, &before, &talk, now);
            seen.talk = talk;
        }
    }

    /// RUL-L-73, promise 7: what exists at the provider is counted, or a debt is open for it (under the name of the
    /// operation, or the one that its row took since), or it is parked.
    fn ledger(&self, seen: &mut Seen, op: &str, fleet: &Fleet) {
        let mut rows: BTreeMap<&str, Vec<&Machine>> = BTreeMap::new();
        for machine in &fleet.machines {
            rows.entry(&machine.name).or_default().push(machine);
        }
        for name in self.fake.machines() {
            seen.checks += 1;
            if seen.strangers.contains(&name) || seen.denied.contains(&name) {
                continue;
            }
            let owned = rows.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            let is_running = self.fake.run_state(&name) == Some(RunState::Running);
            let covered = owned
                .iter()
                .any(|row| row.is_counted() || (row.status == MachineStatus::Suspended && !is_running))
                || fleet
                    .open
                    .iter()
                    .any(|debt| debt.machine_name == name || owned.iter().any(|row| row.id == debt.machine_id));
            if !covered {
                let state = if is_running { "runs" } else { "exists" };
                let rows: Vec<_> = owned
                    .iter()
                    .map(|row| (row.status, row.transition, row.lease_epoch))
                    .collect();
                seen.violate(
                    "INV-117",
                    format!("after {op}: machine {name} {state} and nobody counts it; rows {rows:?}"),
                );
            }
        }
    }

    /// A request leaves a replica.
    pub fn sent(&self, op: Op, name: &str, epoch: Option<Epoch>) {
        let now = self.clock.now();
        let disk = self.fake.disk(name);
        let mut seen = self.lock();
        seen.checks += 1;
        if let Some(epoch) = epoch {
            seen.effect_sent(op, name, epoch, disk, now);
        } else if matches!(op, Op::Create | Op::Destroy | Op::Suspend | Op::Resume) {
            seen.violate("INV-115", format!("{op} of {name} was sent without an epoch"));
        }
    }

    /// A request took effect at the provider.
    pub fn effect(&self, op: Op, name: &str, _: Option<Epoch>) {
        if op == Op::Suspend {
            self.lock().suspended.insert(name.to_owned());
        }
    }
}

/// The verbs that may move a status (INV-05).
const MOVERS: [&str; 5] = [
    "machine.finish",
    "machine.advance",
    "machine.retire_lost",
    "runner.forget",
    "machine.reap",
];

impl Seen {
    fn violate(&mut self, number: &str, what: String) {
        // The first ones tell what happened; a flood tells nothing more.
        if self.violations.len() < 20 {
            self.violations.push(Violation {
                number: number.to_owned(),
                what,
            });
        }
    }

    fn machines(&mut self, op: &'static str, before: &Fleet, after: &Fleet, now: Moment) {
        let old: BTreeMap<MachineId, &Machine> = before.machines.iter().map(|row| (row.id, row)).collect();
        for new in &after.machines {
            self.checks += 1;
            match old.get(&new.id) {
                Some(old) if *old == new => {}
                Some(old) => self.machine(op, old, new, now),
                None if new.status != MachineStatus::Pending => {
                    self.violate("INV-05", format!("{op}: machine {} began as {}", new.id, new.status));
                }
                None => {}
            }
        }
        if let Some(lost) = before
            .machines
            .iter()
            .find(|row| !after.machines.iter().any(|new| new.id == row.id))
        {
            self.violate("INV-01", format!("{op}: the row of machine {} is gone", lost.id));
        }
    }

    fn machine(&mut self, op: &'static str, old: &Machine, new: &Machine, now: Moment) {
        let id = new.id;
        let moved = old.status != new.status;
        let (was_doomed, is_doomed) = (doomed(old), doomed(new));
        if old.status.is_terminal() && moved {
            self.violate(
                "INV-01",
                format!("{op}: {id} went from {} to {}", old.status, new.status),
            );
        }
        if was_doomed && !is_doomed && !new.status.is_terminal() {
            self.violate("INV-02", format!("{op}: the fence of {id} was taken away"));
        }
        if new.lease_epoch < old.lease_epoch || new.lease_epoch.0 > old.lease_epoch.0 + 1 {
            self.violate(
                "INV-03",
                format!(
                    "{op}: {id} went from epoch {:?} to {:?}",
                    old.lease_epoch, new.lease_epoch
                ),
            );
        }
        if new.lease_epoch != old.lease_epoch && old.lease_live(now) && !self.may_be_taken_early(old, now) {
            self.violate(
                "INV-04",
                format!("{op}: {id} was taken from a live holder, {:?}", old.lease),
            );
        }
        if moved && !MOVERS.contains(&op) {
            self.violate(
                "INV-05",
                format!("{op} moved {id} from {} to {}", old.status, new.status),
            );
        }
        if moved && new.lease_epoch != old.lease_epoch {
            self.violate("INV-05", format!("{op}: {id} changed status in the claim itself"));
        }
        if old.terminated_at.is_some() && old.terminated_at != new.terminated_at {
            self.violate("INV-11", format!("{op}: terminated_at of {id} moved"));
        }
        if new.status.is_terminal() && new.terminated_at.is_none() {
            self.violate("INV-11", format!("{op}: {id} is {} without terminated_at", new.status));
        }
        if old.provider != new.provider || (old.runtime.is_some() && old.runtime != new.runtime) {
            self.violate("INV-13", format!("{op}: {id} changed provider or runtime"));
        }
        if op == "machine.renew" && old.updated_at != new.updated_at {
            self.violate("INV-15", format!("a renewal moved updated_at of {id}"));
        }
        if moved && new.status == MachineStatus::Ready && new.build_fingerprint.is_none() {
            self.violate("INV-22", format!("{op}: {id} is ready without a fingerprint"));
        }
        if was_doomed && old.status == MachineStatus::Starting && new.status == MachineStatus::Ready {
            self.violate("INV-23", format!("{op}: {id} became ready over its fence"));
        }
        if moved && new.status == MachineStatus::Suspended && !self.suspended.contains(&new.name) {
            self.violate("INV-31", format!("{op}: {id} is suspended and its machine never was"));
        }
        if old.last_resumed_at != new.last_resumed_at
            && !(old.status == MachineStatus::Suspended && new.status == MachineStatus::Ready)
        {
            self.violate(
                "INV-35",
                format!(
                    "{op}: last_resumed_at of {id} moved from {} to {}",
                    old.status, new.status
                ),
            );
        }
        if new.status.is_terminal() && new.lease.is_some() && moved {
            self.violate("RUL-L-10", format!("{op}: {id} ended and its lease is held"));
        }
        let claimed = new.lease_epoch != old.lease_epoch;
        let is_stale = matches!(old.transition, Some(Transition::Resuming | Transition::Parking));
        if claimed && is_stale {
            self.takeovers.insert((id, new.lease_epoch));
        }
    }

    /// The one early door: the holder is gone and has less than ten seconds left (RUL-L-7).
    fn may_be_taken_early(&self, row: &Machine, now: Moment) -> bool {
        let Some(lease) = &row.lease else { return true };
        let is_gone = self
            .gates
            .get(&lease.holder)
            .is_none_or(|gate| gate.is_dead() || gate.is_frozen());
        is_gone && lease.until - now < chrono::TimeDelta::seconds(10)
    }

    /// INV-100: who takes a slot fits under both limits; truth may exceed them (RUL-L-72).
    fn quota(&mut self, op: &'static str, before: &Fleet, after: &Fleet, limits: Limits) {
        if !matches!(op, "conversation.launch" | "turn.queue" | "machine.claim") {
            return;
        }
        let counted = |fleet: &Fleet| -> BTreeMap<MachineId, Option<AccountId>> {
            fleet
                .machines
                .iter()
                .filter(|row| row.is_counted())
                .map(|row| (row.id, row.account_id))
                .collect()
        };
        let (old, new) = (counted(before), counted(after));
        for (id, account) in new.iter().filter(|(id, _)| !old.contains_key(id)) {
            let of_account = new.values().filter(|of| *of == account).count();
            if of_account > limits.cap || new.len() > limits.fleet {
                self.violate(
                    "INV-100",
                    format!("{op}: {id} is number {of_account} of its account, {} of all", new.len()),
                );
            }
        }
    }

    fn effect_sent(&mut self, op: Op, name: &str, epoch: Epoch, disk: Option<u64>, now: Moment) {
        // A row acts under its name, and under names that it gave up and has a debt for (RUL-L-22).
        let gave_up = |row: &Machine| {
            let mut debts = self.fleet.open.iter();
            debts.any(|debt| debt.machine_id == row.id && debt.machine_name == name)
        };
        let machines = self.fleet.machines.iter();
        let rows: Vec<Machine> = machines
            .filter(|row| row.name == name || gave_up(row))
            .cloned()
            .collect();
        let Some(row) = rows.iter().find(|row| row.lease_epoch == epoch && row.lease_live(now)) else {
            let epochs: Vec<_> = rows.iter().map(|row| (row.lease_epoch, row.lease.clone())).collect();
            return self.violate(
                "INV-115",
                format!("{op} of {name} under {epoch:?} was sent without its lease: {epochs:?}"),
            );
        };
        let stamp = row.transition;
        let fits = match op {
            Op::Create => stamp == Some(Transition::Provisioning),
            Op::Destroy => {
                matches!(stamp, Some(Transition::Provisioning | Transition::Destroying)) || row.status.is_terminal()
            }
            // A settle that suspends again wears the stamp of a park, or none (RUL-L-24); a wake whose policy could not be
            // verified parks the machine again under its own (RUL-L-97).
            Op::Suspend => matches!(stamp, Some(Transition::Parking | Transition::Resuming) | None),
            Op::Resume => stamp == Some(Transition::Resuming),
            _ => true,
        };
        // Under a name that the row gave up nothing lives that could be stamped.
        if !fits && !doomed(row) && row.name == name {
            self.violate(
                "INV-08",
                format!("{op} of {name} under {epoch:?} while the stamp is {stamp:?}"),
            );
        }
        if op == Op::Destroy {
            self.delete_sent(name, epoch, &rows);
        }
        if op == Op::Resume {
            let id = row.id;
            let times = self.resumes.entry((name.to_owned(), epoch)).or_default();
            *times += 1;
            let times = *times;
            if times > 1 {
                self.violate("INV-33", format!("{name} was resumed {times} times under {epoch:?}"));
            }
            if self.takeovers.contains(&(id, epoch)) {
                self.violate("INV-32", format!("{name} was resumed by a takeover"));
            }
        }
        let builds = stamp == Some(Transition::Provisioning) && matches!(op, Op::WriteFile | Op::Exec | Op::Restore);
        if let (true, Some(disk)) = (builds, disk) {
            // A name that a user chose may mean a machine that another row made (RUL-L-22).
            let builder = *self.builders.entry((row.id, disk)).or_insert(epoch);
            if builder != epoch {
                self.violate(
                    "INV-21",
                    format!("{name}: {epoch:?} builds on the disk that {builder:?} began"),
                );
            }
        }
    }

    fn delete_sent(&mut self, name: &str, epoch: Epoch, rows: &[Machine]) {
        if self.strangers.contains(name) && !rows.iter().any(|row| row.lease_epoch == epoch) {
            self.violate("INV-60", format!("a delete was sent to {name}, which is not ours"));
        }
        for live in rows
            .iter()
            .filter(|row| row.name == name && !row.status.is_terminal() && row.lease_epoch != epoch)
        {
            self.violate(
                "INV-118",
                format!(
                    "a delete of {name} under {epoch:?} reaches the live machine {}",
                    live.id
                ),
            );
        }
    }

    fn talk(&mut self, op: &'static str, before: &Talk, after: &Talk, now: Moment) {
        let old: BTreeMap<TurnId, TurnStatus> = before.turns.iter().map(|(turn, _)| (turn.id, turn.status)).collect();
        let mut open: BTreeMap<_, u32> = BTreeMap::new();
        for (turn, machine) in &after.turns {
            self.checks += 1;
            let was = old.get(&turn.id).copied();
            if let Some(was) = was.filter(|was| was.is_terminal() && *was != turn.status) {
                self.violate(
                    "INV-71",
                    format!("{op}: turn {} went from {was} to {}", turn.id, turn.status),
                );
            }
            if !turn.status.is_terminal() {
                *open.entry(turn.conversation_id).or_default() += 1;
            }
            let began = turn.status == TurnStatus::Running && was != Some(TurnStatus::Running);
            if began && was.is_some_and(|was| was != TurnStatus::Pending) {
                self.violate("INV-119", format!("{op}: turn {} began again from {was:?}", turn.id));
            }
            if let (true, Some(machine)) = (began, machine) {
                self.admitted(op, turn.id, *machine, now);
            }
        }
        for (conversation, count) in open.into_iter().filter(|(_, count)| *count > 1) {
            self.violate(
                "INV-70",
                format!("{op}: conversation {conversation} has {count} open turns"),
            );
        }
        for conversation in &after.conversations {
            let was = before.conversations.iter().find(|old| old.id == conversation.id);
            if was.is_some_and(|was| was.status.is_terminal() && was.status != conversation.status) {
                self.violate("INV-78", format!("{op}: conversation {} came back", conversation.id));
            }
            if was.is_some_and(|was| was.server_epoch > conversation.server_epoch) {
                self.violate(
                    "RUL-L-8",
                    format!("{op}: the generation of {} went back", conversation.id),
                );
            }
        }
    }

    /// INV-30, INV-53: a turn begins on a machine that is up, unfenced and unheld, and nowhere else.
    fn admitted(&mut self, op: &'static str, turn: TurnId, machine: MachineId, now: Moment) {
        let Some(row) = self.fleet.machines.iter().find(|row| row.id == machine).cloned() else {
            return;
        };
        if doomed(&row) {
            self.violate(
                "INV-53",
                format!("{op}: turn {turn} began on the fenced machine {machine}"),
            );
        } else if row.status != MachineStatus::Ready {
            self.violate(
                "INV-30",
                format!("{op}: turn {turn} began on machine {machine}, which is {}", row.status),
            );
        } else if row.lease_live(now) && row.transition.is_some() {
            self.violate(
                "INV-30",
                format!(
                    "{op}: turn {turn} began on machine {machine} in the middle of {:?}",
                    row.transition
                ),
            );
        }
    }
}

fn doomed(row: &Machine) -> bool {
    row.transition == Some(Transition::Destroying) && !row.status.is_terminal()
}
