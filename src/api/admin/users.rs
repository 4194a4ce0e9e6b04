//! Accounts: list, show, role, sandbox limit, comp, credit, suspension (http-api 5.14; lifecycle 8).

use actix_web::http::StatusCode;
use actix_web::web::Data;
use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::credit::{CreditSettings, Grant, UserChange, UserFilter, UserRow, UserSort};
use fountain_actors::domain::{AccountId, ErrorCode, Refusal};
use fountain_actors::ports::store::catalog::Fenced;
use fountain_actors::ports::store::credits::Opening;
use serde_json::{Value, json};

use crate::api::auth::Signed;
use crate::api::body::Body;
use crate::api::error::ApiError;
use crate::api::path::PathId;
use crate::api::query::Query;
use crate::api::state::AppState;
use crate::api::wire::{self, Reply, bare, seconds};

const PER_PAGE: i64 = 25;
const MOST_PER_PAGE: i64 = 100;
/// Longest note of a grant, in characters.
const LONGEST_NOTE: usize = 500;

fn render(state: &AppState, row: &UserRow) -> Value {
    let (account, settings) = (&row.account, &state.settings);
    let terms = settings.credits.as_ref().map(|credits| credits.terms);
    json!({
        "id": account.id.to_string(),
        "email": account.email,
        "role": if account.is_admin { "admin" } else { "user" },
        "email_verified": account.email_verified_at.is_some(),
        "email_verified_at": account.email_verified_at.map(seconds),
        "suspended": account.suspended_at.is_some(),
        "suspended_at": account.suspended_at.map(seconds),
        "comped": account.comped,
        "has_stripe_customer": false,
        "max_concurrent_sandboxes": row.standing.cap(terms, settings.cap_ceiling),
        "sandbox_limit_override": account.sandbox_limit_override,
        "credit_balance_cents": row.standing.balance_cents(),
        "active_sandboxes": row.active_machines,
        // Nothing is to be gone through first (http-api 5.2).
        "onboarding_completed_at": seconds(account.inserted_at),
        "last_activity_at": row.last_activity_at.map(seconds),
        "inserted_at": seconds(account.inserted_at),
    })
}

fn flag(query: &Query, key: &str) -> Result<Option<bool>, ApiError> {
    match query.get(key).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(_) => match query.flag(key) {
            Some(flag) => Ok(Some(flag)),
            None => Err(Refusal::field(key, "must be true or false").into()),
        },
    }
}

fn number(query: &Query, key: &str, default: i64, most: i64) -> Result<i64, ApiError> {
    match query.get(key).filter(|text| !text.is_empty()) {
        None => Ok(default),
        Some(text) => text
            .parse()
            .ok()
            .filter(|number| (1..=most).contains(number))
            .ok_or_else(|| Refusal::field(key, format!("must be 1 to {most}")).into()),
    }
}

/// A word of the query, or what it means when absent.
fn word<T>(query: &Query, key: &str, default: T, read: impl Fn(&str) -> Option<T>) -> Result<T, ApiError> {
    match query.get(key).filter(|text| !text.is_empty()) {
        None => Ok(default),
        Some(text) => read(text).ok_or_else(|| Refusal::field(key, "is not one of the known words").into()),
    }
}

pub async fn list(state: Data<AppState>, query: Query) -> Reply {
    let per_page = number(&query, "per_page", PER_PAGE, MOST_PER_PAGE)?;
    let page = number(&query, "page", 1, i64::MAX / MOST_PER_PAGE)?;
    let filter = UserFilter {
        q: query
            .get("q")
            .map(str::trim)
            .filter(|q| !q.is_empty())
            .map(str::to_owned),
        comped: flag(&query, "comped")?,
        verified: flag(&query, "verified")?,
        admin: word(&query, "role", None, |role| match role {
            "admin" => Some(Some(true)),
            "user" => Some(Some(false)),
            _ => None,
        })?,
        sort: word(&query, "sort", UserSort::Joined, |word| word.parse().ok())?,
        ascending: word(&query, "dir", false, |word| match word {
            "asc" => Some(true),
            "desc" => Some(false),
            _ => None,
        })?,
        offset: (page - 1) * per_page,
        limit: per_page,
    };
    let (users, total) = state.store.users(filter).await?;
    let data: Vec<Value> = users.iter().map(|row| render(&state, row)).collect();
    bare(
        StatusCode::OK,
        json!({"data": data, "meta": {"page": page, "per_page": per_page, "total": total}}),
    )
}

async fn find(state: &AppState, id: AccountId) -> Result<UserRow, ApiError> {
    let found = state.store.user(id).await?;
    found.ok_or_else(|| ErrorCode::NotFound.into())
}

pub async fn show(state: Data<AppState>, id: PathId<AccountId>) -> Reply {
    wire::ok(render(&state, &find(&state, id.0).await?))
}

fn audit(caller: &Signed, action: &'static str, of: AccountId, detail: (&'static str, Value)) -> NewAudit {
    NewAudit {
        account_id: Some(of),
        action,
        resource_type: "account",
        resource_id: Some(of.to_string()),
        actor: Actor::Admin(caller.account_id()),
        request_ip: caller.remote_ip.clone(),
        metadata: [detail].into(),
    }
}

/// Writes a change and answers the account as it is now.
async fn change(state: &AppState, of: AccountId, change: UserChange, audit: NewAudit) -> Reply {
    let committed = state.store.change_user(of, change, audit, state.now()).await?;
    let changed = committed.announce(&*state.bus);
    for key in changed.keys {
        state.runners.key_revoked(key);
    }
    if !changed.machines.is_empty() {
        state.doors.destroy_fenced(Fenced {
            machines: changed.machines,
            ended: Vec::new(),
        });
    }
    // Whoever waits may have room under the new limit.
    state.bus.slot_freed();
    wire::ok(render(state, &changed.user))
}

pub async fn role(state: Data<AppState>, caller: Signed, id: PathId<AccountId>, mut body: Body) -> Reply {
    let role = body.take("role");
    find(&state, id.0).await?;
    let is_admin = match role.as_ref().and_then(Value::as_str) {
        Some("admin") => true,
        Some("user") => false,
        _ => return Err(ErrorCode::InvalidRole.into()),
    };
    if id.0 == caller.account_id() {
        return Err(ErrorCode::CannotChangeOwnRole.into());
    }
    let action = if is_admin {
        "admin.role.granted"
    } else {
        "admin.role.revoked"
    };
    let audit = audit(&caller, action, id.0, ("role", "admin".into()));
    change(&state, id.0, UserChange::Admin(is_admin), audit).await
}

pub async fn sandbox_limit(state: Data<AppState>, caller: Signed, id: PathId<AccountId>, mut body: Body) -> Reply {
    let limit = body.take("limit");
    find(&state, id.0).await?;
    let limit = match limit {
        Some(Value::Null) => None,
        Some(value) => Some(
            value
                .as_i64()
                .filter(|limit| *limit >= 0)
                .ok_or(ErrorCode::InvalidLimit)?,
        ),
        None => return Err(ErrorCode::InvalidLimit.into()),
    };
    let audit = audit(&caller, "admin.sandbox_limit.changed", id.0, ("limit", json!(limit)));
    change(&state, id.0, UserChange::Limit(limit), audit).await
}

/// What is paid for exists only where credits are on.
fn credits(state: &AppState) -> Result<&CreditSettings, ApiError> {
    state
        .settings
        .credits
        .as_ref()
        .ok_or_else(|| ErrorCode::BillingDisabled.into())
}

pub async fn comp(state: Data<AppState>, caller: Signed, id: PathId<AccountId>, mut body: Body) -> Reply {
    credits(&state)?;
    if !body.has("comped") {
        body.fault("comped", "is required");
    }
    let comped = body.flag("comped").unwrap_or_default();
    body.finish()?;
    let user = find(&state, id.0).await?;
    if !comped && !user.account.comped {
        return Err(ErrorCode::NotComped.into());
    }
    let action = if comped {
        "admin.comp.granted"
    } else {
        "admin.comp.revoked"
    };
    let audit = audit(&caller, action, id.0, ("comped", comped.into()));
    change(&state, id.0, UserChange::Comped(comped), audit).await
}

pub async fn grant(state: Data<AppState>, caller: Signed, id: PathId<AccountId>, mut body: Body) -> Reply {
    let settings = credits(&state)?;
    if !body.has("cents") {
        body.fault("cents", "is required");
    }
    let cents = body.integer("cents").unwrap_or(1);
    // Far above any real grant, and far below what a sum of grants could overflow with.
    if !(1..=100_000_000_000).contains(&cents) {
        body.fault("cents", "must be 1 or more");
    }
    let note = body.text("note").filter(|note| !note.trim().is_empty());
    if note.as_ref().is_some_and(|note| note.chars().count() > LONGEST_NOTE) {
        body.fault("note", format!("must have at most {LONGEST_NOTE} characters"));
    }
    body.finish()?;
    find(&state, id.0).await?;
    let now = state.now();
    // The opening grant comes first in an account's life, because it is spent first.
    state.store.standing(id.0, Opening::of(settings, now), now).await?;
    let audit = audit(&caller, "admin.credits.granted", id.0, ("cents", cents.into()));
    let grant = Grant {
        account: id.0,
        cents,
        note,
    };
    state.store.grant_credit(grant, audit, now).await?.announce(&*state.bus);
    state.bus.slot_freed();
    wire::ok(render(&state, &find(&state, id.0).await?))
}

pub async fn suspend(state: Data<AppState>, caller: Signed, id: PathId<AccountId>, mut body: Body) -> Reply {
    if !body.has("suspended") {
        body.fault("suspended", "is required");
    }
    let suspended = body.flag("suspended").unwrap_or_default();
    body.finish()?;
    find(&state, id.0).await?;
    if suspended && id.0 == caller.account_id() {
        return Err(ErrorCode::CannotSuspendSelf.into());
    }
    let action = if suspended {
        "admin.account.suspended"
    } else {
        "admin.account.unsuspended"
    };
    let audit = audit(&caller, action, id.0, ("suspended", suspended.into()));
    change(&state, id.0, UserChange::Suspended(suspended), audit).await
}
