//! The launch queue, schedules and money of the in-memory store: what the doors read and write, and no rule beside it.

use fountain_actors::domain::account::*;
use fountain_actors::domain::conversation::ConversationView;
use fountain_actors::domain::credit::*;
use fountain_actors::domain::queue::*;
use fountain_actors::domain::schedule::*;
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::{Attach, Launch};
use fountain_actors::ports::store::credits::*;
use fountain_actors::ports::store::queue::*;
use fountain_actors::ports::store::schedules::*;
use fountain_actors::ports::store::{Answer, Committed, StoreError};

use crate::store::{Rows, Tables, not_here, plain};

#[derive(Default)]
pub struct LaunchTables {
    pub requests: Vec<SandboxRequest>,
    pub schedules: Vec<Schedule>,
    /// Account and thousandths of a cent.
    pub balances: Vec<(AccountId, i64)>,
}

fn view(tables: &Tables, request: &SandboxRequest) -> RequestView {
    let mut line = tables
        .launches
        .requests
        .iter()
        .filter(|other| other.account_id == request.account_id && other.status == RequestStatus::Queued);
    RequestView {
        position: line.position(|other| other.id == request.id).map(|at| at as i64 + 1),
        request: request.clone(),
    }
}

fn user(tables: &Tables, account: &Account) -> UserRow {
    let balance = tables.launches.balances.iter().find(|(of, _)| *of == account.id);
    UserRow {
        standing: Standing {
            comped: account.comped,
            limit_override: account.sandbox_limit_override,
            balance_mills: balance.map_or(0, |(_, mills)| *mills),
        },
        account: account.clone(),
        active_machines: tables.machines.iter().filter(|(of, _)| *of == account.id).count() as i64,
        last_activity_at: None,
    }
}

fn found(tables: &Tables, account: AccountId) -> Result<UserRow, StoreError> {
    let row = tables.accounts.iter().find(|row| row.id == account);
    row.map(|row| user(tables, row)).ok_or(StoreError::NotFound("account"))
}

impl CreditStore for Rows {
    fn standing(&self, account: AccountId, _: Option<Opening>, _: Moment) -> Answer<'_, Standing> {
        self.ask(|t| Ok(found(t, account)?.standing))
    }
    fn purse(&self, account: AccountId, _: Moment, _: Moment) -> Answer<'_, Purse> {
        self.ask(|t| {
            Ok(Purse {
                standing: found(t, account)?.standing,
                turns: t.turns.len() as i64,
                turn_ms: 5_400_000,
                ..Purse::default()
            })
        })
    }
    fn grant_credit(&self, grant: Grant, audit: NewAudit, _: Moment) -> Answer<'_, Committed<Standing>> {
        self.ask(|t| {
            found(t, grant.account)?;
            match t.launches.balances.iter_mut().find(|(of, _)| *of == grant.account) {
                Some((_, mills)) => *mills += grant.cents * MILLS,
                None => t.launches.balances.push((grant.account, grant.cents * MILLS)),
            }
            t.audits.push(audit);
            Ok(plain(found(t, grant.account)?.standing))
        })
    }
    fn bill_turns(&self, _: i64, _: Moment, _: i64) -> Answer<'_, u64> {
        not_here("bill_turns")
    }
    fn expire_grants(&self, _: Moment, _: i64) -> Answer<'_, u64> {
        not_here("expire_grants")
    }
    fn users(&self, filter: UserFilter) -> Answer<'_, (Vec<UserRow>, i64)> {
        self.ask(|t| {
            let all: Vec<UserRow> = t
                .accounts
                .iter()
                .filter(|row| filter.admin.is_none_or(|admin| admin == row.is_admin))
                .map(|row| user(t, row))
                .collect();
            let total = all.len() as i64;
            let page = all.into_iter().skip(filter.offset as usize).take(filter.limit as usize);
            Ok((page.collect(), total))
        })
    }
    fn user(&self, account: AccountId) -> Answer<'_, Option<UserRow>> {
        self.ask(|t| Ok(found(t, account).ok()))
    }
    fn change_user(
        &self,
        account: AccountId,
        change: UserChange,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Changed>> {
        self.ask(|t| {
            let row = t.accounts.iter_mut().find(|row| row.id == account);
            let row = row.ok_or(StoreError::NotFound("account"))?;
            match change {
                UserChange::Admin(is_admin) => row.is_admin = is_admin,
                UserChange::Limit(limit) => row.sandbox_limit_override = limit,
                UserChange::Comped(comped) => row.comped = comped,
                UserChange::Suspended(suspended) => row.suspended_at = suspended.then_some(now),
            }
            t.audits.push(audit);
            let suspends = change == UserChange::Suspended(true);
            let of = |(owner, _): &&(AccountId, _)| suspends && *owner == account;
            let keys = t.keys.iter().filter(|(_, key)| suspends && key.account_id == account);
            Ok(plain(Changed {
                machines: t.machines.iter().filter(of).map(|(_, view)| view.machine.id).collect(),
                keys: keys.map(|(_, key)| key.id).collect(),
                user: found(t, account)?,
            }))
        })
    }
}

impl QueueStore for Rows {
    fn enqueue(&self, _: NewRequest) -> Answer<'_, Committed<Enqueued>> {
        not_here("enqueue")
    }
    fn queue_request(&self, account: AccountId, id: QueueRequestId) -> Answer<'_, Option<RequestView>> {
        self.ask(|t| {
            let mut own = t.launches.requests.iter();
            let found = own.find(|request| request.id == id && request.account_id == account);
            Ok(found.map(|request| view(t, request)))
        })
    }
    fn queue_requests(&self, account: AccountId) -> Answer<'_, Vec<RequestView>> {
        self.ask(|t| {
            let own = t
                .launches
                .requests
                .iter()
                .filter(|request| request.account_id == account);
            let waiting = own.filter(|request| request.status == RequestStatus::Queued);
            Ok(waiting.map(|request| view(t, request)).collect())
        })
    }
    fn cancel_request(
        &self,
        account: AccountId,
        id: QueueRequestId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<()>> {
        self.ask(|t| {
            let mut own = t.launches.requests.iter_mut();
            let found = own.find(|request| {
                request.id == id && request.account_id == account && request.status == RequestStatus::Queued
            });
            let request = found.ok_or(StoreError::NotFound("request"))?;
            request.status = RequestStatus::Cancelled;
            request.launch = None;
            request.updated_at = now;
            t.audits.push(audit);
            Ok(plain(()))
        })
    }
    fn waiting_accounts(&self, _: Moment, _: i64) -> Answer<'_, Vec<AccountId>> {
        not_here("waiting_accounts")
    }
    fn claim_request(
        &self,
        _: AccountId,
        _: Vec<QueueRequestId>,
        _: Moment,
        _: Moment,
    ) -> Answer<'_, Option<ClaimedRequest>> {
        not_here("claim_request")
    }
    fn finish_request(&self, _: ClaimedRequest, _: RequestOutcome, _: Moment) -> Answer<'_, Committed<bool>> {
        not_here("finish_request")
    }
    fn expire_requests(&self, _: Moment, _: Moment, _: i64) -> Answer<'_, Committed<u64>> {
        not_here("expire_requests")
    }
    fn launch_request(&self, _: ClaimedRequest, _: Launch) -> Answer<'_, Committed<ConversationView>> {
        not_here("launch_request")
    }
    fn attach_request(&self, _: ClaimedRequest, _: Attach) -> Answer<'_, Committed<ConversationView>> {
        not_here("attach_request")
    }
    fn request_delivered(&self, _: ClaimedRequest, _: ConversationId) -> Answer<'_, bool> {
        not_here("request_delivered")
    }
    fn forget_requests(&self, _: Moment, _: i64) -> Answer<'_, u64> {
        not_here("forget_requests")
    }
}

impl ScheduleStore for Rows {
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
        self.ask(|t| {
            let schedule = Schedule {
                id,
                account_id: account,
                agent_id: agent,
                config,
                next_run_at,
                last_run_at: None,
                last_conversation_id: None,
                last_error: None,
                firing: None,
                inserted_at: now,
                updated_at: now,
            };
            t.launches.schedules.push(schedule.clone());
            t.audits.push(audit);
            Ok(plain(schedule))
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
        self.ask(|t| {
            let mut own = t.launches.schedules.iter_mut();
            let found = own.find(|schedule| schedule.id == id && schedule.account_id == account);
            let schedule = found.ok_or(StoreError::NotFound("schedule"))?;
            schedule.config = config;
            schedule.updated_at = now;
            if let Some(next) = reset {
                schedule.next_run_at = next;
                schedule.last_error = None;
            }
            let schedule = schedule.clone();
            t.audits.push(audit);
            Ok(plain(schedule))
        })
    }
    fn delete_schedule(
        &self,
        account: AccountId,
        id: ScheduleId,
        audit: NewAudit,
        _: Moment,
    ) -> Answer<'_, Committed<()>> {
        self.ask(|t| {
            let all = t.launches.schedules.len();
            t.launches
                .schedules
                .retain(|row| row.id != id || row.account_id != account);
            if t.launches.schedules.len() == all {
                return Err(StoreError::NotFound("schedule"));
            }
            t.audits.push(audit);
            Ok(plain(()))
        })
    }
    fn schedule(&self, account: AccountId, id: ScheduleId) -> Answer<'_, Option<Schedule>> {
        self.ask(|t| {
            let mut own = t.launches.schedules.iter();
            Ok(own.find(|row| row.id == id && row.account_id == account).cloned())
        })
    }
    fn schedules(&self, account: AccountId, agent: Option<AgentId>) -> Answer<'_, Vec<Schedule>> {
        self.ask(|t| {
            let own = t.launches.schedules.iter().filter(|row| row.account_id == account);
            Ok(own
                .filter(|row| agent.is_none_or(|agent| agent == row.agent_id))
                .cloned()
                .collect())
        })
    }
    fn due_schedules(&self, _: Moment, _: i64) -> Answer<'_, Vec<Schedule>> {
        not_here("due_schedules")
    }
    fn claim_firing(&self, _: Schedule, _: Moment, _: Moment) -> Answer<'_, Committed<Option<Schedule>>> {
        not_here("claim_firing")
    }
    fn finish_firing(&self, _: Schedule, _: Fired, _: Moment) -> Answer<'_, bool> {
        not_here("finish_firing")
    }
    fn note_run(&self, _: ScheduleId, _: Result<ConversationId, String>, _: Moment) -> Answer<'_, ()> {
        not_here("note_run")
    }
}
