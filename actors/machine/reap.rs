//! Reap: an operator ends a row, whatever the provider says, and takes the machine over (RUL-L-20, RUL-L-47).
//!
//! It is a terminal write like every other and claims the lease: whoever holds the machine is waited for five seconds,
//! and then the answer is 503. The provider is asked for nothing, so the machine may go on existing; the receipt says
//! `handed_over`, and from then on nobody of ours looks for it or deletes it.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::prelude::*;
use serde_json::json;
use tokio::time::Instant;

use super::facade::Trace;
use super::lease::{self, Taken, Wanted};
use super::messages::{MachineError, Reap, Reaped};
use super::outcome::{self, Settlement};
use super::{MachineActor, Site, Waiting};
use crate::domain::account::NewAudit;
use crate::domain::machine::{Machine, MachineEvent, MachineStatus};
use crate::domain::operation::Outcome;
use crate::domain::turn::OrphanReason;
use crate::ports::store::machines::{ClaimRefusal, Patch, Purpose};

impl Handler<Reap> for MachineActor {
    type Result = ResponseFuture<Result<Reaped, MachineError>>;

    fn handle(&mut self, msg: Reap, ctx: &mut Context<Self>) -> Self::Result {
        let site = self.site.clone();
        let deadline = Instant::now() + site.world.settings.busy_wait;
        let work = async move { reap(&site, msg, deadline).await };
        let waiting = self.enqueue(ctx, "reap", Some(deadline), Err(MachineError::Crashed), work);
        Box::pin(answer(waiting, deadline))
    }
}

/// Busy unless it began in time; what began is waited for, or its asker would hear "busy" about a row that ended.
async fn answer(waiting: Waiting<Result<Reaped, MachineError>>, deadline: Instant) -> Result<Reaped, MachineError> {
    match tokio::time::timeout_at(deadline, waiting.has_begun).await {
        Ok(Ok(())) => waiting.answer.await.unwrap_or(Err(MachineError::Crashed)),
        Ok(Err(_)) | Err(_) => Err(MachineError::Busy),
    }
}

async fn reap(site: &Site, ask: Reap, deadline: Instant) -> Result<Reaped, MachineError> {
    let wanted = Wanted {
        purpose: Purpose::Reap,
        actor: ask.actor.clone(),
        stages: Vec::new(),
        patience: deadline.saturating_duration_since(Instant::now()).max(Duration::ZERO),
    };
    let (lease, claimed) = match lease::take(site, wanted).await? {
        Taken::Lease(taken) => *taken,
        Taken::Held => return Err(MachineError::Busy),
        Taken::Not(ClaimRefusal::Terminal(_)) => return Ok(Reaped::AlreadyTerminal),
        Taken::Not(refusal) => return Err(outcome::claim_refused(refusal)),
    };
    let machine = claimed.machine;
    let audit = vec![audited(&machine, &ask)];
    let evidence = Some(json!({ "by": "admin" }));
    let trace = Trace::default();
    if machine.status.is_terminal() {
        let settlement = Settlement {
            patch: Patch {
                cleanup_pending: Some(false),
                ..Patch::default()
            },
            evidence,
            audit,
            ..Settlement::of(Outcome::HandedOver)
        };
        outcome::hand_over(site, lease, &trace, settlement).await?;
        return Ok(Reaped::Released);
    }
    let notice = outcome::notice("reclaimed", "terminated", "an operator took the sandbox over");
    let settlement = Settlement {
        outcome: Outcome::HandedOver,
        evidence,
        end_turns: Some(OrphanReason::MachineDestroyed),
        forget_sessions: true,
        stages: outcome::notices(site, &machine, notice).await?,
        audit,
        usage: Some("terminated"),
        ..Settlement::moved(MachineEvent::DeleteConfirmed)
    };
    outcome::hand_over(site, lease, &trace, settlement).await?;
    tracing::warn!(machine.id = %machine.id, "machine {} was handed over to an operator", machine.id);
    Ok(match machine.status {
        // There was no usable machine yet: only what was reserved for it is free again.
        MachineStatus::Pending | MachineStatus::Starting => Reaped::Released,
        _ => Reaped::Terminated,
    })
}

/// The operator's act stands in the log of the account that it befell; the admin's own, where that account is gone.
fn audited(machine: &Machine, ask: &Reap) -> NewAudit {
    NewAudit {
        account_id: machine.account_id.or(Some(ask.admin)),
        action: "admin.sandbox.reaped",
        resource_type: "sandbox",
        resource_id: Some(machine.id.to_string()),
        actor: ask.actor.clone(),
        request_ip: ask.request_ip.clone(),
        metadata: BTreeMap::from([
            ("sprite_name", machine.name.clone().into()),
            ("status_before", machine.status.as_str().into()),
        ]),
    }
}
