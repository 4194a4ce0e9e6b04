//! The idle tick: an idle conversation closes its adapter and asks for the park of its machine (lifecycle 5.2; RUL-L-43).
//!
//! The machine decides, under its lease and by the rows; this server only proposes. Parked, its work is over: a parked
//! machine costs no actor.

use actix::prelude::*;

use super::{ConversationActor, Work};
use crate::domain::Moment;
use crate::domain::account::Actor as By;
use crate::domain::machine::{DestroyReason, MachineStatus};
use crate::machine::messages::{MachineError, Park, Parked};
use crate::ports::clock::before;
use crate::ports::store::machines::ParkRule;

impl ConversationActor {
    pub(super) fn idle_tick(&mut self, ctx: &mut Context<Self>) {
        self.stop_leftovers(ctx);
        let Some(bound) = self.idle_bound() else { return };
        let is_idle = self.work.is_none()
            && self.turn.is_none()
            && self.pending.is_none()
            && self.prompts.is_empty()
            && self.stopping.is_empty();
        if !is_idle || self.last_active > bound || self.bound.is_none() {
            return;
        }
        if self.is_unbuilt() {
            // Its build never began, and nobody asks for one: a server that stayed would make the machine look used, and
            // keep it from the pass that releases stuck builds. Whoever prompts next starts another.
            return self.stand_down(ctx);
        }
        self.work = Some(Work::Parking);
        self.retire_connection(ctx);
        if self.stopping.is_empty() {
            self.park_now(ctx);
        }
    }

    fn is_unbuilt(&self) -> bool {
        let status = self.bound.as_ref().map(|bound| bound.machine.status);
        matches!(status, Some(MachineStatus::Pending | MachineStatus::Starting))
    }

    fn idle_bound(&self) -> Option<Moment> {
        let idle = self.world.settings.idle_timeout?;
        Some(before(self.now(), idle))
    }

    /// The adapter is closed: ask the machine.
    pub(super) fn park_now(&mut self, ctx: &mut Context<Self>) {
        let Some(machine) = self.machine_id() else { return };
        let engine = self.engine.clone();
        let park = Park {
            rule: ParkRule {
                live_servers: engine.live_on(machine),
                idle_before: self.idle_bound(),
                marker_before: None,
            },
            reason: DestroyReason::Idle,
            requester: Some(self.id),
            actor: By::System("conversation"),
        };
        let ask = async move { engine.ask_machine(machine, park).await };
        self.run(ctx, ask, |actor, answer, ctx| {
            if actor.work != Some(Work::Parking) {
                return;
            }
            match answer {
                Ok(Parked::Parked(_) | Parked::AlreadyParked(_) | Parked::Destroying(_) | Parked::Gone(_)) => {
                    actor.stand_down(ctx);
                }
                Ok(Parked::Recovered(machine)) => {
                    if let Some(bound) = actor.bound.as_mut() {
                        bound.machine = machine;
                    }
                    actor.work = None;
                    actor.next_prompt(ctx);
                }
                Err(error) => {
                    if !matches!(
                        error,
                        MachineError::Occupied | MachineError::NotExpired | MachineError::Busy
                    ) {
                        tracing::info!(conversation.id = %actor.id, %error, "the machine was not parked");
                    }
                    actor.work = None;
                    actor.next_prompt(ctx);
                }
            }
        });
    }
}
