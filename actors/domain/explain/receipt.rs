//! What became of a delete: confirmed, by which call and when; unconfirmed, why, and when it is tried again; or handed
//! to an operator, who alone knows (RUL-L-20, RUL-L-47, RUL-L-60).

use serde_json::Value;

use crate::domain::machine::Machine;
use crate::domain::operation::{Operation, Outcome, Verb};
use crate::domain::{Moment, OperationId};

/// What is known of one delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionReceipt {
    /// It runs, or its owner died and the machine is looked at again.
    Open,
    /// The provider said that the machine is not there.
    Confirmed { by: String, at: Option<Moment> },
    /// The machine may still be there. `next_try` is none once somebody else has confirmed or ended it.
    Unconfirmed { why: String, next_try: Option<Moment> },
    /// Ended without evidence; the machine is left to whoever runs the provider.
    HandedOver { at: Option<Moment> },
}

/// The receipt of an operation that deletes; None for every other one. `newest` is the machine's newest delete.
pub fn receipt(operation: &Operation, machine: &Machine, newest: Option<OperationId>) -> Option<DeletionReceipt> {
    if !matches!(operation.verb, Verb::Destroy | Verb::Reset) {
        return None;
    }
    let Some(outcome) = operation.outcome else {
        return Some(DeletionReceipt::Open);
    };
    let owes = machine.cleanup_pending
        || (!machine.status.is_terminal()
            && machine.transition == Some(crate::domain::machine::Transition::Destroying));
    Some(match outcome {
        Outcome::Done => DeletionReceipt::Confirmed {
            by: confirming_call(operation),
            at: operation.finished_at,
        },
        Outcome::HandedOver => DeletionReceipt::HandedOver {
            at: operation.finished_at,
        },
        Outcome::Failed | Outcome::Refused | Outcome::Unknown | Outcome::Superseded | Outcome::Unconfirmed => {
            DeletionReceipt::Unconfirmed {
                why: why(operation, outcome),
                next_try: machine.next_attempt_at.filter(|_| owes && newest == Some(operation.id)),
            }
        }
    })
}

/// The last call that was sent; a row that had ended already needed none.
fn confirming_call(operation: &Operation) -> String {
    let calls = operation.provider_call.as_deref().unwrap_or_default();
    match calls.rsplit(',').next().filter(|call| !call.is_empty()) {
        Some(call) => call.to_owned(),
        None => "none".to_owned(),
    }
}

fn why(operation: &Operation, outcome: Outcome) -> String {
    let evidence = operation.evidence.as_ref();
    let said = evidence
        .and_then(|evidence| evidence.get("why"))
        .and_then(Value::as_str);
    said.or(operation.provider_answer.as_deref())
        .unwrap_or(outcome.as_str())
        .to_owned()
}
