//! All tenants' machines, and an operator's three acts on them (http-api 5.14; RUL-L-28, RUL-L-47).

use actix_web::HttpRequest;
use actix_web::web::Data;
use fountain_actors::domain::MachineId;
use fountain_actors::domain::machine::Provider;
use fountain_actors::ports::store::explain::Overview;
use serde_json::{Value, json};

use crate::api::auth::Signed;
use crate::api::path::{PathId, segment};
use crate::api::state::AppState;
use crate::api::wire::{self, Reply, seconds};

fn render(row: &Overview) -> Value {
    let machine = &row.machine;
    json!({
        "id": machine.id.to_string(),
        "sprite_name": machine.name,
        "provider": machine.provider.as_str(),
        "status": machine.status.as_str(),
        "transition": machine.transition.map(|stamp| stamp.as_str()),
        "abandoned": row.abandoned,
        "cleanup_pending": machine.cleanup_pending,
        "user_id": machine.account_id.map(|id| id.to_string()),
        "user_email": row.email,
        "conversation_count": row.conversations,
        "inserted_at": seconds(machine.inserted_at),
        "updated_at": seconds(machine.updated_at),
    })
}

/// Live rows of all tenants, and ended ones that still owe a delete.
pub async fn list(state: Data<AppState>, _: Signed) -> Reply {
    let rows = state.store.live_machines(state.now()).await?;
    wire::list(&rows, render)
}

pub async fn reap(state: Data<AppState>, caller: Signed, machine: PathId<MachineId>) -> Reply {
    let reaped = state.doors.reap(caller.caller, machine.0).await?;
    wire::ok(json!({"sandbox_id": machine.0.to_string(), "outcome": reaped.word()}))
}

pub async fn retry_reset(state: Data<AppState>, caller: Signed, machine: PathId<MachineId>) -> Reply {
    state.doors.retry_reset(caller.caller, machine.0).await?;
    wire::ok(json!({"sandbox_id": machine.0.to_string(), "outcome": "terminated"}))
}

/// The operator has looked at the provider: its not-founds are believed again (RUL-L-28).
pub async fn confirm_lost(state: Data<AppState>, caller: Signed, req: HttpRequest) -> Reply {
    let provider: Provider = segment(&req, "provider")?;
    let were_held_back = state.doors.confirm_lost(caller.caller, provider).await?;
    wire::ok(json!({"provider": provider.as_str(), "were_held_back": were_held_back}))
}
