//! A machine explains itself: the journal with its receipts, and why it is in its state and what happens next
//! (lifecycle 10.4; RUL-L-60). Routes of ours, full scope.
//!
//! The journal holds classes and statuses, never what a provider said; of the evidence only plain words and numbers are
//! shown. Nothing here is decided: the sentences are made in the domain.

use actix_web::web::Data;
use fountain_actors::domain::explain::{self, Debt, DeletionReceipt, Step, Tenant, Testimony, Wait};
use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::operation::{Operation, Verb};
use fountain_actors::domain::{AccountId, ConversationId, ErrorCode, MachineId, Moment, OperationId};
use serde_json::{Map, Value, json};

use super::auth::Signed;
use super::error::ApiError;
use super::path::PathId;
use super::query::Query;
use super::state::AppState;
use super::wire::{self, Reply, seconds};

/// Operations of a page when nothing is asked, and at most.
const USUAL: i64 = 50;
const MOST: i64 = 500;
/// What `why` shows of the journal.
const TIMELINE: i64 = 20;
/// Evidence is words of ours; anything longer is not shown.
const LONGEST_WORD: usize = 80;

pub(super) fn limit(query: &Query) -> i64 {
    let asked = query.get("limit").and_then(|text| text.parse::<i64>().ok());
    asked.map_or(USUAL, |limit| limit.clamp(1, MOST))
}

async fn testimony(
    state: &AppState,
    account: AccountId,
    machine: MachineId,
    limit: i64,
) -> Result<Testimony, ApiError> {
    let told = state.store.testimony(account, machine, limit, state.now()).await?;
    Ok(told.ok_or(ErrorCode::NotFound)?)
}

/// `GET /api/sandboxes/{id}/operations`: newest first.
pub async fn list(state: Data<AppState>, caller: Signed, machine: PathId<MachineId>, query: Query) -> Reply {
    let told = testimony(&state, caller.account_id(), machine.0, limit(&query)).await?;
    wire::ok(operations(&told.operations, &told.machine))
}

/// `GET /api/sandboxes/{id}/why`.
pub async fn why_machine(state: Data<AppState>, caller: Signed, machine: PathId<MachineId>) -> Reply {
    let told = testimony(&state, caller.account_id(), machine.0, TIMELINE).await?;
    wire::ok(Value::Object(explained(&state, &told)))
}

/// `GET /api/conversations/{id}/why`: its machine, and what of it is the conversation's.
pub async fn why_conversation(state: Data<AppState>, caller: Signed, conversation: PathId<ConversationId>) -> Reply {
    let account = caller.account_id();
    let view = state.store.conversation_view(account, conversation.0).await?;
    let view = view.ok_or(ErrorCode::NotFound)?;
    let told = testimony(&state, account, view.machine.id, TIMELINE).await?;
    let mut shown = explained(&state, &told);
    let mut tenants = told.tenants.iter();
    let own = tenants.find(|tenant| tenant.conversation == conversation.0);
    let row = json!({
        "id": conversation.0.to_string(),
        "status": view.conversation.status.as_str(),
        "turn": own.map_or(Value::Null, open_turn),
    });
    shown.insert("conversation".into(), row);
    wire::ok(Value::Object(shown))
}

fn moment(at: Option<Moment>) -> Value {
    at.map_or(Value::Null, |at| seconds(at).into())
}

fn explained(state: &AppState, told: &Testimony) -> Map<String, Value> {
    let why = explain::why(told, &state.settings);
    let lease = why.holder.as_ref().map(|(lease, operation)| {
        json!({
            "holder": lease.holder,
            "until": seconds(lease.until),
            "verb": operation.as_ref().map(|operation| operation.verb.as_str()),
            "operation_id": operation.as_ref().map(|operation| operation.id.to_string()),
        })
    });
    let shown = json!({
        "sandbox_id": told.machine.id.to_string(),
        "sprite_name": told.machine.name,
        "provider": told.machine.provider.as_str(),
        "status": told.machine.status.as_str(),
        "state": explain::state_word(why.state),
        "because": why.because,
        "as_of": seconds(told.clock),
        "counted": why.counted,
        "lease": lease,
        "waits_for": why.waits_for.iter().map(wait).collect::<Vec<_>>(),
        "next": why.next.iter().map(step).collect::<Vec<_>>(),
        "debts": why.debts.iter().map(debt).collect::<Vec<_>>(),
        "conversations": told.tenants.iter().map(tenant).collect::<Vec<_>>(),
        "operations": operations(&told.operations, &told.machine),
    });
    match shown {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn wait(wait: &Wait) -> Value {
    json!({"what": wait.what, "until": moment(wait.until)})
}

fn step(step: &Step) -> Value {
    json!({"what": step.what, "by": step.by, "at": moment(step.at)})
}

fn debt(debt: &Debt) -> Value {
    json!({
        "operation_id": debt.operation.id.to_string(),
        "verb": debt.operation.verb.as_str(),
        "epoch": debt.operation.epoch.0,
        "sprite_name": debt.operation.machine_name,
        "stage": debt.stage.word(),
        "settles_at": moment(debt.settles_at),
        "closes_at": moment(debt.closes_at),
    })
}

fn tenant(tenant: &Tenant) -> Value {
    json!({
        "id": tenant.conversation.to_string(),
        "status": tenant.status.as_str(),
        "turn": open_turn(tenant),
    })
}

fn open_turn(tenant: &Tenant) -> Value {
    tenant.turn.as_ref().map_or(Value::Null, |turn| {
        json!({
            "id": turn.id.to_string(),
            "status": turn.status.as_str(),
            "pending_until": moment(turn.pending_until),
        })
    })
}

fn operations(rows: &[Operation], machine: &Machine) -> Value {
    let deletes = |row: &&Operation| matches!(row.verb, Verb::Destroy | Verb::Reset);
    let newest = rows.iter().find(deletes).map(|row| row.id);
    rows.iter().map(|row| operation(row, machine, newest)).collect()
}

fn operation(row: &Operation, machine: &Machine, newest: Option<OperationId>) -> Value {
    json!({
        "id": row.id.to_string(),
        "verb": row.verb.as_str(),
        "reason": row.reason,
        "actor": row.actor,
        "epoch": row.epoch.0,
        "sprite_name": row.machine_name,
        "started_at": seconds(row.started_at),
        "finished_at": moment(row.finished_at),
        "outcome": row.outcome.map(|outcome| outcome.as_str()),
        "provider_call": row.provider_call,
        "provider_answer": row.provider_answer,
        "evidence": row.evidence.as_ref().map(evidence),
        "receipt": explain::receipt(row, machine, newest).map(receipt),
    })
}

/// Plain words and numbers; whatever else somebody stored is left out.
fn evidence(stored: &Value) -> Value {
    let plain = |value: &Value| match value {
        Value::Bool(_) | Value::Number(_) | Value::Null => true,
        Value::String(text) => text.len() <= LONGEST_WORD,
        Value::Array(_) | Value::Object(_) => false,
    };
    let fields = stored.as_object().into_iter().flatten();
    let kept = fields.filter(|(_, value)| plain(value));
    Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
}

fn receipt(receipt: DeletionReceipt) -> Value {
    match receipt {
        DeletionReceipt::Open => json!({"verdict": "open"}),
        DeletionReceipt::Confirmed { by, at } => json!({"verdict": "confirmed", "by": by, "at": moment(at)}),
        DeletionReceipt::Unconfirmed { why, next_try } => {
            json!({"verdict": "unconfirmed", "why": why, "next_try": moment(next_try)})
        }
        DeletionReceipt::HandedOver { at } => json!({"verdict": "handed_over", "at": moment(at)}),
    }
}
