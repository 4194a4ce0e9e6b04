//! The auditor's half that compares: the journal and the rows with what a provider saw and did (DESIGN 9).
//!
//! Pure. `facts` is the database's side, the fake's log the provider's. Everything here may be asked at any moment, also
//! while operations run. A law that a late effect may break at a provider that ignores epochs is not asked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fountain::store::audit::{Facts, Violation, facts::Entry};
use fountain_actors::domain::machine::{Machine, Provider};
use fountain_actors::domain::operation::{Outcome, Verb};
use fountain_actors::domain::{Epoch, MachineId, Moment};
use fountain_actors::fakes::{LogEntry, Logged, Op};
use fountain_actors::ports::clock::after;

/// The provider's side.
pub struct Account<'a> {
    pub provider: Provider,
    pub log: &'a [LogEntry],
    /// Machines that exist and run: what costs money.
    pub running: &'a [String],
    /// When the log began.
    pub began: Moment,
    /// The shortest lease of an operation.
    pub lease: Duration,
}

/// One call of the log that carries an epoch.
struct Call<'a> {
    op: Op,
    name: &'a str,
    epoch: Epoch,
    sent: Moment,
    answered: Option<Moment>,
    machine: Option<MachineId>,
}

/// Who owns which name, by row or by journal.
struct Names<'a> {
    facts: &'a Facts,
    of: BTreeMap<&'a str, BTreeSet<MachineId>>,
}

impl<'a> Names<'a> {
    fn new(facts: &'a Facts) -> Self {
        let rows = facts.machines.iter().map(|row| (row.name.as_str(), row.id));
        let journal = facts.journal.iter().map(|entry| (entry.name.as_str(), entry.machine));
        let mut of: BTreeMap<&str, BTreeSet<MachineId>> = BTreeMap::new();
        for (name, machine) in rows.chain(journal) {
            of.entry(name).or_default().insert(machine);
        }
        Self { facts, of }
    }

    fn machines(&self, name: &str) -> impl Iterator<Item = MachineId> {
        self.of.get(name).into_iter().flatten().copied()
    }

    fn entry(&self, machine: MachineId, epoch: Epoch) -> Option<&'a Entry> {
        self.facts
            .journal
            .iter()
            .find(|entry| entry.machine == machine && entry.epoch == epoch)
    }

    fn row(&self, machine: MachineId) -> Option<&'a Machine> {
        self.facts.machines.iter().find(|row| row.id == machine)
    }

    /// Whose call this was: the machine of that name with such an operation, begun by then.
    fn caller(&self, name: &str, epoch: Epoch, at: Moment) -> Option<MachineId> {
        self.machines(name)
            .find(|machine| self.entry(*machine, epoch).is_some_and(|entry| entry.started_at <= at))
    }
}

/// Everything that does not fit together.
pub fn compare(facts: &Facts, account: &Account<'_>) -> Vec<Violation> {
    let names = Names::new(facts);
    let calls = calls(account, &names);
    let mut found = Vec::new();
    ledger(facts, account, &mut found);
    for call in &calls {
        journalled(call, &names, &mut found);
    }
    meetings(&calls, &names, account, &mut found);
    deletes(account, &names, &mut found);
    pipelines(account, &names, &mut found);
    found
}

fn broken(law: &'static str, rule: &'static str, row: impl Into<String>, detail: impl Into<String>) -> Violation {
    Violation {
        law,
        rule,
        row: row.into(),
        detail: detail.into(),
    }
}

/// RUL-L-73, promise 7.
fn ledger(facts: &Facts, account: &Account<'_>, found: &mut Vec<Violation>) {
    let made: BTreeSet<&str> = account
        .log
        .iter()
        .filter(|entry| entry.op == Op::Create && entry.what == Logged::Effect && entry.epoch.is_some())
        .map(|entry| entry.machine.as_str())
        .collect();
    let told = |name: &str| {
        facts
            .untracked
            .iter()
            .any(|(of, untracked)| *of == account.provider && untracked == name)
    };
    let handed_over = |name: &str| {
        let of = |entry: &&Entry| entry.name == name && entry.outcome == Some(Outcome::HandedOver);
        facts.journal.iter().find(of).is_some()
    };
    let ours: Vec<&str> = account
        .running
        .iter()
        .map(String::as_str)
        .filter(|name| made.contains(name) && !told(name) && !handed_over(name))
        .collect();
    let (counted, debts) = (facts.counted(account.provider), facts.debts(account.provider));
    if counted + debts < ours.len() {
        found.push(broken(
            "INV-117",
            "counted rows and open debts cover the machines that run",
            "the ledger",
            format!("{counted} counted and {debts} debts for {ours:?}"),
        ));
    }
}

/// Whether this is a call that a lease has to stand behind.
fn is_effect(op: Op) -> bool {
    !matches!(
        op,
        Op::Get
            | Op::List
            | Op::ListSessions
            | Op::PolicyRead
            | Op::Spawn
            | Op::Attach
            | Op::WriteStdin
            | Op::Terminate
    )
}

fn calls<'a>(account: &Account<'a>, names: &Names<'_>) -> Vec<Call<'a>> {
    let mut calls: Vec<Call<'_>> = Vec::new();
    for entry in account.log.iter().filter(|entry| is_effect(entry.op)) {
        let Some(epoch) = entry.epoch else { continue };
        let at = after(account.began, entry.at);
        let is_its = |call: &&mut Call<'_>| {
            call.op == entry.op && call.name == entry.machine && call.epoch == epoch && call.answered.is_none()
        };
        match entry.what {
            Logged::Requested => calls.push(Call {
                op: entry.op,
                name: &entry.machine,
                epoch,
                sent: at,
                answered: None,
                machine: names.caller(&entry.machine, epoch, at),
            }),
            Logged::Answered => {
                if let Some(call) = calls.iter_mut().find(is_its) {
                    call.answered = Some(at);
                }
            }
            Logged::Effect => {}
        }
    }
    calls
}

/// INV-08, INV-115, INV-32, INV-33: every effect has its operation, of a verb that may do it, and none that came later.
fn journalled(call: &Call<'_>, names: &Names<'_>, found: &mut Vec<Violation>) {
    let what = format!("{} of {} under epoch {}", call.op, call.name, call.epoch.0);
    let Some((machine, entry)) = call
        .machine
        .and_then(|id| names.entry(id, call.epoch).map(|entry| (id, entry)))
    else {
        return found.push(broken(
            "INV-08",
            "an effect has its operation in the journal",
            "the log",
            what,
        ));
    };
    let may = match call.op {
        Op::Create => entry.verb == Verb::Provision,
        Op::Resume => entry.verb == Verb::Wake,
        Op::Suspend => matches!(entry.verb, Verb::Park | Verb::Wake | Verb::Settle | Verb::Confirm),
        Op::Destroy => !matches!(entry.verb, Verb::Park | Verb::Wake),
        _ => true,
    };
    if !may {
        let law = if call.op == Op::Resume { "INV-32" } else { "INV-08" };
        found.push(broken(
            law,
            "a verb does what it is for",
            format!("machines {machine}"),
            what.clone(),
        ));
    }
    let newer = names
        .facts
        .journal
        .iter()
        .find(|other| other.machine == machine && other.epoch > call.epoch && other.started_at < call.sent);
    if let Some(newer) = newer {
        let row = format!("machines {machine}");
        let detail = format!("{what}, while {} had epoch {}", newer.verb, newer.epoch.0);
        found.push(broken("INV-115", "no effect is sent beside a newer epoch", row, detail));
    }
}

/// RUL-L-5, INV-50, INV-33: calls of two epochs do not meet unless a lease ran out in between.
fn meetings(calls: &[Call<'_>], names: &Names<'_>, account: &Account<'_>, found: &mut Vec<Violation>) {
    for (place, first) in calls.iter().enumerate() {
        let Some(machine) = first.machine else { continue };
        let again = calls
            .iter()
            .skip(place + 1)
            .filter(|other| other.machine == Some(machine));
        for other in again {
            if other.epoch == first.epoch {
                if first.op == Op::Resume && other.op == Op::Resume {
                    let detail = format!("twice under epoch {}", first.epoch.0);
                    found.push(broken(
                        "INV-33",
                        "one resume an epoch",
                        format!("machines {machine}"),
                        detail,
                    ));
                }
                continue;
            }
            let meet = other.sent >= first.sent && first.answered.is_none_or(|answered| other.sent < answered);
            let (Some(old), Some(new)) = (names.entry(machine, first.epoch), names.entry(machine, other.epoch)) else {
                continue;
            };
            // Whoever wrote an outcome had given the call up; then the debt is what stands for it.
            let gave_up = old.outcome.is_some_and(|outcome| outcome != Outcome::Superseded);
            let lapsed = new.started_at >= after(old.started_at, account.lease);
            if meet && !gave_up && !lapsed && first.epoch < other.epoch {
                let both = first.op == Op::Destroy && other.op == Op::Destroy;
                let law = if both { "INV-50" } else { "RUL-L-5" };
                let detail = format!(
                    "{} of epoch {} was out when {} of epoch {} was sent",
                    first.op, first.epoch.0, other.op, other.epoch.0
                );
                found.push(broken(
                    law,
                    "calls of two epochs do not meet",
                    format!("machines {machine}"),
                    detail,
                ));
            }
        }
    }
}

/// INV-60, INV-118.
fn deletes(account: &Account<'_>, names: &Names<'_>, found: &mut Vec<Violation>) {
    for entry in account
        .log
        .iter()
        .filter(|entry| entry.op == Op::Destroy && entry.what == Logged::Effect)
    {
        let (name, at) = (entry.machine.as_str(), after(account.began, entry.at));
        if names.machines(name).next().is_none() {
            found.push(broken(
                "INV-60",
                "a machine without a row is never deleted",
                "the log",
                name,
            ));
            continue;
        }
        let caller = entry.epoch.and_then(|epoch| names.caller(name, epoch, at));
        let holder = names.machines(name).filter_map(|id| names.row(id)).find(|row| {
            // In virtual time a row may begin in the very moment in which the one before it ended.
            let lived = row.inserted_at < at && row.terminated_at.is_none_or(|ended| ended > at);
            row.name == name && row.provider == account.provider && lived
        });
        if let Some(holder) = holder.filter(|holder| Some(holder.id) != caller) {
            let detail = format!("{name} was deleted by {caller:?}");
            let row = format!("machines {}", holder.id);
            found.push(broken(
                "INV-118",
                "no delete reaches a name that another live row holds",
                row,
                detail,
            ));
        }
    }
}

/// INV-21: what a build writes on was made by itself, or by nobody of ours.
fn pipelines(account: &Account<'_>, names: &Names<'_>, found: &mut Vec<Violation>) {
    let mut makers: BTreeMap<&str, Epoch> = BTreeMap::new();
    for entry in account.log.iter().filter(|entry| entry.what == Logged::Effect) {
        let name = entry.machine.as_str();
        let Some(epoch) = entry.epoch else { continue };
        match entry.op {
            Op::Create => {
                makers.entry(name).or_insert(epoch);
            }
            Op::Destroy => {
                makers.remove(name);
            }
            Op::WriteFile | Op::Exec => {
                let at = after(account.began, entry.at);
                let builder = names.caller(name, epoch, at).and_then(|id| names.entry(id, epoch));
                let builds = builder.is_some_and(|builder| builder.verb == Verb::Provision);
                if let Some(maker) = makers.get(name).filter(|maker| builds && **maker != epoch) {
                    let detail = format!("epoch {} on what epoch {} made", epoch.0, maker.0);
                    found.push(broken(
                        "INV-21",
                        "no build runs on an earlier one's machine",
                        name,
                        detail,
                    ));
                }
            }
            _ => {}
        }
    }
}
