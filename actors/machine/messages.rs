//! What a machine can be asked, and what it answers.
//!
//! Messages are plain data: whoever sends one has resolved agent, environment and secrets already, so that this room
//! depends on no runtime. A verb waits in the actor's queue; one that carries a deadline is refused with
//! `sandbox_unavailable` when it would start after it, and its asker is answered at that deadline even though the work
//! goes on (RUL-1, RUL-3). Verbs without a deadline are idempotent and are finished whoever still listens.
//! Follows lifecycle 3.2, 3.5.

use actix::Message;
use bytes::Bytes;
use tokio::time::Instant;

use super::groundwork::Groundwork;
use crate::domain::account::{Actor, NewApiKey};
use crate::domain::event::Stage;
use crate::domain::machine::{DestroyReason, Machine, MachineState};
use crate::domain::{AccountId, ConversationId, ErrorCode, Refusal, ServerEpoch};
use crate::ports::sandbox::NetworkPolicy;
use crate::ports::store::StoreError;
use crate::ports::store::conversations::Limits;
use crate::ports::store::machines::ParkRule;

/// A file that is written into a machine. Printing it shows no content.
#[derive(Clone)]
pub struct PlannedFile {
    /// Absolute.
    pub path: String,
    pub content: Bytes,
    /// Permission bits, for example `0o600`.
    pub mode: Option<u32>,
    /// A failure is logged and the build goes on (instructions file, lifecycle 4.4 step 10).
    pub best_effort: bool,
}

impl std::fmt::Debug for PlannedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlannedFile({}, {} bytes)", self.path, self.content.len())
    }
}

/// A part of the environment or agent that this release cannot build (RUL-52): its stage fails with `not_supported`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    pub stage: Stage,
    /// For people: what to remove.
    pub message: String,
}

/// Everything that one build needs to know (lifecycle 4.4).
#[derive(Clone, Debug)]
pub struct BuildPlan {
    /// Written with `ready` (INV-22).
    pub fingerprint: String,
    /// `Some` for limited networking; the list may be empty, which denies everything (INV-29). None: unrestricted.
    pub policy: Option<NetworkPolicy>,
    /// Packages, repositories and setup script of a cold build.
    pub groundwork: Groundwork,
    /// In the order of their stages. Anything here fails the build before the provider is called.
    pub unsupported: Vec<Unsupported>,
    /// The key inside the machine, minted after the create; the caller keeps the plain text. None: no API access.
    pub callback_key: Option<NewApiKey>,
    /// Written in this order after the key was minted; the environment file is the last (RUL-L-33).
    pub files: Vec<PlannedFile>,
}

/// Builds the machine of a conversation: claim, create, `starting`, policy, key, files, `ready` (lifecycle 4.4).
///
/// Sent by the conversation's server. Runs for up to the provision ceiling of 30 minutes (lifecycle 4.6).
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Provisioned, ProvisionError>")]
pub struct Provision {
    pub conversation: ConversationId,
    pub server_epoch: ServerEpoch,
    pub plan: BuildPlan,
}

/// The machine is `ready`.
#[derive(Clone, Debug, PartialEq)]
pub struct Provisioned {
    pub machine: Machine,
    /// The disk is new, so a runtime session id from before means nothing. False when it was `ready` already.
    pub built: bool,
}

/// A build that ended its row as `failed`. `<stage>/failed` and `provision/failed` are published already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionFailure {
    pub stage: Stage,
    /// A word: `not_supported`, `backend_lacks_network_policy`, `create_failed`, `deadline_exceeded` …
    pub reason: String,
    /// For people; never a secret.
    pub message: String,
    /// What the setup script ended with.
    pub exit_code: Option<i64>,
    /// The ceiling ended it: not even a first build is final then (RUL-L-31).
    pub at_ceiling: bool,
}

/// Why a machine was not built.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The row is `failed`; the caller ends the waiting turn (RUL-11).
    #[error("the build failed in {}: {}", .0.stage, .0.reason)]
    Failed(ProvisionFailure),
    /// Another server builds it, or took over: stand down without a word.
    #[error("another server builds this machine")]
    ClaimedElsewhere,
    /// Fenced before or meanwhile; what was built is deleted. Nothing is announced (R-43, RUL-L-37).
    #[error("the machine is being torn down")]
    Doomed,
    /// The row is terminal, or not in a status that is built.
    #[error("the machine is not there to be built")]
    NotBuildable(MachineState),
    /// Nothing was decided; the row keeps its state and can be built again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A bug stopped the operation between two steps; its stamp stays and the lease lapses or was released.
    #[error("the build crashed")]
    Crashed,
}

/// Makes the machine usable: nothing to do when it is up, a wake when it is parked (lifecycle 5.3, RUL-1).
///
/// Sent for a prompt that found no live server. Answers within `deadline`; a slow wake goes on behind the answer.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Usable, MachineError>")]
pub struct EnsureUp {
    /// Who is told about a refused wake.
    pub conversation: ConversationId,
    pub limits: Limits,
    /// Re-applied after a resume, before anything runs (promise 9).
    pub policy: Option<NetworkPolicy>,
    pub actor: Actor,
    pub deadline: Instant,
}

/// What a machine is after [`EnsureUp`].
#[derive(Clone, Debug, PartialEq)]
pub enum Usable {
    /// It was up already.
    AlreadyUp(Machine),
    /// It was parked and runs now; its processes are gone where the provider says so.
    Resumed(Machine),
    /// Its provider does not know it any more; the row is retired (M18). Build a fresh one.
    Lost(Machine),
    /// The row ended before. Build a fresh one.
    Gone(Machine),
    /// No build runs on it although it is not built: NEW or BUILD-STALE. Build it.
    NotBuilt(Machine),
}

/// Under the lease of a reattach: prove that the machine runs, then make it ready for this server (M19, M20, walk 8.3).
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Confirmed, MachineError>")]
pub struct ConfirmUp {
    pub conversation: ConversationId,
    pub server_epoch: ServerEpoch,
    /// Publish `reattach/started` once the provider has answered (RUL-16).
    pub announce: bool,
    pub policy: Option<NetworkPolicy>,
    pub callback_key: Option<NewApiKey>,
    pub files: Vec<PlannedFile>,
}

/// What a confirmation found.
#[derive(Clone, Debug, PartialEq)]
pub enum Confirmed {
    Up(Machine),
    /// It is parked. Running turns on it were ended as `machine_parked` when that was news (RUL-L-24).
    Asleep(Machine),
    /// Not known to its provider; retired (M18), its turns ended.
    Lost(Machine),
    Gone(Machine),
    /// Not built: NEW, BUILDING or BUILD-STALE.
    NotBuilt(Machine),
}

/// Parks the machine if its rule holds (M7 to M10, lifecycle 5.2). Sent by an idle server and by the sweep.
///
/// A provider that cannot suspend makes this a destroy (RUL-L-27).
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Parked, MachineError>")]
pub struct Park {
    pub rule: ParkRule,
    /// `idle` or `max_lifetime`; shown with the event, and the destroy reason where a park is a destroy.
    pub reason: DestroyReason,
    /// Told with `sandbox/done`, next to everybody else on the machine; None for sweeps.
    pub requester: Option<ConversationId>,
    pub actor: Actor,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Parked {
    Parked(Machine),
    AlreadyParked(Machine),
    /// A park that died half-way was settled; the machine is what its row says now (M10).
    Recovered(Machine),
    /// It could not be parked and was fenced; its owner destroys it.
    Destroying(Machine),
    Gone(Machine),
}

/// Finishes a machine that is DOOMED, or that owes a delete although its row ended (M16, RUL-L-21). Idempotent.
///
/// Sent behind a terminate, by an identity change, and by the sweep.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Destroyed, MachineError>")]
pub struct Destroy {
    pub actor: Actor,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Destroyed {
    /// Confirmed absent.
    Destroyed(Machine),
    AlreadyTerminal(Machine),
}

/// Fences for this reason, then destroys. Sent where no conversation and no user's reset decides: abandoned machines.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Destroyed, MachineError>")]
pub struct Retire {
    pub reason: DestroyReason,
    pub actor: Actor,
}

/// Ends the row without evidence and leaves the machine to an operator (RUL-L-47). Busy after five seconds.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Reaped, MachineError>")]
pub struct Reap {
    pub admin: AccountId,
    pub actor: Actor,
    pub request_ip: Option<String>,
}

/// What a reap ended (http-api 5.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    Terminated,
    /// There was no usable machine: a build, or a delete that an ended row still owed.
    Released,
    AlreadyTerminal,
}

impl Reaped {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::Released => "released",
            Self::AlreadyTerminal => "already_terminal",
        }
    }
}

/// Looks after what dead or superseded operations did to this machine, and makes the row true (M23, RUL-L-3).
///
/// Sent by the settle pass. [`MachineError::Busy`] when somebody holds the machine: whoever does looks himself.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<SettledDebts, MachineError>")]
pub struct Settle {
    pub actor: Actor,
}

/// What the row says after [`Settle`].
#[derive(Clone, Debug, PartialEq)]
pub enum SettledDebts {
    Up(Machine),
    Asleep(Machine),
    /// Its provider does not know it any more; the row is retired (M18).
    Lost(Machine),
    /// The row was fenced or had ended; what stood at the provider is gone, or somebody else's.
    Swept,
}

/// Deletes what still stands at the provider under the name of a row that has ended, if no live row has that name
/// (RUL-L-52). Sent by the reaper.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Swept, MachineError>")]
pub struct Leftover {
    pub actor: Actor,
}

/// What became of a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    Deleted,
    /// There was nothing any more.
    Absent,
    /// A live row holds the name, so what stands there is that row's.
    NameTaken,
    /// The row is not an ended one without an owed delete: other passes see to it.
    Owed,
}

/// Destroys a persistent machine and keeps its conversations (lifecycle 5.4, RUL-L-26).
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<(), MachineError>")]
pub struct Reset {
    pub actor: Actor,
    pub request_ip: Option<String>,
}

/// Ends a build that nobody carries any more: M6 for NEW and BUILD-STALE. Idempotent.
///
/// Sent by the overdue pass (RUL-L-23) and by a launch whose server could not be started.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Machine, MachineError>")]
pub struct FailBuild {
    /// Told with `provision/failed`.
    pub conversation: Option<ConversationId>,
    pub reason: String,
    pub message: String,
    pub actor: Actor,
}

/// Where a path of the machine is on its host; the path itself where that is not known. Never waits for the queue.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<String, MachineError>")]
pub struct HostPath {
    pub path: String,
}

/// What the row says, and whether an operation runs in this actor. Never waits for the queue.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "Result<MachineReport, MachineError>")]
pub struct Status;

#[derive(Clone, Debug, PartialEq)]
pub struct MachineReport {
    pub machine: Machine,
    /// On the lease clock.
    pub state: MachineState,
    /// The verb that runs here, if one does.
    pub running: Option<&'static str>,
    /// Verbs that wait behind it.
    pub waiting: usize,
}

/// Stops the owner at once. What runs is dropped as a crash would drop it: stamp and journal row stay, and the lease is
/// given back, or lapses when a call is in flight (RUL-L-5). For a shutdown that cannot wait, and for tests of crashes.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub struct Abandon;

/// Why a verb did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A rule said no, or the provider did; the code is the client's.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another operation holds the machine, or the deadline passed while this one waited or ran.
    #[error("another operation holds the machine")]
    Busy,
    /// The lease was lost meanwhile: somebody newer acts. Nothing more is written (RUL-L-3).
    #[error("superseded by a newer operation")]
    Superseded,
    /// A park whose rule does not hold (lifecycle 5.2).
    #[error("somebody works on the machine")]
    Occupied,
    /// A park that brought a verdict which no longer holds.
    #[error("the machine is not idle long enough")]
    NotExpired,
    /// The provider would not suspend. The machine is up and will be asked again later (RUL-L-27).
    #[error("the provider would not suspend the machine")]
    SuspendFailed,
    /// The delete is not confirmed: the row stays fenced and counted, and is tried again (RUL-L-20).
    #[error("the provider has not confirmed the delete")]
    Unconfirmed,
    /// The network policy could not be put in force and read back: nothing may run there (RUL-L-97).
    #[error("the network policy could not be verified")]
    PolicyUnverified,
    /// The row is not DOOMED and owes nothing.
    #[error("the machine is not fenced")]
    NotFenced,
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A bug stopped the operation; its stamp stays, and the next operation settles it.
    #[error("an operation on the machine crashed")]
    Crashed,
}

impl From<ErrorCode> for MachineError {
    fn from(code: ErrorCode) -> Self {
        Self::Refused(code.into())
    }
}

impl MachineError {
    /// What a client is told.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal.clone(),
            Self::Busy | Self::Superseded | Self::Occupied | Self::NotExpired | Self::SuspendFailed => {
                ErrorCode::SandboxUnavailable.into()
            }
            Self::Unconfirmed => ErrorCode::SandboxResetPending.into(),
            Self::NotFenced => ErrorCode::SandboxUnavailable.into(),
            Self::PolicyUnverified => ErrorCode::SandboxProbeFailed.into(),
            Self::Store(error) => error.refusal(),
            Self::Crashed => ErrorCode::InternalError.into(),
        }
    }
}

impl ProvisionError {
    /// What a client that waits for the build is told.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Failed(failure) => Refusal::because(ErrorCode::SandboxUnavailable, failure.message.clone()),
            Self::ClaimedElsewhere => ErrorCode::Provisioning.into(),
            Self::Doomed => ErrorCode::SandboxResetPending.into(),
            Self::NotBuildable(_) => ErrorCode::SandboxUnavailable.into(),
            Self::Store(error) => error.refusal(),
            Self::Crashed => ErrorCode::InternalError.into(),
        }
    }
}
