//! The sky between a replica and the provider: what befalls its calls (RUL-L-122).
//!
//! A request that was sent takes effect whatever becomes of its sender, at once or up to ten minutes later. A frozen or
//! dead replica hears no answer. Each request is shown to the watch at the moment in which it is sent.

use std::sync::Arc;
use std::time::Duration;

use fountain_actors::domain::Epoch;
use fountain_actors::fakes::{Fault, Op, Weather};
use fountain_actors::ports::sandbox::SandboxError;
use futures_util::future::LocalBoxFuture;

use crate::gate::{Climate, Gate};
use crate::watch::Watch;

pub struct Sky {
    climate: Arc<Climate>,
    gate: Arc<Gate>,
    watch: Arc<Watch>,
}

impl Sky {
    pub fn new(climate: Arc<Climate>, gate: Arc<Gate>, watch: Arc<Watch>) -> Arc<Self> {
        Arc::new(Self { climate, gate, watch })
    }

    fn seconds(&self, most: u32) -> Duration {
        Duration::from_millis(u64::from(self.climate.draw(most.saturating_mul(1_000))))
    }

    /// A call that changes a machine: every way in which it can go wrong.
    fn change(&self) -> Fault {
        match self.climate.draw(10) {
            0 | 1 => Fault::LostAnswer,
            2 => Fault::Slow(self.seconds(15)),
            3 => Fault::Slow(self.seconds(200)),
            4 => Fault::LateSuccess(self.seconds(100)),
            5 => Fault::LateSuccess(self.seconds(600)),
            6 => Fault::Refused(SandboxError::Denied("not today".into())),
            7 => Fault::Refused(SandboxError::RateLimited { retry_after_s: Some(1) }),
            // No effect, and the caller cannot know.
            _ => Fault::Refused(SandboxError::Unavailable("nobody answers".into())),
        }
    }

    /// A call that only looks, or that a turn makes.
    fn light(&self) -> Fault {
        match self.climate.draw(4) {
            0 => Fault::LostAnswer,
            1 => Fault::Slow(self.seconds(4)),
            2 => Fault::Slow(self.seconds(20)),
            _ => Fault::Refused(SandboxError::Unavailable("nobody answers".into())),
        }
    }
}

impl Weather for Sky {
    fn leaving(&self) -> LocalBoxFuture<'_, bool> {
        Box::pin(async {
            let was_frozen = self.gate.is_frozen();
            self.gate.pass().await;
            !was_frozen
        })
    }

    fn sent(&self, op: Op, machine: &str, epoch: Option<Epoch>) {
        self.watch.sent(op, machine, epoch);
    }

    fn effect(&self, op: Op, machine: &str, epoch: Option<Epoch>) {
        self.watch.effect(op, machine, epoch);
    }

    fn fault(&self, op: Op, machine: &str) -> Option<Fault> {
        if op == Op::Get && self.climate.is_blind() {
            self.watch.denied(machine);
            return Some(Fault::Refused(SandboxError::NotFound));
        }
        let level = self.climate.provider();
        let per_mille = match op {
            Op::Create | Op::Destroy | Op::Suspend | Op::Resume => level.per_mille(120, 450),
            Op::Checkpoint | Op::Restore | Op::DeleteCheckpoint => level.per_mille(100, 300),
            Op::List => level.per_mille(200, 500),
            Op::Get | Op::ListSessions => level.per_mille(60, 250),
            Op::WriteFile | Op::Exec | Op::Policy | Op::PolicyRead => level.per_mille(30, 150),
            Op::Spawn | Op::Attach | Op::WriteStdin | Op::Terminate => level.per_mille(30, 150),
        };
        if per_mille == 0 || self.climate.draw(1_000) >= per_mille {
            return None;
        }
        let fault = match op {
            Op::Create if self.climate.draw(8) == 0 => {
                self.watch.stranger(machine);
                Fault::Exists
            }
            Op::Create | Op::Destroy | Op::Suspend | Op::Resume => self.change(),
            Op::Checkpoint | Op::Restore | Op::DeleteCheckpoint | Op::Policy | Op::WriteFile => self.change(),
            Op::List => Fault::Refused(SandboxError::Truncated),
            Op::Get | Op::ListSessions | Op::PolicyRead | Op::Exec => self.light(),
            Op::Spawn | Op::Attach | Op::WriteStdin | Op::Terminate => self.light(),
        };
        Some(fault)
    }

    fn answered(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.gate.pass())
    }
}
