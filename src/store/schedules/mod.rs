//! Schedules (lifecycle 7; http-api 4.8; RUL-L-59).
//!
//! One fire time runs once: the statement that takes it off the calendar compares `next_run_at` and the firing with what
//! its caller saw, and of two ticks one changes no row.

use chrono::NaiveDateTime;
use diesel::prelude::*;

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::cron::Cron;
use fountain_actors::domain::schedule::{Due, Firing, Schedule, ScheduleConfig};
use fountain_actors::domain::*;
use fountain_actors::ports::store::schedules::{Fired, ScheduleStore};
use fountain_actors::ports::store::{Answer, Committed};

use super::SqlStore;
use super::backend::{Access, Db, Fault};
use super::columns::{Id, at, inner, key, maybe_at, maybe_moment, moment};
use super::events::Outbox;
use super::schema::{agents, schedules};
use super::turns::commit;
use crate::locked;

/// The word for firings that nobody was there for (RUL-L-59).
const MISSED: &str = "missed";

#[derive(Queryable, Selectable)]
#[diesel(table_name = schedules)]
struct ScheduleRow {
    id: Id<ScheduleId>,
    account_id: Id<AccountId>,
    agent_id: Id<AgentId>,
    name: Option<String>,
    cron: String,
    prompt: String,
    one_off: bool,
    enabled: bool,
    next_run_at: Option<NaiveDateTime>,
    last_run_at: Option<NaiveDateTime>,
    last_conversation_id: Option<Id<ConversationId>>,
    last_error: Option<String>,
    firing_at: Option<NaiveDateTime>,
    firing_since: Option<NaiveDateTime>,
    firing_not_before: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
    updated_at: NaiveDateTime,
}

impl From<ScheduleRow> for Schedule {
    fn from(row: ScheduleRow) -> Self {
        let firing = match (row.firing_at, row.firing_since, row.firing_not_before) {
            (Some(firing), Some(since), Some(not_before)) => Some(Firing {
                at: moment(firing),
                since: moment(since),
                not_before: moment(not_before),
            }),
            _ => None,
        };
        Self {
            id: row.id.0,
            account_id: row.account_id.0,
            agent_id: row.agent_id.0,
            config: ScheduleConfig {
                name: row.name,
                cron: row.cron,
                prompt: row.prompt,
                one_off: row.one_off,
                enabled: row.enabled,
            },
            next_run_at: maybe_moment(row.next_run_at),
            last_run_at: maybe_moment(row.last_run_at),
            last_conversation_id: inner(row.last_conversation_id),
            last_error: row.last_error,
            firing,
            inserted_at: moment(row.inserted_at),
            updated_at: moment(row.updated_at),
        }
    }
}

impl ScheduleStore for SqlStore {
    fn create_schedule(
        &self,
        account: AccountId,
        id: ScheduleId,
        agent: AgentId,
        config: ScheduleConfig,
        next_run_at: Option<Moment>,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Schedule>> {
        self.answer("schedule.create", Access::Write, move |db| {
            let own: i64 = agents::table
                .filter(agents::id.eq(key(agent)))
                .filter(agents::account_id.eq(key(account)))
                .count()
                .get_result(db)?;
            if own == 0 {
                return Err(Fault::not_found("agent"));
            }
            diesel::insert_into(schedules::table)
                .values((
                    schedules::id.eq(key(id)),
                    schedules::account_id.eq(key(account)),
                    schedules::agent_id.eq(key(agent)),
                    schedules::name.eq(&config.name),
                    schedules::cron.eq(&config.cron),
                    schedules::prompt.eq(&config.prompt),
                    schedules::one_off.eq(config.one_off),
                    schedules::enabled.eq(config.enabled),
                    schedules::next_run_at.eq(maybe_at(next_run_at)),
                    schedules::inserted_at.eq(at(now)),
                    schedules::updated_at.eq(at(now)),
                ))
                .execute(db)?;
            written(db, account, id, audit, now)
        })
    }

    fn update_schedule(
        &self,
        account: AccountId,
        id: ScheduleId,
        config: ScheduleConfig,
        reset: Option<Option<Moment>>,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Schedule>> {
        self.answer("schedule.update", Access::Write, move |db| {
            let own = || {
                diesel::update(schedules::table)
                    .filter(schedules::id.eq(key(id)))
                    .filter(schedules::account_id.eq(key(account)))
            };
            own()
                .set((
                    schedules::name.eq(&config.name),
                    schedules::cron.eq(&config.cron),
                    schedules::prompt.eq(&config.prompt),
                    schedules::one_off.eq(config.one_off),
                    schedules::enabled.eq(config.enabled),
                    schedules::updated_at.eq(at(now)),
                ))
                .execute(db)?;
            if let Some(next) = reset {
                // A firing of the old calendar that is still being tried goes with it.
                own()
                    .set((
                        schedules::next_run_at.eq(maybe_at(next)),
                        schedules::last_error.eq(None::<String>),
                        schedules::firing_at.eq(None::<NaiveDateTime>),
                        schedules::firing_since.eq(None::<NaiveDateTime>),
                        schedules::firing_not_before.eq(None::<NaiveDateTime>),
                    ))
                    .execute(db)?;
            }
            written(db, account, id, audit, now)
        })
    }

    fn delete_schedule(
        &self,
        account: AccountId,
        id: ScheduleId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<()>> {
        self.answer("schedule.delete", Access::Write, move |db| {
            let gone = diesel::delete(schedules::table)
                .filter(schedules::id.eq(key(id)))
                .filter(schedules::account_id.eq(key(account)))
                .execute(db)?;
            if gone == 0 {
                return Err(Fault::not_found("schedule"));
            }
            let mut outbox = Outbox::default();
            outbox.audit(audit, now);
            commit(db, (), outbox)
        })
    }

    fn schedule(&self, account: AccountId, id: ScheduleId) -> Answer<'_, Option<Schedule>> {
        self.answer("schedule.show", Access::Read, move |db| find(db, account, id))
    }

    fn schedules(&self, account: AccountId, agent: Option<AgentId>) -> Answer<'_, Vec<Schedule>> {
        self.answer("schedule.list", Access::Read, move |db| {
            let rows: Vec<ScheduleRow> = schedules::table
                .filter(schedules::account_id.eq(key(account)))
                .select(ScheduleRow::as_select())
                .load(db)?;
            let mut all: Vec<Schedule> = rows.into_iter().map(Schedule::from).collect();
            all.retain(|schedule| agent.is_none_or(|agent| agent == schedule.agent_id));
            // Those that are switched off come last.
            all.sort_by_key(|schedule| {
                (
                    schedule.next_run_at.is_none(),
                    schedule.next_run_at,
                    schedule.inserted_at,
                )
            });
            Ok(all)
        })
    }

    fn due_schedules(&self, now: Moment, limit: i64) -> Answer<'_, Vec<Schedule>> {
        self.answer("schedule.due", Access::Read, move |db| {
            let due = schedules::next_run_at.le(at(now));
            let again = schedules::firing_not_before.le(at(now));
            let rows: Vec<ScheduleRow> = schedules::table
                .filter(due.or(again))
                .order((schedules::next_run_at, schedules::id))
                .limit(limit)
                .select(ScheduleRow::as_select())
                .load(db)?;
            Ok(rows.into_iter().map(Schedule::from).collect())
        })
    }

    fn claim_firing(
        &self,
        seen: Schedule,
        claimed_until: Moment,
        now: Moment,
    ) -> Answer<'_, Committed<Option<Schedule>>> {
        self.answer("schedule.claim", Access::Write, move |db| {
            let (claimed, outbox) = claim(db, seen, claimed_until, now)?;
            commit(db, claimed, outbox)
        })
    }

    fn finish_firing(&self, claimed: Schedule, fired: Fired, now: Moment) -> Answer<'_, bool> {
        self.answer("schedule.finish", Access::Write, move |db| {
            finish(db, claimed, fired, now)
        })
    }

    fn note_run(&self, id: ScheduleId, outcome: Result<ConversationId, String>, now: Moment) -> Answer<'_, ()> {
        self.answer("schedule.note_run", Access::Write, move |db| {
            let schedule = schedules::table.find(key(id));
            match outcome {
                Ok(conversation) => diesel::update(schedule)
                    .set((
                        schedules::last_run_at.eq(at(now)),
                        schedules::last_conversation_id.eq(key(conversation)),
                        schedules::last_error.eq(None::<String>),
                    ))
                    .execute(db)?,
                Err(code) => diesel::update(schedule)
                    .set((schedules::last_run_at.eq(at(now)), schedules::last_error.eq(code)))
                    .execute(db)?,
            };
            Ok(())
        })
    }
}

fn find(db: &mut Db, account: AccountId, id: ScheduleId) -> Result<Option<Schedule>, Fault> {
    let row = schedules::table
        .filter(schedules::id.eq(key(id)))
        .filter(schedules::account_id.eq(key(account)))
        .select(ScheduleRow::as_select())
        .first(db)
        .optional()?;
    Ok(row.map(Schedule::from))
}

fn written(
    db: &mut Db,
    account: AccountId,
    id: ScheduleId,
    audit: NewAudit,
    now: Moment,
) -> Result<Committed<Schedule>, Fault> {
    let schedule = find(db, account, id)?.ok_or_else(|| Fault::not_found("schedule"))?;
    let mut outbox = Outbox::default();
    outbox.audit(audit, now);
    commit(db, schedule, outbox)
}

/// Takes what is due off the calendar, or a snoozed firing up again.
fn claim(db: &mut Db, seen: Schedule, claimed_until: Moment, now: Moment) -> Result<(Option<Schedule>, Outbox), Fault> {
    let mut outbox = Outbox::default();
    let mut next = seen.clone();
    match seen.next_run_at.filter(|due| *due <= now) {
        Some(due) => {
            // The cron parsed when it was stored; one that does not any more is switched off, not tried for ever.
            let Ok(cron) = Cron::parse(&seen.config.cron) else {
                next.next_run_at = None;
                next.last_error = Some(ErrorCode::ValidationFailed.as_str().into());
                save(db, &seen, &next)?;
                return Ok((None, outbox));
            };
            let calendar = Due::of(&cron, due, now);
            next.next_run_at = calendar.next;
            if let Some(missed) = calendar.missed {
                outbox.audit(missed_audit(&seen, missed), now);
                next.last_error = Some(MISSED.into());
            }
            if seen.config.one_off {
                next.config.enabled = false;
                next.next_run_at = None;
            }
            if let Some(run) = calendar.run {
                next.firing = Some(Firing {
                    at: run,
                    since: now,
                    not_before: claimed_until,
                });
            }
            let taken = save(db, &seen, &next)?;
            Ok((Some(next).filter(|_| taken && calendar.run.is_some()), outbox))
        }
        None => {
            let Some(firing) = next.firing.as_mut().filter(|firing| firing.not_before <= now) else {
                return Ok((None, outbox));
            };
            firing.not_before = claimed_until;
            let taken = save(db, &seen, &next)?;
            Ok((Some(next).filter(|_| taken), outbox))
        }
    }
}

fn missed_audit(schedule: &Schedule, first: Moment) -> NewAudit {
    NewAudit {
        account_id: Some(schedule.account_id),
        action: "schedule.missed",
        resource_type: "schedule",
        resource_id: Some(key(schedule.id)),
        actor: Actor::System("schedules"),
        request_ip: None,
        metadata: [("first", first.to_rfc3339_opts(chrono::SecondsFormat::Secs, true).into())].into(),
    }
}

/// Writes calendar and firing over exactly what was seen. False when somebody was first.
fn save(db: &mut Db, seen: &Schedule, next: &Schedule) -> Result<bool, Fault> {
    let row: Option<ScheduleRow> = locked!(
        db,
        first,
        schedules::table.find(key(seen.id)).select(ScheduleRow::as_select())
    )
    .optional()?;
    let now = row.map(Schedule::from);
    if !now.is_some_and(|now| (now.next_run_at, now.firing) == (seen.next_run_at, seen.firing)) {
        return Ok(false);
    }
    diesel::update(schedules::table.find(key(seen.id)))
        .set((
            schedules::enabled.eq(next.config.enabled),
            schedules::next_run_at.eq(maybe_at(next.next_run_at)),
            schedules::last_run_at.eq(maybe_at(next.last_run_at)),
            schedules::last_conversation_id.eq(next.last_conversation_id.map(key)),
            schedules::last_error.eq(next.last_error.as_deref()),
            schedules::firing_at.eq(next.firing.map(|firing| at(firing.at))),
            schedules::firing_since.eq(next.firing.map(|firing| at(firing.since))),
            schedules::firing_not_before.eq(next.firing.map(|firing| at(firing.not_before))),
        ))
        .execute(db)?;
    Ok(true)
}

/// Ends or snoozes the firing of `claimed`.
fn finish(db: &mut Db, claimed: Schedule, fired: Fired, now: Moment) -> Result<bool, Fault> {
    let mut next = claimed.clone();
    match fired {
        Fired::Snoozed(until) => {
            if let Some(firing) = next.firing.as_mut() {
                firing.not_before = until;
            }
            return save(db, &claimed, &next);
        }
        Fired::Ran(conversation) => {
            next.last_conversation_id = Some(conversation);
            next.last_error = None;
        }
        Fired::Queued => next.last_error = None,
        Fired::Failed(code) => next.last_error = Some(code),
    }
    next.last_run_at = Some(now);
    next.firing = None;
    save(db, &claimed, &next)
}
