//! Makes a failing plan small: parts of a plan are plans, so whatever is not needed goes (delta debugging).

use crate::plan::{Op, Plan};
use crate::run::{Outcome, run};

/// The smallest plan found that still breaks the same rule, with what it led to. Tries at most `budget` runs.
pub fn shrink(plan: &Plan, outcome: &Outcome, budget: usize) -> (Plan, Outcome) {
    let number = outcome
        .violations
        .first()
        .map(|first| first.number.clone())
        .unwrap_or_default();
    let mut best = plan.clone();
    let mut told = outcome.clone();
    if let Some(at) = outcome.at.filter(|at| *at < best.steps.len()) {
        best.steps.truncate(at + 1);
    }
    let mut left = budget;
    let mut piece = best.steps.len().div_ceil(2);
    while piece > 0 && left > 0 {
        let mut at = 0;
        let mut got_smaller = false;
        while at < best.steps.len() && left > 0 {
            let mut tried = best.clone();
            let end = (at + piece).min(tried.steps.len());
            tried.steps.drain(at..end);
            left -= 1;
            let outcome = run(&tried);
            if outcome.violations.first().is_some_and(|first| first.number == number) {
                (best, told) = (tried, outcome);
                got_smaller = true;
            } else {
                at += piece;
            }
        }
        if piece == 1 && !got_smaller {
            break;
        }
        piece = if piece == 1 { 1 } else { piece.div_ceil(2) };
    }
    best.steps
        .retain(|step| step.op != Op::Nothing || !step.pause.is_zero());
    (best, told)
}
