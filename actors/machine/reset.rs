//! Reset: destroy a persistent machine and keep its conversations (lifecycle 5.4, M15 to M17, RUL-L-26).
//!
//! The fence commits at once, whatever runs; from then on the machine is refused to everybody. The destroy then takes
//! its turn: another operation that lasts longer than five seconds answers 503, a delete that is not confirmed within
//! twenty answers 409, and in both cases it is finished by this actor or by the sweep. Nothing here frees capacity
//! before the provider has confirmed the delete.

use actix::prelude::*;

use super::messages::{Destroy, Destroyed, MachineError, Reset};
use super::{MachineActor, Waiting, destroy, fence};
use crate::domain::machine::DestroyReason;
use crate::domain::{ErrorCode, Refusal};
use crate::ports::store::machines::FenceAnswer;

impl Handler<Reset> for MachineActor {
    type Result = ResponseActFuture<Self, Result<(), MachineError>>;

    fn handle(&mut self, msg: Reset, _: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let actor = msg.actor.clone();
        self.fencing += 1;
        let fenced = async move { fence::fence(&site, DestroyReason::Reset, msg.actor, msg.request_ip).await };
        Box::pin(fenced.into_actor(self).then(move |fenced, owner, ctx| {
            owner.fencing -= 1;
            let waiting = match fenced {
                Ok(FenceAnswer::Fenced(_)) => {
                    let site = owner.site.clone();
                    let work = async move { destroy::destroy(&site, Destroy { actor }).await };
                    Ok(owner.enqueue(ctx, "reset", None, Err(MachineError::Crashed), work))
                }
                Ok(FenceAnswer::AlreadyTerminal(machine)) => {
                    Err(Refusal::NotResettable(machine.status.to_string()).into())
                }
                Err(error) => Err(MachineError::from(error)),
            };
            // A line that is empty again may end this actor, a minute from now.
            owner.next(ctx);
            let settings = std::sync::Arc::clone(&owner.site.world.settings);
            async move { answer(waiting?, settings.busy_wait, settings.reset_wait).await }.into_actor(owner)
        }))
    }
}

/// What the one who asked for the reset is told.
async fn answer(
    waiting: Waiting<Result<Destroyed, MachineError>>,
    busy_wait: std::time::Duration,
    reset_wait: std::time::Duration,
) -> Result<(), MachineError> {
    let began = tokio::time::timeout(busy_wait, waiting.has_begun).await;
    if !matches!(began, Ok(Ok(()))) {
        return Err(MachineError::Busy);
    }
    match tokio::time::timeout(reset_wait, waiting.answer).await {
        Ok(Ok(Ok(Destroyed::Destroyed(_) | Destroyed::AlreadyTerminal(_)))) => Ok(()),
        Ok(Ok(Err(error))) => Err(error),
        Ok(Err(_)) | Err(_) => Err(ErrorCode::SandboxResetPending.into()),
    }
}
