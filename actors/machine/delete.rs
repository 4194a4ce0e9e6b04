//! Deleting with confirmation: delete, then look until the machine is gone, at most 20 s (RUL-L-91).
//!
//! Already gone confirms as well. Nobody takes an accepted delete for a done one (RUL-L-20, field-lessons P1).

use std::time::Duration;

use tokio::time::Instant;

use super::Site;
use super::evidence;
use super::facade::{CallError, Facade};
use super::lease::Fence;
use crate::domain::machine::Machine;

/// How long a confirmation may take after the delete was answered (RUL-L-91).
const CONFIRM: Duration = Duration::from_secs(20);
/// Between two looks; the first comes at once.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is known of a delete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    Confirmed,
    /// It may be gone, or not. The class says why nobody knows.
    Unconfirmed(&'static str),
    /// The lease was lost before it was sent; nothing was.
    Superseded,
}

/// Deletes the machine and looks until it is gone.
pub(crate) async fn confirmed(site: &Site, machine: &Machine, facade: &Facade, fence: &Fence<'_>) -> Deleted {
    let trouble = match facade.destroy(fence).await {
        Ok(true) => return Deleted::Confirmed,
        Ok(false) => None,
        Err(CallError::Superseded) => return Deleted::Superseded,
        // The request never left, so a look would tell the same.
        Err(CallError::Provider(error)) if error.is_runner_offline() => return Deleted::Unconfirmed(error.class()),
        // An operation with proof looks once; a delete that is done a moment later was accepted all the same.
        Err(CallError::Provider(error)) if facade.deletes_with_proof() && !error.is_refusal() => None,
        // A refused or lost delete can still turn out to be done, or unnecessary.
        Err(CallError::Provider(error)) => Some(error.class()),
    };
    let give_up = Instant::now() + CONFIRM;
    loop {
        let why = match evidence::is_gone(site, machine, facade).await {
            Ok(true) => return Deleted::Confirmed,
            Ok(false) => trouble.unwrap_or("still_there"),
            Err(error) => error.class(),
        };
        // A delete that was not accepted is not waited for.
        if trouble.is_some() || Instant::now() + LOOK_EVERY > give_up {
            return Deleted::Unconfirmed(why);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
