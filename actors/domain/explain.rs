//! Why a machine is in its state, who holds it until when, what it waits for, and what happens next and when.
//!
//! One pure function over facts that were read in one snapshot: the row, its journal, who works on it, and the lease
//! clock. Whatever it says follows from data that is stored: a state that waits names a deadline, and a step that
//! happens without a client (DESIGN 1, promise 6). It decides nothing, and it never repeats what a provider said beyond
//! the class of an error (RUL-L-60). Follows lifecycle 2.1, 2.2, 5.2, 7; RUL-L-3, 23, 26, 45, 55.

pub mod ledger;
mod next;
mod receipt;

use crate::domain::conversation::ConversationStatus;
use crate::domain::machine::{LeaseInfo, Machine, MachineState};
use crate::domain::operation::{LAST_LOOK_AFTER, Operation, SETTLED_AFTER};
use crate::domain::settings::Settings;
use crate::domain::turn::TurnStatus;
use crate::domain::*;
use crate::ports::clock::after;

pub use receipt::{DeletionReceipt, receipt};

/// A conversation that was not ended, as far as it tells what its machine waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    pub conversation: ConversationId,
    pub status: ConversationStatus,
    pub last_active_at: Option<Moment>,
    /// Its open turn: which, how far, and until when a prompt waits for a build (RUL-L-23).
    pub turn: Option<OpenTurn>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OpenTurn {
    pub id: TurnId,
    pub status: TurnStatus,
    pub pending_until: Option<Moment>,
}

/// What is known of a machine, from one snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Testimony {
    pub machine: Machine,
    /// The lease clock at that moment (RUL-29).
    pub clock: Moment,
    /// Newest first.
    pub operations: Vec<Operation>,
    /// Every open operation and debt, oldest first, however long the journal is (RUL-L-3).
    pub open: Vec<Operation>,
    /// Those bound to the machine that have not ended.
    pub tenants: Vec<Tenant>,
    /// It takes a slot of the cap and the fleet (RUL-L-70).
    pub counted: bool,
}

/// One thing that a machine waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub what: String,
    /// Not longer than this.
    pub until: Option<Moment>,
}

/// One thing that happens next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub what: String,
    /// Who does it: an operation's holder, a pass, a client.
    pub by: &'static str,
    /// Not before this; None: with the next request, or when its holder is done.
    pub at: Option<Moment>,
}

/// How far a debt is (RUL-L-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebtStage {
    /// Nobody has looked yet; a turn waits for the look (RUL-L-45).
    Open,
    /// Looked at; the row is true again once it is settled.
    Probed,
    /// Settled; one last look is owed, because a provider may act late.
    Settled,
}

impl DebtStage {
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Probed => "probed",
            Self::Settled => "settled",
        }
    }
}

/// A debt, with the moments at which looks at the machine settle and close it.
#[derive(Clone, Debug, PartialEq)]
pub struct Debt {
    pub operation: Operation,
    pub stage: DebtStage,
    pub settles_at: Option<Moment>,
    pub closes_at: Option<Moment>,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    pub state: MachineState,
    /// One sentence for people.
    pub because: String,
    /// The live lease, and the operation that runs under it.
    pub holder: Option<(LeaseInfo, Option<Operation>)>,
    pub waits_for: Vec<Wait>,
    /// The first one is the next.
    pub next: Vec<Step>,
    pub debts: Vec<Debt>,
    pub counted: bool,
}

/// The word of a state, as lifecycle 2.1 names it.
pub fn state_word(state: MachineState) -> &'static str {
    use MachineState as S;
    match state {
        S::New => "new",
        S::Building => "building",
        S::BuildStale => "build_stale",
        S::Up => "up",
        S::UpBusy => "up_busy",
        S::Parking => "parking",
        S::ParkStale => "park_stale",
        S::Asleep => "asleep",
        S::Waking => "waking",
        S::WakeStale => "wake_stale",
        S::Doomed { .. } => "doomed",
        S::Gone(_) => "gone",
    }
}

/// The operation that runs under the machine's live lease.
fn running(testimony: &Testimony) -> Option<&Operation> {
    let machine = &testimony.machine;
    if !machine.lease_live(testimony.clock) {
        return None;
    }
    let mut open = testimony.open.iter();
    open.find(|operation| operation.epoch == machine.lease_epoch && operation.outcome.is_none())
}

/// Operations of which nobody knows what they did; the one that runs is none of them.
fn debts(testimony: &Testimony) -> Vec<Debt> {
    let running = running(testimony).map(|operation| operation.id);
    let owed = testimony.open.iter();
    owed.filter(|operation| operation.is_debt() && Some(operation.id) != running)
        .map(|operation| Debt {
            stage: match (operation.probed_at, operation.settled_at) {
                (_, Some(_)) => DebtStage::Settled,
                (Some(_), None) => DebtStage::Probed,
                (None, None) => DebtStage::Open,
            },
            settles_at: operation.lease_until.map(|end| after(end, SETTLED_AFTER)),
            closes_at: operation.lease_until.map(|end| after(end, LAST_LOOK_AFTER)),
            operation: operation.clone(),
        })
        .collect()
}

/// Explains a machine.
pub fn why(testimony: &Testimony, settings: &Settings) -> Why {
    let machine = &testimony.machine;
    let state = machine.state(testimony.clock);
    let debts = debts(testimony);
    let told = next::told(testimony, state, &debts, settings);
    Why {
        state,
        because: told.because,
        holder: machine
            .lease
            .clone()
            .filter(|_| machine.lease_live(testimony.clock))
            .map(|lease| (lease, running(testimony).cloned())),
        waits_for: told.waits_for,
        next: told.next,
        debts,
        counted: testimony.counted,
    }
}

#[cfg(test)]
mod tests;
