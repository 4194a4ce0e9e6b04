//! `GET /api/account/billing`: the account's purse and what it used this month (http-api 5.20; lifecycle 8).

use actix_web::web::Data;
use chrono::{Datelike, Months, NaiveTime};
use fountain_actors::domain::credit::MILLS;
use fountain_actors::domain::{ErrorCode, Moment};
use fountain_actors::ports::store::credits::Opening;
use serde_json::json;

use super::auth::Signed;
use super::state::AppState;
use super::wire::{self, Reply, seconds};

/// The calendar month of `now`, in UTC.
fn month(now: Moment) -> (Moment, Moment) {
    let day = now.date_naive();
    let first = day.with_day(1).unwrap_or(day);
    let next = first.checked_add_months(Months::new(1)).unwrap_or(first);
    (
        first.and_time(NaiveTime::MIN).and_utc(),
        next.and_time(NaiveTime::MIN).and_utc(),
    )
}

pub async fn show(state: Data<AppState>, caller: Signed) -> Reply {
    let credits = state.settings.credits.as_ref().ok_or(ErrorCode::BillingDisabled)?;
    let (account, now) = (caller.account_id(), state.now());
    let (start, end) = month(now);
    state.store.standing(account, Opening::of(credits, now), now).await?;
    let purse = state.store.purse(account, start, now).await?;
    let balance = purse.standing.balance_mills;
    let expiring = purse.expiring_mills.min(balance.max(0));
    wire::ok(json!({
        "credits": {
            "balance_cents": purse.standing.balance_cents(),
            "purchased_cents": (balance - expiring).max(0) / MILLS,
            "expiring_cents": expiring / MILLS,
            "expires_at": purse.expires_at.map(seconds),
            "packs_cents": credits.packs_cents,
            "turn_hour_cents": credits.turn_hour_cents,
        },
        "sandbox_cap": purse.standing.cap(Some(credits.terms), state.settings.cap_ceiling),
        "has_stripe_customer": false,
        "period": {"start": seconds(start), "end": seconds(end)},
        "usage": {
            "conversations": purse.conversations,
            "turns": purse.turns,
            "turn_hours": purse.turn_ms as f64 / 3_600_000.0,
            "sandbox_minutes": purse.machine_minutes.values().sum::<i64>(),
            "sandbox_minutes_by_provider": purse.machine_minutes,
            "credit_burned_cents": purse.burned_mills / MILLS,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_calendar_month() {
        let (start, end) = month("2026-12-31T23:59:59Z".parse().unwrap());
        assert_eq!(seconds(start), "2026-12-01T00:00:00Z");
        assert_eq!(seconds(end), "2027-01-01T00:00:00Z");
    }
}
