//! Machines: the row, its states, and the transitions M1 to M23 (lifecycle 2.1, 2.2; RUL-L-20 to 27, RUL-L-70).

use serde_json::Value;

use crate::domain::{AccountId, AgentId, EnvironmentId, Epoch, MachineId, Moment, VaultId};
use crate::vocabulary;

vocabulary! {
    /// Status of a machine row. `Terminated` and `Failed` are final (INV-01).
    MachineStatus {
        Pending = "pending", Starting = "starting", Ready = "ready", Suspended = "suspended",
        Terminated = "terminated", Failed = "failed",
    }
}

impl MachineStatus {
    /// No status follows this one.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Terminated | Self::Failed)
    }
}

vocabulary! {
    /// The stamp: which verb is under way, or was when its owner died.
    Transition {
        Provisioning = "provisioning", Resuming = "resuming", Parking = "parking", Destroying = "destroying",
    }
}

vocabulary! {
    MachineMode { Ephemeral = "ephemeral", Persistent = "persistent" }
}

vocabulary! {
    /// Who offers machines. `Fake` exists for tests alone and no configuration can name it.
    Provider { Sprites = "sprites", E2b = "e2b", Daytona = "daytona", Runner = "runner", Fake = "fake" }
}

vocabulary! {
    /// Why a machine goes (lifecycle 2.4). Stands in `transition_reason` while the machine is DOOMED.
    DestroyReason {
        Terminated = "terminated", Idle = "idle", MaxLifetime = "max_lifetime", Reclaimed = "reclaimed",
        Replaced = "replaced", ProviderGone = "provider_gone", Reset = "reset", AgentDeleted = "agent_deleted",
        EnvironmentChanged = "environment_changed", EnvironmentDeleted = "environment_deleted",
        VaultDeleted = "vault_deleted", AccountDeleted = "account_deleted",
    }
}

/// Who holds a machine and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Node name plus random boot id (RUL-L-6).
    pub holder: String,
    pub until: Moment,
}

/// One row of `machines` (lifecycle 1.7).
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub id: MachineId,
    /// None once the account was deleted (RUL-L-37).
    pub account_id: Option<AccountId>,
    pub name: String,
    pub status: MachineStatus,
    pub mode: MachineMode,
    pub runtime: Option<String>,
    pub provider: Provider,
    /// Adapter-opaque facts, plus `root` (RUL-49) and `checkpoint_id`, `checkpoint_at`, `public_url`.
    pub provider_meta: Value,
    pub transition: Option<Transition>,
    pub transition_reason: Option<String>,
    /// Written with the stamp and never by anything else (RUL-L-12).
    pub transition_at: Option<Moment>,
    pub lease_epoch: Epoch,
    pub lease: Option<LeaseInfo>,
    /// Registration marker: a server was just started here.
    pub woken_at: Option<Moment>,
    /// A delete is owed although the row is terminal (RUL-L-21).
    pub cleanup_pending: bool,
    pub next_attempt_at: Option<Moment>,
    pub build_fingerprint: Option<String>,
    pub agent_id: Option<AgentId>,
    pub environment_id: Option<EnvironmentId>,
    pub vault_id: Option<VaultId>,
    pub last_resumed_at: Option<Moment>,
    pub terminated_at: Option<Moment>,
    pub inserted_at: Moment,
    pub updated_at: Moment,
}

/// What a machine is, derived from its row and the lease clock in one place (lifecycle 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineState {
    New,
    Building,
    BuildStale,
    Up,
    UpBusy,
    Parking,
    ParkStale,
    Asleep,
    Waking,
    WakeStale,
    Doomed { reset: bool },
    Gone(MachineStatus),
}

impl Machine {
    /// A lease is live when it is held and its end is still ahead on the lease clock; nothing else counts.
    pub fn lease_live(&self, now: Moment) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.until > now)
    }

    /// The state of this row at `now` (lease clock, RUL-29).
    pub fn state(&self, now: Moment) -> MachineState {
        use {MachineState as S, MachineStatus as M, Transition as T};
        let live = self.lease_live(now);
        match (self.status, self.transition) {
            (status @ (M::Terminated | M::Failed), _) => S::Gone(status),
            (_, Some(T::Destroying)) => S::Doomed {
                reset: self.transition_reason.as_deref() == Some(DestroyReason::Reset.as_str()),
            },
            (_, Some(T::Resuming)) if live => S::Waking,
            (_, Some(T::Resuming)) => S::WakeStale,
            (M::Pending | M::Starting, Some(_)) if live => S::Building,
            (M::Pending | M::Starting, Some(_)) | (M::Starting, None) => S::BuildStale,
            (M::Pending, None) => S::New,
            (M::Ready, Some(T::Parking)) if live => S::Parking,
            (M::Ready, Some(T::Parking)) => S::ParkStale,
            (M::Ready, _) if live => S::UpBusy,
            (M::Ready, _) => S::Up,
            (M::Suspended, Some(T::Parking)) => S::ParkStale,
            (M::Suspended, _) => S::Asleep,
        }
    }

    /// Counted against cap and fleet (lifecycle 8, RUL-L-70).
    pub fn is_counted(&self) -> bool {
        use {MachineStatus as M, Transition as T};
        self.cleanup_pending
            || matches!(self.status, M::Pending | M::Starting | M::Ready)
            || (!self.status.is_terminal() && matches!(self.transition, Some(T::Resuming | T::Destroying)))
    }
}

/// A fact that moves a machine's status. Stamps move with the operation that writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineEvent {
    /// M3: the provider answered the create.
    CreateAnswered,
    /// M4.
    BuildFinished,
    /// M5, M6.
    BuildFailed,
    /// M8, or M10 and M23 when a probe says suspended.
    ParkConfirmed,
    /// M12, M19, or M14 and M23 when a probe says running.
    WakeConfirmed,
    /// M16 and M18: absence was confirmed.
    DeleteConfirmed,
}

impl MachineEvent {
    pub const ALL: [Self; 6] = [
        Self::CreateAnswered,
        Self::BuildFinished,
        Self::BuildFailed,
        Self::ParkConfirmed,
        Self::WakeConfirmed,
        Self::DeleteConfirmed,
    ];
}

/// A step outside the table. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a machine that is {from} cannot meet {event:?}")]
pub struct IllegalTransition {
    pub from: MachineStatus,
    pub event: MachineEvent,
}

impl MachineStatus {
    /// The status after `event`. Total: what the table does not have is a value, not a panic.
    pub fn on(self, event: MachineEvent) -> Result<Self, IllegalTransition> {
        use {MachineEvent as E, MachineStatus as S};
        match (self, event) {
            (S::Pending | S::Starting, E::CreateAnswered) => Ok(S::Starting),
            (S::Starting, E::BuildFinished) => Ok(S::Ready),
            (S::Pending | S::Starting, E::BuildFailed) => Ok(S::Failed),
            (S::Ready | S::Suspended, E::ParkConfirmed) => Ok(S::Suspended),
            (S::Ready | S::Suspended, E::WakeConfirmed) => Ok(S::Ready),
            (S::Pending | S::Starting | S::Ready | S::Suspended, E::DeleteConfirmed) => Ok(S::Terminated),
            (from, event) => Err(IllegalTransition { from, event }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inv_01_a_terminal_machine_never_comes_back() {
        for from in [MachineStatus::Terminated, MachineStatus::Failed] {
            for event in MachineEvent::ALL {
                assert_eq!(from.on(event), Err(IllegalTransition { from, event }));
            }
        }
    }

    #[test]
    fn inv_31_only_a_confirmed_park_makes_a_machine_suspended() {
        for from in MachineStatus::ALL {
            for event in MachineEvent::ALL {
                if from.on(event) == Ok(MachineStatus::Suspended) {
                    assert_eq!(event, MachineEvent::ParkConfirmed);
                }
            }
        }
    }
}
