//! Who may join another agent's home (lifecycle 5.7 rule 5; RUL-L-82, RUL-L-84).
//!
//! Decides from what the machine records and from everybody who was ever on it: the ended, the deleted and those whose
//! first prompt was refused count until a reset, because their files are still on the disk. Never reads a row itself.

use std::collections::BTreeSet;

use super::AgentId;
use super::agent::Runtime;
use super::machine::{Machine, MachineMode};

/// The two runtimes that can live on one disk: neither one's files are inside the other's.
const TOGETHER: [Runtime; 2] = [Runtime::Claude, Runtime::Codex];

/// Somebody who was ever on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// As its row or descriptor says.
    pub runtime: String,
    /// None: its agent was deleted.
    pub agent_id: Option<AgentId>,
}

/// Whether an agent other than the home's may join: only a home whose runtime is recorded and whose agent lives, only
/// with exactly Claude and Codex among the machine, the guest and every other agent's conversations, and only as the
/// one guest agent that the machine has until it is reset.
#[must_use]
pub fn admits(machine: &Machine, guest: AgentId, runtime: Runtime, ever: &[Tenant]) -> bool {
    let (Some(home), Some(recorded)) = (machine.agent_id, machine.runtime.as_deref()) else {
        return false;
    };
    let others = ever.iter().filter(|tenant| tenant.agent_id != Some(home));
    // A deleted agent cannot be told from a third one.
    let is_only_guest = others.clone().all(|tenant| tenant.agent_id == Some(guest));
    let runtimes: BTreeSet<&str> = others
        .map(|tenant| tenant.runtime.as_str())
        .chain([recorded, runtime.as_str()])
        .collect();
    let together: BTreeSet<&str> = TOGETHER.iter().map(|runtime| runtime.as_str()).collect();
    machine.mode == MachineMode::Persistent && is_only_guest && runtimes == together
}
