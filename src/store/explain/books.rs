//! The rows of the ledger: what is counted, what is owed, what was handed over, and what no row explains (RUL-L-73).

use std::collections::BTreeMap;

use chrono::NaiveDateTime;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Bool;

use fountain_actors::domain::explain::ledger::{Books, Entry, Untracked};
use fountain_actors::domain::machine::{Machine, Provider};
use fountain_actors::domain::operation::Outcome;
use fountain_actors::domain::*;

use crate::store::backend::{Db, Fault};
use crate::store::columns::{Word, moment};
use crate::store::machines::journal::DEBT;
use crate::store::machines::quota::COUNTED;
use crate::store::machines::rows::MachineRow;
use crate::store::schema::{machines, operations, untracked_machines};

pub fn books(db: &mut Db) -> Result<Books, Fault> {
    let mut entries: BTreeMap<MachineId, Entry> = BTreeMap::new();
    let counted = machines::table
        .filter(sql::<Bool>(COUNTED))
        .select(MachineRow::as_select())
        .load(db)?;
    for row in counted {
        entry(&mut entries, row.into()).counted = true;
    }
    let owed: Vec<(MachineRow, String)> = machines::table
        .inner_join(operations::table.on(operations::machine_id.eq(machines::id)))
        .filter(sql::<Bool>(DEBT))
        .select((MachineRow::as_select(), operations::machine_name))
        .load(db)?;
    for (row, name) in owed {
        let debts = &mut entry(&mut entries, row.into()).debts;
        if !debts.contains(&name) {
            debts.push(name);
        }
    }
    let handed_over = machines::table
        .filter(
            machines::id.eq_any(
                operations::table
                    .filter(operations::outcome.eq(Word(Outcome::HandedOver)))
                    .select(operations::machine_id),
            ),
        )
        .select(MachineRow::as_select())
        .load(db)?;
    for row in handed_over {
        entry(&mut entries, row.into()).handed_over = true;
    }
    type Seen = (Word<Provider>, String, NaiveDateTime, NaiveDateTime);
    let untracked: Vec<Seen> = untracked_machines::table
        .order((untracked_machines::provider, untracked_machines::name))
        .select((
            untracked_machines::provider,
            untracked_machines::name,
            untracked_machines::first_seen,
            untracked_machines::last_seen,
        ))
        .load(db)?;
    let untracked = untracked.into_iter().map(|(provider, name, first, last)| Untracked {
        provider: provider.0,
        name,
        first_seen: moment(first),
        last_seen: moment(last),
    });
    Ok(Books {
        entries: entries.into_values().collect(),
        untracked: untracked.collect(),
    })
}

fn entry(entries: &mut BTreeMap<MachineId, Entry>, machine: Machine) -> &mut Entry {
    entries.entry(machine.id).or_insert_with(|| Entry {
        machine: machine.id,
        account: machine.account_id,
        provider: machine.provider,
        name: machine.name,
        status: machine.status,
        counted: false,
        debts: Vec::new(),
        handed_over: false,
    })
}
