//! The machine's part of a reattach: M18, M19, M20 (lifecycle 6.8 steps 1 to 5, walk 8.3, RUL-16, RUL-49, RUL-L-24).
//!
//! 1. Look. Until the provider has answered nothing is claimed and nothing is published.
//! 2. **C** claim with `reattach/started`. 3. Policy, read back. 4. **C** callback key; files, the environment file last.
//! 5. **C** confirmed up, lease released. A crash in between leaves no stamp, so nothing has to be repaired.

use super::Site;
use super::evidence::{self, Seen};
use super::facade::{CallError, Facade};
use super::lease::{self, Lease, Taken, Wanted};
use super::messages::{ConfirmUp, Confirmed, MachineError};
use super::outcome::{self, Settlement};
use super::settle::{self, Settled};
use crate::domain::account::Actor;
use crate::domain::event::{NewStage, Stage, StageState};
use crate::domain::machine::{Machine, MachineState};
use crate::domain::operation::Outcome;
use crate::domain::{ErrorCode, Refusal};
use crate::ports::store::StoreError;
use crate::ports::store::machines::Purpose;
use crate::retry::{Policy, retry};

/// Who writes the audit row of a reattach (lifecycle 10.3).
const REATTACH: Actor = Actor::System("reattach");

/// Why the machine was not made ready; the row keeps its state.
enum Unready {
    Superseded,
    /// Another server of the conversation took over (RUL-L-8).
    Replaced,
    Refused(Refusal),
    /// The network policy is not verified.
    Unguarded,
    Store(StoreError),
}

/// Confirms that the machine runs and prepares it for this server.
pub(crate) async fn confirm_up(site: &Site, ask: ConfirmUp) -> Result<Confirmed, MachineError> {
    let row = settle::row(site).await?;
    match row.state(lease::clock(site).await?) {
        MachineState::New | MachineState::Building | MachineState::BuildStale => return Ok(Confirmed::NotBuilt(row)),
        MachineState::Gone(_) => return Ok(Confirmed::Gone(row)),
        MachineState::Doomed { .. } => return Err(ErrorCode::SandboxResetPending.into()),
        MachineState::Up | MachineState::UpBusy | MachineState::Asleep => {}
        MachineState::Parking | MachineState::ParkStale | MachineState::Waking | MachineState::WakeStale => {}
    }
    let facade = settle::facade(site, &row)?;
    let seen = match evidence::look(site, &row, &facade).await {
        Ok(seen) => seen,
        Err(error) => return Err(outcome::probe_failed(&error).into()),
    };
    if matches!(seen, Seen::Absent | Seen::Suspended) {
        return Ok(settled(settle::settle(site, REATTACH).await?));
    }
    let announced = ask
        .announce
        .then(|| NewStage::new(Stage::Reattach, StageState::Started));
    let wanted = Wanted {
        purpose: Purpose::Confirm,
        actor: REATTACH,
        stages: announced.map(|stage| (ask.conversation, stage)).into_iter().collect(),
        patience: site.world.settings.busy_wait,
    };
    let (lease, claimed) = match lease::take(site, wanted).await? {
        Taken::Lease(taken) => *taken,
        Taken::Held => return Err(MachineError::Busy),
        Taken::Not(refusal) => return Err(outcome::claim_refused(refusal)),
    };
    let seen = if unmoved(&row, &claimed.before) {
        seen
    } else {
        // Somebody acted between the look and the claim, so the look is old.
        match evidence::look(site, &claimed.machine, &facade).await {
            Ok(seen) => seen,
            Err(error) => {
                settle::look_failed(site, lease, &facade).await?;
                return Err(outcome::probe_failed(&error).into());
            }
        }
    };
    if matches!(seen, Seen::Running | Seen::Exists)
        && let Err(unready) = prepare(site, &lease, &facade, &ask).await
    {
        return Err(not_ready(site, lease, &facade, unready).await);
    }
    Ok(settled(
        settle::write(site, lease, &facade, &claimed.before, seen, &REATTACH).await?,
    ))
}

fn settled(settled: Settled) -> Confirmed {
    match settled {
        Settled::Up(machine) => Confirmed::Up(machine),
        Settled::Asleep(machine) => Confirmed::Asleep(machine),
        Settled::Lost(machine) => Confirmed::Lost(machine),
    }
}

/// Nothing that a look depends on has changed.
fn unmoved(row: &Machine, before: &Machine) -> bool {
    row.status == before.status
        && row.transition == before.transition
        && row.name == before.name
        && row.lease_epoch == before.lease_epoch
}

/// Steps 3 and 4.
async fn prepare(site: &Site, lease: &Lease, facade: &Facade, ask: &ConfirmUp) -> Result<(), Unready> {
    if let Some(policy) = &ask.policy {
        facade.enforce(site, lease, policy).await.map_err(unguarded)?;
    }
    mint_callback_key(site, ask).await?;
    let world = &site.world;
    for file in &ask.files {
        let write = |_| facade.write_file(lease, file);
        match retry(Policy::CONTRACT, &mut || world.rng.unit(), CallError::verdict, write).await {
            Ok(()) => {}
            Err(CallError::Provider(error)) if file.best_effort => {
                tracing::warn!(machine.id = %site.machine, path = %file.path, class = error.class(), "a file was not written");
            }
            Err(error) => return Err(refusal(error, &file.path)),
        }
    }
    Ok(())
}

/// Nobody can say what the machine may reach (RUL-L-97).
fn unguarded(error: CallError) -> Unready {
    match error {
        CallError::Superseded => Unready::Superseded,
        CallError::Provider(error) if error.is_runner_offline() => Unready::Refused(ErrorCode::RunnerOffline.into()),
        CallError::Provider(_) => Unready::Unguarded,
    }
}

fn refusal(error: CallError, what: &str) -> Unready {
    match error {
        CallError::Superseded => Unready::Superseded,
        CallError::Provider(error) if error.is_runner_offline() => Unready::Refused(ErrorCode::RunnerOffline.into()),
        CallError::Provider(error) => Unready::Refused(Refusal::because(
            ErrorCode::SandboxProbeFailed,
            format!("{what} could not be put in place ({})", error.class()),
        )),
    }
}

/// The running agent keeps its old key, which stays valid until it expires (walk 8.3).
async fn mint_callback_key(site: &Site, ask: &ConfirmUp) -> Result<(), Unready> {
    let Some(key) = &ask.callback_key else { return Ok(()) };
    let world = &site.world;
    let mint = |_| {
        world
            .store
            .mint_callback_key(ask.conversation, ask.server_epoch, key.clone(), world.now())
    };
    match retry(Policy::CONTRACT, &mut || world.rng.unit(), outcome::transient, mint).await {
        Ok(_) => Ok(()),
        Err(StoreError::Stale(_) | StoreError::NotFound(_)) => Err(Unready::Replaced),
        Err(StoreError::Refused(refusal)) => Err(Unready::Refused(refusal)),
        Err(error) => Err(Unready::Store(error)),
    }
}

/// Gives the lease back with nothing but the journal row written.
async fn not_ready(site: &Site, lease: Lease, facade: &Facade, unready: Unready) -> MachineError {
    let error = match unready {
        Unready::Superseded => return outcome::superseded(site, lease, facade.trace()).await,
        Unready::Replaced => MachineError::Superseded,
        Unready::Refused(refusal) => refusal.into(),
        Unready::Unguarded => MachineError::PolicyUnverified,
        Unready::Store(error) => return error.into(),
    };
    let kept = Settlement {
        keep_stamp: true,
        ..Settlement::of(Outcome::Failed)
    };
    match outcome::finish(site, lease, facade.trace(), kept).await {
        Ok(_) => error,
        Err(lost) => lost,
    }
}
