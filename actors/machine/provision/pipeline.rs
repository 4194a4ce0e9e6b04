//! The steps of one build, in order (RUL-L-33). Stops at the first that fails.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::super::Site;
use super::super::delete::{self, Deleted};
use super::super::facade::{CallError, Facade};
use super::super::groundwork::Checkout;
use super::super::lease::Lease;
use super::super::messages::Provision;
use super::super::names;
use super::super::outcome::{self, Settlement};
use super::{BUILDER, Stop};
use crate::domain::event::{NewStage, Stage, StageState};
use crate::domain::machine::{Machine, MachineEvent, Transition};
use crate::domain::operation::Outcome;
use crate::ports::meter::Measure;
use crate::ports::sandbox::{Capability, SandboxError};
use crate::ports::store::StoreError;
use crate::ports::store::machines::{Claimed, Patch};
use crate::retry::{Policy, retry};

/// One build under its lease.
pub(super) struct Build<'a> {
    pub site: &'a Site,
    pub lease: &'a Lease,
    pub claimed: &'a Claimed,
    pub ask: Provision,
    /// As it stands; its name may change under way.
    pub machine: Machine,
    pub facade: Facade,
}

impl<'a> Build<'a> {
    pub fn new(site: &'a Site, lease: &'a Lease, claimed: &'a Claimed, ask: Provision) -> Result<Self, SandboxError> {
        Ok(Self {
            site,
            lease,
            claimed,
            ask,
            machine: claimed.machine.clone(),
            facade: Facade::of(site, &claimed.machine)?,
        })
    }

    /// All steps between the two commits of the build.
    pub async fn run(&mut self) -> Result<(), Stop> {
        self.refuse_what_cannot_be_built()?;
        if super::is_rebuild(self.claimed) {
            self.delete_remnant().await?;
        }
        let meta = self.step("create", Self::create).await?;
        let created = Patch {
            provider_meta: meta,
            ..Patch::default()
        };
        self.advance(Some(MachineEvent::CreateAnswered), created, Vec::new())
            .await?;
        let is_warm = self.step("restore", Self::restore).await?;
        if !is_warm {
            self.step("packages", Self::install_packages).await?;
        }
        // A warm disk is no reason to go without.
        self.step("network", Self::enforce_policy).await?;
        self.mint_callback_key().await?;
        self.note_public_url().await?;
        if !is_warm {
            self.step("clone", Self::clone_repositories).await?;
            self.step("setup", Self::run_setup).await?;
            self.step("checkpoint", Self::take_checkpoint).await?;
        }
        self.step("files", Self::write_files).await
    }

    /// What the second commit of a build that went well says.
    pub fn into_parts(self, took: Duration) -> (Facade, Machine, Settlement) {
        let conversation = self.ask.conversation;
        let done = NewStage::new(Stage::Provision, StageState::Done).took(took);
        let settlement = Settlement {
            event: Some(MachineEvent::BuildFinished),
            patch: Patch {
                build_fingerprint: Some(self.ask.plan.fingerprint),
                ..Patch::default()
            },
            stages: vec![(conversation, done)],
            audit: outcome::audit(&self.machine, "sandbox.provisioned", &BUILDER),
            usage: Some("started"),
            ..Settlement::of(Outcome::Done)
        };
        (self.facade, self.machine, settlement)
    }

    async fn step<T>(
        &mut self,
        name: &'static str,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let began = tokio::time::Instant::now();
        let answer = work(self).await;
        self.site.world.meter.record(Measure::ProvisionStep {
            step: name,
            took: began.elapsed(),
        });
        answer
    }

    /// Step 2 of the table: nothing was created yet, so nothing is owed (INV-28, RUL-14, RUL-52).
    fn refuse_what_cannot_be_built(&self) -> Result<(), Stop> {
        let offers_policy = self.facade.capabilities().contains(&Capability::NetworkPolicy);
        if self.ask.plan.policy.is_some() && !offers_policy {
            return Err(Stop::at(
                Stage::Network,
                "backend_lacks_network_policy",
                format!(
                    "{} cannot limit networking; use an unrestricted environment",
                    self.machine.provider
                ),
            ));
        }
        if let Some(checkout) = self.ask.plan.groundwork.checkouts.iter().find(|one| !one.is_https()) {
            let message = format!("the repository for {} is not an https address", checkout.mount_path);
            return Err(Stop::at(Stage::Clone, "not_https", message));
        }
        let lacks = |one: &&Checkout| one.secret_key.is_some() && one.token.is_none();
        if let Some(checkout) = self.ask.plan.groundwork.checkouts.iter().find(lacks) {
            let key = checkout.secret_key.as_deref().unwrap_or_default();
            let message = format!(
                "the repository for {} names the secret {key}, which is not there",
                checkout.mount_path
            );
            return Err(Stop::at(Stage::Clone, "secret_missing", message));
        }
        match self.ask.plan.unsupported.first() {
            Some(part) => Err(Stop::at(part.stage, "not_supported", part.message.clone())),
            None => Ok(()),
        }
    }

    /// Between two builds on one row there is a confirmed delete, and another name where that is ours to choose
    /// (INV-21, RUL-L-22).
    pub async fn delete_remnant(&mut self) -> Result<(), Stop> {
        let lease = self.lease;
        let fence = lease.fence().ok_or(Stop::Superseded)?;
        // Until this is confirmed the build owes a delete, whatever else fails.
        self.facade.trace().inherited_create();
        match delete::confirmed(self.site, &self.machine, &self.facade, &fence).await {
            Deleted::Confirmed => {}
            Deleted::Superseded => return Err(Stop::Superseded),
            Deleted::Unconfirmed(why) => {
                return Err(Stop::at(
                    Stage::Provision,
                    "remnant_not_deleted",
                    format!("what an earlier build left could not be deleted ({why})"),
                ));
            }
        }
        self.facade.trace().settled_create();
        self.take_another_name().await
    }

    /// Replaces a minted name, in a commit of its own before anything is created under it.
    pub async fn take_another_name(&mut self) -> Result<(), Stop> {
        let Some(name) = names::replacement(&self.machine, self.site.world.rng.as_ref()) else {
            return Ok(());
        };
        let renamed = Patch {
            name: Some(name.clone()),
            ..Patch::default()
        };
        self.advance(None, renamed, Vec::new()).await?;
        self.facade.rename(&name);
        Ok(())
    }

    /// A commit between claim and finish, which also shows a fence (INV-23).
    pub(super) async fn advance(
        &mut self,
        event: Option<MachineEvent>,
        patch: Patch,
        stages: Vec<NewStage>,
    ) -> Result<(), Stop> {
        let world = &self.site.world;
        let stages: Vec<_> = stages.into_iter().map(|stage| (self.ask.conversation, stage)).collect();
        let (machine, epoch) = (self.lease.machine(), self.lease.epoch());
        let commit = |_| {
            world
                .store
                .advance(machine, epoch, event, patch.clone(), stages.clone(), world.now())
        };
        match retry(Policy::CONTRACT, &mut || world.rng.unit(), outcome::transient, commit).await {
            Ok(row) => {
                outcome::count(self.site, &stages);
                self.machine = row.announce(world.bus.as_ref());
                if self.machine.status.is_terminal() || self.machine.transition == Some(Transition::Destroying) {
                    return Err(Stop::Doomed);
                }
                Ok(())
            }
            Err(StoreError::Stale(_)) => Err(self.stale_or_retired().await),
            Err(StoreError::NotFound(_)) => Err(Stop::Doomed),
            Err(error) => Err(Stop::Store(error)),
        }
    }

    /// Publishes a stage, in a commit of its own.
    pub(super) async fn announce(&mut self, stage: NewStage) -> Result<(), Stop> {
        self.advance(None, Patch::default(), vec![stage]).await
    }

    /// A refused write is a lost lease, unless the row ended under our own epoch.
    async fn stale_or_retired(&self) -> Stop {
        match self.site.world.store.machine(self.site.machine).await {
            Ok(Some(row)) if row.lease_epoch == self.lease.epoch() && row.status.is_terminal() => Stop::Doomed,
            Ok(None) => Stop::Doomed,
            Ok(Some(_)) | Err(_) => Stop::Superseded,
        }
    }

    /// Step 15: applied before anything in the machine can run (promise 9).
    async fn enforce_policy(&mut self) -> Result<(), Stop> {
        let Some(policy) = self.ask.plan.policy.clone() else {
            return Ok(());
        };
        let began = tokio::time::Instant::now();
        self.announce(NewStage::new(Stage::Network, StageState::Started))
            .await?;
        match self.facade.enforce(self.site, self.lease, &policy).await {
            Ok(evidence) => {
                let done = NewStage::new(Stage::Network, StageState::Done).took(began.elapsed());
                self.announce(done.with("evidence", evidence)).await
            }
            Err(CallError::Superseded) => Err(Stop::Superseded),
            Err(CallError::Provider(error)) => {
                Err(Stop::at(Stage::Network, "network_policy_unverified", error.to_string()))
            }
        }
    }

    /// Step 7. The build is the machine's, not the conversation's: with its server gone it goes on without a key (RUL-12).
    async fn mint_callback_key(&mut self) -> Result<(), Stop> {
        let Some(key) = self.ask.plan.callback_key.clone() else {
            return Ok(());
        };
        let world = &self.site.world;
        let (conversation, generation) = (self.ask.conversation, self.ask.server_epoch);
        let mint = |_| {
            world
                .store
                .mint_callback_key(conversation, generation, key.clone(), world.now())
        };
        match retry(Policy::CONTRACT, &mut || world.rng.unit(), outcome::transient, mint).await {
            Ok(_) => Ok(()),
            Err(StoreError::Stale(_) | StoreError::NotFound(_) | StoreError::Refused(_)) => {
                tracing::info!(conversation.id = %conversation, "a build goes on without its conversation's server");
                Ok(())
            }
            Err(error) => Err(Stop::Store(error)),
        }
    }

    /// Step 7, second half: best effort.
    async fn note_public_url(&mut self) -> Result<(), Stop> {
        if !self.facade.capabilities().contains(&Capability::PublicUrl) {
            return Ok(());
        }
        let Some(url) = self.facade.public_url().await else {
            return Ok(());
        };
        let noted = Patch {
            provider_meta: BTreeMap::from([("public_url".to_owned(), Value::from(url))]),
            ..Patch::default()
        };
        self.advance(None, noted, Vec::new()).await
    }

    /// Steps 9 to 11; the environment file is the last.
    async fn write_files(&mut self) -> Result<(), Stop> {
        let world = &self.site.world;
        for file in &self.ask.plan.files {
            let write = |_| self.facade.write_file(self.lease, file);
            match retry(Policy::CONTRACT, &mut || world.rng.unit(), CallError::verdict, write).await {
                Ok(()) => {}
                Err(CallError::Superseded) => return Err(Stop::Superseded),
                Err(CallError::Provider(error)) if file.best_effort => {
                    tracing::warn!(machine.id = %self.machine.id, path = %file.path, class = error.class(), "a file was not written");
                }
                Err(CallError::Provider(error)) => {
                    let message = format!("{} could not be written: {error}", file.path);
                    return Err(Stop::at(Stage::Provision, "write_failed", message));
                }
            }
        }
        Ok(())
    }
}
