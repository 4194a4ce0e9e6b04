//! Prepaid credit: what an account may spend, and how many machines that is worth (lifecycle 8, 9.4).
//!
//! Balances are kept in thousandths of a cent, because a turn of ten seconds costs less than one cent and rounding each
//! turn would bill either nothing or many times too much. Whole cents are for the wire. A balance may be negative: a
//! running turn is never cut for money (lifecycle 1.1).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::{AccountId, Moment};
use crate::vocabulary;

/// Thousandths of a cent in one cent.
pub const MILLS: i64 = 1000;

vocabulary! {
    /// Why a row of the credit ledger was written. Grants are positive, the rest negative.
    LedgerKind {
        /// What a new account begins with; it expires.
        GrantOpening = "grant_opening",
        /// Given by an administrator; it does not expire.
        GrantAdmin = "grant_admin",
        /// One closed turn.
        BurnTurn = "burn_turn",
        /// The unspent rest of a grant that ended.
        Expiry = "expiry",
    }
}

/// The part of the credit rules that the quota transaction counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditTerms {
    /// Balance that one live machine needs, in cents (SANDBOX_RESERVE_CENTS). 0: every funded account has the floor.
    pub reserve_cents: i64,
    /// Least cap of a funded account (SANDBOX_CAP_FLOOR).
    pub floor: i64,
}

/// Everything about credit that the operator sets. Its presence is CREDITS_ENABLED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditSettings {
    pub terms: CreditTerms,
    /// In cents (CREDIT_OPENING_CENTS).
    pub opening_cents: i64,
    /// How long the opening grant lasts (CREDIT_OPENING_DAYS).
    pub opening_lasts: Duration,
    /// Price of one hour of turn time, in cents (CREDIT_TURN_HOUR_CENTS).
    pub turn_hour_cents: i64,
    /// Packs that the billing page offers, in cents (CREDIT_PACKS_CENTS).
    pub packs_cents: Vec<i64>,
}

/// What an account is judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub comped: bool,
    /// Wins over every other cap; 0 blocks.
    pub limit_override: Option<i64>,
    /// Thousandths of a cent.
    pub balance_mills: i64,
}

impl Standing {
    /// Whole cents, rounded down.
    pub fn balance_cents(&self) -> i64 {
        self.balance_mills.div_euclid(MILLS)
    }

    /// Whether the account may start, wake or prompt. `credits`: None when they are switched off.
    pub fn may_spend(&self, credits: Option<CreditTerms>) -> bool {
        credits.is_none() || self.comped || self.balance_mills > 0
    }

    /// The cap of lifecycle 8: override; else the ceiling where nothing is paid for; else nothing without a balance; else
    /// what the balance reserves, between floor and ceiling.
    pub fn cap(&self, credits: Option<CreditTerms>, ceiling: i64) -> i64 {
        if let Some(limit) = self.limit_override {
            return limit;
        }
        let Some(terms) = credits.filter(|_| !self.comped) else {
            return ceiling;
        };
        if self.balance_mills <= 0 {
            return 0;
        }
        // Settings keep floor <= ceiling; a deployment that breaks it gets the ceiling, not a panic.
        let floor = terms.floor.min(ceiling);
        match self.balance_cents().checked_div(terms.reserve_cents) {
            None => floor,
            Some(machines) => machines.clamp(floor, ceiling),
        }
    }
}

/// What `took` of turn time costs, in thousandths of a cent, rounded down.
pub fn price_of_turn(took: Duration, turn_hour_cents: i64) -> i64 {
    // ms * cents/h * 1000 mills / 3 600 000 ms
    let milliseconds = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
    milliseconds.saturating_mul(turn_hour_cents) / 3600
}

/// An account's money, for the billing page and administrators. Thousandths of a cent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purse {
    pub standing: Standing,
    /// Of the balance, what ends with the opening grant.
    pub expiring_mills: i64,
    pub expires_at: Option<Moment>,
    /// Burned by turns since `since`.
    pub burned_mills: i64,
    pub conversations: i64,
    pub turns: i64,
    /// Time of closed turns since `since`, in milliseconds.
    pub turn_ms: i64,
    /// Whole minutes that machines were up since `since`, by provider.
    pub machine_minutes: BTreeMap<String, i64>,
}

/// An account as administrators see it (http-api 5.14).
#[derive(Clone, Debug, PartialEq)]
pub struct UserRow {
    pub account: crate::domain::account::Account,
    pub standing: Standing,
    pub active_machines: i64,
    pub last_activity_at: Option<Moment>,
}

vocabulary! { UserSort { Email = "email", Joined = "joined", LastActivity = "last_activity" } }

/// Filter and page of the administrators' list (http-api 5.14).
#[derive(Clone, Debug)]
pub struct UserFilter {
    /// Part of the address, case-insensitive.
    pub q: Option<String>,
    pub comped: Option<bool>,
    pub verified: Option<bool>,
    pub admin: Option<bool>,
    pub sort: UserSort,
    pub ascending: bool,
    pub offset: i64,
    pub limit: i64,
}

/// What an administrator may change about an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserChange {
    Admin(bool),
    /// None: the formula again.
    Limit(Option<i64>),
    Comped(bool),
    /// Suspending revokes every key of the account.
    Suspended(bool),
}

/// A grant of an administrator.
#[derive(Clone, Debug)]
pub struct Grant {
    pub account: AccountId,
    pub cents: i64,
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: CreditTerms = CreditTerms {
        reserve_cents: 200,
        floor: 2,
    };

    fn with(cents: i64) -> Standing {
        Standing {
            balance_mills: cents * MILLS,
            ..Standing::default()
        }
    }

    #[test]
    fn the_cap_of_lifecycle_8_line_by_line() {
        let cap = |standing: Standing| standing.cap(Some(TERMS), 20);
        assert_eq!(cap(with(0)), 0);
        assert_eq!(cap(with(-5)), 0);
        assert_eq!(cap(with(1)), 2, "the floor of a funded account");
        assert_eq!(cap(with(500)), 2);
        assert_eq!(cap(with(600)), 3);
        assert_eq!(cap(with(100_000)), 20, "the ceiling");
        assert_eq!(with(0).cap(None, 20), 20, "credits off");
        let comped = Standing {
            comped: true,
            ..with(-900)
        };
        assert_eq!(cap(comped), 20);
        let blocked = Standing {
            limit_override: Some(0),
            ..comped
        };
        assert_eq!(cap(blocked), 0, "an override wins over everything");
        let raised = Standing {
            limit_override: Some(50),
            ..with(0)
        };
        assert_eq!(cap(raised), 50);
        let free = CreditTerms {
            reserve_cents: 0,
            floor: 2,
        };
        assert_eq!(with(9000).cap(Some(free), 20), 2, "a reserve of 0 gives the floor");
    }

    #[test]
    fn spending_stops_at_zero_unless_somebody_else_pays() {
        assert!(with(1).may_spend(Some(TERMS)));
        assert!(!with(0).may_spend(Some(TERMS)));
        assert!(with(-1).may_spend(None));
        let comped = Standing {
            comped: true,
            ..with(0)
        };
        assert!(comped.may_spend(Some(TERMS)));
    }

    #[test]
    fn a_turn_costs_its_time_to_the_thousandth_of_a_cent() {
        assert_eq!(price_of_turn(Duration::from_secs(3600), 25), 25 * MILLS);
        assert_eq!(price_of_turn(Duration::from_secs(10), 25), 69);
        assert_eq!(price_of_turn(Duration::ZERO, 25), 0);
    }
}
