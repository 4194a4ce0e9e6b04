//! The ledger and the logs, across accounts (http-api 5.14; RUL-L-53, RUL-L-73).

use actix_web::web::Data;
use fountain_actors::domain::explain::ledger::{Balance, Entry, Exception, Untracked};
use fountain_actors::ports::store::explain::AuditEntry;
use serde_json::{Value, json};

use crate::api::auth::Signed;
use crate::api::operations::limit;
use crate::api::query::Query;
use crate::api::state::AppState;
use crate::api::wire::{self, Reply, micros, seconds};

/// Reservations against machines, provider by provider; every exception is listed.
pub async fn show(state: Data<AppState>, _: Signed) -> Reply {
    let ledger = state.doors.ledger().await?;
    let books = &ledger.books;
    let only = |wanted: fn(&&Entry) -> bool| books.entries.iter().filter(wanted).map(entry).collect::<Vec<_>>();
    let unexplained = ledger.balances.iter().flat_map(|balance| &balance.unreserved);
    wire::ok(json!({
        "providers": ledger.balances.iter().map(balance).collect::<Vec<_>>(),
        "unexplained": unexplained.filter(|(_, why)| *why == Exception::Unexplained).count(),
        "open_debts": only(|entry| !entry.debts.is_empty()),
        "handed_over": only(|entry| entry.handed_over),
        "untracked": books.untracked.iter().map(untracked).collect::<Vec<_>>(),
    }))
}

fn balance(balance: &Balance) -> Value {
    let unreserved = balance.unreserved.iter();
    let unreserved: Vec<Value> = unreserved
        .map(|(name, why)| json!({"sprite_name": name, "reason": why.word()}))
        .collect();
    json!({
        "provider": balance.provider.as_str(),
        "reserved": balance.reserved,
        "listed": balance.listed.as_ref().ok(),
        "unreadable": balance.listed.as_ref().err(),
        "parked": balance.parked,
        "reserved_only": balance.reserved_only.iter().map(entry).collect::<Vec<_>>(),
        "unreserved": unreserved,
    })
}

fn entry(entry: &Entry) -> Value {
    json!({
        "sandbox_id": entry.machine.to_string(),
        "user_id": entry.account.map(|id| id.to_string()),
        "provider": entry.provider.as_str(),
        "sprite_name": entry.name,
        "status": entry.status.as_str(),
        "counted": entry.counted,
        "debts": entry.debts,
        "handed_over": entry.handed_over,
    })
}

fn untracked(machine: &Untracked) -> Value {
    json!({
        "provider": machine.provider.as_str(),
        "sprite_name": machine.name,
        "first_seen": seconds(machine.first_seen),
        "last_seen": seconds(machine.last_seen),
    })
}

/// The audit log of all accounts, newest first.
pub async fn audit(state: Data<AppState>, _: Signed, query: Query) -> Reply {
    let rows = state.store.audit_log(None, limit(&query)).await?;
    wire::list(&rows, |row| {
        json!({
            "id": row.id,
            "user_id": row.account.map(|id| id.to_string()),
            "action": row.action,
            "resource_type": row.resource_type,
            "resource_id": row.resource_id,
            "actor": row.actor,
            "request_ip": row.request_ip,
            "metadata": row.metadata,
            "inserted_at": micros(row.at),
        })
    })
}

/// What administrators did, newest first.
pub async fn events(state: Data<AppState>, _: Signed, query: Query) -> Reply {
    let rows = state.store.audit_log(Some("admin."), limit(&query)).await?;
    wire::list(&rows, |row| {
        json!({
            "id": row.id,
            "event_type": row.action,
            "actor_user_id": row.actor.strip_prefix("admin:"),
            "target_user_id": target(row),
            "metadata": row.metadata,
            "inserted_at": micros(row.at),
        })
    })
}

/// The account that it befell; none where the row stands in the administrator's own log.
fn target(row: &AuditEntry) -> Value {
    let account = row.account.map(|id| id.to_string());
    let own = account.as_deref() == row.actor.strip_prefix("admin:") && row.resource_type == "provider";
    account.filter(|_| !own).map_or(Value::Null, Value::String)
}
