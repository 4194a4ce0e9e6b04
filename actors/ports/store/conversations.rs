//! Conversations: launch, attach, the views of the API, and their end.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Answer, Committed};
use crate::domain::account::{Actor, NewAudit, Scope};
use crate::domain::agent::Runtime;
use crate::domain::conversation::*;
use crate::domain::machine::{MachineMode, Provider};
use crate::domain::process::Process;
use crate::domain::turn::{Prompt, Turn};
use crate::domain::*;

/// The numbers of the quota transaction (lifecycle 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub fleet: i64,
    /// Ceiling per account. An override wins over it, and with credits the balance sets the cap below it.
    pub cap: i64,
    /// None: credits are switched off.
    pub credits: Option<crate::domain::credit::CreditTerms>,
}

impl Limits {
    /// Without credits.
    pub const fn flat(fleet: i64, cap: i64) -> Self {
        Self {
            fleet,
            cap,
            credits: None,
        }
    }
}

/// A machine to be reserved: M1.
#[derive(Clone, Debug)]
pub struct NewMachine {
    pub id: MachineId,
    pub name: String,
    pub mode: MachineMode,
    pub runtime: Runtime,
    pub provider: Provider,
    pub provider_meta: Value,
    pub agent_id: AgentId,
    pub environment_id: Option<EnvironmentId>,
    pub vault_id: Option<VaultId>,
}

#[derive(Clone, Debug)]
pub struct NewConversation {
    pub id: ConversationId,
    pub account_id: AccountId,
    pub runtime: Runtime,
    pub agent_id: AgentId,
    pub agent_version_id: AgentVersionId,
    pub environment_id: Option<EnvironmentId>,
    pub vault_id: Option<VaultId>,
    pub parent_conversation_id: Option<ConversationId>,
    pub source: Source,
    pub channel_id: Option<String>,
    pub title: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub model: Option<String>,
    pub sandbox_api_access: SandboxApiAccess,
    pub permission_policy: Option<Map<String, Value>>,
}

/// A launch on a machine of its own.
#[derive(Clone, Debug)]
pub struct Launch {
    pub conversation: NewConversation,
    pub machine: NewMachine,
    /// Turn 1, `pending` until the machine is built (RUL-5).
    pub prompt: Option<(TurnId, Prompt)>,
    /// Until when that turn waits (RUL-L-23).
    pub pending_until: Moment,
    pub limits: Limits,
    pub audit: NewAudit,
    pub now: Moment,
}

/// A conversation joining a machine that exists.
#[derive(Clone, Debug)]
pub struct Attach {
    pub conversation: NewConversation,
    pub machine_id: MachineId,
    /// What the caller wants the machine to have been built for; None is "none".
    pub environment_id: Option<EnvironmentId>,
    /// Of the caller: only a key of full scope brings another agent (lifecycle 5.7 rule 6).
    pub scope: Scope,
    pub audit: NewAudit,
    pub now: Moment,
}

/// What a conversation's end decided (RUL-L-29).
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    pub conversation: Conversation,
    /// The machine was fenced with it and is to be destroyed; otherwise it is kept or gone.
    pub fenced: Option<MachineId>,
    /// The turn that it cut.
    pub cut: Option<Turn>,
    /// Processes of the conversation on a machine that stays; each is marked `stop_requested`.
    pub to_stop: Vec<Process>,
}

pub trait ConversationStore {
    /// The quota transaction of M1: locks, fleet, account active, cap, then machine (`pending`, `woken_at` = now),
    /// conversation (`pending`), the opening turn with its images, audit `conversation.created`.
    ///
    /// # Errors
    /// `Refused`: `fleet_full`, `account_suspended`, `sandbox_quota_exceeded`. `HomeTaken` when a live home has this
    /// identity.
    fn launch(&self, launch: Launch) -> Answer<'_, Committed<ConversationView>>;

    /// Under the machine lock, in the order of lifecycle 5.7 as amended by RUL-L-39: DOOMED, status, vault,
    /// environment, another agent (admissible, then the caller's scope; RUL-L-84, RUL-L-85) or the runtime, lease. The
    /// conversation opens `idle` (RUL-11), a guest's with its environment pinned.
    fn attach(&self, attach: Attach) -> Answer<'_, Committed<ConversationView>>;

    /// The live home of an identity.
    fn home_of(
        &self,
        account: AccountId,
        agent: AgentId,
        environment: Option<EnvironmentId>,
        vault: Option<VaultId>,
        runtime: Runtime,
    ) -> Answer<'_, Option<MachineId>>;

    /// The latest live conversation of a channel with the same agent, vault and environment override.
    fn channel_conversation(
        &self,
        account: AccountId,
        channel: String,
        agent: AgentId,
        vault: Option<VaultId>,
        environment: Option<EnvironmentId>,
    ) -> Answer<'_, Option<Conversation>>;

    /// The row, for actors. The API asks for views.
    fn conversation(&self, id: ConversationId) -> Answer<'_, Option<Conversation>>;
    /// One conversation with its open permission requests.
    fn conversation_view(&self, account: AccountId, id: ConversationId) -> Answer<'_, Option<ConversationView>>;
    /// Most recently updated first, in a constant number of queries.
    fn conversation_views(&self, account: AccountId, filter: ConversationFilter) -> Answer<'_, Vec<ConversationView>>;

    /// Merges labels (None removes); at most 32 afterwards.
    fn merge_labels(
        &self,
        account: AccountId,
        id: ConversationId,
        changes: BTreeMap<String, Option<String>>,
        now: Moment,
    ) -> Answer<'_, Conversation>;
    fn mark_read(&self, account: AccountId, id: ConversationId, now: Moment) -> Answer<'_, ()>;

    /// C5 in one transaction (RUL-L-29, RUL-12): last-detach decision under the machine lock, fence or keep, the open
    /// turn interrupted with its stage, status `terminated`, stage `terminate/done`, audit. On a fence the sessions'
    /// processes die with the machine and `to_stop` is empty. Idempotent on an ended conversation.
    ///
    /// A machine that is pending or starting is fenced whatever its lease; a `ready` or `suspended` one with a live
    /// lease is refused with `sandbox_unavailable`, and nothing is written (INV-58).
    fn terminate(
        &self,
        account: AccountId,
        id: ConversationId,
        actor: Actor,
        request_ip: Option<String>,
        now: Moment,
    ) -> Answer<'_, Committed<Ended>>;

    /// Removes an ended conversation with its turns, events and processes; leaves a descriptor on its machine
    /// (RUL-28a). `NotFound` when it is not ended.
    fn delete_conversation(
        &self,
        account: AccountId,
        id: ConversationId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, ()>;
}
