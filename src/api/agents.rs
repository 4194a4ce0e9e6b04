//! Agents: list, create, show, update, delete (http-api 4.1, 5.4).
//!
//! `PUT` and `PATCH` are the same partial merge. Moving an agent to another environment, and deleting it, fence its
//! persistent machines in the store's transaction; they are destroyed behind the answer.

pub mod fields;

use actix_web::web::Data;
use fountain_actors::domain::agent::{Agent, AgentFilter};
use fountain_actors::domain::{AgentId, ErrorCode};
use serde_json::{Value, json};

use super::auth::Signed;
use super::body::Body;
use super::error::ApiError;
use super::path::PathId;
use super::query::Query;
use super::state::AppState;
use super::wire::{self, Reply, seconds};

fn ids<T: ToString>(ids: Option<&Vec<T>>) -> Value {
    ids.map_or(Value::Null, |ids| ids.iter().map(ToString::to_string).collect())
}

/// An agent on the wire: every key, always (http-api 4.1).
pub fn render(agent: &Agent) -> Value {
    let config = &agent.config;
    json!({
        "id": agent.id.to_string(),
        "name": config.name,
        "description": config.description,
        "system": config.system,
        "model": config.model,
        "runtime": config.runtime.as_str(),
        "runtime_command": config.runtime_command,
        // Every runtime of today speaks the protocol.
        "acp": true,
        "sandbox_provider": config.sandbox_provider.map(|provider| provider.as_str()),
        "sandbox_mode": config.sandbox_mode.as_str(),
        "environment_id": config.environment_id.map(|id| id.to_string()),
        "skills": config.skills,
        "mcp_servers": config.mcp_servers,
        "metadata": config.metadata,
        "allowed_vault_ids": ids(config.allowed_vault_ids.as_ref()),
        "allowed_environment_ids": ids(config.allowed_environment_ids.as_ref()),
        "allowed_inference_credential_ids": ids(config.allowed_inference_credential_ids.as_ref()),
        "inference_credential_id": config.inference_credential_id.map(|id| id.to_string()),
        "permission_policy": config.permission_policy,
        "session_config": {},
        "conversation_count": agent.conversation_count,
        "avatar_media_type": null,
        "inserted_at": seconds(agent.inserted_at),
        "updated_at": seconds(agent.updated_at),
    })
}

/// The filters narrow; a word that names nothing matches nothing, so it is dropped only when others stay.
fn filter(query: &Query) -> Option<AgentFilter> {
    let words = |key: &str| -> Vec<String> {
        let words = query.get(key).unwrap_or_default().split(',').map(str::trim);
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let (runtimes, environments) = (words("runtime"), words("environment_id"));
    let filter = AgentFilter {
        search: query
            .get("search")
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .map(str::to_owned),
        runtimes: runtimes.iter().filter_map(|word| word.parse().ok()).collect(),
        environment_ids: environments.iter().filter_map(|word| word.parse().ok()).collect(),
        has_skills: query.flag("has_skills"),
        has_mcp: query.flag("has_mcp"),
    };
    let nothing = (!runtimes.is_empty() && filter.runtimes.is_empty())
        || (!environments.is_empty() && filter.environment_ids.is_empty());
    (!nothing).then_some(filter)
}

pub async fn list(state: Data<AppState>, caller: Signed, query: Query) -> Reply {
    let agents = match filter(&query) {
        Some(filter) => state.store.agents(caller.account_id(), filter).await?,
        None => Vec::new(),
    };
    wire::list(&agents, render)
}

async fn find(state: &AppState, caller: &Signed, id: AgentId) -> Result<Agent, ApiError> {
    let agent = state.store.agent(caller.account_id(), id).await?;
    agent.ok_or_else(|| ErrorCode::NotFound.into())
}

pub async fn show(state: Data<AppState>, caller: Signed, id: PathId<AgentId>) -> Reply {
    wire::ok(render(&find(&state, &caller, id.0).await?))
}

pub async fn create(state: Data<AppState>, caller: Signed, body: Body) -> Reply {
    let config = fields::create(body, &state.catalog)?;
    let id: AgentId = state.id();
    let audit = state.audit(&caller, "agent.created", "agent", id);
    let agent = state
        .store
        .create_agent(caller.account_id(), id, state.id(), config, audit, state.now())
        .await?;
    wire::created(render(&agent))
}

pub async fn update(state: Data<AppState>, caller: Signed, id: PathId<AgentId>, body: Body) -> Reply {
    let current = find(&state, &caller, id.0).await?;
    let config = fields::update(body, current.config, &state.catalog)?;
    let audit = state.audit(&caller, "agent.updated", "agent", id.0);
    let updated = state
        .store
        .update_agent(caller.account_id(), id.0, state.id(), config, audit, state.now())
        .await?;
    let (agent, fenced) = updated.announce(&*state.bus);
    state.doors.destroy_fenced(fenced);
    wire::ok(render(&agent))
}

pub async fn delete(state: Data<AppState>, caller: Signed, id: PathId<AgentId>) -> Reply {
    let audit = state.audit(&caller, "agent.deleted", "agent", id.0);
    let deleted = state
        .store
        .delete_agent(caller.account_id(), id.0, audit, state.now())
        .await?;
    state.doors.destroy_fenced(deleted.announce(&*state.bus));
    wire::nothing()
}
