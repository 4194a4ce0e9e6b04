//! Schedules of an agent's team conversation (http-api 4.8, 5.11; RUL-L-59).
//!
//! A changed expression and switching on or off begin the calendar anew; everything else leaves it.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, web};
use fountain_actors::domain::cron::Cron;
use fountain_actors::domain::schedule::{Schedule, ScheduleConfig};
use fountain_actors::domain::{AgentId, ErrorCode, Moment, ScheduleId};
use serde_json::{Value, json};

use super::auth::Signed;
use super::body::{Body, Given, text_of};
use super::error::ApiError;
use super::path;
use super::state::AppState;
use super::wire::{self, Reply, bare, seconds};

/// Longest name, in characters: a title's length.
const LONGEST_NAME: usize = 120;

/// A schedule on the wire: every key, always.
pub fn render(schedule: &Schedule) -> Value {
    let config = &schedule.config;
    json!({
        "id": schedule.id.to_string(),
        "agent_id": schedule.agent_id.to_string(),
        "name": config.name,
        "cron": config.cron,
        "prompt": config.prompt,
        "one_off": config.one_off,
        "enabled": config.enabled,
        "next_run_at": schedule.next_run_at.map(seconds),
        "last_run_at": schedule.last_run_at.map(seconds),
        "last_conversation_id": schedule.last_conversation_id.map(|id| id.to_string()),
        "last_error": schedule.last_error,
        "inserted_at": seconds(schedule.inserted_at),
        "updated_at": seconds(schedule.updated_at),
    })
}

/// The fields of a body over what stands; all faults at once.
fn read(mut body: Body, mut config: ScheduleConfig) -> Result<ScheduleConfig, ApiError> {
    match body.given("name", text_of) {
        Given::Absent => {}
        Given::Null => config.name = None,
        Given::Value(name) => {
            if name.chars().count() > LONGEST_NAME {
                body.fault("name", format!("must have at most {LONGEST_NAME} characters"));
            }
            config.name = Some(name).filter(|name| !name.trim().is_empty());
        }
    }
    if body.has("cron") {
        let cron = body.required_text("cron");
        if !body.has_fault("cron")
            && let Err(error) = Cron::parse(&cron)
        {
            body.fault("cron", error.to_string());
        }
        config.cron = cron;
    } else if config.cron.is_empty() || body.take("cron").is_some() {
        body.fault("cron", "is required");
    }
    if body.has("prompt") {
        config.prompt = body.required_text("prompt");
        if !body.has_fault("prompt") && config.prompt.trim().is_empty() {
            body.fault("prompt", "must not be blank");
        }
    } else if config.prompt.is_empty() || body.take("prompt").is_some() {
        body.fault("prompt", "is required");
    }
    config.one_off = body.flag("one_off").unwrap_or(config.one_off);
    config.enabled = body.flag("enabled").unwrap_or(config.enabled);
    body.finish()?;
    Ok(config)
}

/// When it fires next; None while it is off.
fn next_run(config: &ScheduleConfig, now: Moment) -> Option<Moment> {
    let cron = Cron::parse(&config.cron).ok().filter(|_| config.enabled)?;
    cron.next_after(now)
}

/// The agent of the path, if it is the caller's.
async fn agent(state: &AppState, caller: &Signed, req: &HttpRequest) -> Result<AgentId, ApiError> {
    let id: AgentId = path::segment(req, "agent_id")?;
    let found = state.store.agent(caller.account_id(), id).await?;
    found.map(|_| id).ok_or_else(|| ErrorCode::NotFound.into())
}

/// The schedule of the path, if it is this agent's and the caller's.
async fn find(state: &AppState, caller: &Signed, req: &HttpRequest) -> Result<Schedule, ApiError> {
    let agent: AgentId = path::segment(req, "agent_id")?;
    let id: ScheduleId = path::segment(req, "id")?;
    let found = state.store.schedule(caller.account_id(), id).await?;
    found
        .filter(|schedule| schedule.agent_id == agent)
        .ok_or_else(|| ErrorCode::NotFound.into())
}

pub async fn all(state: Data<AppState>, caller: Signed) -> Reply {
    let schedules = state.store.schedules(caller.account_id(), None).await?;
    wire::list(&schedules, render)
}

pub async fn list(state: Data<AppState>, caller: Signed, req: HttpRequest) -> Reply {
    let agent = agent(&state, &caller, &req).await?;
    let schedules = state.store.schedules(caller.account_id(), Some(agent)).await?;
    wire::list(&schedules, render)
}

pub async fn create(state: Data<AppState>, caller: Signed, req: HttpRequest, payload: web::Payload) -> Reply {
    let agent = agent(&state, &caller, &req).await?;
    let empty = ScheduleConfig {
        name: None,
        cron: String::new(),
        prompt: String::new(),
        one_off: false,
        enabled: true,
    };
    let config = read(Body::read(&req, payload).await?, empty)?;
    let (id, now): (ScheduleId, _) = (state.id(), state.now());
    let next = next_run(&config, now);
    let audit = state.audit(&caller, "schedule.created", "schedule", id);
    let created = state
        .store
        .create_schedule(caller.account_id(), id, agent, config, next, audit, now)
        .await?;
    wire::created(render(&created.announce(&*state.bus)))
}

pub async fn show(state: Data<AppState>, caller: Signed, req: HttpRequest) -> Reply {
    wire::ok(render(&find(&state, &caller, &req).await?))
}

pub async fn update(state: Data<AppState>, caller: Signed, req: HttpRequest, payload: web::Payload) -> Reply {
    let current = find(&state, &caller, &req).await?;
    let config = read(Body::read(&req, payload).await?, current.config.clone())?;
    let now = state.now();
    let begins_anew = config.cron != current.config.cron || config.enabled != current.config.enabled;
    let reset = begins_anew.then(|| next_run(&config, now));
    let audit = state.audit(&caller, "schedule.updated", "schedule", current.id);
    let updated = state
        .store
        .update_schedule(caller.account_id(), current.id, config, reset, audit, now)
        .await?;
    wire::ok(render(&updated.announce(&*state.bus)))
}

pub async fn delete(state: Data<AppState>, caller: Signed, req: HttpRequest) -> Reply {
    let schedule = find(&state, &caller, &req).await?;
    let audit = state.audit(&caller, "schedule.deleted", "schedule", schedule.id);
    let deleted = state
        .store
        .delete_schedule(caller.account_id(), schedule.id, audit, state.now())
        .await?;
    deleted.announce(&*state.bus);
    wire::nothing()
}

/// Answered once the turn is durable, as a message would be.
pub async fn run(state: Data<AppState>, caller: Signed, req: HttpRequest) -> Reply {
    let schedule = find(&state, &caller, &req).await?;
    let conversation = state.doors.run_schedule(caller.caller, schedule).await?;
    bare(
        StatusCode::ACCEPTED,
        json!({"status": "queued", "conversation_id": conversation.to_string()}),
    )
}
