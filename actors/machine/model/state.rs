//! What is known at one moment: the row, its journal, the provider, the requests on the way, and the processes at work.
//!
//! Everything is `Copy`-sized and canonical: owners are told apart by their epoch alone and kept sorted, so two states
//! that differ only in which process does what are one.

use fountain_actors::domain::machine::{MachineStatus, Transition};

/// Claims and the start's own operation: epochs are 1-based places in the journal.
pub const EPOCHS: usize = 7;
/// Names that one row can have had.
pub const NAMES: usize = 3;
/// Requests that may be on the way at the same time.
pub const REQUESTS: usize = 3;

/// Epoch 0 is no lease; as a maker it is somebody else.
pub type Epoch = u8;

/// The lease of the row. Its holder is whoever has the row's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lease {
    Free,
    Live,
    /// Its time is over and nobody took it: still its owner's (lifecycle 3.3).
    Lapsed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub status: MachineStatus,
    pub stamp: Option<Transition>,
    pub epoch: Epoch,
    pub lease: Lease,
    /// `cleanup_pending`.
    pub owes: bool,
    pub name: u8,
}

impl Row {
    pub fn is_doomed(&self) -> bool {
        self.stamp == Some(Transition::Destroying) && !self.status.is_terminal()
    }

    /// As `Machine::is_counted`.
    pub fn is_counted(&self) -> bool {
        use {MachineStatus as S, Transition as T};
        self.owes
            || matches!(self.status, S::Pending | S::Starting | S::Ready)
            || (!self.status.is_terminal() && matches!(self.stamp, Some(T::Resuming | T::Destroying)))
    }
}

/// What an owner is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Task {
    Build,
    Park,
    Wake,
    /// Also a reattach's confirm: a look that is written down.
    Settle,
    Destroy,
}

/// How a journal row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Standing {
    /// No outcome. A debt once its lease is over.
    Open,
    /// `unknown` or `superseded`: a debt.
    Owed,
    /// The row was made true; a last look is still to come.
    Settled,
    Closed,
}

/// How long ago the lease of an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Age {
    Young,
    /// 120 s: what it sent was answered or given up.
    Ripe,
    /// A quarter of an hour: what it sent has happened, or never will.
    Old,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    pub task: Task,
    pub name: u8,
    pub standing: Standing,
    pub age: Age,
    /// Its lease once ran out.
    pub lapsed: bool,
    /// A resume was sent under this epoch.
    pub resumed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    Create,
    Destroy,
    Suspend,
    Resume,
}

/// Who waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fate {
    Awaited,
    /// Its caller died or was dropped.
    Dropped,
    /// Its caller gave it up, or took an acceptance for the answer.
    Stray,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    pub epoch: Epoch,
    pub call: Call,
    pub name: u8,
    pub fate: Fate,
    /// An accepted delete concerns the machine that stood there then, and no later one of its name.
    pub only: Option<Epoch>,
}

/// A machine that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    pub running: bool,
    /// Whose create made it; 0 is nobody of ours.
    pub maker: Epoch,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Provider {
    pub machines: [Option<Machine>; NAMES],
    /// By name, kept after a delete (RUL-L-2). Unused by a provider that ignores epochs.
    pub highest: [Epoch; NAMES],
}

/// Why a build deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deleting {
    No,
    /// What an earlier build left; the build goes on.
    Remnant,
    /// What this build made; the build has failed.
    OwnMachine,
}

/// What an owner writes in its second transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Finish {
    Built,
    BuildFailed {
        owes: bool,
    },
    /// A fenced build closes and leaves the machine to the destroy that comes next.
    GivesWay,
    Parked,
    /// A park that did not happen.
    StaysUp,
    Woken,
    /// A wake that did not happen.
    StaysAsleep,
    SeenUp,
    SeenAsleep,
    /// M18.
    Lost,
    /// M16, or the end of an owed delete.
    Deleted,
    Unconfirmed,
    /// Debts of a row that has ended, or of a name that was given up.
    NothingLeft,
    Unknown,
    /// A look that did not answer.
    LookFailed,
}

/// Where an owner stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum At {
    /// Before the guard of a call.
    Sends(Call),
    /// The guard held, the call is not sent yet. Only in worlds that stop there.
    Passed(Call),
    Awaits(Call),
    Looks,
    /// Before the commit that says `starting`.
    Advances,
    /// Before the commit of another name.
    Renames,
    Finishes(Finish),
}

/// An operation at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub epoch: Epoch,
    pub task: Task,
    pub at: At,
    /// The name that it acts on.
    pub name: u8,
    /// Claimed over a stamp that a dead operation left.
    pub takeover: bool,
    pub deleting: Deleting,
    /// Something may stand at the provider that a failed build has to delete.
    pub owes: bool,
    /// An earlier create of this epoch lost its answer.
    pub create_lost: bool,
    /// A remnant or a stranger was met once already.
    pub met: bool,
    /// Some call of this operation got no answer.
    pub lost: bool,
    /// The row was `suspended` and wore no stamp when this was claimed.
    pub was_asleep: bool,
    /// What the last look or answer truly showed, for the laws alone.
    pub proof: Proof,
    /// Epochs whose debts the last look settles, and those it closes: bits.
    pub settles: u8,
    pub closes: u8,
}

/// What is really known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Proof {
    Nothing,
    Suspended,
    Absent,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub row: Row,
    pub journal: [Option<Operation>; EPOCHS],
    pub provider: Provider,
    /// Sorted.
    pub requests: Vec<Request>,
    /// Sorted; two at most.
    pub owners: Vec<Owner>,
    pub claims_left: u8,
    pub faults_left: u8,
    pub fences_left: u8,
    /// Laws that the step which led here broke: bits of [`crate::laws::Law`].
    pub broken: u32,
}

impl State {
    pub fn operation(&self, epoch: Epoch) -> Option<&Operation> {
        self.journal.get(usize::from(epoch).checked_sub(1)?)?.as_ref()
    }

    pub fn operation_mut(&mut self, epoch: Epoch) -> Option<&mut Operation> {
        self.journal.get_mut(usize::from(epoch).checked_sub(1)?)?.as_mut()
    }

    /// The journal with its epochs.
    pub fn operations(&self) -> impl Iterator<Item = (Epoch, &Operation)> {
        (1..)
            .zip(&self.journal)
            .filter_map(|(epoch, row)| row.as_ref().map(|row| (epoch, row)))
    }

    /// The lease of this operation is over.
    pub fn has_ended(&self, epoch: Epoch) -> bool {
        epoch < self.row.epoch || self.row.lease != Lease::Live
    }

    /// An operation that a settle pass has something to do about, now or later (RUL-L-3).
    pub fn is_debt(&self, epoch: Epoch, operation: &Operation) -> bool {
        match operation.standing {
            Standing::Open => self.has_ended(epoch),
            Standing::Owed | Standing::Settled => true,
            Standing::Closed => false,
        }
    }

    /// As [`State::is_debt`], and there is something to do about it now.
    pub fn is_due(&self, epoch: Epoch, operation: &Operation) -> bool {
        self.is_debt(epoch, operation) && (operation.standing != Standing::Settled || operation.age == Age::Old)
    }

    pub fn debts(&self) -> usize {
        self.operations()
            .filter(|(epoch, row)| self.is_debt(*epoch, row))
            .count()
    }

    pub fn owner_of(&self, epoch: Epoch) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.epoch == epoch)
    }

    pub fn holds(&self, epoch: Epoch) -> bool {
        self.row.epoch == epoch && self.row.lease != Lease::Free
    }

    /// A machine that stands under a name.
    pub fn machine(&self, name: u8) -> Option<&Machine> {
        self.provider.machines.get(usize::from(name))?.as_ref()
    }

    /// Nobody works, nothing is on its way, nothing is owed, nothing is under way.
    pub fn is_quiet(&self) -> bool {
        use MachineStatus as S;
        self.owners.is_empty()
            && self.requests.is_empty()
            && self.debts() == 0
            && self.row.stamp.is_none()
            && !self.row.owes
            && !matches!(self.row.status, S::Pending | S::Starting)
    }

    /// Brings the state into its one form.
    pub fn settle_form(&mut self) {
        self.requests.sort_unstable();
        self.owners.sort_unstable();
    }
}
