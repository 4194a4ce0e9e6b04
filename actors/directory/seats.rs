//! The table itself: which actor sits for which id. Memory only; a dead address is as good as none.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use actix::Addr;

use crate::conversation::ConversationActor;
use crate::domain::{ConversationId, MachineId};
use crate::machine::MachineActor;

/// Dead entries are swept out when the table has grown to this, and then at twice what is left.
const SWEEP_AT: usize = 1024;

struct Server {
    addr: Addr<ConversationActor>,
    machine: MachineId,
    serial: u64,
}

#[derive(Default)]
struct Table {
    machines: BTreeMap<MachineId, Addr<MachineActor>>,
    servers: BTreeMap<ConversationId, Server>,
    serial: u64,
    sweep_at: usize,
}

/// Who sits where.
#[derive(Default)]
pub(super) struct Seats {
    table: Mutex<Table>,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Every step under this lock leaves the table whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn machine(&self, id: MachineId, start: impl FnOnce() -> Addr<MachineActor>) -> Addr<MachineActor> {
        let mut table = self.lock();
        if let Some(addr) = table.machines.get(&id).filter(|addr| addr.connected()) {
            return addr.clone();
        }
        if table.machines.len() >= table.sweep_at.max(SWEEP_AT) {
            table.machines.retain(|_, addr| addr.connected());
            table.sweep_at = table.machines.len() * 2;
        }
        let addr = start();
        table.machines.insert(id, addr.clone());
        addr
    }

    /// Only an owner whose mailbox is closed is forgotten: another asker may have replaced it already.
    pub fn forget_machine(&self, id: MachineId) {
        let mut table = self.lock();
        if table.machines.get(&id).is_some_and(|addr| !addr.connected()) {
            table.machines.remove(&id);
        }
    }

    pub fn machines(&self) -> Vec<Addr<MachineActor>> {
        self.lock()
            .machines
            .values()
            .filter(|addr| addr.connected())
            .cloned()
            .collect()
    }

    pub fn server(
        &self,
        id: ConversationId,
        machine: MachineId,
        start: impl FnOnce(u64) -> Addr<ConversationActor>,
    ) -> Addr<ConversationActor> {
        let mut table = self.lock();
        if let Some(server) = table.servers.get(&id).filter(|server| server.addr.connected()) {
            return server.addr.clone();
        }
        table.serial += 1;
        let serial = table.serial;
        let addr = start(serial);
        let server = Server {
            addr: addr.clone(),
            machine,
            serial,
        };
        table.servers.insert(id, server);
        addr
    }

    pub fn live_server(&self, id: ConversationId) -> Option<Addr<ConversationActor>> {
        let table = self.lock();
        let server = table.servers.get(&id).filter(|server| server.addr.connected())?;
        Some(server.addr.clone())
    }

    /// Forgets a server: the one of this serial, or whichever is dead.
    pub fn forget_server(&self, id: ConversationId, serial: Option<u64>) {
        let mut table = self.lock();
        let is_it = |server: &Server| serial.map_or(!server.addr.connected(), |serial| serial == server.serial);
        if table.servers.get(&id).is_some_and(is_it) {
            table.servers.remove(&id);
        }
    }

    pub fn move_to(&self, id: ConversationId, machine: MachineId) {
        if let Some(server) = self.lock().servers.get_mut(&id) {
            server.machine = machine;
        }
    }

    pub fn live_on(&self, machine: MachineId) -> Vec<ConversationId> {
        let table = self.lock();
        let here = table
            .servers
            .iter()
            .filter(|(_, server)| server.machine == machine && server.addr.connected());
        here.map(|(id, _)| *id).collect()
    }

    /// Empties the table and answers whose mailboxes were in it.
    #[cfg(any(test, feature = "fakes"))]
    pub fn clear(&self) -> Vec<Addr<ConversationActor>> {
        let mut table = self.lock();
        table.machines.clear();
        std::mem::take(&mut table.servers)
            .into_values()
            .map(|server| server.addr)
            .collect()
    }

    pub fn servers(&self) -> Vec<Addr<ConversationActor>> {
        self.lock().servers.values().map(|server| server.addr.clone()).collect()
    }
}
