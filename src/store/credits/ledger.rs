//! The credit ledger: grants, what turns burn, what expires. A row is unique by its kind and reference, so that writing it
//! twice changes nothing (INV-83).
//!
//! Turns are billed from their usage rows, of which an orphaned turn has none. Ids of usage rows are drawn before they
//! are visible, so the mark below which everything is billed stays an hour behind: no transaction lasts that long.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Bool, Nullable, Text, Timestamp};
use serde_json::Value;

use fountain_actors::domain::credit::{Grant, LedgerKind, MILLS, Purse, price_of_turn};
use fountain_actors::domain::machine::{MachineStatus, Provider};
use fountain_actors::domain::*;
use fountain_actors::ports::clock::before;
use fountain_actors::ports::store::credits::Opening;

use crate::on_backend;
use crate::store::backend::{Db, Fault, lock_account};
use crate::store::columns::{Id, Json, Word, at, key, maybe_at, maybe_moment, moment};
use crate::store::machines::quota;
use crate::store::schema::{accounts, conversations, credit_ledger, credit_marks, machines, usage_events};

/// The mark of the turn pricer.
const TURNS: &str = "turns";
/// How far the mark stays behind.
const SETTLED: Duration = Duration::from_secs(60 * 60);

/// One row to be written.
struct Post<'a> {
    account: AccountId,
    kind: LedgerKind,
    /// Thousandths of a cent, signed.
    amount: i64,
    reference: &'a str,
    expires_at: Option<Moment>,
    note: Option<&'a str>,
}

/// Writes a row and moves the balance. False when it stands already.
fn post(db: &mut Db, post: Post<'_>, now: Moment) -> Result<bool, Fault> {
    let row = (
        credit_ledger::account_id.eq(key(post.account)),
        credit_ledger::kind.eq(Word(post.kind)),
        credit_ledger::amount.eq(post.amount),
        credit_ledger::reference.eq(post.reference),
        credit_ledger::expires_at.eq(maybe_at(post.expires_at)),
        credit_ledger::note.eq(post.note),
        credit_ledger::inserted_at.eq(at(now)),
    );
    let inserted = on_backend!(db, |conn| diesel::insert_into(credit_ledger::table)
        .values(row)
        .on_conflict_do_nothing()
        .execute(conn))?;
    if inserted == 0 {
        return Ok(false);
    }
    diesel::update(accounts::table.find(key(post.account)))
        .set(accounts::credit_balance.eq(accounts::credit_balance + post.amount))
        .execute(db)?;
    Ok(true)
}

/// Whether the account ever had its opening grant.
pub fn has_opening(db: &mut Db, account: AccountId) -> Result<bool, Fault> {
    let rows: i64 = credit_ledger::table
        .filter(credit_ledger::kind.eq(Word(LedgerKind::GrantOpening)))
        .filter(credit_ledger::reference.eq(key(account)))
        .count()
        .get_result(db)?;
    Ok(rows > 0)
}

/// Gives the opening grant, once.
pub fn open(db: &mut Db, account: AccountId, opening: Opening, now: Moment) -> Result<(), Fault> {
    let row = Post {
        account,
        kind: LedgerKind::GrantOpening,
        amount: opening.cents.saturating_mul(MILLS),
        reference: &key(account),
        expires_at: Some(opening.expires_at),
        note: None,
    };
    post(db, row, now).map(drop)
}

/// An administrator's grant. Two equal ones are two.
pub fn grant(db: &mut Db, grant: &Grant, now: Moment) -> Result<(), Fault> {
    lock_account(db, grant.account)?;
    quota::standing(db, grant.account)?;
    let earlier: i64 = credit_ledger::table
        .filter(credit_ledger::account_id.eq(key(grant.account)))
        .filter(credit_ledger::kind.eq(Word(LedgerKind::GrantAdmin)))
        .count()
        .get_result(db)?;
    let row = Post {
        account: grant.account,
        kind: LedgerKind::GrantAdmin,
        amount: grant.cents.saturating_mul(MILLS),
        reference: &format!("{}/{}", grant.account, earlier + 1),
        expires_at: None,
        note: grant.note.as_deref(),
    };
    // The account's lock is held, so nobody else takes this number.
    match post(db, row, now)? {
        true => Ok(()),
        false => Err(Fault::internal("credit.grant", "two grants took one number")),
    }
}

#[derive(Queryable)]
struct ClosedTurn {
    account: Id<AccountId>,
    turn: String,
    metadata: Json<Value>,
}

/// Bills closed turns.
pub fn bill_turns(db: &mut Db, turn_hour_cents: i64, now: Moment, limit: i64) -> Result<u64, Fault> {
    let Some((since, mark)) = mark(db, now)? else {
        return Ok(0);
    };
    let closed: Vec<ClosedTurn> = usage_events::table
        .filter(usage_events::id.gt(mark))
        .filter(usage_events::kind.eq("turn"))
        .filter(usage_events::inserted_at.ge(since))
        .filter(usage_events::account_id.is_not_null())
        .filter(usage_events::turn_id.is_not_null())
        .filter(sql::<Bool>(
            "NOT EXISTS (SELECT 1 FROM credit_ledger l WHERE l.kind = 'burn_turn' AND l.reference = usage_events.turn_id)",
        ))
        .order(usage_events::id)
        .limit(limit)
        .select((
            usage_events::account_id.assume_not_null(),
            usage_events::turn_id.assume_not_null(),
            usage_events::metadata,
        ))
        .load(db)?;
    let all = i64::try_from(closed.len()).unwrap_or(i64::MAX) < limit;
    let mut billed = 0;
    for turn in closed {
        let ms = turn.metadata.0.get("duration_ms").and_then(Value::as_u64).unwrap_or(0);
        let row = Post {
            account: turn.account.0,
            kind: LedgerKind::BurnTurn,
            amount: -price_of_turn(Duration::from_millis(ms), turn_hour_cents),
            reference: &turn.turn,
            expires_at: None,
            note: None,
        };
        billed += u64::from(post(db, row, now)?);
    }
    if all {
        advance(db, mark, now)?;
    }
    Ok(billed)
}

/// The pricer's mark; None when this is the first run ever, which only sets it: what ended before is nobody's debt.
fn mark(db: &mut Db, now: Moment) -> Result<Option<(NaiveDateTime, i64)>, Fault> {
    let found = credit_marks::table
        .find(TURNS)
        .select((credit_marks::since, credit_marks::usage_id))
        .first(db)
        .optional()?;
    if found.is_some() {
        return Ok(found);
    }
    let newest = settled_id(db, 0, now)?.unwrap_or(0);
    let row = (
        credit_marks::name.eq(TURNS),
        credit_marks::since.eq(at(now)),
        credit_marks::usage_id.eq(newest),
    );
    on_backend!(db, |conn| diesel::insert_into(credit_marks::table)
        .values(row)
        .on_conflict_do_nothing()
        .execute(conn))?;
    Ok(None)
}

fn settled_id(db: &mut Db, above: i64, now: Moment) -> Result<Option<i64>, Fault> {
    let id = usage_events::table
        .filter(usage_events::id.gt(above))
        .filter(usage_events::inserted_at.lt(at(before(now, SETTLED))))
        .select(diesel::dsl::max(usage_events::id))
        .first::<Option<i64>>(db)?;
    Ok(id)
}

fn advance(db: &mut Db, mark: i64, now: Moment) -> Result<(), Fault> {
    if let Some(id) = settled_id(db, mark, now)? {
        diesel::update(credit_marks::table.find(TURNS).filter(credit_marks::usage_id.lt(id)))
            .set(credit_marks::usage_id.eq(id))
            .execute(db)?;
    }
    Ok(())
}

/// What an account burned in all until `until`.
fn burned(db: &mut Db, account: AccountId, until: Option<Moment>) -> Result<i64, Fault> {
    let burned = credit_ledger::table
        .filter(credit_ledger::account_id.eq(key(account)))
        .filter(credit_ledger::kind.eq(Word(LedgerKind::BurnTurn)))
        .filter(credit_ledger::inserted_at.le(at(until.unwrap_or(Moment::MAX_UTC))))
        // A sum is numeric on PostgreSQL.
        .select(sql::<BigInt>("CAST(coalesce(-sum(amount), 0) AS BIGINT)"))
        .first::<i64>(db)?;
    Ok(burned)
}

#[derive(Queryable)]
struct OpenGrant {
    id: i64,
    account: Id<AccountId>,
    amount: i64,
    ends: Option<NaiveDateTime>,
}

const UNSETTLED: &str = "NOT EXISTS (SELECT 1 FROM credit_ledger e WHERE e.kind = 'expiry' \
     AND e.reference = CAST(credit_ledger.id AS TEXT))";

/// Takes back what is left of grants that ended. What ends is spent first.
pub fn expire(db: &mut Db, now: Moment, limit: i64) -> Result<u64, Fault> {
    let ended: Vec<OpenGrant> = credit_ledger::table
        .filter(credit_ledger::expires_at.le(at(now)))
        .filter(sql::<Bool>(UNSETTLED))
        .order(credit_ledger::id)
        .limit(limit)
        .select((
            credit_ledger::id,
            credit_ledger::account_id,
            credit_ledger::amount,
            credit_ledger::expires_at,
        ))
        .load(db)?;
    let mut expired = 0;
    for grant in ended {
        let spent = burned(db, grant.account.0, maybe_moment(grant.ends))?;
        let row = Post {
            account: grant.account.0,
            kind: LedgerKind::Expiry,
            amount: -(grant.amount - spent).max(0),
            reference: &grant.id.to_string(),
            expires_at: None,
            note: None,
        };
        expired += u64::from(post(db, row, now)?);
    }
    Ok(expired)
}

#[derive(QueryableByName)]
struct Worked {
    #[diesel(sql_type = BigInt)]
    turns: i64,
    #[diesel(sql_type = BigInt)]
    took: i64,
}

/// The purse of an account.
pub fn purse(db: &mut Db, account: AccountId, since: Moment, now: Moment) -> Result<Purse, Fault> {
    let (_, standing) = quota::standing(db, account)?;
    let grant: Option<OpenGrant> = credit_ledger::table
        .filter(credit_ledger::account_id.eq(key(account)))
        .filter(credit_ledger::expires_at.is_not_null())
        .filter(sql::<Bool>(UNSETTLED))
        .select((
            credit_ledger::id,
            credit_ledger::account_id,
            credit_ledger::amount,
            credit_ledger::expires_at,
        ))
        .first(db)
        .optional()?;
    let spent = burned(db, account, None)?;
    let (expiring, ends) = match grant {
        Some(grant) => ((grant.amount - spent).max(0), grant.ends.map(moment)),
        None => (0, None),
    };
    let started: i64 = conversations::table
        .filter(conversations::account_id.eq(key(account)))
        .filter(conversations::inserted_at.ge(at(since)))
        .count()
        .get_result(db)?;
    let worked = worked(db, account, since)?;
    let burned_since = credit_ledger::table
        .filter(credit_ledger::account_id.eq(key(account)))
        .filter(credit_ledger::kind.eq(Word(LedgerKind::BurnTurn)))
        .filter(credit_ledger::inserted_at.ge(at(since)))
        .select(sql::<BigInt>("CAST(coalesce(-sum(amount), 0) AS BIGINT)"))
        .first::<i64>(db)?;
    Ok(Purse {
        standing,
        expiring_mills: expiring,
        expires_at: ends,
        burned_mills: burned_since,
        conversations: started,
        turns: worked.turns,
        turn_ms: worked.took,
        machine_minutes: machine_minutes(db, account, since, now)?,
    })
}

/// Closed turns and their time, by the usage rows.
fn worked(db: &mut Db, account: AccountId, since: Moment) -> Result<Worked, Fault> {
    let rest = "FROM usage_events WHERE account_id = $1 AND kind = 'turn' AND inserted_at >= $2";
    let head = match db {
        Db::Sqlite(_) => "SELECT count(*) AS turns, coalesce(sum(json_extract(metadata, '$.duration_ms')), 0) AS took",
        Db::Postgres(_) => {
            "SELECT count(*) AS turns, \
             coalesce(sum((metadata::json ->> 'duration_ms')::bigint), 0)::bigint AS took"
        }
    };
    let query = diesel::sql_query(format!("{head} {rest}"))
        .bind::<Text, _>(key(account))
        .bind::<Timestamp, _>(at(since));
    Ok(on_backend!(db, |conn| query.get_result::<Worked>(conn))?)
}

/// Minutes that machines were up, by the usage rows of the time. One whose first row of the time is an end was up at its
/// beginning; one without a row in it did not change, and is up if its row says so.
fn machine_minutes(
    db: &mut Db,
    account: AccountId,
    since: Moment,
    now: Moment,
) -> Result<BTreeMap<String, i64>, Fault> {
    let rows: Vec<(Option<String>, Option<String>, String, NaiveDateTime)> = usage_events::table
        .filter(usage_events::account_id.eq(key(account)))
        .filter(usage_events::machine_id.is_not_null())
        .filter(usage_events::inserted_at.ge(at(since)))
        .order(usage_events::id)
        .select((
            usage_events::machine_id,
            usage_events::provider,
            usage_events::kind,
            usage_events::inserted_at,
        ))
        .load(db)?;
    let mut seconds: BTreeMap<String, i64> = BTreeMap::new();
    // Since when each machine is up; None: it is down.
    let mut up: HashMap<String, (String, Option<NaiveDateTime>)> = HashMap::new();
    for (machine, provider, kind, when) in rows {
        let (Some(machine), Some(provider)) = (machine, provider) else {
            continue;
        };
        let began = matches!(kind.as_str(), "started" | "resumed");
        let before = up.get(&machine).map(|(_, since)| *since);
        let was_up = before.unwrap_or((!began && kind != "provision_failed").then_some(at(since)));
        if let Some(start) = was_up.filter(|_| !began) {
            *seconds.entry(provider.clone()).or_default() += (when - start).num_seconds();
        }
        let is_up = began.then(|| was_up.unwrap_or(when));
        up.insert(machine, (provider, is_up));
    }
    let ready: Vec<(String, Word<Provider>)> = machines::table
        .filter(machines::account_id.eq(key(account)))
        .filter(machines::status.eq(Word(MachineStatus::Ready)))
        .select((machines::id, machines::provider))
        .load(db)?;
    for (machine, provider) in ready {
        let start = match up.get(&machine) {
            Some((_, start)) => *start,
            None => Some(at(since)),
        };
        if let Some(start) = start {
            *seconds.entry(provider.0.as_str().to_owned()).or_default() += (at(now) - start).num_seconds();
        }
    }
    Ok(seconds
        .into_iter()
        .map(|(provider, seconds)| (provider, seconds / 60))
        .collect())
}

/// When each of these accounts last used a key.
pub fn last_activity(db: &mut Db, of: &[String]) -> Result<Vec<(String, Option<NaiveDateTime>)>, Fault> {
    use crate::store::schema::api_keys;
    let rows = api_keys::table
        .filter(api_keys::account_id.eq_any(of))
        .group_by(api_keys::account_id)
        .select((api_keys::account_id, sql::<Nullable<Timestamp>>("max(last_used_at)")))
        .load(db)?;
    Ok(rows)
}
