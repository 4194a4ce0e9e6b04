//! What must be remembered. A verb is one transaction of the domain, never CRUD on its parts (DESIGN 5).
//!
//! Rules that hold for every verb:
//! - conditions are re-read inside the transaction, under the locks of lifecycle 1.8 in the order of RUL-L-9;
//! - a transition, the stage event that announces it, its audit row and its journal row commit together (RUL-24);
//! - rows that a caller names are looked up with the account id; foreign and missing are the same `NotFound`;
//! - moments that stand in rows come from the `now` of the request, but a lease is compared and written on the lease
//!   clock: `clock_timestamp()` on PostgreSQL, `now` on SQLite (RUL-29);
//! - event ids are drawn last, under the event lock of each account on PostgreSQL (RUL-23);
//! - committed cursors are answered to the caller, which publishes them; a verb never talks to the bus.

pub mod accounts;
pub mod catalog;
pub mod conversations;
pub mod credits;
pub mod detached;
pub mod explain;
pub mod machines;
pub mod passes;
pub mod queue;
pub mod replicas;
pub mod runners;
pub mod schedules;
pub mod transcript;
pub mod turns;
pub mod warm;

use futures_util::future::LocalBoxFuture;

pub use accounts::AccountStore;
pub use catalog::CatalogStore;
pub use conversations::ConversationStore;
pub use credits::CreditStore;
pub use detached::DetachedStore;
pub use explain::ExplainStore;
pub use machines::MachineStore;
pub use passes::PassStore;
pub use queue::QueueStore;
pub use replicas::ReplicaStore;
pub use runners::RunnerStore;
pub use schedules::ScheduleStore;
pub use transcript::TranscriptStore;
pub use turns::TurnStore;
pub use warm::WarmStore;

use crate::domain::{ErrorCode, MachineId, Refusal};
use crate::ports::Cursor;

/// The answer of a verb.
pub type Answer<'a, T> = LocalBoxFuture<'a, Result<T, StoreError>>;

/// Why a verb changed nothing. There is no partial success.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A rule of the domain said no, inside the transaction.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The row is missing, or another account's.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// The epoch, server generation or position shown is not the current one: somebody newer acts (INV-06, RUL-L-8).
    #[error("superseded: {0}")]
    Stale(&'static str),
    /// Another live home has this identity (lifecycle 4.1).
    #[error("home {0} has this identity")]
    HomeTaken(MachineId),
    /// The database does not answer: down, pool exhausted, disk full. Worth another try (RUL-9, RUL-31).
    #[error("the store is unavailable ({op}): {detail}")]
    Unavailable { op: &'static str, detail: String },
    /// A bug, or a row that cannot be read.
    #[error("the store failed ({op}): {detail}")]
    Internal { op: &'static str, detail: String },
}

impl StoreError {
    /// What a client is told. Stale means that another operation got there first.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal.clone(),
            Self::NotFound(_) => ErrorCode::NotFound.into(),
            Self::Stale(_) | Self::HomeTaken(_) => ErrorCode::SandboxUnavailable.into(),
            Self::Unavailable { .. } => ErrorCode::StoreUnavailable.into(),
            Self::Internal { .. } => ErrorCode::InternalError.into(),
        }
    }

    /// The database may answer the same verb later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

impl From<ErrorCode> for StoreError {
    fn from(code: ErrorCode) -> Self {
        Self::Refused(code.into())
    }
}

/// A result together with the cursors that its commit made.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed<T> {
    pub value: T,
    pub cursors: Vec<Cursor>,
}

impl<T> Committed<T> {
    /// Publishes the cursors and hands out the result.
    pub fn announce(self, bus: &dyn crate::ports::Bus) -> T {
        for cursor in self.cursors {
            bus.publish(cursor);
        }
        self.value
    }
}

/// Everything that must be remembered.
pub trait Store:
    AccountStore
    + CatalogStore
    + ConversationStore
    + TurnStore
    + TranscriptStore
    + MachineStore
    + PassStore
    + ReplicaStore
    + RunnerStore
    + WarmStore
    + CreditStore
    + QueueStore
    + ScheduleStore
    + ExplainStore
    + DetachedStore
    + Send
    + Sync
{
    /// Answers when the database does (readiness).
    fn ping(&self) -> Answer<'_, ()>;
}
