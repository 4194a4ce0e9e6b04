//! Money and limits of accounts: standing, the credit ledger, and what administrators change (lifecycle 8; http-api 5.14,
//! 5.20).
//!
//! A balance is the sum of its ledger rows and moves in their transaction, never alone. A turn is billed once, however
//! often it is looked at (INV-83).

use super::{Answer, Committed};
use crate::domain::account::NewAudit;
use crate::domain::credit::{CreditSettings, Grant, Purse, Standing, UserChange, UserFilter, UserRow};
use crate::domain::*;
use crate::ports::clock::after;

/// The grant that an account begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub cents: i64,
    pub expires_at: Moment,
}

impl Opening {
    /// The grant of these settings; None when they give nothing.
    pub fn of(credits: &CreditSettings, now: Moment) -> Option<Self> {
        (credits.opening_cents > 0).then(|| Self {
            cents: credits.opening_cents,
            expires_at: after(now, credits.opening_lasts),
        })
    }
}

/// What changing an account did.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    pub user: UserRow,
    /// Machines that were fenced because their account was suspended: each is to be destroyed.
    pub machines: Vec<MachineId>,
    /// Keys that were revoked with it.
    pub keys: Vec<KeyId>,
}

pub trait CreditStore {
    /// What an account is judged by. With `opening`, an account that never had one gets its opening grant first.
    ///
    /// # Errors
    /// `NotFound` for an account that does not exist.
    fn standing(&self, account: AccountId, opening: Option<Opening>, now: Moment) -> Answer<'_, Standing>;
    /// The purse, with what was used from `since` to `now`.
    fn purse(&self, account: AccountId, since: Moment, now: Moment) -> Answer<'_, Purse>;

    /// Adds to a balance, with its audit row. Answers the new standing.
    fn grant_credit(&self, grant: Grant, audit: NewAudit, now: Moment) -> Answer<'_, Committed<Standing>>;
    /// Bills turns that have closed and are not billed yet, at most `limit`; orphaned ones never (INV-83). The first call
    /// ever only notes when billing began. Answers how many were billed.
    fn bill_turns(&self, turn_hour_cents: i64, now: Moment, limit: i64) -> Answer<'_, u64>;
    /// Takes back what is left of grants that ended. Answers how many ended.
    fn expire_grants(&self, now: Moment, limit: i64) -> Answer<'_, u64>;

    /// Accounts of one page and how many there are in all.
    fn users(&self, filter: UserFilter) -> Answer<'_, (Vec<UserRow>, i64)>;
    fn user(&self, account: AccountId) -> Answer<'_, Option<UserRow>>;
    /// Changes an account, with its audit row. Suspending revokes its keys and fences its machines in the same commit.
    /// `NotFound` when there is none.
    fn change_user(
        &self,
        account: AccountId,
        change: UserChange,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Changed>>;
}
