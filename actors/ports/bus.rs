//! "Conversation C reached event N": cursors, never data (DESIGN 6). A missed cursor costs latency, not data, because
//! every reader also looks at the rows once a second.

use tokio::sync::watch;

use crate::domain::{AccountId, ConversationId, EventId};

/// A committed position. Published after the commit, never before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub account: AccountId,
    pub conversation: ConversationId,
    pub id: EventId,
}

/// What a reader follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    Conversation(ConversationId),
    Account(AccountId),
}

pub trait Bus: Send + Sync {
    /// Announces a committed event to whoever follows its conversation or account. Never waits.
    fn publish(&self, cursor: Cursor);

    /// Follows a topic. The value is the newest id announced since somebody followed it, 0 before the first.
    /// Subscribe first, then read the backlog, or an event falls in between (P60).
    fn subscribe(&self, topic: Topic) -> watch::Receiver<EventId>;
}
