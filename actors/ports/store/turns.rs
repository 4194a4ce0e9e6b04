//! Turns: admission, recovery, interrupts and permission answers. What a live server writes in the order of its output
//! goes through `transcript` instead.

use super::conversations::{Limits, NewMachine};
use super::{Answer, Committed};
use crate::domain::account::{Actor, NewAudit};
use crate::domain::conversation::Conversation;
use crate::domain::machine::{Machine, Provider};
use crate::domain::process::Process;
use crate::domain::turn::{DetachedAnswer, Ending, OrphanReason, PendingPermission, Prompt, PromptImage, Turn};
use crate::domain::*;

/// A server that was registered: what it starts from.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// With the bumped `server_epoch` inside.
    pub conversation: Conversation,
    pub machine: Machine,
    /// Pending or running.
    pub open_turn: Option<Turn>,
    /// Processes of this conversation that are not known to have ended, newest first.
    pub processes: Vec<Process>,
}

#[derive(Clone, Debug)]
pub struct Admit {
    pub conversation_id: ConversationId,
    pub server_epoch: ServerEpoch,
    /// Binding: the machine that the server was started for (INV-73).
    pub machine_id: MachineId,
    pub revision: i64,
    pub turn_id: TurnId,
    pub prompt: Prompt,
    /// Stored with the turn (RUL-L-41).
    pub spawn_id: Option<SpawnId>,
    /// A fresh process will run it: `turn/started` is published here (RUL-34).
    pub announce: bool,
    /// The detached permission request that this turn answers; taken off in the same transaction.
    pub answers: Option<DetachedAnswer>,
    /// The caller has given up after this (RUL-3), on the lease clock.
    pub deadline: Moment,
    pub audit: NewAudit,
    pub now: Moment,
}

/// A prompt that has to wait for a build (RUL-5, RUL-6, RUL-13).
#[derive(Clone, Debug)]
pub struct QueueTurn {
    pub account_id: AccountId,
    pub conversation_id: ConversationId,
    pub turn_id: TurnId,
    pub prompt: Prompt,
    pub pending_until: Moment,
    /// The machine that the caller looked at; if the conversation is bound elsewhere by now: `sandbox_unavailable`.
    pub seen_machine: MachineId,
    /// None: the same row is built again (BUILD-STALE keeps its reservation). Some: the seen row is terminal, and
    /// this one takes its place: quota transaction, repoint, `runtime_session_id` cleared.
    pub fresh: Option<NewMachine>,
    /// As in [`Admit`].
    pub answers: Option<DetachedAnswer>,
    pub limits: Limits,
    pub audit: NewAudit,
    pub now: Moment,
}

/// What an interrupt did.
#[derive(Clone, Debug, PartialEq)]
pub struct Interrupted {
    pub turn: Turn,
    /// Its process, marked `stop_requested` (RUL-19d). None for a pending turn.
    pub process: Option<Process>,
}

/// A conversation that needs a server (RUL-36, RUL-L-50).
#[derive(Clone, Debug, PartialEq)]
pub struct Adoptable {
    pub conversation_id: ConversationId,
    pub account_id: AccountId,
    pub machine_id: MachineId,
    pub machine_name: String,
    pub provider: Provider,
    pub turn: Turn,
}

pub trait TurnStore {
    /// Starts a generation: bumps `server_epoch` and writes `woken_at` under the machine lock (RUL-L-8). Refused on a
    /// DOOMED machine (`sandbox_reset_pending`) and on an ended conversation (`conversation_terminated`).
    fn start_server(&self, conversation: ConversationId, now: Moment) -> Answer<'_, Serving>;

    /// C1 of a prompt: the locked insert of lifecycle 6.2. Order of checks: conversation ended
    /// (`conversation_terminated`), server generation and binding (`Stale`), deadline and machine (DOOMED, not
    /// `ready`, live lease: `sandbox_unavailable`), revision (`configuration_changed`), a pending or running user
    /// turn (`conversation_busy`; the partial index has the last word), the runtime's capacity on this machine
    /// (`sandbox_at_capacity`, INV-77). An autonomous turn is closed here (RUL-27).
    /// Then: turn `running` with the next number, images, conversation `running`, `last_active_at`, audit
    /// `conversation.prompted` and, if `announce`, stage `turn/started` (mode `run` for number 1, else `continue`).
    fn admit_turn(&self, admit: Admit) -> Answer<'_, Committed<Turn>>;

    /// A `pending` turn for a prompt that found no machine to run on. `conversation_busy` when a turn is open.
    fn queue_turn(&self, queue: QueueTurn) -> Answer<'_, Committed<(Turn, Machine)>>;

    /// `pending` to `running`, once (INV-119), with `turn/started`. Guards as in `admit_turn`; where
    /// the machine carries no more turns of this runtime, the turn is answered `failed` (INV-77: never queued).
    fn open_pending_turn(
        &self,
        conversation: ConversationId,
        server_epoch: ServerEpoch,
        machine: MachineId,
        turn: TurnId,
        spawn_id: SpawnId,
        now: Moment,
    ) -> Answer<'_, Committed<Turn>>;

    /// Ends a turn from outside its server: build failures, sweeps, recovery. No-op (None) when it is terminal. With
    /// `binding`, only when the conversation is still bound to that machine (INV-73). The conversation becomes `idle`
    /// (or `failed` with `fail_conversation`, C4, only while it is `pending`) in the same transaction, before the
    /// `turn` stage event, and an open permission request is resolved `turn_ended`.
    fn close_turn(
        &self,
        conversation: ConversationId,
        ending: Ending,
        binding: Option<MachineId>,
        fail_conversation: bool,
    ) -> Answer<'_, Committed<Option<Turn>>>;

    /// C9: `pending` to `idle` when a build without an opening prompt has finished.
    fn settle_idle(&self, conversation: ConversationId, machine: MachineId, now: Moment) -> Answer<'_, ()>;

    /// C4 without an opening prompt: `pending` to `failed` when the first build failed. A no-op when the conversation is
    /// bound elsewhere, is not pending, or has a turn open (then `close_turn` says it).
    fn fail_pending(&self, conversation: ConversationId, machine: MachineId, now: Moment) -> Answer<'_, ()>;

    /// The user's interrupt, in one transaction: turn `interrupted`, conversation `idle`, stage `turn/interrupted`,
    /// open permission resolved, process marked. `no_turn_running`, or `not_running` on an ended conversation.
    fn interrupt(
        &self,
        account: AccountId,
        conversation: ConversationId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Interrupted>>;

    /// Orphans whatever turn of the conversation is running, as a server's clean stop does. None when none is.
    fn orphan_running(
        &self,
        conversation: ConversationId,
        binding: Option<MachineId>,
        reason: OrphanReason,
        now: Moment,
    ) -> Answer<'_, Committed<Option<Turn>>>;

    /// Ascending numbers.
    fn turns(&self, account: AccountId, conversation: ConversationId) -> Answer<'_, Vec<Turn>>;
    fn prompt_images(&self, turn: TurnId) -> Answer<'_, Vec<PromptImage>>;

    /// Turns that wait for a server: pending or running, oldest first.
    fn adoptable(&self, limit: i64) -> Answer<'_, Vec<Adoptable>>;
    /// Starts or keeps the reconnect window of a running turn (RUL-37): `until` is stored only where none is, or where
    /// the window ran out of a new loss, and never past `hard_limit` after the first loss. Answers the deadline.
    fn open_reconnect_window(
        &self,
        turn: TurnId,
        now: Moment,
        until: Moment,
        hard_limit: std::time::Duration,
    ) -> Answer<'_, Moment>;
    fn close_reconnect_window(&self, turn: TurnId) -> Answer<'_, ()>;
    /// Pending turns past `pending_until` (RUL-L-23), running ones past their reconnect window.
    fn overdue_turns(&self, now: Moment, limit: i64) -> Answer<'_, Vec<Adoptable>>;

    /// First answer wins: stores it on the open request. `permission_request_resolved` when there is no such open
    /// request or it has an answer or is past its deadline; `unknown_option` when it was not offered.
    fn answer_permission(
        &self,
        account: AccountId,
        conversation: ConversationId,
        request_id: String,
        option_id: String,
        actor: Actor,
        now: Moment,
    ) -> Answer<'_, (TurnId, PendingPermission)>;
    /// Stores the denial of a request whose deadline has passed. None when it was answered meanwhile.
    fn expire_permission(&self, turn: TurnId, request_id: String, now: Moment)
    -> Answer<'_, Option<PendingPermission>>;
    /// Open requests past their deadline, answered or not (RUL-L-57).
    fn expired_permissions(&self, now: Moment, limit: i64) -> Answer<'_, Vec<(ConversationId, TurnId, String)>>;

    /// Registers a spawn before its answer is known.
    fn open_process(&self, process: Process, server_epoch: ServerEpoch) -> Answer<'_, ()>;
    /// The session id that the provider answered.
    fn bind_session(&self, process: ProcessId, session_id: String) -> Answer<'_, ()>;
    fn request_stop(&self, process: ProcessId) -> Answer<'_, ()>;
    fn end_process(&self, process: ProcessId, now: Moment) -> Answer<'_, ()>;
    /// Processes marked `stop_requested` that are not known to have ended, on one machine (RUL-19d, RUL-47).
    fn processes_to_stop(&self, machine: MachineId) -> Answer<'_, Vec<Process>>;
}
