//! The ACP client peer: framing, the session state machine, updates to reports (runtimes 8 to 13).
//!
//! Read [`report`] for what it tells its owner, then [`peer`] for the machine, [`session`] for the handshake. The room
//! is pure: it has no socket, no clock and no row, and it stores nothing. What a stored line looks like to a reader is
//! decided in `transcript::blocks`.

pub mod codec;
pub mod config;
pub mod failure;
mod incoming;
mod mcp;
pub mod message;
mod model;
pub mod peer;
pub mod permission;
mod plans;
pub mod report;
mod session;
#[cfg(test)]
mod tests;
pub mod updates;
pub mod usage;

pub use codec::LINE_MAX;
pub use config::{Attach, PeerConfig, PromptRefused, PromptRequest};
pub use failure::Failure;
pub use mcp::{McpError, mcp_servers};
pub use peer::Peer;
pub use permission::{AnswerError, denial_option, is_offered};
pub use report::{
    About, Effect, HeldPermission, LineKind, LineStream, ModelSource, OptionValue, Outgoing, PermissionAsk, Report,
    SessionMethod, StopReason,
};
pub use session::{CALL_LIMIT, REPLAY_LIMIT, REPLAY_QUIET};
