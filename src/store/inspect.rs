//! The whole database as domain values, read in one snapshot: for the simulator, which checks every commit, and for
//! nobody who serves requests. It knows no tenant and no limit.

use diesel::prelude::*;

use fountain_actors::domain::conversation::Conversation;
use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::operation::Operation;
use fountain_actors::domain::turn::Turn;
use fountain_actors::domain::*;
use fountain_actors::ports::store::Answer;

use super::SqlStore;
use super::backend::{Access, Db, Fault};
use super::columns::{Id, inner};
use super::conversations::rows::ConversationRow;
use super::machines::journal::{DEBT, OperationRow};
use super::machines::rows::MachineRow;
use super::schema::{conversations, machines, operations, turns};
use super::turns::rows::TurnRow;

/// What a machine's invariants are judged by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    /// By id.
    pub machines: Vec<Machine>,
    /// Operations that run, and debts (RUL-L-3).
    pub open: Vec<Operation>,
}

/// Conversations and turns, both by id; a turn with the machine that it was admitted on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Talk {
    pub conversations: Vec<Conversation>,
    pub turns: Vec<(Turn, Option<MachineId>)>,
}

fn fleet(db: &mut Db) -> Result<Fleet, Fault> {
    let machines: Vec<MachineRow> = machines::table
        .order(machines::id)
        .select(MachineRow::as_select())
        .load(db)?;
    let open: Vec<OperationRow> = operations::table
        .filter(diesel::dsl::sql::<diesel::sql_types::Bool>(DEBT))
        .order((operations::machine_id, operations::epoch))
        .select(OperationRow::as_select())
        .load(db)?;
    Ok(Fleet {
        machines: machines.into_iter().map(Machine::from).collect(),
        open: open.into_iter().map(Operation::from).collect(),
    })
}

fn talk(db: &mut Db) -> Result<Talk, Fault> {
    let conversations: Vec<ConversationRow> = conversations::table
        .order(conversations::id)
        .select(ConversationRow::as_select())
        .load(db)?;
    let turns = turns::table
        .order((turns::conversation_id, turns::number))
        .select((TurnRow::as_select(), turns::machine_id))
        .load::<(TurnRow, Option<Id<MachineId>>)>(db)?;
    Ok(Talk {
        conversations: conversations.into_iter().map(Conversation::from).collect(),
        turns: turns
            .into_iter()
            .map(|(turn, machine)| (Turn::from(turn), inner(machine)))
            .collect(),
    })
}

/// The whole journal of one machine, oldest first.
fn journal(db: &mut Db, machine: MachineId) -> Result<Vec<Operation>, Fault> {
    let rows: Vec<OperationRow> = operations::table
        .filter(operations::machine_id.eq(super::columns::key(machine)))
        .order((operations::epoch, operations::started_at))
        .select(OperationRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Operation::from).collect())
}

impl SqlStore {
    /// Machines and open operations of everybody.
    pub fn fleet(&self) -> Answer<'_, Fleet> {
        self.answer("inspect.fleet", Access::Snapshot, fleet)
    }

    /// Conversations and turns of everybody.
    pub fn talk(&self) -> Answer<'_, Talk> {
        self.answer("inspect.talk", Access::Snapshot, talk)
    }

    /// The journal of one machine, whoever owns it.
    pub fn journal_of(&self, machine: MachineId) -> Answer<'_, Vec<Operation>> {
        self.answer("inspect.journal", Access::Snapshot, move |db| journal(db, machine))
    }
}
