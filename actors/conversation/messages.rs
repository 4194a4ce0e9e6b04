//! What a conversation's server can be asked, and what it answers.
//!
//! Every request of a client carries its deadline (RUL-3): one that waited past it is refused and opens no turn later.
//! A request that reaches a server which just stopped is answered [`Miss::Retry`], and the directory starts another.

use actix::Message;
use tokio::time::Instant;

use crate::domain::account::{Actor, NewAudit};
use crate::domain::turn::{DetachedAnswer, PendingPermission, Prompt};
use crate::domain::{ErrorCode, Refusal, TurnId};
use crate::ports::store::StoreError;

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Miss {
    /// The client's answer.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// This server is over, or was superseded, before it touched anything. Ask the next one.
    #[error("this server is over")]
    Retry,
}

impl From<ErrorCode> for Miss {
    fn from(code: ErrorCode) -> Self {
        Self::Refused(code.into())
    }
}

impl From<StoreError> for Miss {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Stale(_) => Self::Retry,
            other => Self::Refused(other.refusal()),
        }
    }
}

/// A prompt of a client. Answered when its turn is durable (RUL-4).
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<(), Miss>")]
pub struct Ask {
    pub prompt: Prompt,
    /// The detached permission request that it answers.
    pub answers: Option<DetachedAnswer>,
    pub actor: Actor,
    pub audit: NewAudit,
    /// Nothing happens after it.
    pub deadline: Instant,
}

/// The user says stop. Answered when the row says so (RUL-19d).
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<(), Miss>")]
pub struct Interrupt {
    pub audit: NewAudit,
}

/// Ends the conversation (C5). Answered after the one transaction of RUL-L-29; the machine's end follows behind.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<(), Miss>")]
pub struct Terminate {
    pub actor: Actor,
    pub request_ip: Option<String>,
    pub deadline: Instant,
}

/// An answer was stored on an open permission request: tell the agent (RUL-56).
#[derive(Message, Clone, Debug)]
#[rtype(result = "()")]
pub struct Deliver {
    pub turn_id: TurnId,
    pub permission: PendingPermission,
}

/// What a stopping process wants of its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownKind {
    /// A successor takes over: turns go on at their providers.
    Drain,
    /// Nobody takes over: running turns end as `server_terminated_normally` (RUL-57, lifecycle 6.12).
    Clean,
}

/// Stops the server. Answered when nothing of it is pending any more.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub struct Shutdown(pub ShutdownKind);

/// Somebody else ended the conversation, or its machine goes: stop without a word.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub struct StandDown;
