//! Permission requests that outlived their turn (lifecycle 6.7, 6.10; runtimes 8.2; ).
//!
//! Such a request stands on its completed turn with a deadline. Its answer is stored nowhere by itself: it is taken off in
//! the transaction that admits, or queues, the turn that carries it ([`Admit`](super::turns::Admit),
//! [`QueueTurn`](super::turns::QueueTurn)), so a turn that is refused leaves the request open.

use super::{Answer, Committed};
use crate::domain::turn::PendingPermission;
use crate::domain::*;

/// A request that waits for its answer behind the end of its turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Detached {
    pub account_id: AccountId,
    pub conversation_id: ConversationId,
    pub turn_id: TurnId,
    pub permission: PendingPermission,
}

pub trait DetachedStore {
    /// The open detached request of this id. None: unknown, resolved, or its turn still runs.
    fn detached_request(
        &self,
        account: AccountId,
        conversation: ConversationId,
        request_id: String,
    ) -> Answer<'_, Option<Detached>>;

    /// Detached requests past their deadline, the most overdue first.
    fn expired_detached(&self, now: Moment, limit: i64) -> Answer<'_, Vec<Detached>>;

    /// Denies one past its deadline without a turn, because none can be admitted: `request/done` with `timeout`. False
    /// when it was resolved meanwhile.
    fn deny_detached(
        &self,
        conversation: ConversationId,
        request_id: String,
        now: Moment,
    ) -> Answer<'_, Committed<bool>>;
}
