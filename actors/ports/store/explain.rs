//! What is read to explain a machine, and what an operator does to one (lifecycle 10.3, 10.4; RUL-L-47, 60, 73).
//!
//! Every answer comes from one snapshot, so that an explanation never tells of two moments.

use serde_json::Value;

use super::machines::{Finish, Finished};
use super::{Answer, Committed};
use crate::domain::account::NewAudit;
use crate::domain::explain::Testimony;
use crate::domain::explain::ledger::Books;
use crate::domain::machine::Machine;
use crate::domain::*;

/// A live machine as an operator sees it: all tenants (http-api 5.14).
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    pub machine: Machine,
    pub email: Option<String>,
    /// Conversations that are bound to it, ended ones included.
    pub conversations: i64,
    /// Stamped without a live lease (lifecycle 10.4).
    pub abandoned: bool,
}

/// One row of the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    pub id: i64,
    pub account: Option<AccountId>,
    pub action: String,
    pub resource_type: String,
    pub resource_id: Option<String>,
    pub actor: String,
    pub request_ip: Option<String>,
    pub metadata: Value,
    pub at: Moment,
}

pub trait ExplainStore {
    /// What is known of a machine of this account, with at most `limit` operations, newest first.
    fn testimony(
        &self,
        account: AccountId,
        machine: MachineId,
        limit: i64,
        now: Moment,
    ) -> Answer<'_, Option<Testimony>>;
    /// Live machines of all accounts, and ended ones that still owe a delete; newest first.
    fn live_machines(&self, now: Moment) -> Answer<'_, Vec<Overview>>;
    /// The rows that the ledger compares with the providers' listings (RUL-L-73).
    fn books(&self) -> Answer<'_, Books>;
    /// Of all accounts, newest first; `prefix` narrows to actions that begin with it.
    fn audit_log(&self, prefix: Option<&'static str>, limit: i64) -> Answer<'_, Vec<AuditEntry>>;
    /// Writes one audit row, for an act that changes no row.
    fn note(&self, audit: NewAudit, now: Moment) -> Answer<'_, ()>;
    /// The second transaction of an admin's reap: the row ends without evidence, and so do its debts, because nobody of
    /// ours asks the provider again (RUL-L-20, RUL-L-47). `Stale` when superseded.
    fn hand_over(&self, finish: Finish) -> Answer<'_, Committed<Finished>>;
}
