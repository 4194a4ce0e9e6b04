//! The one way in for what a live server writes, in the order of its output (RUL-25), and the one way out for readers.

use serde_json::Value;

use super::{Answer, StoreError};
use crate::domain::event::{LogEvent, NewEvent, StreamFilter};
use crate::domain::process::Advance;
use crate::domain::turn::{Ending, PendingPermission, Turn};
use crate::domain::*;
use crate::ports::Cursor;

/// One unit of a conversation's transcript: rows, positions and an effect that commit together or not at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub account_id: AccountId,
    pub conversation_id: ConversationId,
    /// Guard (RUL-L-8): another generation's entry is `Stale`.
    pub server_epoch: ServerEpoch,
    pub rows: Vec<NewEvent>,
    /// Guard: each must start at the stored position, or the entry is `Stale`.
    pub advances: Vec<Advance>,
    pub effect: Option<Effect>,
    pub now: Moment,
}

/// What else an entry makes true.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// `session/prompt` was written and acknowledged: `acp_prompt_id`, and on a reused connection `turn/started` with
    /// `connection: reused` (RUL-34).
    PromptSent {
        turn_id: TurnId,
        acp_prompt_id: i64,
        reused: bool,
    },
    /// The agent's session id.
    SessionChosen {
        session_id: String,
    },
    /// `runtime_session_id` is forgotten (session gone, fresh disk).
    SessionForgotten,
    ModelSelected {
        turn_id: TurnId,
        selection: Value,
    },
    /// RUL-56: the request line is among the rows; the stage `request/started` too.
    PermissionOpened {
        turn_id: TurnId,
        permission: PendingPermission,
    },
    /// The agent has the answer: `pending_permission` is cleared. Stage `request/done` is among the rows.
    PermissionDelivered {
        turn_id: TurnId,
        request_id: String,
    },
    /// T2 to T5 with its `turn` stage, conversation `idle` if this is the latest turn, usage, reply text, activity
    /// (RUL-25). A terminal turn stays as it is, and then nothing is published.
    TurnEnded(Ending),
    /// The reconnect window is over: the server is attached again.
    Reattached {
        turn_id: TurnId,
    },
    /// A title that the agent proposes; a title that a person gave wins.
    TitleProposed(Option<String>),
}

/// What one entry became.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Newest id of its rows; None when it had none.
    pub cursor: Option<Cursor>,
    /// Durable output of the conversation so far, in bytes.
    pub output_bytes: i64,
    /// The turn after `TurnEnded`; None when it was terminal already.
    pub turn: Option<Turn>,
}

/// Which events to read, oldest first.
#[derive(Clone, Debug)]
pub struct EventQuery {
    pub after: EventId,
    pub filter: StreamFilter,
    /// 1 to 1000.
    pub limit: i64,
}

/// A page. `reached` is the id up to which everything was looked at, filtered rows included (http-api 3.3).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventPage {
    pub events: Vec<LogEvent>,
    pub reached: EventId,
    pub has_more: bool,
}

pub trait TranscriptStore {
    /// Group commit: all entries in one transaction where that works, else split by conversation and each part tried
    /// alone (RUL-26). Answers in the order of the entries. At most 4 MiB or 5,000 rows a call are the caller's duty.
    fn append(&self, entries: Vec<Entry>) -> Answer<'_, Vec<Result<Written, StoreError>>>;

    /// `NotFound` for a conversation that is not this account's.
    fn events(&self, account: AccountId, conversation: ConversationId, query: EventQuery) -> Answer<'_, EventPage>;
    /// Across all conversations of the account.
    fn account_events(&self, account: AccountId, query: EventQuery) -> Answer<'_, EventPage>;
    /// The newest event of a conversation, 0 without one.
    fn last_event(&self, account: AccountId, conversation: ConversationId) -> Answer<'_, EventId>;
    /// The newest event of an account, 0 without one: where a stream of "from now on" begins. An implementation with an
    /// index answers it in one query; this one reads its way there.
    fn last_account_event(&self, account: AccountId) -> Answer<'_, EventId> {
        Box::pin(async move {
            let mut newest = EventId(0);
            loop {
                let filter = StreamFilter::default();
                let query = EventQuery {
                    after: newest,
                    filter,
                    limit: 1000,
                };
                let page = self.account_events(account, query).await?;
                let last = page.events.last().map_or(newest, |event| event.id).max(page.reached);
                if !page.has_more || last <= newest {
                    return Ok(last.max(newest));
                }
                newest = last;
            }
        })
    }
    /// Acp lines of one turn, in order, for its reply text after a restart.
    fn turn_output(&self, turn: TurnId) -> Answer<'_, Vec<LogEvent>>;
}
