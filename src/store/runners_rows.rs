//! Runner rows (runner-protocol 8, RUL-45, RUL-L-95). Whether a runner is online is no column.
//!
//! The row of a name is made once and never removed: forgetting hides it, and the same name dialling again finds the
//! same id, because the id rides in the names of the machines that live there.

use chrono::NaiveDateTime;
use diesel::prelude::*;

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::runner::{Runner, RunnerDetails};
use fountain_actors::domain::*;
use fountain_actors::ports::Rng;
use fountain_actors::ports::store::{Answer, RunnerStore};

use super::SqlStore;
use super::backend::{Access, Db, Fault};
use super::columns::{Id, Json, at, json, key, maybe_moment, moment};
use super::events::{Outbox, audit_row};
use super::machines::hand_over;
use super::schema::runners;
use crate::{locked, on_backend};

#[derive(Queryable, Selectable)]
#[diesel(table_name = runners)]
pub struct RunnerRow {
    id: Id<RunnerId>,
    account_id: Id<AccountId>,
    name: String,
    hostname: Option<String>,
    os: Option<String>,
    arch: Option<String>,
    version: Option<String>,
    root: Option<String>,
    root_id: Option<String>,
    features: Json<Vec<String>>,
    connected_at: Option<NaiveDateTime>,
    last_seen_at: Option<NaiveDateTime>,
    forgotten_at: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
}

impl From<RunnerRow> for Runner {
    fn from(row: RunnerRow) -> Self {
        Self {
            id: row.id.0,
            account_id: row.account_id.0,
            name: row.name,
            details: RunnerDetails {
                hostname: row.hostname,
                os: row.os,
                arch: row.arch,
                version: row.version,
                root: row.root,
                root_id: row.root_id,
                features: row.features.0,
            },
            connected_at: maybe_moment(row.connected_at),
            last_seen_at: maybe_moment(row.last_seen_at),
            forgotten_at: maybe_moment(row.forgotten_at),
            inserted_at: moment(row.inserted_at),
        }
    }
}

impl RunnerStore for SqlStore {
    fn dial_runner(
        &self,
        account: AccountId,
        id: RunnerId,
        name: String,
        details: RunnerDetails,
        now: Moment,
    ) -> Answer<'_, (Runner, bool)> {
        self.answer("runner.dial", Access::Write, move |db| {
            dial(db, account, id, &name, &details, now)
        })
    }

    fn runners(&self, account: AccountId) -> Answer<'_, Vec<Runner>> {
        self.answer("runner.list", Access::Read, move |db| {
            let rows: Vec<RunnerRow> = runners::table
                .filter(runners::account_id.eq(key(account)))
                .filter(runners::forgotten_at.is_null())
                .select(RunnerRow::as_select())
                .load(db)?;
            let mut found: Vec<Runner> = rows.into_iter().map(Runner::from).collect();
            found.sort_by(|a, b| b.connected_at.cmp(&a.connected_at).then_with(|| a.name.cmp(&b.name)));
            Ok(found)
        })
    }

    fn runner(&self, id: RunnerId) -> Answer<'_, Option<Runner>> {
        self.answer("runner.get", Access::Read, move |db| {
            let row = runners::table
                .find(key(id))
                .select(RunnerRow::as_select())
                .first(db)
                .optional()?;
            Ok(row.map(Runner::from))
        })
    }

    fn forget_runner(&self, account: AccountId, id: RunnerId, now: Moment) -> Answer<'_, Runner> {
        let rng = self.inner.rng.clone();
        self.answer("runner.forget", Access::Write, move |db| {
            forget(db, &*rng, account, id, now)
        })
    }

    fn touch_runners(&self, ids: Vec<RunnerId>, now: Moment) -> Answer<'_, ()> {
        self.answer("runner.touch", Access::Write, move |db| {
            let ids: Vec<String> = ids.into_iter().map(key).collect();
            diesel::update(runners::table.filter(runners::id.eq_any(ids)))
                .set(runners::last_seen_at.eq(at(now)))
                .execute(db)?;
            Ok(())
        })
    }
}

fn dial(
    db: &mut Db,
    account: AccountId,
    id: RunnerId,
    name: &str,
    details: &RunnerDetails,
    now: Moment,
) -> Result<(Runner, bool), Fault> {
    let row = (
        runners::id.eq(key(id)),
        runners::account_id.eq(key(account)),
        runners::name.eq(name),
        runners::features.eq("[]"),
        runners::inserted_at.eq(at(now)),
    );
    // Two dials of a new name at once: one inserts, the other waits for it and finds its row.
    let inserted = on_backend!(db, |conn| {
        diesel::insert_into(runners::table)
            .values(row)
            .on_conflict((runners::account_id, runners::name))
            .do_nothing()
            .execute(conn)
    });
    use diesel::result::{DatabaseErrorKind, Error};
    let inserted = match inserted {
        Err(Error::DatabaseError(DatabaseErrorKind::ForeignKeyViolation, _)) => {
            return Err(Fault::not_found("account"));
        }
        other => other? > 0,
    };
    let own = || {
        runners::table
            .filter(runners::account_id.eq(key(account)))
            .filter(runners::name.eq(name))
    };
    diesel::update(own())
        .set((
            runners::hostname.eq(&details.hostname),
            runners::os.eq(&details.os),
            runners::arch.eq(&details.arch),
            runners::version.eq(&details.version),
            runners::root.eq(&details.root),
            runners::root_id.eq(&details.root_id),
            runners::features.eq(json(&details.features)),
            runners::connected_at.eq(at(now)),
            runners::last_seen_at.eq(at(now)),
            runners::forgotten_at.eq(None::<NaiveDateTime>),
        ))
        .execute(db)?;
    let runner: Runner = own().select(RunnerRow::as_select()).first(db)?.into();
    if inserted {
        audit_row(db, &audit(&runner, "runner.registered"), now)?;
    }
    Ok((runner, inserted))
}

fn forget(db: &mut Db, rng: &dyn Rng, account: AccountId, id: RunnerId, now: Moment) -> Result<Runner, Fault> {
    let row: Option<RunnerRow> = locked!(
        db,
        first,
        runners::table
            .filter(runners::id.eq(key(id)))
            .filter(runners::account_id.eq(key(account)))
            .filter(runners::forgotten_at.is_null())
            .select(RunnerRow::as_select())
    )
    .optional()?;
    let mut runner: Runner = row.ok_or(Fault::not_found("runner"))?.into();
    diesel::update(runners::table.find(key(id)))
        .set(runners::forgotten_at.eq(at(now)))
        .execute(db)?;
    runner.forgotten_at = Some(fountain_actors::ports::clock::cut(now));
    let mut outbox = Outbox::default();
    outbox.audit(audit(&runner, "runner.deleted"), now);
    hand_over(db, rng, &mut outbox, &runner, now)?;
    // Nobody waits for these cursors: streams look again within a second (DESIGN 6).
    outbox.write(db)?;
    Ok(runner)
}

fn audit(runner: &Runner, action: &'static str) -> NewAudit {
    NewAudit {
        account_id: Some(runner.account_id),
        action,
        resource_type: "runner",
        resource_id: Some(key(runner.id)),
        actor: Actor::Api,
        request_ip: None,
        metadata: [("name", runner.name.clone().into())].into(),
    }
}
