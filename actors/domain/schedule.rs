//! Prompts that the clock sends (lifecycle 7; http-api 4.8; RUL-L-59).
//!
//! A schedule has at most one firing in work: `firing` is set by the claim that takes it off the calendar, so that one
//! fire time runs once, and a newer fire time replaces one that is still being tried.

use std::time::Duration;

use crate::domain::cron::Cron;
use crate::domain::*;

/// The channel of an agent's team conversation (http-api 5.11).
pub const TEAM_CHANNEL: &str = "fountain:team";
/// A firing that is later than this is not made up for (RUL-L-59).
pub const LATEST: Duration = Duration::from_secs(60 * 60);
/// Between two tries of one firing (lifecycle 7).
pub const SNOOZE: Duration = Duration::from_secs(30);
/// For how long one firing is tried (lifecycle 7).
pub const TRIED_FOR: Duration = Duration::from_secs(30 * 60);

/// What a schedule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    pub name: Option<String>,
    /// As the user wrote it; it parses.
    pub cron: String,
    pub prompt: String,
    /// Switched off by its first firing.
    pub one_off: bool,
    pub enabled: bool,
}

/// One row of `schedules`.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub id: ScheduleId,
    pub account_id: AccountId,
    pub agent_id: AgentId,
    pub config: ScheduleConfig,
    /// None while it is switched off.
    pub next_run_at: Option<Moment>,
    pub last_run_at: Option<Moment>,
    pub last_conversation_id: Option<ConversationId>,
    /// The wire code of what went wrong last, or `missed`.
    pub last_error: Option<String>,
    pub firing: Option<Firing>,
    pub inserted_at: Moment,
    pub updated_at: Moment,
}

/// A fire time in work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Firing {
    /// The fire time.
    pub at: Moment,
    /// When it was taken off the calendar.
    pub since: Moment,
    /// Nobody tries it before this: a snooze, or the claim of who tries it now.
    pub not_before: Moment,
}

/// What the calendar says about a schedule that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// To be run now; None when every firing is too old.
    pub run: Option<Moment>,
    /// The oldest firing that is not made up for.
    pub missed: Option<Moment>,
    pub next: Option<Moment>,
}

impl Due {
    /// Judges a schedule whose next run, `due`, is not after `now` (RUL-L-59).
    pub fn of(cron: &Cron, due: Moment, now: Moment) -> Self {
        let oldest = crate::ports::clock::before(now, LATEST);
        // `last_between` excludes its start, and a firing that is `due` itself counts.
        let start = oldest.max(crate::ports::clock::before(due, Duration::from_secs(1)));
        let run = cron.last_between(start, now);
        let missed = match run {
            Some(run) if run <= due => None,
            _ => Some(due),
        };
        Self {
            run,
            missed,
            next: cron.next_after(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Moment {
        text.parse().unwrap()
    }

    #[test]
    fn rul_l_59_after_a_downtime_the_latest_firing_runs_once_and_old_ones_are_missed() {
        let hourly = Cron::parse("@hourly").unwrap();
        let due = Due::of(&hourly, at("2026-01-01T08:00:00Z"), at("2026-01-01T08:00:20Z"));
        assert_eq!(
            due,
            Due {
                run: Some(at("2026-01-01T08:00:00Z")),
                missed: None,
                next: Some(at("2026-01-01T09:00:00Z"))
            }
        );
        let late = Due::of(&hourly, at("2026-01-01T03:00:00Z"), at("2026-01-01T08:40:00Z"));
        assert_eq!(late.run, Some(at("2026-01-01T08:00:00Z")));
        assert_eq!(late.missed, Some(at("2026-01-01T03:00:00Z")));
        let daily = Cron::parse("0 3 * * *").unwrap();
        let lost = Due::of(&daily, at("2026-01-01T03:00:00Z"), at("2026-01-01T04:00:00Z"));
        assert_eq!((lost.run, lost.missed), (None, Some(at("2026-01-01T03:00:00Z"))));
        let just = Due::of(&daily, at("2026-01-01T03:00:00Z"), at("2026-01-01T03:59:59Z"));
        assert_eq!((just.run, just.missed), (Some(at("2026-01-01T03:00:00Z")), None));
    }
}
