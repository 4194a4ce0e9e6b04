//! The turn that a server runs, as far as it is not a row.

use tokio::time::Instant;

use crate::domain::turn::{PendingPermission, Prompt, PromptImage, Turn};
use crate::domain::{SpawnId, TurnId};
use crate::transcript::blocks::ReplyText;

/// A running turn.
pub(super) struct LiveTurn {
    pub id: TurnId,
    pub number: i64,
    /// What the agent is asked; kept until it was given to a process. None for a turn that was taken back.
    pub prompt: Option<Prompt>,
    pub client_request_id: Option<String>,
    /// Of the process that runs it, minted before the spawn (RUL-L-41).
    pub spawn_id: Option<SpawnId>,
    /// JSON-RPC id of its prompt, once the transport acknowledged it.
    pub acp_prompt_id: Option<i64>,
    /// `turn/started` stands in the transcript.
    pub announced: bool,
    /// An idle connection was given the prompt.
    pub reused: bool,
    /// The process was started again after a crash.
    pub relaunched: bool,
    /// The end is on its way into the transcript; until it is durable the conversation is neither busy nor free.
    pub ending: bool,
    pub permission: Option<PendingPermission>,
    pub reply: ReplyText,
    /// None: taken back after a restart; no duration is measured then (lifecycle 6.8).
    pub began: Option<Instant>,
    pub has_output: bool,
}

impl LiveTurn {
    /// A turn that was just admitted, or opened after a build.
    pub fn admitted(turn: &Turn, images: Vec<PromptImage>, began: Instant, announced: bool) -> Self {
        Self {
            id: turn.id,
            number: turn.number,
            prompt: Some(Prompt {
                text: turn.prompt.clone(),
                images,
                client_request_id: turn.client_request_id.clone(),
            }),
            client_request_id: turn.client_request_id.clone(),
            spawn_id: turn.spawn_id,
            acp_prompt_id: None,
            announced,
            reused: false,
            relaunched: false,
            ending: false,
            permission: None,
            reply: ReplyText::default(),
            began: Some(began),
            has_output: false,
        }
    }

    /// A turn that a predecessor left running.
    pub fn taken_back(turn: &Turn) -> Self {
        Self {
            id: turn.id,
            number: turn.number,
            prompt: None,
            client_request_id: turn.client_request_id.clone(),
            spawn_id: turn.spawn_id,
            acp_prompt_id: turn.acp_prompt_id,
            announced: true,
            reused: false,
            relaunched: false,
            ending: false,
            permission: turn.pending_permission.clone(),
            reply: ReplyText::default(),
            began: None,
            has_output: true,
        }
    }
}
