//! Money and limits of accounts (lifecycle 8; http-api 5.14, 5.20; INV-83).
//!
//! The balance in `accounts` is the sum of the account's ledger rows and moves in the same transaction as each of them
//! (`ledger`); what administrators see and change is in `users`. Nothing here decides who may start: that is
//! `machines::quota`, which reads the same [`Standing`].

mod ledger;
mod users;

use fountain_actors::domain::account::NewAudit;
use fountain_actors::domain::credit::{Grant, Purse, Standing, UserChange, UserFilter, UserRow};
use fountain_actors::domain::*;
use fountain_actors::ports::store::credits::{Changed, CreditStore, Opening};
use fountain_actors::ports::store::{Answer, Committed};

use super::SqlStore;
use super::backend::Access;
use super::events::Outbox;
use super::machines::quota;
use super::turns::commit;

impl CreditStore for SqlStore {
    fn standing(&self, account: AccountId, opening: Option<Opening>, now: Moment) -> Answer<'_, Standing> {
        Box::pin(async move {
            let (standing, owed) = self
                .run("credit.standing", Access::Snapshot, move |db| {
                    let (_, standing) = quota::standing(db, account)?;
                    let owed = match opening.filter(|_| !standing.comped) {
                        Some(opening) if !ledger::has_opening(db, account)? => Some(opening),
                        _ => None,
                    };
                    Ok((standing, owed))
                })
                .await?;
            let Some(opening) = owed else { return Ok(standing) };
            self.run("credit.open", Access::Write, move |db| {
                ledger::open(db, account, opening, now)?;
                Ok(quota::standing(db, account)?.1)
            })
            .await
        })
    }

    fn purse(&self, account: AccountId, since: Moment, now: Moment) -> Answer<'_, Purse> {
        self.answer("credit.purse", Access::Snapshot, move |db| {
            ledger::purse(db, account, since, now)
        })
    }

    fn grant_credit(&self, grant: Grant, audit: NewAudit, now: Moment) -> Answer<'_, Committed<Standing>> {
        self.answer("credit.grant", Access::Write, move |db| {
            ledger::grant(db, &grant, now)?;
            let mut outbox = Outbox::default();
            outbox.audit(audit, now);
            let (_, standing) = quota::standing(db, grant.account)?;
            commit(db, standing, outbox)
        })
    }

    fn bill_turns(&self, turn_hour_cents: i64, now: Moment, limit: i64) -> Answer<'_, u64> {
        self.answer("credit.bill_turns", Access::Write, move |db| {
            ledger::bill_turns(db, turn_hour_cents, now, limit)
        })
    }

    fn expire_grants(&self, now: Moment, limit: i64) -> Answer<'_, u64> {
        self.answer("credit.expire_grants", Access::Write, move |db| {
            ledger::expire(db, now, limit)
        })
    }

    fn users(&self, filter: UserFilter) -> Answer<'_, (Vec<UserRow>, i64)> {
        self.answer("user.list", Access::Snapshot, move |db| users::page(db, filter))
    }

    fn user(&self, account: AccountId) -> Answer<'_, Option<UserRow>> {
        self.answer("user.show", Access::Snapshot, move |db| users::one(db, account))
    }

    fn change_user(
        &self,
        account: AccountId,
        change: UserChange,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Changed>> {
        self.answer("user.change", Access::Write, move |db| {
            let mut outbox = Outbox::default();
            let changed = users::change(db, &mut outbox, account, change, audit.actor.clone(), now)?;
            outbox.audit(audit, now);
            commit(db, changed, outbox)
        })
    }
}
