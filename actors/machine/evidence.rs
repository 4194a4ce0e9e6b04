//! What counts as knowing how a machine is (INV-37, RUL-49, RUL-L-28, RUL-L-115).
//!
//! Only a definitive not-found is absence. A runner's is definitive only under the root that the machine was made in: a
//! changed flag is not a lost machine. Other providers' are held back by the breaker when too many come at once. All
//! else is an error, and an error changes nothing.

use super::Site;
use super::facade::Facade;
use crate::domain::machine::{Machine, Provider};
use crate::domain::runner::runner_of;
use crate::ports::sandbox::{RunState, SandboxError};

/// What a look at the provider showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Running,
    Suspended,
    /// It exists, and more is not said. Never proof of either (RUL-L-115).
    Exists,
    /// It does not exist, and that may be believed.
    Absent,
}

impl Seen {
    /// The word in the journal's evidence.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Exists => "exists",
            Self::Absent => "absent",
        }
    }
}

/// Looks once, within the probe's ten seconds.
///
/// # Errors
/// Whatever is no definitive answer.
pub(crate) async fn look(site: &Site, machine: &Machine, facade: &Facade) -> Result<Seen, SandboxError> {
    match facade.get().await {
        Ok(info) => {
            site.breaker.present(machine.provider, machine.id);
            Ok(match info.state {
                RunState::Running => Seen::Running,
                RunState::Suspended => Seen::Suspended,
                RunState::Unknown => Seen::Exists,
            })
        }
        Err(SandboxError::NotFound) => {
            under_known_root(site, machine).await?;
            if site.breaker.believes_absent(machine.provider, machine.id) {
                Ok(Seen::Absent)
            } else {
                Err(SandboxError::Unavailable(
                    "too many machines are not found at once".into(),
                ))
            }
        }
        Err(error) => Err(error),
    }
}

/// Whether our own delete is confirmed: a not-found that neither counts for the breaker nor is held back by it.
///
/// # Errors
/// Whatever is no definitive answer.
pub(crate) async fn is_gone(site: &Site, machine: &Machine, facade: &Facade) -> Result<bool, SandboxError> {
    match facade.get().await {
        Ok(_) => Ok(false),
        Err(SandboxError::NotFound) => under_known_root(site, machine).await.map(|()| true),
        Err(error) => Err(error),
    }
}

/// A runner's not-found is evidence only if it looks where the machine was made (RUL-49, RUL-L-94).
async fn under_known_root(site: &Site, machine: &Machine) -> Result<(), SandboxError> {
    if machine.provider != Provider::Runner {
        return Ok(());
    }
    let elsewhere = || SandboxError::Unavailable("the runner looks into another root".into());
    let id = runner_of(&machine.name).ok_or_else(elsewhere)?;
    let runner = match site.world.store.runner(id).await {
        Ok(Some(runner)) => runner,
        Ok(None) => return Err(elsewhere()),
        Err(_) => return Err(SandboxError::Unavailable("the runner's row could not be read".into())),
    };
    let recorded = |key: &str| machine.provider_meta.get(key).and_then(serde_json::Value::as_str);
    let same_root = recorded("root").is_some() && recorded("root") == runner.details.root.as_deref();
    // The marker tells an unmounted disk from an empty one; older daemons have none.
    let same_marker = match (recorded("root_id"), runner.details.root_id.as_deref()) {
        (Some(then), Some(now)) => then == now,
        _ => true,
    };
    if same_root && same_marker {
        Ok(())
    } else {
        Err(elsewhere())
    }
}
