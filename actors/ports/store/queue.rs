//! The launch queue (lifecycle 2.7; RUL-L-58; INV-103, INV-104, INV-106).
//!
//! Every step compares status and `updated_at` of the row that its caller saw. A start that reserves a machine ends its
//! request in the same transaction, so that one request starts one conversation.

use super::conversations::{Attach, Launch};
use super::{Answer, Committed};
use crate::domain::account::NewAudit;
use crate::domain::conversation::ConversationView;
use crate::domain::queue::{RequestKind, RequestSource, RequestView, SandboxRequest};
use crate::domain::*;

/// A request to be queued.
#[derive(Clone, Debug)]
pub struct NewRequest {
    pub id: QueueRequestId,
    pub account_id: AccountId,
    pub agent_id: AgentId,
    pub kind: RequestKind,
    pub source: RequestSource,
    pub schedule_id: Option<ScheduleId>,
    pub launch: queue::QueuedLaunch,
    /// Most requests of the account that may wait or start.
    pub depth: i64,
    pub audit: NewAudit,
    pub now: Moment,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Enqueued {
    Waits(RequestView),
    /// A request of the same schedule waits already (INV-104, R-104).
    Known(RequestView),
    /// The account's queue is full.
    Full,
}

/// A request that somebody may start now. Shown at every further step; a newer claim makes it stale.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedRequest {
    /// `updated_at` inside is the claim.
    pub request: SandboxRequest,
    /// The conversation that an earlier claim opened for it (RUL-L-58).
    pub opened: Option<ConversationId>,
}

/// How a claim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    Started(ConversationId),
    /// It waits again.
    Back,
    /// With the wire code.
    Failed(String),
}

pub trait QueueStore {
    /// Under the account's queue lock: depth, one per schedule, insert, audit `sandbox_request.enqueued`.
    fn enqueue(&self, request: NewRequest) -> Answer<'_, Committed<Enqueued>>;
    /// In any status.
    fn queue_request(&self, account: AccountId, id: QueueRequestId) -> Answer<'_, Option<RequestView>>;
    /// Those that wait, oldest first.
    fn queue_requests(&self, account: AccountId) -> Answer<'_, Vec<RequestView>>;
    /// `queued` to `cancelled`; `NotFound` in every other status.
    fn cancel_request(
        &self,
        account: AccountId,
        id: QueueRequestId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<()>>;

    /// Accounts with something to start, the longest waiting first: queued rows, and claims older than `stale_before`.
    fn waiting_accounts(&self, stale_before: Moment, limit: i64) -> Answer<'_, Vec<AccountId>>;
    /// Claims the account's oldest request, `skip` left out. None when there is none, or when an older one is being started
    /// under a claim that is not stale: the order of the account is kept.
    fn claim_request(
        &self,
        account: AccountId,
        skip: Vec<QueueRequestId>,
        stale_before: Moment,
        now: Moment,
    ) -> Answer<'_, Option<ClaimedRequest>>;
    /// Writes the outcome of a claim, with its audit row. Says whether the claim still held.
    fn finish_request(
        &self,
        claim: ClaimedRequest,
        outcome: RequestOutcome,
        now: Moment,
    ) -> Answer<'_, Committed<bool>>;
    /// Ends requests that have waited since before `before`. Answers how many.
    fn expire_requests(&self, before: Moment, now: Moment, limit: i64) -> Answer<'_, Committed<u64>>;

    /// As [`super::ConversationStore::launch`], and the request is `started` in the same commit. `Stale` when the claim
    /// does not hold any more.
    fn launch_request(&self, claim: ClaimedRequest, launch: Launch) -> Answer<'_, Committed<ConversationView>>;
    /// As [`super::ConversationStore::attach`], and the conversation carries the request; its prompt is still to be sent.
    fn attach_request(&self, claim: ClaimedRequest, attach: Attach) -> Answer<'_, Committed<ConversationView>>;
    /// Whether the prompt of a request reached this conversation under an earlier claim.
    fn request_delivered(&self, claim: ClaimedRequest, conversation: ConversationId) -> Answer<'_, bool>;
    /// Deletes requests that ended before `before` (retention). Answers how many.
    fn forget_requests(&self, before: Moment, limit: i64) -> Answer<'_, u64>;
}
