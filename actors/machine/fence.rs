//! The fence: from its commit on only a delete may follow (M15, lifecycle 2.4, field-lessons P22, P32).
//!
//! This is the only caller of the store's fence verb. It needs no lease and waits for no operation, so a delete is legal
//! from every state; whoever holds the machine finds the fence at its next write and gives way (RUL-L-25).

use super::Site;
use crate::domain::account::Actor;
use crate::domain::machine::DestroyReason;
use crate::ports::store::StoreError;
use crate::ports::store::machines::{Fence, FenceAnswer};

/// Fences the machine. `reset` adds the refusals of lifecycle 5.4.
///
/// # Errors
/// The refusals of a reset, or what the store said.
pub(crate) async fn fence(
    site: &Site,
    reason: DestroyReason,
    actor: Actor,
    request_ip: Option<String>,
) -> Result<FenceAnswer, StoreError> {
    let world = &site.world;
    let asked = Fence {
        machine_id: site.machine,
        reason,
        actor,
        request_ip,
        reset: reason == DestroyReason::Reset,
        now: world.now(),
    };
    Ok(world.store.fence(asked).await?.announce(world.bus.as_ref()))
}
