//! Sandboxes: list, show, reset (http-api 4.6, 5.8). There is no create, exec or attach here.

use actix_web::web::Data;
use fountain_actors::domain::machine::{Machine, MachineStatus};
use fountain_actors::domain::runner::Runner;
use fountain_actors::domain::{ErrorCode, MachineId};
use fountain_actors::ports::RunnerPresence;
use fountain_actors::ports::store::machines::{MachineTenant, MachineView};
use serde_json::{Map, Value, json};

use super::auth::Signed;
use super::path::PathId;
use super::query::Query;
use super::state::AppState;
use super::wire::{self, Reply, seconds};

fn id(id: Option<impl ToString>) -> Value {
    id.map_or(Value::Null, |id| id.to_string().into())
}

/// The short form: the `sandbox` of a conversation.
pub fn render(machine: &Machine, runner: Option<&Runner>, presence: &dyn RunnerPresence) -> Map<String, Value> {
    let meta = &machine.provider_meta;
    let rendered = json!({
        "id": machine.id.to_string(),
        "sprite_name": machine.name,
        "status": machine.status.as_str(),
        "provider": machine.provider.as_str(),
        "mode": machine.mode.as_str(),
        "agent_id": id(machine.agent_id),
        "environment_id": id(machine.environment_id),
        "vault_id": id(machine.vault_id),
        "url": meta.get("public_url").and_then(Value::as_str),
        "checkpoint": checkpoint(meta),
        "runner": runner.map(|runner| on_runner(machine, runner, presence)),
    });
    match rendered {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn checkpoint(meta: &Value) -> Value {
    match meta.get("checkpoint_id").and_then(Value::as_str) {
        Some(id) => json!({"id": id, "at": meta.get("checkpoint_at")}),
        None => Value::Null,
    }
}

fn on_runner(machine: &Machine, runner: &Runner, presence: &dyn RunnerPresence) -> Value {
    // The root that the machine was built under, which may not be the one of today (RUL-49).
    let root = machine
        .provider_meta
        .get("root")
        .and_then(Value::as_str)
        .or(runner.details.root.as_deref());
    json!({
        "id": runner.id.to_string(),
        "name": runner.name,
        "hostname": runner.details.hostname,
        "online": presence.is_online(runner.id),
        "path": root.map(|root| format!("{}/{}", root.trim_end_matches('/'), machine.name)),
    })
}

fn tenant(tenant: &MachineTenant) -> Value {
    json!({
        "id": tenant.id.to_string(),
        "status": tenant.status.as_str(),
        "runtime": tenant.runtime.as_str(),
        "title": tenant.title,
        "mid_turn": tenant.mid_turn,
        "inserted_at": seconds(tenant.inserted_at),
    })
}

fn detail(view: &MachineView, presence: &dyn RunnerPresence) -> Value {
    let mut rendered = render(&view.machine, view.runner.as_ref(), presence);
    rendered.insert("conversations".into(), view.conversations.iter().map(tenant).collect());
    rendered.insert("inserted_at".into(), seconds(view.machine.inserted_at).into());
    rendered.insert(
        "last_resumed_at".into(),
        json!(view.machine.last_resumed_at.map(seconds)),
    );
    Value::Object(rendered)
}

pub async fn list(state: Data<AppState>, caller: Signed, query: Query) -> Reply {
    let statuses: Vec<MachineStatus> = query.words("status", ErrorCode::InvalidStatus)?;
    let views = state.store.machine_views(caller.account_id(), statuses).await?;
    wire::list(&views, |view| detail(view, &*state.runners))
}

pub async fn show(state: Data<AppState>, caller: Signed, machine: PathId<MachineId>) -> Reply {
    let view = state.store.machine_view(caller.account_id(), machine.0).await?;
    let view = view.ok_or(ErrorCode::NotFound)?;
    wire::ok(detail(&view, &*state.runners))
}

/// Reset of a persistent home: 204 once the provider has confirmed it (RUL-L-26).
pub async fn reset(state: Data<AppState>, caller: Signed, machine: PathId<MachineId>) -> Reply {
    state.doors.reset(caller.caller, machine.0).await?;
    wire::nothing()
}
