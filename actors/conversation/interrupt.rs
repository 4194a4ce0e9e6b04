//! The user says stop (lifecycle 6.9; RUL-5, RUL-19d, RUL-47, RUL-L-93; INV-80).
//!
//! The row is interrupted first, in one transaction that also marks the process; then the agent hears `session/cancel`
//! and the end of its input, and after the grace its session is terminated. The answer waits for the row only. Nothing
//! here creates or wakes a machine; a process that cannot be reached keeps its mark.

use actix::prelude::*;
use tokio::sync::oneshot;

use super::messages::{Interrupt, Miss};
use super::{ConversationActor, Work};
use crate::acp::Effect as Step;
use crate::domain::conversation::ConversationStatus;
use crate::domain::process::Process;
use crate::domain::turn::TurnStatus;
use crate::domain::{ErrorCode, TurnId};
use crate::ports::store::turns::Interrupted;

impl Handler<Interrupt> for ConversationActor {
    type Result = ResponseFuture<Result<(), Miss>>;

    fn handle(&mut self, interrupt: Interrupt, ctx: &mut Context<Self>) -> Self::Result {
        let Some(bound) = &self.bound else {
            // Registering: the row is all that there is.
            return self.interrupt_row(interrupt, None, ctx);
        };
        let account = bound.conversation.account_id;
        self.interrupt_row(interrupt, Some(account), ctx)
    }
}

impl ConversationActor {
    fn interrupt_row(
        &mut self,
        interrupt: Interrupt,
        account: Option<crate::domain::AccountId>,
        ctx: &mut Context<Self>,
    ) -> ResponseFuture<Result<(), Miss>> {
        let Some(account) = account.or(interrupt.audit.account_id) else {
            return Box::pin(async { Err(ErrorCode::NotRunning.into()) });
        };
        self.flush(None, ctx);
        let (reply, answer) = oneshot::channel();
        let (store, id, now) = (self.world.store.clone(), self.id, self.now());
        let work = async move { store.interrupt(account, id, interrupt.audit, now).await };
        self.run(ctx, work, move |actor, answer, ctx| match answer {
            Ok(committed) => {
                let Interrupted { turn, process } = committed.announce(&*actor.world.bus);
                let _ = reply.send(Ok(()));
                actor.interrupted(turn.id, process, ctx);
            }
            Err(error) => {
                let _ = reply.send(Err(Miss::Refused(error.refusal())));
            }
        });
        Box::pin(async move { answer.await.unwrap_or(Err(Miss::Retry)) })
    }

    /// The row says so: now the process.
    fn interrupted(&mut self, turn_id: TurnId, process: Option<Process>, ctx: &mut Context<Self>) {
        if let Some(bound) = self.bound.as_mut() {
            bound.conversation.status = ConversationStatus::Idle;
        }
        // A turn that still waited for its build: the build goes on without it (RUL-5).
        if self.pending.take_if(|turn| turn.id == turn_id).is_some() {
            return self.next_prompt(ctx);
        }
        if self.turn.as_ref().is_none_or(|turn| turn.id != turn_id) {
            // This server did not run it: a mark in the record is what there is.
            self.leftovers.extend(process);
            return self.stop_leftovers(ctx);
        }
        if let Some(timer) = self.permission_timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(connection) = self.connection.as_mut() {
            for step in connection.peer.cancel() {
                if let Step::Write(outgoing) = step {
                    connection.outbox.push_back(outgoing);
                }
            }
        }
        let is_reattaching = self.work == Some(Work::Reattaching);
        self.window = None;
        let had_connection = self.connection.is_some();
        self.retire_connection(ctx);
        if is_reattaching {
            self.work = None;
            self.leftovers.extend(process);
            self.stop_leftovers(ctx);
        } else if !had_connection && self.work != Some(Work::Opening) {
            self.leftovers.extend(process);
        }
        self.turn_over(turn_id, TurnStatus::Interrupted, ctx);
    }
}
