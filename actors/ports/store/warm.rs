//! Warm starts: the checkpoint that an environment's builds begin from (lifecycle 1.4, RUL-L-33, RUL-L-34).
//!
//! An environment has at most one. It is written by compare with the fields that it was built from, so that a build that
//! ends after a change does not bring the old disk back, and cleared by compare with its id.

use super::Answer;
use crate::domain::environment::EnvironmentCheckpoint;
use crate::domain::{AccountId, EnvironmentId, Moment};

/// What became of a checkpoint that a build brought.
#[derive(Clone, Debug, PartialEq)]
pub enum Recorded {
    /// It stands with the environment now; the one that it replaces.
    Kept { replaced: Option<EnvironmentCheckpoint> },
    /// A warm-start field changed meanwhile, or the environment is gone: nobody will ever use it.
    Outdated,
}

pub trait WarmStore {
    /// The recorded checkpoint. A document that cannot be read is none.
    fn environment_checkpoint(
        &self,
        account: AccountId,
        environment: EnvironmentId,
    ) -> Answer<'_, Option<EnvironmentCheckpoint>>;
    /// Records one, if the environment's warm-start fields still have its fingerprint.
    fn record_checkpoint(
        &self,
        account: AccountId,
        environment: EnvironmentId,
        checkpoint: EnvironmentCheckpoint,
    ) -> Answer<'_, Recorded>;
    /// Clears it, if it is still exactly this one. Says whether it was.
    fn clear_checkpoint(
        &self,
        account: AccountId,
        environment: EnvironmentId,
        checkpoint: EnvironmentCheckpoint,
    ) -> Answer<'_, bool>;
    /// No environment checkpoint is taken or tried at this provider address until then.
    fn distrust_checkpoints(&self, address: String, until: Moment) -> Answer<'_, ()>;
    /// Whether that holds now.
    fn checkpoints_distrusted(&self, address: String, now: Moment) -> Answer<'_, bool>;
}
