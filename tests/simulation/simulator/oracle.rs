//! What the clients of a run were told, and what therefore must be true at its end (INV-74, INV-75, C5).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fountain_actors::domain::{ConversationId, MachineId, Refusal};

/// What is known about one thing that was asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// The asker still waits, or its replica died: anything may be true.
    Nothing,
    Yes,
    No(Refusal),
}

#[derive(Default)]
struct Inner {
    /// By the client's own request id.
    prompts: BTreeMap<String, Told>,
    /// Conversations that somebody wished to end, or whose agent or account was deleted.
    ends: Vec<ConversationId>,
    ended: Vec<ConversationId>,
    deleted: Vec<ConversationId>,
    resets: Vec<MachineId>,
}

#[derive(Default)]
pub struct Oracle {
    inner: Mutex<Inner>,
}

impl Oracle {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A prompt is on its way.
    pub fn asks(&self, request: &str) {
        self.lock().prompts.insert(request.to_owned(), Told::Nothing);
    }

    pub fn prompt_told(&self, request: &str, told: Told) {
        self.lock().prompts.insert(request.to_owned(), told);
    }

    pub fn prompts(&self) -> BTreeMap<String, Told> {
        self.lock().prompts.clone()
    }

    /// From here on the conversation may end.
    pub fn may_end(&self, id: ConversationId) {
        self.lock().ends.push(id);
    }

    pub fn has_reason_to_end(&self, id: ConversationId) -> bool {
        self.lock().ends.contains(&id)
    }

    pub fn ended(&self, id: ConversationId) {
        self.lock().ended.push(id);
    }

    pub fn deleted(&self, id: ConversationId) {
        self.lock().deleted.push(id);
    }

    pub fn was_deleted(&self, id: ConversationId) -> bool {
        self.lock().deleted.contains(&id)
    }

    /// Whose end was confirmed to a client.
    pub fn all_ended(&self) -> Vec<ConversationId> {
        self.lock().ended.clone()
    }

    pub fn reset(&self, machine: MachineId) {
        self.lock().resets.push(machine);
    }

    /// Machines whose reset was confirmed to a client.
    pub fn resets(&self) -> Vec<MachineId> {
        self.lock().resets.clone()
    }
}
