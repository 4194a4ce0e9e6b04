//! Which rules are in force, and how large the world is.
//!
//! Every rule can be taken away by itself. A model that stays silent without a rule would not have needed it, so each
//! switch has a test that names the property which falls.

/// The rules of the protocol, all in force by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// RUL-L-1: the lease is looked at before each call that changes something.
    pub guard: bool,
    /// RUL-L-5: an operation that is dropped with a call in flight lets its lease lapse.
    pub lapse_in_flight: bool,
    /// RUL-L-20, RUL-L-91: an accepted delete is no done one.
    pub confirm_deletes: bool,
    /// RUL-L-3: an operation whose fate is unknown stays a debt.
    pub keep_debts: bool,
    /// Lifecycle 3.3: a write names the epoch that it was made under.
    pub check_epochs: bool,
    /// RUL-L-22: what a create found is judged by the journal.
    pub judge_adoption: bool,
    /// INV-02, INV-53: a claim for use refuses a DOOMED row.
    pub refuse_doomed: bool,
    /// INV-02: an outcome keeps the fence.
    pub keep_fence: bool,
    /// INV-04: a live lease refuses a claim.
    pub respect_leases: bool,
    /// INV-32: a takeover only looks.
    pub takeover_only_looks: bool,
    /// RUL-L-4, INV-31: a suspend whose answer was lost is looked after.
    pub look_after_lost: bool,
    /// RUL-L-3: an operation in which some answer was lost is looked after once more, whatever its outcome says.
    pub last_look_after_lost: bool,
    /// RUL-L-3: only a look settles a debt, and only as of the moment of the look.
    pub only_looks_settle: bool,
    /// RUL-L-3: a confirmed delete of the machine leaves the last looks of older operations to be taken.
    pub debts_outlive_delete: bool,
    /// RUL-L-22: the journal follows a machine that is given another name.
    pub journal_follows_name: bool,
    /// RUL-L-3: the time of a debt runs from the end of its lease, not from the start of its operation.
    pub age_from_lease_end: bool,
}

impl Rules {
    pub const ALL: Self = Self {
        guard: true,
        lapse_in_flight: true,
        confirm_deletes: true,
        keep_debts: true,
        check_epochs: true,
        judge_adoption: true,
        refuse_doomed: true,
        keep_fence: true,
        respect_leases: true,
        takeover_only_looks: true,
        look_after_lost: true,
        last_look_after_lost: true,
        only_looks_settle: true,
        debts_outlive_delete: true,
        journal_follows_name: true,
        age_from_lease_end: true,
    };
}

/// Where a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// `pending`, nothing built (M1).
    New,
    /// As `New`, while somebody else's machine has the name already.
    NewBesideStranger,
    /// `ready`, and the machine runs.
    Up,
    /// `suspended`, and so is the machine.
    Asleep,
}

/// The world: what may happen, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    pub start: Start,
    /// RUL-L-2: the provider refuses an epoch below the highest that it saw under a name.
    pub honours_epochs: bool,
    /// The name was chosen by its user and is kept, or minted and replaced (RUL-L-22).
    pub chosen_name: bool,
    /// Claims after the start. Nothing is claimed beyond it.
    pub claims: u8,
    /// Faults in all: a crash, a drop, a renewal that fails, a lost or late answer, a refusal, a failed look, a delete
    /// that is only accepted, a step of a build that fails.
    pub faults: u8,
    /// Fences by a user.
    pub fences: u8,
    /// A process may stop between its guard and the call it was asked for (SIGSTOP knows no await points).
    pub stops_after_guard: bool,
    /// A process that comes back frees the leases of the one before it (RUL-30 on SQLite), and is the only process.
    pub boot_frees: bool,
}

impl World {
    pub const fn from(start: Start) -> Self {
        Self {
            start,
            honours_epochs: false,
            chosen_name: false,
            claims: 3,
            faults: 2,
            fences: 1,
            stops_after_guard: false,
            boot_frees: false,
        }
    }
}
