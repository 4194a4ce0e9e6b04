//! Environments (lifecycle 1.4, http-api 4.2, 5.5).

use std::collections::{BTreeMap, HashMap};

use chrono::NaiveDateTime;
use diesel::dsl::count_star;
use diesel::prelude::*;
use serde_json::{Map, Value};

use fountain_actors::domain::environment::{Environment, EnvironmentConfig, NetworkingType, Repository};
use fountain_actors::domain::machine::DestroyReason;
use fountain_actors::domain::*;
use fountain_actors::ports::store::Committed;
use fountain_actors::ports::store::catalog::Fenced;

use super::homes::{Homes, fence};
use super::{Change, named};
use crate::locked;
use crate::store::backend::{Db, Fault, lock_account};
use crate::store::columns::{Id, Json, Word, at, json, key, moment};
use crate::store::events::Outbox;
use crate::store::schema::{agents, environments, secrets};

#[derive(Queryable, Selectable)]
#[diesel(table_name = environments)]
struct EnvironmentRow {
    id: Id<EnvironmentId>,
    account_id: Id<AccountId>,
    name: String,
    packages: Json<BTreeMap<String, Vec<String>>>,
    env_vars: Json<BTreeMap<String, String>>,
    setup_script: String,
    setup_timeout_seconds: i64,
    networking_type: Word<NetworkingType>,
    networking_config: Json<Map<String, Value>>,
    repositories: Json<Vec<Repository>>,
    metadata: Json<Map<String, Value>>,
    inserted_at: NaiveDateTime,
    updated_at: NaiveDateTime,
}

impl EnvironmentRow {
    fn into_domain(self, secret_count: i64, agent_count: i64) -> Environment {
        Environment {
            id: self.id.0,
            account_id: self.account_id.0,
            config: EnvironmentConfig {
                name: self.name,
                packages: self.packages.0,
                env_vars: self.env_vars.0,
                setup_script: self.setup_script,
                setup_timeout_seconds: self.setup_timeout_seconds,
                networking_type: self.networking_type.0,
                networking_config: self.networking_config.0,
                repositories: self.repositories.0,
                metadata: self.metadata.0,
            },
            secret_count,
            agent_count,
            inserted_at: moment(self.inserted_at),
            updated_at: moment(self.updated_at),
        }
    }
}

pub(super) fn list(db: &mut Db, account: AccountId) -> Result<Vec<Environment>, Fault> {
    let rows: Vec<EnvironmentRow> = environments::table
        .filter(environments::account_id.eq(key(account)))
        .select(EnvironmentRow::as_select())
        .load(db)?;
    let secrets = grouped(
        secrets::table
            .filter(secrets::account_id.eq(key(account)))
            .group_by(secrets::environment_id)
            .select((secrets::environment_id, count_star()))
            .load(db)?,
    );
    let agents = grouped(
        agents::table
            .filter(agents::account_id.eq(key(account)))
            .group_by(agents::environment_id)
            .select((agents::environment_id, count_star()))
            .load(db)?,
    );
    let mut found: Vec<Environment> = rows
        .into_iter()
        .map(|row| {
            let id = key(row.id.0);
            let count = |of: &HashMap<String, i64>| of.get(&id).copied().unwrap_or(0);
            row.into_domain(count(&secrets), count(&agents))
        })
        .collect();
    found.sort_by(|a, b| (&a.config.name, a.id).cmp(&(&b.config.name, b.id)));
    Ok(found)
}

fn grouped(counts: Vec<(Option<String>, i64)>) -> HashMap<String, i64> {
    counts
        .into_iter()
        .filter_map(|(id, count)| Some((id?, count)))
        .collect()
}

pub(super) fn get(db: &mut Db, account: AccountId, id: EnvironmentId) -> Result<Option<Environment>, Fault> {
    let row: Option<EnvironmentRow> = environments::table
        .filter(environments::id.eq(key(id)))
        .filter(environments::account_id.eq(key(account)))
        .select(EnvironmentRow::as_select())
        .first(db)
        .optional()?;
    let Some(row) = row else { return Ok(None) };
    let secret_count = secrets::table
        .filter(secrets::environment_id.eq(key(id)))
        .count()
        .get_result(db)?;
    let agent_count = agents::table
        .filter(agents::environment_id.eq(key(id)))
        .count()
        .get_result(db)?;
    Ok(Some(row.into_domain(secret_count, agent_count)))
}

/// Whether the account has this environment.
pub(super) fn exists(db: &mut Db, account: AccountId, id: EnvironmentId) -> Result<bool, Fault> {
    let found: i64 = environments::table
        .filter(environments::id.eq(key(id)))
        .filter(environments::account_id.eq(key(account)))
        .count()
        .get_result(db)?;
    Ok(found > 0)
}

fn must_get(db: &mut Db, account: AccountId, id: EnvironmentId) -> Result<Environment, Fault> {
    get(db, account, id)?.ok_or(Fault::not_found("environment"))
}

/// Reads the environment and holds its row until the commit.
pub(super) fn hold(db: &mut Db, account: AccountId, id: EnvironmentId) -> Result<Environment, Fault> {
    let row: Option<EnvironmentRow> = locked!(
        db,
        first,
        environments::table
            .filter(environments::id.eq(key(id)))
            .filter(environments::account_id.eq(key(account)))
            .select(EnvironmentRow::as_select())
    )
    .optional()?;
    Ok(row.ok_or(Fault::not_found("environment"))?.into_domain(0, 0))
}

pub(super) fn create(
    db: &mut Db,
    id: EnvironmentId,
    config: &EnvironmentConfig,
    change: Change,
) -> Result<Environment, Fault> {
    let inserted = diesel::insert_into(environments::table)
        .values((
            environments::id.eq(key(id)),
            environments::account_id.eq(key(change.account)),
            environments::name.eq(&config.name),
            environments::packages.eq(json(&config.packages)),
            environments::env_vars.eq(json(&config.env_vars)),
            environments::setup_script.eq(&config.setup_script),
            environments::setup_timeout_seconds.eq(config.setup_timeout_seconds),
            environments::networking_type.eq(Word(config.networking_type)),
            environments::networking_config.eq(json(&config.networking_config)),
            environments::repositories.eq(json(&config.repositories)),
            environments::metadata.eq(json(&config.metadata)),
            environments::inserted_at.eq(at(change.now)),
            environments::updated_at.eq(at(change.now)),
        ))
        .execute(db);
    named(
        inserted,
        "environments_name",
        "environments.account_id, environments.name",
    )?;
    let environment = must_get(db, change.account, id)?;
    change.done(db, environment)
}

pub(super) fn update(
    db: &mut Db,
    id: EnvironmentId,
    config: &EnvironmentConfig,
    change: Change,
) -> Result<Environment, Fault> {
    let old = hold(db, change.account, id)?;
    if old.config == *config {
        return must_get(db, change.account, id);
    }
    let own = || environments::table.find(key(id));
    let updated = diesel::update(own())
        .set((
            environments::name.eq(&config.name),
            environments::packages.eq(json(&config.packages)),
            environments::env_vars.eq(json(&config.env_vars)),
            environments::setup_script.eq(&config.setup_script),
            environments::setup_timeout_seconds.eq(config.setup_timeout_seconds),
            environments::networking_type.eq(Word(config.networking_type)),
            environments::networking_config.eq(json(&config.networking_config)),
            environments::repositories.eq(json(&config.repositories)),
            environments::metadata.eq(json(&config.metadata)),
            environments::updated_at.eq(at(change.now)),
        ))
        .execute(db);
    named(
        updated,
        "environments_name",
        "environments.account_id, environments.name",
    )?;
    if !old.config.same_warm_start(config) {
        diesel::update(own())
            .set(environments::checkpoint.eq(None::<String>))
            .execute(db)?;
    }
    let environment = must_get(db, change.account, id)?;
    change.done(db, environment)
}

pub(super) fn delete(db: &mut Db, id: EnvironmentId, change: Change) -> Result<Committed<Fenced>, Fault> {
    lock_account(db, change.account)?;
    hold(db, change.account, id)?;
    let mut outbox = Outbox::default();
    let fenced = fence(
        db,
        &change,
        Homes::On(id),
        DestroyReason::EnvironmentDeleted,
        &mut outbox,
    )?;
    diesel::delete(environments::table.find(key(id))).execute(db)?;
    change.commit(db, outbox, fenced)
}
