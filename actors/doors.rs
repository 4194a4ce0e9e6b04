//! What the outside may ask of the domain: one method for each thing that a client can do to a conversation or machine.
//!
//! The HTTP doors know this trait and the store's views, nothing else; [`crate::directory::Engine`] implements it. Plain
//! configuration (agents, environments, vaults, keys) goes to the store directly; what it fenced comes back here.

pub mod admin;

use std::collections::BTreeMap;

use futures_util::future::LocalBoxFuture;
use serde_json::{Map, Value};

use crate::domain::account::Caller;
use crate::domain::conversation::{ConversationView, SandboxApiAccess};
use crate::domain::machine::MachineMode;
use crate::domain::queue::RequestView;
use crate::domain::schedule::Schedule;
use crate::domain::turn::Prompt;
use crate::domain::*;
use crate::ports::store::catalog::Fenced;
use admin::AdminDoors;

/// The answer of a door.
pub type Answer<'a, T> = LocalBoxFuture<'a, Result<T, Refusal>>;

/// `POST /api/conversations`, parsed and typed, before any gate (http-api 5.7.2).
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    pub agent_id: AgentId,
    pub prompt: Option<Prompt>,
    pub title: Option<String>,
    pub vault_id: Option<VaultId>,
    pub environment_id: Option<EnvironmentId>,
    pub inference_credential_id: Option<uuid::Uuid>,
    pub model: Option<String>,
    pub permission_policy: Option<Map<String, Value>>,
    pub sandbox_mode: Option<MachineMode>,
    pub sandbox_id: Option<MachineId>,
    pub sandbox_api_access: SandboxApiAccess,
    pub sprite_name: Option<String>,
    pub channel_id: Option<String>,
    pub fresh: bool,
    pub labels: BTreeMap<String, String>,
    /// `X-Fountain-Parent-Conversation-Id`, as it came; empty counts as absent.
    pub parent: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Launched {
    pub view: ConversationView,
    /// A channel's conversation was found; its prompt was not delivered (http-api 5.7.2).
    pub resumed: bool,
}

/// What a create that may wait came to.
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, and the large one is the ordinary one"
)]
#[derive(Clone, Debug, PartialEq)]
pub enum LaunchedOrQueued {
    Launched(Launched),
    Queued(RequestView),
}

pub trait Doors: AdminDoors + Send + Sync {
    /// Gates of lifecycle 4.1 in the order of RUL-19a, then one reservation; answers before anything is built.
    fn launch(&self, caller: Caller, request: LaunchRequest) -> Answer<'_, Launched>;
    /// As [`Doors::launch`]; when there is no room, the launch waits in the account's queue (lifecycle 2.7). One with
    /// images or a named machine never waits, and with a full queue the refusal stands.
    fn launch_or_queue(&self, caller: Caller, request: LaunchRequest) -> Answer<'_, LaunchedOrQueued>;
    /// Sends the prompt of a schedule now, whatever its calendar says. Noted on the schedule either way (http-api 5.11).
    fn run_schedule(&self, caller: Caller, schedule: Schedule) -> Answer<'_, ConversationId>;
    /// Answers when the turn is durable (RUL-4), within about 20 s.
    fn prompt(&self, caller: Caller, conversation: ConversationId, prompt: Prompt) -> Answer<'_, ()>;
    fn interrupt(&self, caller: Caller, conversation: ConversationId) -> Answer<'_, ()>;
    /// Idempotent.
    fn terminate(&self, caller: Caller, conversation: ConversationId) -> Answer<'_, ()>;
    /// Terminates first, then removes the rows.
    fn delete_conversation(&self, caller: Caller, conversation: ConversationId) -> Answer<'_, ()>;
    fn answer_permission(
        &self,
        caller: Caller,
        conversation: ConversationId,
        request_id: String,
        option_id: String,
    ) -> Answer<'_, ()>;
    /// Reset of a persistent machine: fence, delete, confirm (lifecycle 5.4, RUL-L-26).
    fn reset(&self, caller: Caller, machine: MachineId) -> Answer<'_, ()>;
    /// Machines that a change of configuration fenced: stops their servers and destroys them, behind the answer.
    fn destroy_fenced(&self, fenced: Fenced);
    /// A server of this conversation is alive here.
    fn is_live(&self, conversation: ConversationId) -> bool;
    /// This process can show that it is a member of its deployment; one that cannot admits nothing (RUL-L-7).
    fn is_member(&self) -> bool {
        true
    }
}
