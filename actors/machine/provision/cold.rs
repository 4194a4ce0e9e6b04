//! The cold steps: packages, repositories, setup script (lifecycle 4.4 steps 14, 16, 17; RUL-L-33, RUL-L-44).
//!
//! Packages come before the network policy, because their scripts are the package manager's and no secret lies on the
//! disk yet; everything of the user's own comes after it. A code that is not zero is the build's failure and is not
//! tried again; 124 is the limit (RUL-2). What a command said stays in the machine: it may hold secrets.

use super::super::facade::CallError;
use super::super::groundwork::{Line, TIMED_OUT, never_connected};
use super::super::messages::ProvisionFailure;
use super::Stop;
use super::pipeline::Build;
use crate::domain::event::{NewStage, Stage, StageState};
use crate::ports::sandbox::{ExecOutput, SandboxError};
use crate::retry::{Policy, Verdict, retry};

/// Why one command did not do its work.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Call(CallError),
    /// git never reached its server.
    #[error("the server of the repository could not be reached")]
    NotConnected(ExecOutput),
}

impl Trouble {
    /// Only what certainly did nothing is done again.
    fn verdict(&self) -> Verdict {
        match self {
            Self::NotConnected(_) => Verdict::Transient,
            Self::Call(CallError::Provider(
                error @ (SandboxError::Unavailable(_) | SandboxError::RateLimited { .. }),
            )) if error.is_refusal() => Verdict::Transient,
            Self::Call(_) => Verdict::Permanent,
        }
    }
}

impl Build<'_> {
    /// Step 14: one command per manager.
    pub(super) async fn install_packages(&mut self) -> Result<(), Stop> {
        let installs = self.ask.plan.groundwork.installs.clone();
        if installs.is_empty() {
            return Ok(());
        }
        let count: usize = installs.iter().map(|install| install.names.len()).sum();
        let began = self.begin(Stage::Packages, Some(count)).await?;
        for install in &installs {
            self.work(Stage::Packages, &install.line(), |_| false).await?;
        }
        let done = NewStage::new(Stage::Packages, StageState::Done).with("count", count);
        self.announce(done.took(began.elapsed())).await
    }

    /// Step 16.
    pub(super) async fn clone_repositories(&mut self) -> Result<(), Stop> {
        let checkouts = self.ask.plan.groundwork.checkouts.clone();
        if checkouts.is_empty() {
            return Ok(());
        }
        let count = checkouts.len();
        let began = self.begin(Stage::Clone, Some(count)).await?;
        for checkout in &checkouts {
            let destination = self.facade.host_path(&checkout.mount_path).await;
            self.work(Stage::Clone, &checkout.line(destination), never_connected)
                .await?;
        }
        let done = NewStage::new(Stage::Clone, StageState::Done).with("count", count);
        self.announce(done.took(began.elapsed())).await
    }

    /// Step 17. Never run twice: nobody knows what half of it did.
    pub(super) async fn run_setup(&mut self) -> Result<(), Stop> {
        let Some(setup) = self.ask.plan.groundwork.setup.clone() else {
            return Ok(());
        };
        let began = self.begin(Stage::Setup, None).await?;
        match self.facade.exec(self.lease, &setup.line()).await {
            Ok(output) => ended(Stage::Setup, &output)?,
            Err(error) => return Err(unreached(Stage::Setup, error)),
        }
        let done = NewStage::new(Stage::Setup, StageState::Done).with("exit_code", 0);
        self.announce(done.took(began.elapsed())).await
    }

    async fn begin(&mut self, stage: Stage, count: Option<usize>) -> Result<tokio::time::Instant, Stop> {
        let mut started = NewStage::new(stage, StageState::Started);
        if let Some(count) = count {
            started = started.with("count", count);
        }
        self.announce(started).await?;
        Ok(tokio::time::Instant::now())
    }

    /// Runs one command; `unsent` tells from its words that it did nothing.
    async fn work(&self, stage: Stage, line: &Line, unsent: fn(&[u8]) -> bool) -> Result<(), Stop> {
        let world = &self.site.world;
        let call = |_| async move {
            match self.facade.exec(self.lease, line).await {
                Ok(output) if output.code != 0 && unsent(&output.output) => Err(Trouble::NotConnected(output)),
                Ok(output) => Ok(output),
                Err(error) => Err(Trouble::Call(error)),
            }
        };
        match retry(Policy::CONTRACT, &mut || world.rng.unit(), Trouble::verdict, call).await {
            Ok(output) | Err(Trouble::NotConnected(output)) => ended(stage, &output),
            Err(Trouble::Call(error)) => Err(unreached(stage, error)),
        }
    }
}

/// What the exit code means.
fn ended(stage: Stage, output: &ExecOutput) -> Result<(), Stop> {
    let (reason, message) = match output.code {
        0 => return Ok(()),
        TIMED_OUT => ("timeout", format!("{stage} did not end within its limit")),
        code => ("command_failed", format!("{stage} ended with exit code {code}")),
    };
    Err(Stop::Failed(ProvisionFailure {
        stage,
        reason: reason.into(),
        message,
        exit_code: Some(output.code),
        at_ceiling: false,
    }))
}

/// The command could not be run to its end.
fn unreached(stage: Stage, error: CallError) -> Stop {
    match error {
        CallError::Superseded => Stop::Superseded,
        CallError::Provider(error) => {
            let reason = if error.is_runner_offline() {
                "runner_offline"
            } else {
                "exec_failed"
            };
            Stop::at(stage, reason, format!("{stage} could not be run ({})", error.class()))
        }
    }
}
