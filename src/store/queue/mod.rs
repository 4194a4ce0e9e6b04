//! The launch queue (lifecycle 2.7; RUL-L-58; INV-103, INV-104, INV-106).
//!
//! A step compares status and `updated_at` with what its caller saw, so that of two drains only the holder of the claim
//! writes an outcome. `updated_at` therefore moves with every step, if need be by a microsecond past the clock.
//! Whoever writes a final status takes the launch away in the same statement; a CHECK of the table insists.

mod rows;
mod steps;

use fountain_actors::domain::account::NewAudit;
use fountain_actors::domain::conversation::ConversationView;
use fountain_actors::domain::queue::{RequestStatus, RequestView};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::{Attach, Launch};
use fountain_actors::ports::store::queue::{ClaimedRequest, Enqueued, NewRequest, QueueStore, RequestOutcome};
use fountain_actors::ports::store::{Answer, Committed};

use super::SqlStore;
use super::backend::{Access, Fault};
use super::events::Outbox;
use super::turns::commit;

impl QueueStore for SqlStore {
    fn enqueue(&self, request: NewRequest) -> Answer<'_, Committed<Enqueued>> {
        self.answer("queue.enqueue", Access::Write, move |db| {
            let (enqueued, outbox) = steps::enqueue(db, request)?;
            commit(db, enqueued, outbox)
        })
    }

    fn queue_request(&self, account: AccountId, id: QueueRequestId) -> Answer<'_, Option<RequestView>> {
        self.answer("queue.show", Access::Snapshot, move |db| {
            let found = rows::find(db, id)?.filter(|request| request.account_id == account);
            found.map(|request| rows::view(db, request)).transpose()
        })
    }

    fn queue_requests(&self, account: AccountId) -> Answer<'_, Vec<RequestView>> {
        self.answer("queue.list", Access::Read, move |db| rows::waiting(db, account))
    }

    fn cancel_request(
        &self,
        account: AccountId,
        id: QueueRequestId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<()>> {
        self.answer("queue.cancel", Access::Write, move |db| {
            let request = rows::find(db, id)?
                .filter(|request| request.account_id == account && request.status == RequestStatus::Queued)
                .ok_or_else(|| Fault::not_found("request"))?;
            // Somebody claimed it since it was read: it is not there to be cancelled any more.
            if !steps::end(db, &request, RequestStatus::Cancelled, None, None, now)? {
                return Err(Fault::not_found("request"));
            }
            let mut outbox = Outbox::default();
            outbox.audit(audit, now);
            commit(db, (), outbox)
        })
    }

    fn waiting_accounts(&self, stale_before: Moment, limit: i64) -> Answer<'_, Vec<AccountId>> {
        self.answer("queue.accounts", Access::Read, move |db| {
            rows::accounts(db, stale_before, limit)
        })
    }

    fn claim_request(
        &self,
        account: AccountId,
        skip: Vec<QueueRequestId>,
        stale_before: Moment,
        now: Moment,
    ) -> Answer<'_, Option<ClaimedRequest>> {
        self.answer("queue.claim", Access::Write, move |db| {
            steps::claim(db, account, &skip, stale_before, now)
        })
    }

    fn finish_request(
        &self,
        claim: ClaimedRequest,
        outcome: RequestOutcome,
        now: Moment,
    ) -> Answer<'_, Committed<bool>> {
        self.answer("queue.finish", Access::Write, move |db| {
            let (held, outbox) = steps::finish(db, &claim, outcome, now)?;
            commit(db, held, outbox)
        })
    }

    fn expire_requests(&self, before: Moment, now: Moment, limit: i64) -> Answer<'_, Committed<u64>> {
        self.answer("queue.expire", Access::Write, move |db| {
            let (expired, outbox) = steps::expire(db, before, now, limit)?;
            commit(db, expired, outbox)
        })
    }

    fn launch_request(&self, claim: ClaimedRequest, launch: Launch) -> Answer<'_, Committed<ConversationView>> {
        self.answer("queue.launch", Access::Write, move |db| {
            let (view, outbox) = steps::launch(db, &claim, launch)?;
            commit(db, view, outbox)
        })
    }

    fn attach_request(&self, claim: ClaimedRequest, attach: Attach) -> Answer<'_, Committed<ConversationView>> {
        self.answer("queue.attach", Access::Write, move |db| {
            let (view, outbox) = steps::attach(db, &claim, attach)?;
            commit(db, view, outbox)
        })
    }

    fn request_delivered(&self, claim: ClaimedRequest, conversation: ConversationId) -> Answer<'_, bool> {
        self.answer("queue.delivered", Access::Read, move |db| {
            rows::delivered(db, &claim.request, conversation)
        })
    }

    fn forget_requests(&self, before: Moment, limit: i64) -> Answer<'_, u64> {
        self.answer("queue.forget", Access::Write, move |db| rows::forget(db, before, limit))
    }
}
