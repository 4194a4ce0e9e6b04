//! Warm start: beginning from an environment's checkpoint, and taking one (lifecycle 4.4 step 13, RUL-L-33, RUL-L-34).
//!
//! A restore comes before everything else that touches the disk, and is believed only when the marker that the build of
//! the checkpoint wrote is read back: an id may quietly mean another disk (field-lessons P77). Whatever else it comes to
//! costs the cold steps on this machine, never the build, and checkpoints at that address are left alone for a day. The
//! network policy is applied after it either way. A checkpoint is taken under the lease when the disk holds the
//! environment and nothing of a conversation; failing at that fails nothing.

use std::time::Duration;

use bytes::Bytes;

use super::super::facade::CallError;
use super::super::groundwork::{Line, WarmStart};
use super::super::messages::PlannedFile;
use super::Stop;
use super::pipeline::Build;
use crate::domain::environment::EnvironmentCheckpoint;
use crate::domain::event::{NewStage, Stage, StageState};
use crate::ports::clock::after;
use crate::ports::sandbox::{Capability, Env, SandboxError};
use crate::ports::store::warm::Recorded;
use crate::retry::{Policy, retry};

/// Where the marker is in a machine.
const MARKER: &str = "/home/sprite/.fountain/checkpoint";
/// Reading a few bytes.
const MARKER_LIMIT: Duration = Duration::from_secs(30);
/// How long a checkpoint may keep a build (RUL-L-33).
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(120);
/// How long an address is left alone after a restore that was not true.
const DISTRUST: Duration = Duration::from_secs(24 * 60 * 60);

/// Why a restore is not believed; the word of the event.
enum Untrue {
    Superseded,
    Because(&'static str),
}

impl From<CallError> for Untrue {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Superseded => Self::Superseded,
            CallError::Provider(error) => Self::Because(error.class()),
        }
    }
}

impl Build<'_> {
    /// Whether the disk is the environment's checkpoint now, so that the cold steps are done.
    pub(super) async fn restore(&mut self) -> Result<bool, Stop> {
        let Some(warm) = self.warm_start().await else {
            return Ok(false);
        };
        let store = &self.site.world.store;
        let recorded = match store.environment_checkpoint(warm.account, warm.environment).await {
            Ok(Some(recorded)) if warm.matches(&recorded, self.machine.provider) => recorded,
            Ok(_) => return Ok(false),
            Err(error) => {
                tracing::warn!(machine.id = %self.machine.id, %error, "a build does not know its checkpoint and is cold");
                return Ok(false);
            }
        };
        let began = tokio::time::Instant::now();
        self.announce(NewStage::new(Stage::CheckpointRestore, StageState::Started))
            .await?;
        match self.restored(&recorded).await {
            Ok(()) => {
                let done = NewStage::new(Stage::CheckpointRestore, StageState::Done);
                self.announce(done.took(began.elapsed())).await?;
                Ok(true)
            }
            Err(Untrue::Superseded) => Err(Stop::Superseded),
            Err(Untrue::Because(reason)) => {
                self.disbelieve(&warm, recorded).await;
                let failed = NewStage::new(Stage::CheckpointRestore, StageState::Failed).with("reason", reason);
                self.announce(failed.took(began.elapsed())).await?;
                Ok(false)
            }
        }
    }

    async fn restored(&self, recorded: &EnvironmentCheckpoint) -> Result<(), Untrue> {
        let world = &self.site.world;
        let call = |_| self.facade.restore(self.lease, &recorded.id);
        retry(Policy::CONTRACT, &mut || world.rng.unit(), CallError::verdict, call).await?;
        let look = Line {
            command: "cat",
            arguments: vec![MARKER.to_owned()],
            env: Env::default(),
            dir: None,
            limit: MARKER_LIMIT,
        };
        let read = |_| self.facade.exec(self.lease, &look);
        let read = retry(Policy::CONTRACT, &mut || world.rng.unit(), CallError::verdict, read).await?;
        if read.code != 0 || read.output.as_ref() != recorded.marker.as_bytes() {
            return Err(Untrue::Because("marker_mismatch"));
        }
        Ok(())
    }

    /// The id goes, and so does the address for a day. An id that was replaced or cleared meanwhile may have been
    /// deleted under this restore, which says nothing about the address.
    async fn disbelieve(&self, warm: &WarmStart, recorded: EnvironmentCheckpoint) {
        let world = &self.site.world;
        let id = recorded.id.clone();
        let cleared = world
            .store
            .clear_checkpoint(warm.account, warm.environment, recorded)
            .await;
        tracing::warn!(
            machine.id = %self.machine.id, environment.id = %warm.environment, checkpoint = %id, ?cleared,
            "a checkpoint was not what it should be; the build goes on cold"
        );
        if matches!(cleared, Ok(false)) {
            return;
        }
        let until = after(world.now(), DISTRUST);
        if let Err(error) = world.store.distrust_checkpoints(self.facade.address(), until).await {
            tracing::warn!(machine.id = %self.machine.id, %error, "a distrusted address was not recorded");
        }
    }

    /// Takes and records a checkpoint of what the cold steps made.
    pub(super) async fn take_checkpoint(&mut self) -> Result<(), Stop> {
        if !self.site.world.settings.checkpoint_creation {
            return Ok(());
        }
        let Some(warm) = self.warm_start().await else {
            return Ok(());
        };
        match self.checkpoint(&warm).await {
            Ok(()) => Ok(()),
            Err(CallError::Superseded) => Err(Stop::Superseded),
            Err(CallError::Provider(error)) => {
                tracing::warn!(machine.id = %self.machine.id, class = error.class(), "no checkpoint was taken");
                Ok(())
            }
        }
    }

    async fn checkpoint(&self, warm: &WarmStart) -> Result<(), CallError> {
        let world = &self.site.world;
        let began = tokio::time::Instant::now();
        let marker = format!("{}.{}", warm.fingerprint, world.rng.hex(16));
        let file = PlannedFile {
            path: MARKER.into(),
            content: Bytes::from(marker.clone()),
            mode: Some(0o600),
            best_effort: true,
        };
        self.facade.write_file(self.lease, &file).await?;
        let Some(left) = CHECKPOINT_LIMIT.checked_sub(began.elapsed()) else {
            return Err(CallError::Provider(SandboxError::Unavailable("too slow".into())));
        };
        let comment = format!("fountain environment {}", warm.environment);
        let id = self.facade.create_checkpoint(self.lease, &comment, left).await?;
        let checkpoint = EnvironmentCheckpoint {
            id: id.clone(),
            provider: self.machine.provider,
            vault_id: warm.vault,
            fingerprint: warm.fingerprint.clone(),
            skills: warm.skills.clone(),
            marker,
        };
        let recorded = world
            .store
            .record_checkpoint(warm.account, warm.environment, checkpoint)
            .await;
        let unwanted = match recorded {
            // A bare number means a checkpoint of this very machine, whoever recorded it (RUL-L-111).
            Ok(Recorded::Kept { replaced }) => replaced
                .filter(|old| old.provider == self.machine.provider && old.id != id && old.id.contains('.'))
                .map(|old| old.id),
            Ok(Recorded::Outdated) => Some(id),
            Err(error) => {
                tracing::warn!(machine.id = %self.machine.id, %error, "a checkpoint was taken and not recorded");
                None
            }
        };
        if let Some(unwanted) = unwanted
            && let Err(CallError::Superseded) = self.facade.delete_checkpoint(self.lease, &unwanted).await
        {
            return Err(CallError::Superseded);
        }
        Ok(())
    }

    /// What this build may warm up from or leave behind, if provider and address are up to it.
    async fn warm_start(&self) -> Option<WarmStart> {
        let warm = self.ask.plan.groundwork.warm.clone()?;
        if !self.facade.capabilities().contains(&Capability::Checkpoint) {
            return None;
        }
        let world = &self.site.world;
        match world
            .store
            .checkpoints_distrusted(self.facade.address(), world.now())
            .await
        {
            Ok(false) => Some(warm),
            Ok(true) => None,
            Err(error) => {
                tracing::warn!(machine.id = %self.machine.id, %error, "a build goes without checkpoints");
                None
            }
        }
    }
}
