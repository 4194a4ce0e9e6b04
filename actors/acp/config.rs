//! What a peer is given: for a connection, for a prompt, for a turn that is taken back.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::report::{HeldPermission, OptionValue};
use super::session::CALL_LIMIT;
use crate::domain::policy::{ASK_TIMEOUT_DEFAULT, EffectivePolicy};
use crate::domain::turn::PromptImage;

/// What a connection is opened with. Fixed for its life.
pub struct PeerConfig {
    /// Absolute working directory, as the agent sees it.
    pub cwd: String,
    /// The MCP servers, as the array that goes over the wire ([`super::mcp_servers`]).
    pub mcp_servers: Value,
    /// Further absolute directories, sent only to agents that take them.
    pub additional_directories: Vec<String>,
    /// `_meta` of the session calls (execution limits).
    pub session_meta: Option<Value>,
    /// The stored session to continue; `None` opens a new one.
    pub session: Option<String>,
    /// False when the credential is none that `authenticate` could use (a subscription grant).
    pub authenticate: bool,
    /// Longest wait for a permission answer while the turn is open.
    pub ask_ceiling: Duration,
    /// Longest wait for the answer to any call before the prompt.
    pub call_limit: Duration,
    /// Source of the random half of public request ids: 16 hex digits a call.
    pub mint: Box<dyn FnMut() -> String + Send>,
}

impl PeerConfig {
    /// A configuration with everything optional left out.
    #[must_use]
    pub fn new(cwd: impl Into<String>, mint: Box<dyn FnMut() -> String + Send>) -> Self {
        Self {
            cwd: cwd.into(),
            mcp_servers: json!([]),
            additional_directories: Vec::new(),
            session_meta: None,
            session: None,
            authenticate: true,
            ask_ceiling: ASK_TIMEOUT_DEFAULT,
            call_limit: CALL_LIMIT,
            mint,
        }
    }
}

/// A prompt and everything that holds for its turn.
#[derive(Clone, Default)]
pub struct PromptRequest {
    /// The text.
    pub text: String,
    /// Images, in order.
    pub images: Vec<PromptImage>,
    /// The model as this runtime spells it; `None` leaves the agent's.
    pub model: Option<String>,
    /// Session options by id, never `model`.
    pub options: BTreeMap<String, OptionValue>,
    /// The policy of this turn.
    pub policy: EffectivePolicy,
}

/// What is known about a turn that is taken back after a restart (runtimes 10.7).
pub struct Attach {
    /// JSON-RPC id of the running `session/prompt`.
    pub prompt_id: i64,
    /// The held permission requests, unanswered ones and those whose answer was not acknowledged.
    pub held: Vec<HeldPermission>,
    /// Position of the first byte that will be fed.
    pub from: i64,
    /// True when a process record vouches that `from` is the start of a line (RUL-42).
    pub has_record: bool,
    /// The policy of the turn.
    pub policy: EffectivePolicy,
}

/// Why a prompt was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromptRefused {
    /// A prompt runs, or its setup.
    #[error("not_idle")]
    NotIdle,
    /// The connection is over.
    #[error("closed")]
    Closed,
    /// After an attach it is not known what the agent offers, and this prompt needs to know. Spawn afresh.
    #[error("capabilities_unknown")]
    CapabilitiesUnknown,
}
