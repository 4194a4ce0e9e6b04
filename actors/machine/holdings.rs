//! Which leases this process itself has not given up, by its monotonic clock (RUL-L-11).
//!
//! A wall clock that is set forward may make a lease look expired while the operation under it still runs, or while its
//! last call is still on the way (RUL-L-5). Other processes cannot know; this one can, so a claim asks here before it
//! takes a lease that the rows call dead. It forgets with the process, whose successor owns none of its leases.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::domain::{Epoch, MachineId};

#[derive(Default)]
pub(super) struct Holdings {
    held: Mutex<HashMap<MachineId, (Epoch, Instant)>>,
}

impl Holdings {
    fn lock(&self) -> MutexGuard<'_, HashMap<MachineId, (Epoch, Instant)>> {
        // Every step under this lock leaves the map whole.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim or a renewal succeeded.
    pub fn hold(&self, machine: MachineId, epoch: Epoch, until: Instant) {
        self.lock().insert(machine, (epoch, until));
    }

    /// The lease was given back, or is known to be somebody else's.
    pub fn give_up(&self, machine: MachineId, epoch: Epoch) {
        let mut held = self.lock();
        if held.get(&machine).is_some_and(|(holds, _)| *holds == epoch) {
            held.remove(&machine);
        }
    }

    /// The epoch under which this process may still act on the machine.
    pub fn held(&self, machine: MachineId) -> Option<Epoch> {
        let mut held = self.lock();
        let (epoch, until) = held.get(&machine).copied()?;
        if until > Instant::now() {
            return Some(epoch);
        }
        held.remove(&machine);
        None
    }
}
