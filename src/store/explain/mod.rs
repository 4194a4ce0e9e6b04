//! What explains a machine, what an operator sees of all of them, and the one end without evidence (lifecycle 10.3,
//! 10.4; RUL-L-47, RUL-L-60, RUL-L-73).
//!
//! Reads here are snapshots. The tenant is in every query that a tenant's request makes; what crosses tenants is called
//! by doors of operators alone.

mod books;
mod operator;
mod testimony;

use fountain_actors::domain::account::NewAudit;
use fountain_actors::domain::explain::Testimony;
use fountain_actors::domain::explain::ledger::Books;
use fountain_actors::domain::*;
use fountain_actors::ports::store::explain::{AuditEntry, ExplainStore, Overview};
use fountain_actors::ports::store::machines::{Finish, Finished};
use fountain_actors::ports::store::{Answer, Committed};

use super::SqlStore;
use super::backend::Access;
use super::events::Outbox;
use super::machines::verdict;
use super::turns::commit;

impl ExplainStore for SqlStore {
    fn testimony(
        &self,
        account: AccountId,
        machine: MachineId,
        limit: i64,
        now: Moment,
    ) -> Answer<'_, Option<Testimony>> {
        self.answer("explain.testimony", Access::Snapshot, move |db| {
            testimony::of_machine(db, account, machine, limit, now)
        })
    }

    fn live_machines(&self, now: Moment) -> Answer<'_, Vec<Overview>> {
        self.answer("explain.live_machines", Access::Snapshot, move |db| {
            operator::live_machines(db, now)
        })
    }

    fn books(&self) -> Answer<'_, Books> {
        self.answer("explain.books", Access::Snapshot, books::books)
    }

    fn audit_log(&self, prefix: Option<&'static str>, limit: i64) -> Answer<'_, Vec<AuditEntry>> {
        self.answer("explain.audit_log", Access::Read, move |db| {
            operator::audit_log(db, prefix, limit)
        })
    }

    fn note(&self, audit: NewAudit, now: Moment) -> Answer<'_, ()> {
        let noted = self.answer("explain.note", Access::Write, move |db| {
            let mut outbox = Outbox::default();
            outbox.audit(audit, now);
            commit(db, (), outbox)
        });
        Box::pin(async move { noted.await.map(|committed: Committed<()>| committed.value) })
    }

    fn hand_over(&self, finish: Finish) -> Answer<'_, Committed<Finished>> {
        let done = self.run("explain.hand_over", Access::Write, move |db| {
            let (verdict, outbox) = operator::hand_over(db, finish)?;
            commit(db, verdict, outbox)
        });
        Box::pin(async move { verdict(done.await) })
    }
}
