//! Accounts as administrators see and change them (http-api 5.14).

use std::collections::HashMap;

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Bool, Text, Timestamp};

use fountain_actors::domain::account::Actor;
use fountain_actors::domain::credit::{UserChange, UserFilter, UserRow, UserSort};
use fountain_actors::domain::machine::{DestroyReason, MachineStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::credits::Changed;

use super::ledger;
use crate::store::accounts::rows::AccountRow;
use crate::store::backend::{Db, Fault, lock_account};
use crate::store::columns::{Id, Word, at, key, maybe_moment};
use crate::store::events::Outbox;
use crate::store::machines::{doom, quota, rows as machine_rows};
use crate::store::schema::{accounts, api_keys, machines};

const LAST_ACTIVITY: &str = "(SELECT max(k.last_used_at) FROM api_keys k WHERE k.account_id = accounts.id)";

/// One page, and how many accounts the filter admits.
pub fn page(db: &mut Db, filter: UserFilter) -> Result<(Vec<UserRow>, i64), Fault> {
    // One text whatever is asked for: a filter that is not set lets everything pass.
    let admits = || {
        let like = filter.q.as_deref().map(|q| format!("%{}%", escaped(&q.to_lowercase())));
        sql::<Bool>("(")
            .bind::<Bool, _>(like.is_none())
            .sql(" OR lower(accounts.email) LIKE ")
            .bind::<Text, _>(like.unwrap_or_default())
            .sql(" ESCAPE '\\') AND (")
            .bind::<Bool, _>(filter.comped.is_none())
            .sql(" OR accounts.comped = ")
            .bind::<Bool, _>(filter.comped.unwrap_or_default())
            .sql(") AND (")
            .bind::<Bool, _>(filter.admin.is_none())
            .sql(" OR accounts.is_admin = ")
            .bind::<Bool, _>(filter.admin.unwrap_or_default())
            .sql(") AND (")
            .bind::<Bool, _>(filter.verified.is_none())
            .sql(" OR (accounts.email_verified_at IS NOT NULL) = ")
            .bind::<Bool, _>(filter.verified.unwrap_or_default())
            .sql(")")
    };
    let total: i64 = accounts::table.filter(admits()).count().get_result(db)?;
    let column = match filter.sort {
        UserSort::Email => "lower(accounts.email)",
        UserSort::Joined => "accounts.inserted_at",
        UserSort::LastActivity => LAST_ACTIVITY,
    };
    // The word is one of two of ours, never the client's.
    let way = if filter.ascending {
        "ASC NULLS FIRST"
    } else {
        "DESC NULLS LAST"
    };
    let rows: Vec<AccountRow> = accounts::table
        .filter(admits())
        .order((sql::<Timestamp>(&format!("{column} {way}")), accounts::id))
        .offset(filter.offset)
        .limit(filter.limit)
        .select(AccountRow::as_select())
        .load(db)?;
    Ok((seen(db, rows)?, total))
}

/// A pattern that means its own characters.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_")
}

/// One account.
pub fn one(db: &mut Db, account: AccountId) -> Result<Option<UserRow>, Fault> {
    let rows = accounts::table
        .find(key(account))
        .select(AccountRow::as_select())
        .load(db)?;
    Ok(seen(db, rows)?.into_iter().next())
}

/// Adds what stands beside the rows: three queries, however many there are.
fn seen(db: &mut Db, rows: Vec<AccountRow>) -> Result<Vec<UserRow>, Fault> {
    let all: Vec<_> = rows.into_iter().map(AccountRow::into_domain).collect();
    let ids: Vec<String> = all.iter().map(|account| key(account.id)).collect();
    let active: HashMap<String, i64> = quota::counted_of(db, &ids)?.into_iter().collect();
    let used: HashMap<String, _> = ledger::last_activity(db, &ids)?.into_iter().collect();
    let balances: HashMap<String, i64> = accounts::table
        .filter(accounts::id.eq_any(&ids))
        .select((accounts::id, accounts::credit_balance))
        .load::<(String, i64)>(db)?
        .into_iter()
        .collect();
    let row = |account: account::Account| {
        let id = key(account.id);
        UserRow {
            standing: credit::Standing {
                comped: account.comped,
                limit_override: account.sandbox_limit_override,
                balance_mills: balances.get(&id).copied().unwrap_or(0),
            },
            active_machines: active.get(&id).copied().unwrap_or(0),
            last_activity_at: maybe_moment(used.get(&id).copied().flatten()),
            account,
        }
    };
    Ok(all.into_iter().map(row).collect())
}

/// Changes an account. The quota lock of the account makes a new limit visible to whoever starts next (RUL-L-36).
pub fn change(
    db: &mut Db,
    outbox: &mut Outbox,
    account: AccountId,
    change: UserChange,
    actor: Actor,
    now: Moment,
) -> Result<Changed, Fault> {
    lock_account(db, account)?;
    let own = accounts::table.find(key(account));
    let touched = match change {
        UserChange::Admin(is_admin) => diesel::update(own)
            .set((accounts::is_admin.eq(is_admin), accounts::updated_at.eq(at(now))))
            .execute(db)?,
        UserChange::Limit(limit) => diesel::update(own)
            .set((
                accounts::sandbox_limit_override.eq(limit),
                accounts::updated_at.eq(at(now)),
            ))
            .execute(db)?,
        UserChange::Comped(comped) => diesel::update(own)
            .set((accounts::comped.eq(comped), accounts::updated_at.eq(at(now))))
            .execute(db)?,
        UserChange::Suspended(suspended) => diesel::update(own)
            .set((
                accounts::suspended_at.eq(suspended.then(|| at(now))),
                accounts::updated_at.eq(at(now)),
            ))
            .execute(db)?,
    };
    if touched == 0 {
        return Err(Fault::not_found("account"));
    }
    let (machines, keys) = match change {
        UserChange::Suspended(true) => (
            fence_machines(db, outbox, account, actor, now)?,
            revoke_keys(db, account, now)?,
        ),
        _ => (Vec::new(), Vec::new()),
    };
    let user = one(db, account)?.ok_or_else(|| Fault::not_found("account"))?;
    Ok(Changed { user, machines, keys })
}

/// After this nobody wakes or builds what costs money; the owner destroys it behind the answer.
fn fence_machines(
    db: &mut Db,
    outbox: &mut Outbox,
    account: AccountId,
    actor: Actor,
    now: Moment,
) -> Result<Vec<MachineId>, Fault> {
    let ids: Vec<Id<MachineId>> = machines::table
        .filter(machines::account_id.eq(key(account)))
        .filter(machines::status.ne_all([Word(MachineStatus::Terminated), Word(MachineStatus::Failed)]))
        .order(machines::id)
        .select(machines::id)
        .load(db)?;
    let mut fenced = Vec::new();
    for Id(id) in ids {
        let Some(mut machine) = machine_rows::lock(db, id)?.filter(|machine| !machine.status.is_terminal()) else {
            continue;
        };
        doom(
            db,
            outbox,
            &mut machine,
            DestroyReason::Reclaimed,
            actor.clone(),
            None,
            now,
        )?;
        fenced.push(id);
    }
    Ok(fenced)
}

fn revoke_keys(db: &mut Db, account: AccountId, now: Moment) -> Result<Vec<KeyId>, Fault> {
    let live: Vec<Id<KeyId>> = api_keys::table
        .filter(api_keys::account_id.eq(key(account)))
        .filter(api_keys::revoked_at.is_null())
        .select(api_keys::id)
        .load(db)?;
    diesel::update(api_keys::table)
        .filter(api_keys::account_id.eq(key(account)))
        .filter(api_keys::revoked_at.is_null())
        .set(api_keys::revoked_at.eq(at(now)))
        .execute(db)?;
    Ok(live.into_iter().map(|id| id.0).collect())
}
