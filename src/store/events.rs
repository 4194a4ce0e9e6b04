//! The one routine that inserts log events, audit rows and usage rows (RUL-24).
//!
//! A verb collects what it announces in an [`Outbox`] while it works and writes it as its last step: audit and usage
//! rows, then the event lock of each account in ascending order, then the events (RUL-23). Nothing may be read or
//! locked after that. Ids are drawn in the order of the rows, so within a conversation the order of announcements is
//! the order of its stream. NUL becomes U+FFFD here, the last door before text that PostgreSQL refuses (RUL-20).

mod batch;

use std::collections::{BTreeMap, BTreeSet};

use diesel::prelude::*;
use serde_json::{Map, Value};

use fountain_actors::domain::account::NewAudit;
use fountain_actors::domain::event::{NewEvent, NewStage};
use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::*;
use fountain_actors::ports::Cursor;

use super::backend::{Db, Fault, lock_events};
use super::columns::{at, json, key, maybe_key};
use super::schema::{audit_events, conversations, usage_events};

pub use batch::Columns;

/// What a transaction announces, in order.
#[derive(Default)]
pub struct Outbox {
    events: Vec<Columns>,
    audits: Vec<(NewAudit, Moment)>,
    usage: Vec<Usage>,
}

/// A row of `usage_events`.
pub struct Usage {
    pub account: Option<AccountId>,
    pub kind: &'static str,
    pub machine: Option<(MachineId, &'static str)>,
    pub turn: Option<(ConversationId, TurnId)>,
    pub metadata: Map<String, Value>,
    pub at: Moment,
}

impl Outbox {
    /// Adds one event.
    pub fn event(&mut self, account: AccountId, conversation: ConversationId, event: NewEvent, at: Moment) {
        self.events.push(Columns::of(account, conversation, event, at));
    }

    /// Adds one stage event.
    pub fn stage(&mut self, account: AccountId, conversation: ConversationId, stage: NewStage, at: Moment) {
        self.event(account, conversation, stage.into(), at);
    }

    /// Adds an audit row. One without an account records nothing (lifecycle 10.3).
    pub fn audit(&mut self, entry: NewAudit, at: Moment) {
        self.audits.push((entry, at));
    }

    pub fn usage(&mut self, row: Usage) {
        self.usage.push(row);
    }

    /// Adds stage events of conversations that are bound to a machine. One that is bound elsewhere by now, or gone,
    /// gets nothing (INV-73).
    pub fn machine_stages(
        &mut self,
        db: &mut Db,
        machine: &Machine,
        stages: Vec<(ConversationId, NewStage)>,
        at: Moment,
    ) -> Result<(), Fault> {
        if stages.is_empty() {
            return Ok(());
        }
        let bound: BTreeMap<String, String> = conversations::table
            .filter(conversations::machine_id.eq(key(machine.id)))
            .select((conversations::id, conversations::account_id))
            .load::<(String, String)>(db)?
            .into_iter()
            .collect();
        for (conversation, stage) in stages {
            if let Some(account) = bound.get(&key(conversation)) {
                let account = account
                    .parse()
                    .map_err(|_| Fault::internal("events.machine_stages", "an account id cannot be read"))?;
                self.stage(account, conversation, stage, at);
            }
        }
        Ok(())
    }

    /// Adds everything that another part of the transaction announces.
    pub fn append(&mut self, other: Self) {
        self.events.extend(other.events);
        self.audits.extend(other.audits);
        self.usage.extend(other.usage);
    }

    /// How many events there are so far.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Writes everything; the last step before the commit. Answers the newest cursor of each conversation.
    pub fn write(self, db: &mut Db) -> Result<Vec<Cursor>, Fault> {
        let mut newest: BTreeMap<ConversationId, Cursor> = BTreeMap::new();
        for cursor in self.write_each(db)? {
            newest.insert(cursor.conversation, cursor);
        }
        let mut cursors: Vec<Cursor> = newest.into_values().collect();
        cursors.sort_by_key(|cursor| cursor.id);
        Ok(cursors)
    }

    /// Writes everything and answers where each event stands, in order.
    pub fn write_each(self, db: &mut Db) -> Result<Vec<Cursor>, Fault> {
        for (entry, when) in &self.audits {
            audit_row(db, entry, *when)?;
        }
        for row in &self.usage {
            usage_row(db, row)?;
        }
        let ids = insert_events(db, &self.events)?;
        let cursor = |(columns, id): (&Columns, i64)| Cursor {
            account: columns.account,
            conversation: columns.conversation,
            id: EventId(id),
        };
        Ok(self.events.iter().zip(ids).map(cursor).collect())
    }
}

/// Takes the event locks and inserts `rows`. Answers their ids, in order.
pub fn insert_events(db: &mut Db, rows: &[Columns]) -> Result<Vec<i64>, Fault> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let accounts: BTreeSet<AccountId> = rows.iter().map(|row| row.account).collect();
    lock_events(db, accounts)?;
    Ok(batch::insert(db, rows)?)
}

/// Inserts one audit row. Without an account there is nobody to show it to.
pub fn audit_row(db: &mut Db, entry: &NewAudit, when: Moment) -> Result<(), Fault> {
    let Some(account) = entry.account_id else {
        return Ok(());
    };
    diesel::insert_into(audit_events::table)
        .values((
            audit_events::account_id.eq(key(account)),
            audit_events::action.eq(entry.action),
            audit_events::resource_type.eq(entry.resource_type),
            audit_events::resource_id.eq(entry.resource_id.as_deref()),
            audit_events::actor.eq(key(&entry.actor)),
            audit_events::request_ip.eq(entry.request_ip.as_deref()),
            audit_events::metadata.eq(json(&entry.metadata)),
            audit_events::inserted_at.eq(at(when)),
        ))
        .execute(db)?;
    Ok(())
}

fn usage_row(db: &mut Db, row: &Usage) -> Result<(), Fault> {
    diesel::insert_into(usage_events::table)
        .values((
            usage_events::account_id.eq(maybe_key(row.account)),
            usage_events::kind.eq(row.kind),
            usage_events::machine_id.eq(row.machine.map(|(id, _)| key(id))),
            usage_events::conversation_id.eq(row.turn.map(|(id, _)| key(id))),
            usage_events::turn_id.eq(row.turn.map(|(_, id)| key(id))),
            usage_events::provider.eq(row.machine.map(|(_, provider)| provider)),
            usage_events::metadata.eq(json(&row.metadata)),
            usage_events::inserted_at.eq(at(row.at)),
        ))
        .execute(db)?;
    Ok(())
}

/// Text as both databases can hold it.
pub fn storable(text: String) -> String {
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}")
    } else {
        text
    }
}
