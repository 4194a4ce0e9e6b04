//! What the domain counts. Names, units and labels are the shell's (`src/telemetry.rs`, lifecycle 10.1).

use std::time::Duration;

use crate::domain::agent::Runtime;
use crate::domain::event::{Stage, StageState};
use crate::domain::machine::Provider;
use crate::domain::turn::TurnStatus;

/// One thing that happened, with labels from closed vocabularies only: an id is never a label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    Stage {
        stage: Stage,
        state: StageState,
    },
    FreshProvision(Duration),
    ProvisionStep {
        step: &'static str,
        took: Duration,
    },
    Reattach(Duration),
    ProvisionDeadlineExceeded,
    TurnCompleted {
        runtime: Runtime,
        status: TurnStatus,
        provider: Provider,
        took: Duration,
    },
    FirstOutput {
        runtime: Runtime,
        provider: Provider,
        took: Duration,
    },
    MachineSuspended,
    MachineReclaimed,
    TeardownReconciled,
    TeardownRefused,
    Rehydrated {
        candidates: u64,
        started: u64,
    },
    OutputCapped,
    /// One run of the reaper.
    Reaped {
        released: u64,
        parked: u64,
        expired: u64,
        refused: u64,
    },
    /// Machines of a provider that no row explains: a level, not a sum.
    Untracked {
        provider: Provider,
        count: u64,
    },
}

pub trait Meter: Send + Sync {
    /// Records one measure. Never waits, never fails.
    fn record(&self, measure: Measure);
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMeter;

impl Meter for NoMeter {
    fn record(&self, _: Measure) {}
}
