//! Schedules: what users keep, and what the tick takes off the calendar (lifecycle 7; RUL-L-59).

use super::{Answer, Committed};
use crate::domain::account::NewAudit;
use crate::domain::schedule::{Schedule, ScheduleConfig};
use crate::domain::*;

/// How a firing went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// The prompt is on its way in this conversation.
    Ran(ConversationId),
    /// There was no room: a request waits in the queue.
    Queued,
    /// Tried again after this moment.
    Snoozed(Moment),
    /// With the wire code.
    Failed(String),
}

pub trait ScheduleStore {
    /// Creates one. `NotFound` when the agent is not this account's.
    fn create_schedule(
        &self,
        account: AccountId,
        id: ScheduleId,
        agent: AgentId,
        config: ScheduleConfig,
        next_run_at: Option<Moment>,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Schedule>>;
    /// Replaces the configuration. With `reset`, the calendar begins anew at `next_run_at` and the last error is gone.
    fn update_schedule(
        &self,
        account: AccountId,
        id: ScheduleId,
        config: ScheduleConfig,
        reset: Option<Option<Moment>>,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Schedule>>;
    fn delete_schedule(
        &self,
        account: AccountId,
        id: ScheduleId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<()>>;
    fn schedule(&self, account: AccountId, id: ScheduleId) -> Answer<'_, Option<Schedule>>;
    /// Of one agent or of all, soonest next run first.
    fn schedules(&self, account: AccountId, agent: Option<AgentId>) -> Answer<'_, Vec<Schedule>>;

    /// Schedules whose next run is not after `now`, or whose firing may be tried again.
    fn due_schedules(&self, now: Moment, limit: i64) -> Answer<'_, Vec<Schedule>>;
    /// Takes a firing off the calendar, or a snoozed one up again, for whoever asks first: compares `next_run_at` and the
    /// firing of `seen`. The answer says what to run; None when somebody else was first or nothing is to be run.
    fn claim_firing(
        &self,
        seen: Schedule,
        claimed_until: Moment,
        now: Moment,
    ) -> Answer<'_, Committed<Option<Schedule>>>;
    /// Writes how the firing of `claimed` went. Says whether it was still in work.
    fn finish_firing(&self, claimed: Schedule, fired: Fired, now: Moment) -> Answer<'_, bool>;
    /// Notes a run that a person or the queue made; the calendar stays.
    fn note_run(&self, id: ScheduleId, outcome: Result<ConversationId, String>, now: Moment) -> Answer<'_, ()>;
}
