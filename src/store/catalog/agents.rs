//! Agents and their versions (lifecycle 1.3, http-api 4.1, 5.4).
//!
//! Name, runtime and environment are columns; the rest of the configuration is one JSON document, whose absent keys
//! mean their defaults, so that an older row reads after a key was added. A version is a full snapshot, written on
//! creation and on every update that changes something.

mod config;

use std::collections::HashMap;

use chrono::NaiveDateTime;
use diesel::dsl::count_star;
use diesel::prelude::*;

use fountain_actors::domain::agent::{Agent, AgentConfig, AgentFilter, Runtime};
use fountain_actors::domain::machine::DestroyReason;
use fountain_actors::domain::*;
use fountain_actors::ports::store::Committed;
use fountain_actors::ports::store::catalog::Fenced;

use super::homes::{Homes, fence};
use super::{Change, environments, named};
use crate::locked;
use crate::store::backend::{Db, Fault, lock_account};
use crate::store::columns::{Id, Json, Word, at, inner, json, key, maybe_key, moment};
use crate::store::events::Outbox;
use crate::store::schema::{agent_versions, agents, conversations};
use config::{StoredConfig, snapshot};

#[derive(Queryable, Selectable)]
#[diesel(table_name = agents)]
struct AgentRow {
    id: Id<AgentId>,
    account_id: Id<AccountId>,
    name: String,
    runtime: Word<Runtime>,
    environment_id: Option<Id<EnvironmentId>>,
    version_id: Id<AgentVersionId>,
    version: i64,
    config: Json<StoredConfig>,
    inserted_at: NaiveDateTime,
    updated_at: NaiveDateTime,
}

impl AgentRow {
    fn into_domain(self, conversation_count: i64) -> Agent {
        Agent {
            id: self.id.0,
            account_id: self.account_id.0,
            config: self
                .config
                .0
                .into_domain(self.name, self.runtime.0, inner(self.environment_id)),
            version_id: self.version_id.0,
            version: self.version,
            conversation_count,
            inserted_at: moment(self.inserted_at),
            updated_at: moment(self.updated_at),
        }
    }
}

pub(super) fn list(db: &mut Db, account: AccountId, filter: &AgentFilter) -> Result<Vec<Agent>, Fault> {
    let rows: Vec<AgentRow> = agents::table
        .filter(agents::account_id.eq(key(account)))
        .select(AgentRow::as_select())
        .load(db)?;
    let counts: HashMap<Option<String>, i64> = conversations::table
        .filter(conversations::account_id.eq(key(account)))
        .group_by(conversations::agent_id)
        .select((conversations::agent_id, count_star()))
        .load::<(Option<String>, i64)>(db)?
        .into_iter()
        .collect();
    let count = |row: &AgentRow| counts.get(&Some(key(row.id.0))).copied().unwrap_or(0);
    let mut found: Vec<Agent> = rows
        .into_iter()
        .map(|row| {
            let conversation_count = count(&row);
            row.into_domain(conversation_count)
        })
        .filter(|agent| passes(agent, filter))
        .collect();
    // Here and not in the query: the databases collate differently, and would fold case differently too.
    found.sort_by(|a, b| (&a.config.name, a.id).cmp(&(&b.config.name, b.id)));
    Ok(found)
}

fn passes(agent: &Agent, filter: &AgentFilter) -> bool {
    let config = &agent.config;
    let named = |search: &String| config.name.to_lowercase().contains(&search.to_lowercase());
    filter.search.as_ref().is_none_or(named)
        && (filter.runtimes.is_empty() || filter.runtimes.contains(&config.runtime))
        && (filter.environment_ids.is_empty()
            || config
                .environment_id
                .is_some_and(|id| filter.environment_ids.contains(&id)))
        && filter
            .has_skills
            .is_none_or(|wanted| wanted != config.skills.is_empty())
        && filter
            .has_mcp
            .is_none_or(|wanted| wanted != config.mcp_servers.is_empty())
}

pub(super) fn get(db: &mut Db, account: AccountId, id: AgentId) -> Result<Option<Agent>, Fault> {
    let row: Option<AgentRow> = agents::table
        .filter(agents::id.eq(key(id)))
        .filter(agents::account_id.eq(key(account)))
        .select(AgentRow::as_select())
        .first(db)
        .optional()?;
    let Some(row) = row else { return Ok(None) };
    let count = conversations::table
        .filter(conversations::account_id.eq(key(account)))
        .filter(conversations::agent_id.eq(key(id)))
        .count()
        .get_result(db)?;
    Ok(Some(row.into_domain(count)))
}

/// Reads the agent and holds its row until the commit.
fn hold(db: &mut Db, account: AccountId, id: AgentId) -> Result<Agent, Fault> {
    let row: Option<AgentRow> = locked!(
        db,
        first,
        agents::table
            .filter(agents::id.eq(key(id)))
            .filter(agents::account_id.eq(key(account)))
            .select(AgentRow::as_select())
    )
    .optional()?;
    Ok(row.ok_or(Fault::not_found("agent"))?.into_domain(0))
}

fn must_get(db: &mut Db, account: AccountId, id: AgentId) -> Result<Agent, Fault> {
    get(db, account, id)?.ok_or(Fault::not_found("agent"))
}

/// An agent may only name an environment of its own account.
fn check_environment(db: &mut Db, account: AccountId, config: &AgentConfig) -> Result<(), Fault> {
    match config.environment_id {
        Some(id) if !environments::exists(db, account, id)? => {
            Err(Refusal::field("environment_id", "is not an environment of this account").into())
        }
        _ => Ok(()),
    }
}

fn write_version(
    db: &mut Db,
    change: &Change,
    agent: AgentId,
    id: AgentVersionId,
    number: i64,
    config: &AgentConfig,
) -> Result<(), Fault> {
    diesel::insert_into(agent_versions::table)
        .values((
            agent_versions::id.eq(key(id)),
            agent_versions::account_id.eq(key(change.account)),
            agent_versions::agent_id.eq(key(agent)),
            agent_versions::version.eq(number),
            agent_versions::config.eq(json(&snapshot(config))),
            agent_versions::inserted_at.eq(at(change.now)),
        ))
        .execute(db)?;
    Ok(())
}

pub(super) fn create(
    db: &mut Db,
    id: AgentId,
    version: AgentVersionId,
    config: &AgentConfig,
    change: Change,
) -> Result<Agent, Fault> {
    check_environment(db, change.account, config)?;
    let inserted = diesel::insert_into(agents::table)
        .values((
            agents::id.eq(key(id)),
            agents::account_id.eq(key(change.account)),
            agents::name.eq(&config.name),
            agents::runtime.eq(Word(config.runtime)),
            agents::environment_id.eq(maybe_key(config.environment_id)),
            agents::version_id.eq(key(version)),
            agents::version.eq(1),
            agents::config.eq(json(&StoredConfig::of(config))),
            agents::inserted_at.eq(at(change.now)),
            agents::updated_at.eq(at(change.now)),
        ))
        .execute(db);
    named(inserted, "agents_name", "agents.account_id, agents.name")?;
    write_version(db, &change, id, version, 1, config)?;
    let agent = must_get(db, change.account, id)?;
    change.done(db, agent)
}

pub(super) fn update(
    db: &mut Db,
    id: AgentId,
    version: AgentVersionId,
    config: &AgentConfig,
    change: Change,
) -> Result<Committed<(Agent, Fenced)>, Fault> {
    // Before the row and its machines: no launch reserves a home while the identity moves.
    lock_account(db, change.account)?;
    let old = hold(db, change.account, id)?;
    if old.config == *config {
        let agent = must_get(db, change.account, id)?;
        return Ok(Committed {
            value: (agent, Fenced::default()),
            cursors: Vec::new(),
        });
    }
    check_environment(db, change.account, config)?;
    let mut outbox = Outbox::default();
    let mut fenced = Fenced::default();
    if old.config.environment_id != config.environment_id {
        let homes = Homes::OfAgentOn(id, old.config.environment_id);
        fenced = fence(db, &change, homes, DestroyReason::EnvironmentChanged, &mut outbox)?;
    }
    let updated = diesel::update(agents::table.find(key(id)))
        .set((
            agents::name.eq(&config.name),
            agents::runtime.eq(Word(config.runtime)),
            agents::environment_id.eq(maybe_key(config.environment_id)),
            agents::version_id.eq(key(version)),
            agents::version.eq(old.version + 1),
            agents::config.eq(json(&StoredConfig::of(config))),
            agents::updated_at.eq(at(change.now)),
        ))
        .execute(db);
    named(updated, "agents_name", "agents.account_id, agents.name")?;
    write_version(db, &change, id, version, old.version + 1, config)?;
    let agent = must_get(db, change.account, id)?;
    change.commit(db, outbox, (agent, fenced))
}

pub(super) fn delete(db: &mut Db, id: AgentId, change: Change) -> Result<Committed<Fenced>, Fault> {
    lock_account(db, change.account)?;
    hold(db, change.account, id)?;
    let mut outbox = Outbox::default();
    let fenced = fence(
        db,
        &change,
        Homes::OfAgent(id),
        DestroyReason::AgentDeleted,
        &mut outbox,
    )?;
    diesel::delete(agents::table.find(key(id))).execute(db)?;
    change.commit(db, outbox, fenced)
}
