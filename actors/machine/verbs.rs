//! The messages of [`MachineActor`]: each puts its verb in line, or reads without waiting.

use actix::prelude::*;
use futures_util::FutureExt;

use super::messages::*;
use super::{MachineActor, Waiting, confirm, debts, destroy, park, provision, reads, wake};
use crate::domain::machine::Machine;

/// Answers a verb's asker with what the verb said; busy when it was never started, or is not done by its deadline.
async fn answered<T>(
    deadline: Option<tokio::time::Instant>,
    waiting: Waiting<Result<T, MachineError>>,
) -> Result<T, MachineError> {
    let answer = waiting.answer.map(|answer| answer.unwrap_or(Err(MachineError::Busy)));
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, answer)
            .await
            .unwrap_or(Err(MachineError::Busy)),
        None => answer.await,
    }
}

impl Handler<Provision> for MachineActor {
    type Result = ResponseFuture<Result<Provisioned, ProvisionError>>;

    fn handle(&mut self, msg: Provision, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let work = async move { provision::provision(&site, msg).await };
        let waiting = self.enqueue(ctx, "provision", None, Err(ProvisionError::Crashed), work);
        Box::pin(
            waiting
                .answer
                .map(|answer| answer.unwrap_or(Err(ProvisionError::Crashed))),
        )
    }
}

impl Handler<EnsureUp> for MachineActor {
    type Result = ResponseFuture<Result<Usable, MachineError>>;

    fn handle(&mut self, msg: EnsureUp, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let deadline = Some(msg.deadline);
        let work = async move { wake::ensure_up(&site, msg).await };
        let waiting = self.enqueue(ctx, "wake", deadline, Err(MachineError::Crashed), work);
        Box::pin(answered(deadline, waiting))
    }
}

impl Handler<ConfirmUp> for MachineActor {
    type Result = ResponseFuture<Result<Confirmed, MachineError>>;

    fn handle(&mut self, msg: ConfirmUp, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let work = async move { confirm::confirm_up(&site, msg).await };
        let waiting = self.enqueue(ctx, "confirm", None, Err(MachineError::Crashed), work);
        Box::pin(answered(None, waiting))
    }
}

impl Handler<Park> for MachineActor {
    type Result = ResponseFuture<Result<Parked, MachineError>>;

    fn handle(&mut self, msg: Park, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let work = async move { park::park(&site, msg).await };
        let waiting = self.enqueue(ctx, "park", None, Err(MachineError::Crashed), work);
        Box::pin(answered(None, waiting))
    }
}

impl Handler<Destroy> for MachineActor {
    type Result = ResponseFuture<Result<Destroyed, MachineError>>;

    fn handle(&mut self, msg: Destroy, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let work = async move { destroy::destroy(&site, msg).await };
        let waiting = self.enqueue(ctx, "destroy", None, Err(MachineError::Crashed), work);
        Box::pin(answered(None, waiting))
    }
}

impl Handler<Retire> for MachineActor {
    type Result = ResponseFuture<Result<Destroyed, MachineError>>;

    fn handle(&mut self, msg: Retire, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let work = async move { destroy::retire(&site, msg).await };
        let waiting = self.enqueue(ctx, "retire", None, Err(MachineError::Crashed), work);
        Box::pin(answered(None, waiting))
    }
}

impl Handler<Settle> for MachineActor {
    type Result = ResponseFuture<Result<SettledDebts, MachineError>>;

    fn handle(&mut self, msg: Settle, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let work = async move { debts::settle_debts(&site, msg).await };
        let waiting = self.enqueue(ctx, "settle", None, Err(MachineError::Crashed), work);
        Box::pin(answered(None, waiting))
    }
}

impl Handler<Leftover> for MachineActor {
    type Result = ResponseFuture<Result<Swept, MachineError>>;

    fn handle(&mut self, msg: Leftover, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let work = async move { debts::leftover(&site, msg).await };
        let waiting = self.enqueue(ctx, "leftover", None, Err(MachineError::Crashed), work);
        Box::pin(answered(None, waiting))
    }
}

impl Handler<FailBuild> for MachineActor {
    type Result = ResponseFuture<Result<Machine, MachineError>>;

    fn handle(&mut self, msg: FailBuild, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let work = async move { provision::fail_build(&site, msg).await };
        let waiting = self.enqueue(ctx, "fail_build", None, Err(MachineError::Crashed), work);
        Box::pin(answered(None, waiting))
    }
}

impl Handler<HostPath> for MachineActor {
    type Result = ResponseFuture<Result<String, MachineError>>;

    fn handle(&mut self, msg: HostPath, _: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        Box::pin(async move { reads::host_path(&site, &msg.path).await })
    }
}

impl Handler<Status> for MachineActor {
    type Result = ResponseFuture<Result<MachineReport, MachineError>>;

    fn handle(&mut self, _: Status, _: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let (running, waiting) = (self.running, self.queue.len());
        Box::pin(async move { reads::report(&site, running, waiting).await })
    }
}

impl Handler<Abandon> for MachineActor {
    type Result = ();

    fn handle(&mut self, _: Abandon, ctx: &mut Context<Self>) {
        self.abandoned = true;
        ctx.stop();
    }
}
