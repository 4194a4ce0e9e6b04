//! Machines: leases, operations, the fence, and what the sweeps look for.
//!
//! An operation is two transactions (RUL-28, RUL-L-10): `claim` takes the lease, re-reads every condition, stamps,
//! opens the journal row and publishes the first stage; `finish` writes the outcome, clears the stamp, completes the
//! journal row and releases, all guarded by the epoch. `advance` is for a step in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::conversations::Limits;
use super::{Answer, Committed};
use crate::domain::account::{Actor, NewAudit};
use crate::domain::event::NewStage;
use crate::domain::machine::{DestroyReason, Machine, MachineEvent, MachineStatus, Provider};
use crate::domain::operation::{Operation, Receipt};
use crate::domain::runner::Runner;
use crate::domain::turn::{OrphanReason, Turn};
use crate::domain::*;

/// A claim, before it is a [`crate::ports::store::machines::Claimed`].
#[derive(Clone, Debug)]
pub struct Claim {
    pub machine_id: MachineId,
    pub holder: String,
    pub ttl: Duration,
    pub purpose: Purpose,
    pub operation_id: OperationId,
    pub actor: Actor,
    /// Published with the claim, for conversations bound to the machine.
    pub stages: Vec<(ConversationId, NewStage)>,
    pub now: Moment,
}

/// What the lease is wanted for, and so which conditions are re-read (lifecycle 2.2) and which stamp is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Purpose {
    /// M2: status pending or starting. Stamp `provisioning`.
    Provision,
    /// M7: UP, or PARK-STALE (then no new stamp is needed; `recovered` in the answer).
    Park(ParkRule),
    /// M11 with the quota transaction: ASLEEP, WAKE-STALE, or UP when the provider said stopped. Stamp `resuming`.
    /// A WAKE-STALE row is counted already and is not admitted again (RUL-L-71).
    Wake { limits: Limits },
    /// M16: a DOOMED row, or a terminal one with `cleanup_pending`. The stamp stays.
    Destroy,
    /// M19, M20, and the settling of a stale stamp: ready or suspended, not DOOMED. No stamp.
    Confirm,
    /// M23: the row and the machine of a debt are compared; conditions as for [`Purpose::Confirm`].
    Settle,
    /// A terminal row that owes nothing, whose name may still stand at the provider: no live row of that provider may
    /// hold the name (RUL-L-52).
    Leftover,
    /// An admin's reap: any live row, fenced or not, or an ended one that owes a delete (RUL-L-47). No stamp.
    Reap,
}

/// When a machine may be parked (lifecycle 5.2, RUL-L-43).
#[derive(Clone, Debug, PartialEq)]
pub struct ParkRule {
    /// Open turns of these conversations refuse; a running row without a live server does not.
    pub live_servers: Vec<ConversationId>,
    /// Refuse unless all activity of the machine is older than this (`not_expired`).
    pub idle_before: Option<Moment>,
    /// For sweeps: refuse when `woken_at` is younger than this (INV-36).
    pub marker_before: Option<Moment>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, and the large one is the ordinary one"
)]
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAnswer {
    Claimed(Claimed),
    /// Somebody holds it.
    Held {
        holder: String,
        until: Moment,
    },
    /// A condition did not hold; nothing was written.
    Not(ClaimRefusal),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    pub epoch: Epoch,
    /// As it stands after the claim.
    pub machine: Machine,
    /// As it stood before: a dead stamp shows here.
    pub before: Machine,
    /// What earlier epochs left and nobody has had the last look at (RUL-L-3).
    pub debts: Vec<Operation>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ClaimRefusal {
    Missing,
    Terminal(MachineStatus),
    Doomed {
        reset: bool,
    },
    /// Not in a status that this purpose starts from.
    Status(MachineStatus),
    /// A counted turn, or activity inside the bound.
    Occupied,
    NotExpired,
    /// A live row holds this name at the provider: what stands there is that row's (RUL-L-52, INV-118).
    NameTaken,
    Refused(Refusal),
}

/// Column changes that a holder may make (lifecycle 3.3). None leaves a column alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patch {
    /// Replaces the minted name (RUL-L-22).
    pub name: Option<String>,
    /// Merged, key by key.
    pub provider_meta: BTreeMap<String, Value>,
    pub build_fingerprint: Option<String>,
    pub last_resumed_at: Option<Moment>,
    pub cleanup_pending: Option<bool>,
    pub next_attempt_at: Option<Moment>,
}

/// The second transaction of an operation.
#[derive(Clone, Debug)]
pub struct Finish {
    pub machine_id: MachineId,
    pub epoch: Epoch,
    pub operation_id: OperationId,
    /// None: the status stays as it is.
    pub event: Option<MachineEvent>,
    /// Leave the stamp (unknown outcome, RUL-L-4). A `destroying` stamp always stays unless the row becomes terminal.
    pub keep_stamp: bool,
    pub patch: Patch,
    pub receipt: Receipt,
    /// The provider said how the machine is: debts of earlier operations are probed with it (RUL-L-3).
    pub learned: bool,
    /// Open turns of the machine end with it: interrupted and orphaned, each with its stage (RUL-L-38).
    pub end_turns: Option<OrphanReason>,
    /// Conversations bound to the machine become `idle`, their `runtime_session_id` goes (destroy, reset).
    pub forget_sessions: bool,
    pub stages: Vec<(ConversationId, NewStage)>,
    pub audit: Vec<NewAudit>,
    /// Kind of the usage row, for example `suspended`.
    pub usage: Option<&'static str>,
    pub now: Moment,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub machine: Machine,
    /// The row was fenced meanwhile: a build or wake did not become usable (RUL-L-25, INV-23). The lease is released.
    pub fenced: bool,
    pub ended_turns: Vec<(ConversationId, Turn)>,
}

/// What a fence is asked for.
#[derive(Clone, Debug)]
pub struct Fence {
    pub machine_id: MachineId,
    pub reason: DestroyReason,
    pub actor: Actor,
    pub request_ip: Option<String>,
    /// Reset: refuses ephemeral, pending, starting, terminal, a DOOMED row and a machine with an open turn; clears the
    /// session ids of live conversations (lifecycle 5.4).
    pub reset: bool,
    pub now: Moment,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FenceAnswer {
    /// Stamped now, or before by somebody else (the first stamp stays).
    Fenced(Machine),
    AlreadyTerminal(Machine),
}

/// A machine as the API shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineView {
    pub machine: Machine,
    pub runner: Option<Runner>,
    /// All that were ever on it, newest first.
    pub conversations: Vec<MachineTenant>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MachineTenant {
    pub id: ConversationId,
    pub status: crate::domain::conversation::ConversationStatus,
    pub runtime: crate::domain::agent::Runtime,
    pub title: Option<String>,
    pub mid_turn: bool,
    pub inserted_at: Moment,
}

/// Rows by status, for gauges and the dashboard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Census {
    pub conversations: Vec<(crate::domain::conversation::ConversationStatus, i64)>,
    pub machines: Vec<(Provider, MachineStatus, i64)>,
}

pub trait MachineStore {
    fn machine(&self, id: MachineId) -> Answer<'_, Option<Machine>>;
    /// The lease clock, for deadlines that a transaction compares (RUL-29).
    fn lease_clock(&self, now: Moment) -> Answer<'_, Moment>;
    /// Newest first, terminated included; all statuses when none is named.
    fn machine_views(&self, account: AccountId, statuses: Vec<MachineStatus>) -> Answer<'_, Vec<MachineView>>;
    fn machine_view(&self, account: AccountId, id: MachineId) -> Answer<'_, Option<MachineView>>;

    /// Takes the lease: under the machine lock, epoch + 1, stamp, journal row, stages. Called by
    /// [`crate::ports::store::machines`]' wrapper in `machine/lease.rs` alone (RUL-38a).
    fn claim(&self, claim: Claim) -> Answer<'_, Committed<ClaimAnswer>>;
    /// `Stale` when the lease is not this holder's; otherwise it now ends `ttl` after the lease clock.
    fn renew(&self, machine: MachineId, epoch: Epoch, holder: String, ttl: Duration, now: Moment) -> Answer<'_, ()>;
    /// Between claim and finish: M3 and name or metadata changes. `Stale` when superseded. Answers the row, so that
    /// the holder sees a fence.
    fn advance(
        &self,
        machine: MachineId,
        epoch: Epoch,
        event: Option<MachineEvent>,
        patch: Patch,
        stages: Vec<(ConversationId, NewStage)>,
        now: Moment,
    ) -> Answer<'_, Committed<Machine>>;
    /// `Stale` when superseded; then only the journal row's outcome is written (RUL-L-3).
    fn finish(&self, finish: Finish) -> Answer<'_, Committed<Finished>>;
    /// Gives the lease back without an outcome, stamp and journal row left as they are (RUL-L-5).
    fn release(&self, machine: MachineId, epoch: Epoch) -> Answer<'_, ()>;
    /// M15.
    fn fence(&self, fence: Fence) -> Answer<'_, Committed<FenceAnswer>>;
    /// M18 for a machine that its provider does not know: fence and end in one transaction, provider step skipped,
    /// with the orphaning of its turns. Guarded by the epoch of a `Confirm` or `Wake` claim.
    fn retire_lost(&self, finish: Finish) -> Answer<'_, Committed<Finished>>;
    /// Moves a row's next attempt after a pass could not finish it (RUL-L-55).
    fn postpone(&self, machine: MachineId, until: Moment) -> Answer<'_, ()>;

    /// DOOMED rows and rows that owe a delete, due and unleased: resets at once, others once the stamp is older than
    /// `stamped_before`; ordered by `next_attempt_at`.
    fn doomed(&self, now: Moment, stamped_before: Moment, limit: i64) -> Answer<'_, Vec<Machine>>;
    /// `ready`, unstamped or PARK-STALE, unleased, idle or too old, marker older than `marker_before`.
    fn parkable(
        &self,
        now: Moment,
        idle_before: Option<Moment>,
        born_before: Option<Moment>,
        marker_before: Moment,
        limit: i64,
    ) -> Answer<'_, Vec<Machine>>;
    /// Ephemeral machines, ready or suspended, due, without a live conversation since `before` (RUL-L-54).
    fn abandoned(&self, now: Moment, before: Moment, limit: i64) -> Answer<'_, Vec<Machine>>;
    /// Boot, SQLite only: ends every lease and marker that another incarnation left (RUL-30). Answers how many.
    fn end_dead_leases(&self, holder: String) -> Answer<'_, u64>;

    /// Newest first.
    fn operations(&self, account: AccountId, machine: MachineId, limit: i64) -> Answer<'_, Vec<Operation>>;
    /// Names that live rows hold at one provider.
    fn live_names(&self, provider: Provider) -> Answer<'_, BTreeSet<String>>;
    fn census(&self) -> Answer<'_, Census>;
}
