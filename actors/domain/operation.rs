//! The operation journal: what was done to a machine, by whom, under which epoch, and what came of it (DESIGN 1).

use std::time::Duration;

use serde_json::Value;

use crate::domain::*;
use crate::vocabulary;

/// A look this long after an operation's lease ended settles its debt: the longest bound of a provider call (RUL-L-3).
pub const SETTLED_AFTER: Duration = Duration::from_secs(120);
/// A look this long after it closes the debt, because a provider may act late (RUL-L-3).
pub const LAST_LOOK_AFTER: Duration = Duration::from_secs(15 * 60);

vocabulary! {
    Verb {
        Provision = "provision", Park = "park", Wake = "wake", Destroy = "destroy", Reset = "reset",
        Confirm = "confirm", Settle = "settle",
    }
}

vocabulary! {
    /// `Unknown` and `Superseded` leave a debt (RUL-L-3).
    Outcome {
        Done = "done", Failed = "failed", Refused = "refused", Unknown = "unknown", Superseded = "superseded",
        Unconfirmed = "unconfirmed", HandedOver = "handed_over",
    }
}

/// One row of `operations`. The answer holds an error class and a status, never a provider's body (RUL-L-60).
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub id: OperationId,
    pub machine_id: MachineId,
    /// The name that the provider knew the machine by when this began.
    pub machine_name: String,
    pub verb: Verb,
    pub reason: Option<String>,
    pub actor: String,
    pub epoch: Epoch,
    pub started_at: Moment,
    pub finished_at: Option<Moment>,
    pub outcome: Option<Outcome>,
    /// Which calls were sent, in order: `create`, `destroy`, `get`, …
    pub provider_call: Option<String>,
    pub provider_answer: Option<String>,
    pub evidence: Option<Value>,
    /// On the lease clock: when the operation's lease ends, or ended.
    pub lease_until: Option<Moment>,
    /// Of a debt: the first look after it. A turn may run from then on (RUL-L-45).
    pub probed_at: Option<Moment>,
    /// Of a debt: a look came late enough for the row to be true again (RUL-L-3).
    pub settled_at: Option<Moment>,
    /// Of a debt: the last look was had.
    pub closed_at: Option<Moment>,
}

impl Operation {
    /// Nobody knows what it did, and the last look has not been had (RUL-L-3). Of an operation that still runs this
    /// says yes as well: only its lease tells the two apart.
    pub fn is_debt(&self) -> bool {
        self.closed_at.is_none() && matches!(self.outcome, None | Some(Outcome::Unknown | Outcome::Superseded))
    }
}

/// How an operation ended, for the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    pub outcome: Outcome,
    pub provider_call: Option<String>,
    pub provider_answer: Option<String>,
    pub evidence: Option<Value>,
}

impl Receipt {
    pub fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            provider_call: None,
            provider_answer: None,
            evidence: None,
        }
    }
}
