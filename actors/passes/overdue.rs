//! Ending turns that nobody came for in time (RUL-L-23, RUL-37; promise 6).
//!
//! A prompt that waited for its build past its deadline fails, and the machine's build with it, machine first: an
//! interruption in between leaves a conversation that its next prompt repairs, never a reserved machine. Not under a live
//! build lease, which has a ceiling of its own. A running turn past its reconnect window fails when no server lives that
//! would say so itself.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use super::lease::PassLease;
use super::{Pass, Replica, Step, Tally};
use crate::domain::account::Actor;
use crate::domain::machine::{MachineState, Provider};
use crate::domain::turn::{Ending, TurnStatus};
use crate::machine::messages::FailBuild;
use crate::ports::World;
use crate::ports::store::StoreError;
use crate::ports::store::turns::Adoptable;

/// Turns in one run.
const AT_ONCE: i64 = 500;
/// Who does it.
const ACTOR: Actor = Actor::System("sandbox_reaper");

pub(super) struct Overdue {
    world: World,
    replica: Arc<dyn Replica>,
}

impl Overdue {
    pub fn new((world, replica): (World, Arc<dyn Replica>)) -> Self {
        Self { world, replica }
    }

    async fn end(&self, overdue: &Adoptable, lease: &PassLease) -> Result<Step, StoreError> {
        if lease.guard().await.is_err() {
            return Ok(Step::Skipped);
        }
        match overdue.turn.status {
            TurnStatus::Pending => self.end_pending(overdue).await,
            TurnStatus::Running => self.end_running(overdue).await,
            TurnStatus::Completed | TurnStatus::Failed | TurnStatus::Interrupted => Ok(Step::Skipped),
        }
    }

    async fn end_pending(&self, overdue: &Adoptable) -> Result<Step, StoreError> {
        let world = &self.world;
        let message = "the sandbox was not built in time; the next prompt builds it anew";
        if let Some(machine) = world.store.machine(overdue.machine_id).await? {
            match machine.state(world.store.lease_clock(world.now()).await?) {
                MachineState::Building => return Ok(Step::Skipped),
                MachineState::New | MachineState::BuildStale => {
                    let fail = FailBuild {
                        conversation: Some(overdue.conversation_id),
                        reason: "deadline_exceeded".into(),
                        message: message.into(),
                        actor: ACTOR,
                    };
                    let failed = self.replica.owner(overdue.machine_id).send(fail).await;
                    if let Ok(Err(error)) = &failed {
                        tracing::warn!(machine.id = %overdue.machine_id, %error, "an overdue build was not ended");
                    }
                    if !matches!(failed, Ok(Ok(_))) {
                        return Ok(Step::Refused);
                    }
                }
                MachineState::Up | MachineState::UpBusy | MachineState::Parking | MachineState::ParkStale => {}
                MachineState::Asleep | MachineState::Waking | MachineState::WakeStale => {}
                MachineState::Doomed { .. } | MachineState::Gone(_) => {}
            }
        }
        self.close(overdue, "provision_failed", message).await
    }

    async fn end_running(&self, overdue: &Adoptable) -> Result<Step, StoreError> {
        if self.replica.is_live(overdue.conversation_id).await {
            return Ok(Step::Skipped);
        }
        let reason = match overdue.provider {
            Provider::Runner => "runner_reconnect_timeout",
            Provider::Sprites | Provider::E2b | Provider::Daytona | Provider::Fake => "provider_reconnect_timeout",
        };
        self.close(
            overdue,
            reason,
            "the connection to the sandbox did not come back in time",
        )
        .await
    }

    /// Not final for the conversation, even before its first build (RUL-L-31).
    async fn close(&self, overdue: &Adoptable, reason: &str, message: &str) -> Result<Step, StoreError> {
        let world = &self.world;
        let ending = Ending {
            message: Some(message.into()),
            ..Ending::failed(overdue.turn.id, reason, world.now())
        };
        let closed = world
            .store
            .close_turn(overdue.conversation_id, ending, Some(overdue.machine_id), false)
            .await?
            .announce(world.bus.as_ref());
        Ok(if closed.is_some() { Step::Done } else { Step::Skipped })
    }
}

impl Pass for Overdue {
    const NAME: &'static str = "overdue";

    fn every(&self) -> Duration {
        self.world.settings.adoption_interval
    }

    fn run(self: Rc<Self>, lease: Rc<PassLease>) -> LocalBoxFuture<'static, Tally> {
        Box::pin(async move {
            let overdue = match self.world.store.overdue_turns(self.world.now(), AT_ONCE).await {
                Ok(overdue) => overdue,
                Err(error) => {
                    tracing::warn!(%error, "overdue turns could not be read");
                    return Tally::default();
                }
            };
            let mut tally = Tally {
                candidates: overdue.len() as u64,
                ..Tally::default()
            };
            for turn in &overdue {
                // One row that cannot be ended must not keep the others.
                tally.add(self.end(turn, &lease).await.unwrap_or_else(|error| {
                    tracing::warn!(turn.id = %turn.turn.id, %error, "an overdue turn was not ended");
                    Step::Refused
                }));
            }
            tally
        })
    }
}
