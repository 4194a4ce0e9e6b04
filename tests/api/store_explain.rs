//! The explanations of the fake store: what the doors show, from the rows that a test put there.

use fountain_actors::domain::account::NewAudit;
use fountain_actors::domain::explain::ledger::Books;
use fountain_actors::domain::explain::{Tenant, Testimony};
use fountain_actors::domain::*;
use fountain_actors::ports::store::explain::{AuditEntry, ExplainStore, Overview};
use fountain_actors::ports::store::machines::{Finish, Finished};
use fountain_actors::ports::store::{Answer, Committed};

use crate::store::{Rows, not_here};

impl ExplainStore for Rows {
    fn testimony(
        &self,
        account: AccountId,
        machine: MachineId,
        limit: i64,
        now: Moment,
    ) -> Answer<'_, Option<Testimony>> {
        self.ask(|t| {
            let found = t
                .machines
                .iter()
                .find(|(of, view)| *of == account && view.machine.id == machine);
            let mine = t.operations.iter().filter(|row| row.machine_id == machine);
            let open: Vec<_> = mine.clone().filter(|row| row.is_debt()).cloned().collect();
            let operations = mine.rev().take(usize::try_from(limit).unwrap()).cloned().collect();
            Ok(found.map(|(_, view)| Testimony {
                machine: view.machine.clone(),
                clock: now,
                operations,
                open,
                tenants: view
                    .conversations
                    .iter()
                    .map(|tenant| Tenant {
                        conversation: tenant.id,
                        status: tenant.status,
                        last_active_at: None,
                        turn: None,
                    })
                    .collect(),
                counted: view.machine.is_counted(),
            }))
        })
    }
    fn live_machines(&self, _: Moment) -> Answer<'_, Vec<Overview>> {
        self.ask(|t| {
            let alive = t.machines.iter().filter(|(_, view)| !view.machine.status.is_terminal());
            Ok(alive
                .map(|(_, view)| Overview {
                    machine: view.machine.clone(),
                    email: None,
                    conversations: i64::try_from(view.conversations.len()).unwrap(),
                    abandoned: false,
                })
                .collect())
        })
    }
    fn books(&self) -> Answer<'_, Books> {
        self.ask(|_| Ok(Books::default()))
    }
    fn audit_log(&self, prefix: Option<&'static str>, _: i64) -> Answer<'_, Vec<AuditEntry>> {
        self.ask(|t| {
            let wanted = t.audits.iter().enumerate().rev();
            let wanted = wanted.filter(|(_, row)| row.action.starts_with(prefix.unwrap_or_default()));
            Ok(wanted
                .map(|(n, row)| AuditEntry {
                    id: i64::try_from(n).unwrap(),
                    account: row.account_id,
                    action: row.action.into(),
                    resource_type: row.resource_type.into(),
                    resource_id: row.resource_id.clone(),
                    actor: row.actor.to_string(),
                    request_ip: row.request_ip.clone(),
                    metadata: serde_json::json!(row.metadata),
                    at: crate::world::start(),
                })
                .collect())
        })
    }
    fn note(&self, audit: NewAudit, _: Moment) -> Answer<'_, ()> {
        self.ask(|t| {
            t.audits.push(audit);
            Ok(())
        })
    }
    fn hand_over(&self, _: Finish) -> Answer<'_, Committed<Finished>> {
        not_here("hand_over")
    }
}
