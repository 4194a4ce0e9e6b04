//! Machines as the API shows them: a constant number of queries however many there are (http-api 4.6, 5.8).

use std::collections::{BTreeMap, BTreeSet};

use chrono::NaiveDateTime;
use diesel::prelude::*;

use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{Machine, MachineStatus, Provider};
use fountain_actors::domain::runner::{self, Runner, RunnerDetails};
use fountain_actors::domain::*;
use fountain_actors::ports::store::machines::{MachineTenant, MachineView};

use super::rows::MachineRow;
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Json, Word, key, maybe_moment, moment};
use crate::store::schema::{conversations, machines, runners, turns};
use crate::store::turns::rows::OPEN;

/// All machines of an account, newest first; with `statuses`, only those.
pub fn all(db: &mut Db, account: AccountId, statuses: Vec<MachineStatus>) -> Result<Vec<MachineView>, Fault> {
    let statuses = match statuses.is_empty() {
        true => MachineStatus::ALL.to_vec(),
        false => statuses,
    };
    let words: Vec<Word<MachineStatus>> = statuses.into_iter().map(Word).collect();
    let rows = machines::table
        .filter(machines::account_id.eq(key(account)))
        .filter(machines::status.eq_any(&words))
        .order((machines::inserted_at.desc(), machines::id.desc()))
        .select(MachineRow::as_select())
        .load(db)?;
    let chosen = machines::table
        .filter(machines::account_id.eq(key(account)))
        .filter(machines::status.eq_any(&words))
        .select(machines::id);
    let mut tenants: BTreeMap<MachineId, Vec<MachineTenant>> = BTreeMap::new();
    let found = conversations::table
        .filter(conversations::account_id.eq(key(account)))
        .filter(conversations::machine_id.eq_any(chosen))
        .order((conversations::inserted_at.desc(), conversations::id.desc()))
        .select(TenantRow::as_select())
        .load(db)?;
    let busy = mid_turn(db, account)?;
    for tenant in found {
        tenants
            .entry(tenant.machine_id.0)
            .or_default()
            .push(tenant.into_tenant(&busy));
    }
    let machines: Vec<Machine> = rows.into_iter().map(Machine::from).collect();
    let runners = runners_of(db, account, machines.iter())?;
    Ok(machines
        .into_iter()
        .map(|machine| MachineView {
            runner: runner_of(&machine, &runners),
            conversations: tenants.remove(&machine.id).unwrap_or_default(),
            machine,
        })
        .collect())
}

/// One machine of an account.
pub fn one(db: &mut Db, account: AccountId, id: MachineId) -> Result<Option<MachineView>, Fault> {
    let row = machines::table
        .find(key(id))
        .filter(machines::account_id.eq(key(account)))
        .select(MachineRow::as_select())
        .first(db)
        .optional()?;
    let Some(machine) = row.map(Machine::from) else {
        return Ok(None);
    };
    let found = conversations::table
        .filter(conversations::account_id.eq(key(account)))
        .filter(conversations::machine_id.eq(key(id)))
        .order((conversations::inserted_at.desc(), conversations::id.desc()))
        .select(TenantRow::as_select())
        .load(db)?;
    let busy = mid_turn(db, account)?;
    let runners = runners_of(db, account, std::iter::once(&machine))?;
    Ok(Some(MachineView {
        runner: runner_of(&machine, &runners),
        conversations: found.into_iter().map(|tenant| tenant.into_tenant(&busy)).collect(),
        machine,
    }))
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = conversations)]
struct TenantRow {
    id: Id<ConversationId>,
    machine_id: Id<MachineId>,
    status: Word<ConversationStatus>,
    runtime: Word<Runtime>,
    title: Option<String>,
    inserted_at: NaiveDateTime,
}

impl TenantRow {
    fn into_tenant(self, busy: &BTreeSet<ConversationId>) -> MachineTenant {
        MachineTenant {
            id: self.id.0,
            status: self.status.0,
            runtime: self.runtime.0,
            title: self.title,
            mid_turn: busy.contains(&self.id.0),
            inserted_at: moment(self.inserted_at),
        }
    }
}

/// Conversations of an account with an open turn: few, whatever the history.
fn mid_turn(db: &mut Db, account: AccountId) -> Result<BTreeSet<ConversationId>, Fault> {
    let busy = turns::table
        .filter(turns::account_id.eq(key(account)))
        .filter(turns::status.eq_any(OPEN))
        .select(turns::conversation_id)
        .load::<Id<ConversationId>>(db)?;
    Ok(busy.into_iter().map(|id| id.0).collect())
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = runners)]
struct RunnerRow {
    id: Id<RunnerId>,
    account_id: Id<AccountId>,
    name: String,
    hostname: Option<String>,
    os: Option<String>,
    arch: Option<String>,
    version: Option<String>,
    root: Option<String>,
    root_id: Option<String>,
    features: Json<Vec<String>>,
    connected_at: Option<NaiveDateTime>,
    last_seen_at: Option<NaiveDateTime>,
    forgotten_at: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
}

impl From<RunnerRow> for Runner {
    fn from(row: RunnerRow) -> Self {
        Self {
            id: row.id.0,
            account_id: row.account_id.0,
            name: row.name,
            details: RunnerDetails {
                hostname: row.hostname,
                os: row.os,
                arch: row.arch,
                version: row.version,
                root: row.root,
                root_id: row.root_id,
                features: row.features.0,
            },
            connected_at: maybe_moment(row.connected_at),
            last_seen_at: maybe_moment(row.last_seen_at),
            forgotten_at: maybe_moment(row.forgotten_at),
            inserted_at: moment(row.inserted_at),
        }
    }
}

/// The account's runners, when one of the machines is on one: an account has few.
pub fn runners_of<'m>(
    db: &mut Db,
    account: AccountId,
    mut machines: impl Iterator<Item = &'m Machine>,
) -> Result<BTreeMap<RunnerId, Runner>, Fault> {
    if !machines.any(|machine| machine.provider == Provider::Runner) {
        return Ok(BTreeMap::new());
    }
    let rows = runners::table
        .filter(runners::account_id.eq(key(account)))
        .select(RunnerRow::as_select())
        .load(db)?;
    Ok(rows
        .into_iter()
        .map(Runner::from)
        .map(|runner| (runner.id, runner))
        .collect())
}

/// The runner that a machine lives on: its id is in the name (runner-protocol 8).
pub fn runner_of(machine: &Machine, runners: &BTreeMap<RunnerId, Runner>) -> Option<Runner> {
    let named = (machine.provider == Provider::Runner)
        .then(|| runner::runner_of(&machine.name))
        .flatten()?;
    runners.get(&named).cloned()
}
