//! What the rows say about machines, in the shape in which a provider's own account is compared with it (RUL-L-73).

use chrono::NaiveDateTime;
use diesel::prelude::*;

use fountain_actors::domain::machine::{Machine, MachineStatus, Provider};
use fountain_actors::domain::operation::{Outcome, Verb};
use fountain_actors::domain::{Epoch, MachineId, Moment};

use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Word, inner, maybe_moment, moment};
use crate::store::machines::rows::MachineRow;
use crate::store::schema::{machines, operations, untracked_machines};

/// One journal row.
#[derive(Clone, Debug)]
pub struct Entry {
    pub machine: MachineId,
    pub name: String,
    pub verb: Verb,
    pub epoch: Epoch,
    pub started_at: Moment,
    pub finished_at: Option<Moment>,
    pub outcome: Option<Outcome>,
    /// Nobody has had the last look at what it did (RUL-L-3).
    pub is_debt: bool,
}

/// Rows and journal of one moment.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub machines: Vec<Machine>,
    pub journal: Vec<Entry>,
    /// Names that operators were told of (RUL-L-53).
    pub untracked: Vec<(Provider, String)>,
}

impl Facts {
    /// Debts of a provider's machines.
    pub fn debts(&self, provider: Provider) -> usize {
        let of = |id| self.machines.iter().any(|row| row.id == id && row.provider == provider);
        self.journal
            .iter()
            .filter(|entry| entry.is_debt && of(entry.machine))
            .count()
    }

    /// Machines of a provider that are counted against caps (RUL-L-70).
    pub fn counted(&self, provider: Provider) -> usize {
        self.machines
            .iter()
            .filter(|row| row.provider == provider && row.is_counted())
            .count()
    }

    /// The row is over, and owes nothing.
    pub fn is_settled(machine: &Machine) -> bool {
        matches!(machine.status, MachineStatus::Terminated | MachineStatus::Failed) && !machine.cleanup_pending
    }
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = operations)]
struct EntryRow {
    machine_id: Id<MachineId>,
    machine_name: String,
    verb: Word<Verb>,
    epoch: i64,
    started_at: NaiveDateTime,
    finished_at: Option<NaiveDateTime>,
    outcome: Option<Word<Outcome>>,
    closed_at: Option<NaiveDateTime>,
}

impl From<EntryRow> for Entry {
    fn from(row: EntryRow) -> Self {
        let outcome = inner(row.outcome);
        Self {
            machine: row.machine_id.0,
            name: row.machine_name,
            verb: row.verb.0,
            epoch: Epoch(row.epoch),
            started_at: moment(row.started_at),
            finished_at: maybe_moment(row.finished_at),
            outcome,
            is_debt: row.closed_at.is_none() && matches!(outcome, None | Some(Outcome::Unknown | Outcome::Superseded)),
        }
    }
}

pub(super) fn read(db: &mut Db) -> Result<Facts, Fault> {
    let rows: Vec<MachineRow> = machines::table
        .order(machines::id)
        .select(MachineRow::as_select())
        .load(db)?;
    let entries: Vec<EntryRow> = operations::table
        .order((operations::machine_id, operations::epoch))
        .select(EntryRow::as_select())
        .load(db)?;
    let untracked: Vec<(Word<Provider>, String)> = untracked_machines::table
        .select((untracked_machines::provider, untracked_machines::name))
        .load(db)?;
    Ok(Facts {
        machines: rows.into_iter().map(Machine::from).collect(),
        journal: entries.into_iter().map(Entry::from).collect(),
        untracked: untracked
            .into_iter()
            .map(|(provider, name)| (provider.0, name))
            .collect(),
    })
}
