//! The end of a conversation, and of its server (lifecycle 5.5, 6.12; RUL-12, RUL-29 of the lifecycle rulings, INV-58).
//!
//! One transaction decides and writes everything; the answer leaves after it. Behind the answer the machine is destroyed
//! where the transaction fenced it, or the conversation's own processes are stopped where it stays.

use actix::prelude::*;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::messages::{Miss, Shutdown, ShutdownKind, StandDown, Terminate};
use super::{ConversationActor, Work};
use crate::directory::Engine;
use crate::domain::account::Actor as By;
use crate::domain::turn::OrphanReason;
use crate::domain::{AccountId, ConversationId, ErrorCode};
use crate::ports::World;
use crate::ports::store::conversations::Ended;
use crate::ports::store::{Committed, StoreError};

/// The one transaction, waiting a little for a lease that somebody holds (lifecycle 5.5).
pub(crate) async fn terminate(
    world: &World,
    account: AccountId,
    id: ConversationId,
    order: &Terminate,
) -> Result<Committed<Ended>, StoreError> {
    let settings = &world.settings;
    let until = order.deadline.min(Instant::now() + settings.busy_wait);
    loop {
        let answer = world
            .store
            .terminate(account, id, order.actor.clone(), order.request_ip.clone(), world.now())
            .await;
        match answer {
            Err(StoreError::Refused(refusal))
                if refusal.code() == ErrorCode::SandboxUnavailable && Instant::now() + settings.busy_poll < until =>
            {
                tokio::time::sleep(settings.busy_poll).await;
            }
            answer => return answer,
        }
    }
}

/// Behind the answer: the machine goes, if it was fenced.
pub(crate) fn destroy_behind(engine: &Engine, ended: &Ended) {
    if let Some(machine) = ended.fenced {
        engine.destroy_behind(machine, By::System("conversation"));
    }
}

impl Handler<Terminate> for ConversationActor {
    type Result = ResponseFuture<Result<(), Miss>>;

    fn handle(&mut self, order: Terminate, ctx: &mut Context<Self>) -> Self::Result {
        let Some(account) = self.bound.as_ref().map(|bound| bound.conversation.account_id) else {
            return Box::pin(async { Err(Miss::Retry) }); // registering: the directory ends it without this server
        };
        self.flush(None, ctx);
        let (reply, answer) = oneshot::channel();
        let (world, id) = (self.world.clone(), self.id);
        let work = async move { terminate(&world, account, id, &order).await };
        self.run(ctx, work, move |actor, answer, ctx| match answer {
            Ok(committed) => {
                let ended = committed.announce(&*actor.world.bus);
                let _ = reply.send(Ok(()));
                actor.terminated(ended, ctx);
            }
            Err(error) => {
                let _ = reply.send(Err(Miss::Refused(error.refusal())));
            }
        });
        Box::pin(async move { answer.await.unwrap_or(Err(Miss::Retry)) })
    }
}

impl ConversationActor {
    fn terminated(&mut self, ended: Ended, ctx: &mut Context<Self>) {
        self.turn = None;
        self.pending = None;
        self.window = None;
        destroy_behind(&self.engine, &ended);
        if ended.fenced.is_some() {
            return self.stand_down(ctx); // its processes die with the machine
        }
        self.work = Some(Work::Ending);
        self.next_prompt(ctx);
        let live = self.connection.as_ref().map(|connection| connection.process_id);
        self.retire_connection(ctx);
        let others = ended.to_stop.into_iter().filter(|process| Some(process.id) != live);
        self.leftovers.extend(others);
        self.stop_leftovers(ctx);
        if self.stopping.is_empty() {
            self.all_stopped(ctx);
        }
    }

    /// Whatever could be stopped is; what could not keeps its mark in its record.
    pub(super) fn all_stopped(&mut self, ctx: &mut Context<Self>) {
        if self.unsettled == 0 {
            self.drop_attachment(ctx);
            ctx.stop();
        } else {
            // What was queued becomes durable first; the writer answers, or the process ends.
            ctx.run_later(self.world.settings.busy_poll, |actor, ctx| actor.all_stopped(ctx));
        }
    }
}

impl Handler<Shutdown> for ConversationActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Shutdown(kind): Shutdown, ctx: &mut Context<Self>) -> Self::Result {
        let (done, over) = oneshot::channel();
        self.shutdown.push(done);
        self.work = Some(Work::Ending);
        self.next_prompt(ctx);
        self.flush(None, ctx);
        let bound = self
            .bound
            .as_ref()
            .filter(|_| self.turn.is_some() || self.pending.is_some());
        match (kind, bound.map(|bound| bound.machine.id)) {
            (ShutdownKind::Clean, Some(machine)) => {
                let (store, id, now) = (self.world.store.clone(), self.id, self.now());
                let orphan = async move {
                    let reason = OrphanReason::ServerTerminatedNormally;
                    store.orphan_running(id, Some(machine), reason, now).await
                };
                self.run(ctx, orphan, |actor, answer, ctx| {
                    match answer {
                        Ok(committed) => drop(committed.announce(&*actor.world.bus)),
                        Err(error) => tracing::warn!(conversation.id = %actor.id, %error, "a turn was left running"),
                    }
                    actor.turn = None;
                    actor.retire_connection(ctx);
                    if actor.stopping.is_empty() {
                        actor.all_stopped(ctx);
                    }
                });
            }
            (ShutdownKind::Clean, None) => {
                self.retire_connection(ctx);
                if self.stopping.is_empty() {
                    self.all_stopped(ctx);
                }
            }
            (ShutdownKind::Drain, _) => self.all_stopped(ctx),
        }
        Box::pin(async move {
            let _ = over.await;
        })
    }
}

impl Handler<StandDown> for ConversationActor {
    type Result = ();

    fn handle(&mut self, _: StandDown, ctx: &mut Context<Self>) {
        self.stand_down(ctx);
    }
}
