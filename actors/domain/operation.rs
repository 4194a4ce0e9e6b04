//! The operation journal: what was done to a machine, by whom, under which epoch, and what came of it (DESIGN 1).

use serde_json::Value;

use crate::domain::*;
use crate::vocabulary;

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
