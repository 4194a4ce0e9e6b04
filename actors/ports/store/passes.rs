//! What the passes remember and look for: debts, their own leases, rows that a reaper judges, and what is forgotten
//! (lifecycle 7, 1.8; RUL-L-3, RUL-L-45, RUL-L-51 to RUL-L-60).
//!
//! A selection is a guess: whoever acts claims the machine and reads every condition again (INV-114).

use std::time::Duration;

use super::Answer;
use super::turns::Adoptable;
use crate::domain::machine::{Machine, Provider};
use crate::domain::*;

/// How long a row rests after an attempt that did not finish it (RUL-L-55).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rests {
    /// Of a row that is DOOMED or owes a delete: always the same.
    pub deletes: Duration,
    /// Of every other row: by the number of attempts so far; the last one repeats.
    pub others: Vec<Duration>,
}

/// Who holds a name that stands in a provider's listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameHolder {
    /// A live row, or one that still owes its delete: nothing to do.
    Live,
    /// Only rows that have ended; the newest of them.
    Ended(MachineId),
}

/// A kind of row that is forgotten after some time (lifecycle 1.8, RUL-L-60).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgettable {
    LogEvents,
    AuditEvents,
    UsageEvents,
    /// Keys that were revoked before the bound.
    RevokedKeys,
    /// Journal rows that are neither open, nor indebted, nor a receipt of a delete.
    Operations,
    /// Receipts of deletes.
    DeletionReceipts,
}

impl Forgettable {
    pub const ALL: [Self; 6] = [
        Self::LogEvents,
        Self::AuditEvents,
        Self::UsageEvents,
        Self::RevokedKeys,
        Self::Operations,
        Self::DeletionReceipts,
    ];
}

pub trait PassStore {
    /// Takes the lease of a pass, or keeps it: None while another process holds it. A new holder gets a new epoch.
    fn take_pass(&self, pass: &'static str, holder: String, ttl: Duration, now: Moment) -> Answer<'_, Option<Epoch>>;
    /// The lease now ends `ttl` after the lease clock; zero gives it back. `Stale` when it is not this holder's.
    fn renew_pass(
        &self,
        pass: &'static str,
        holder: String,
        epoch: Epoch,
        ttl: Duration,
        now: Moment,
    ) -> Answer<'_, ()>;

    /// Whether the machine has a debt that nobody has looked after yet (RUL-L-45).
    fn owes_look(&self, machine: MachineId, now: Moment) -> Answer<'_, bool>;
    /// Machines with a debt for which a look is due now; those tried longest ago first.
    fn indebted(&self, now: Moment, limit: i64) -> Answer<'_, Vec<MachineId>>;
    /// The look was not had: the machine's debts are tried again at `until`.
    fn postpone_debts(&self, machine: MachineId, until: Moment) -> Answer<'_, ()>;
    /// The holder of `epoch` has looked under a name that the row gave up. `Stale` when superseded.
    fn name_probed(&self, machine: MachineId, epoch: Epoch, name: String, now: Moment) -> Answer<'_, ()>;
    /// Whether a row that is live, or owes a delete, holds this name at the provider.
    fn is_name_held(&self, provider: Provider, name: String) -> Answer<'_, bool>;
    /// Closes the debts of an ended row whose name a live row holds by now: that row's looks find what comes late.
    fn waive_debts(&self, machine: MachineId, now: Moment) -> Answer<'_, ()>;

    /// Moves a row's next attempt after a pass could not finish it, and counts the attempt (RUL-L-55). Answers when.
    fn defer(&self, machine: MachineId, rests: Rests, now: Moment) -> Answer<'_, Moment>;

    /// Builds whose stamp (or row, for NEW) is older than `before`, unleased, not DOOMED, due, with a marker older than
    /// `marker_before` (RUL-L-12).
    fn stuck_builds(&self, now: Moment, before: Moment, marker_before: Moment, limit: i64) -> Answer<'_, Vec<Machine>>;
    /// Prompts that wait for this machine to be built.
    fn waiting_on(&self, machine: MachineId) -> Answer<'_, Vec<(ConversationId, TurnId)>>;
    /// Who holds these names at a provider. A name that is not in the answer has no row.
    fn name_holders(&self, provider: Provider, names: Vec<String>) -> Answer<'_, Vec<(String, NameHolder)>>;
    /// Notes machines that no row explains (RUL-L-53).
    fn note_untracked(&self, provider: Provider, names: Vec<String>, now: Moment) -> Answer<'_, ()>;
    /// How many were noted at or after `since`.
    fn count_untracked(&self, provider: Provider, since: Moment) -> Answer<'_, i64>;

    /// Turns that run since before `started_before` without an open permission request, on conversations that were
    /// quiet since `quiet_before`; oldest first.
    fn stuck_turns(&self, started_before: Moment, quiet_before: Moment, limit: i64) -> Answer<'_, Vec<Adoptable>>;

    /// Deletes at most `limit` rows of one kind that are older than `before`, in one short transaction. Answers how
    /// many; fewer than `limit` means that none is left.
    fn forget(&self, what: Forgettable, before: Moment, limit: i64) -> Answer<'_, u64>;
}
