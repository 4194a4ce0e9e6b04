//! Gates that need no provider: what an account may spend, and limits that nothing enforces (lifecycle 2.8, 4.1, 6.2;
//! RUL-19a).
//!
//! A look, not a reservation: a turn that runs is never cut for money, so a balance may go below zero. Where a slot is
//! taken, the quota transaction looks again.

use crate::domain::{AccountId, ErrorCode, Refusal};
use crate::ports::World;
use crate::ports::store::credits::Opening;

/// `insufficient_credits` unless the account may spend. Asks nobody while credits are off.
pub(crate) async fn require_credit(world: &World, account: AccountId) -> Result<(), Refusal> {
    let Some(credits) = &world.settings.credits else {
        return Ok(());
    };
    let now = world.now();
    let standing = world.store.standing(account, Opening::of(credits, now), now).await;
    match standing
        .map_err(|error| error.refusal())?
        .may_spend(Some(credits.terms))
    {
        true => Ok(()),
        false => Err(ErrorCode::InsufficientCredits.into()),
    }
}

/// `execution_limits_unsupported` where the operator set ceilings: a turn without them would break the promise.
pub(crate) fn refuse_limits(world: &World) -> Result<(), Refusal> {
    match world.settings.execution_limits {
        true => Err(ErrorCode::ExecutionLimitsUnsupported.into()),
        false => Ok(()),
    }
}
