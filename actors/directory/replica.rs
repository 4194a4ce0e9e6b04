//! What the passes need of this replica (lifecycle 7).

use actix::Addr;

use super::Engine;
use crate::domain::{ConversationId, MachineId};
use crate::machine::MachineActor;
use crate::passes::Replica;

impl Replica for Engine {
    fn adopt(&self, conversation: ConversationId) {
        let engine = self.clone();
        actix::spawn(async move {
            match engine.world().store.conversation(conversation).await {
                Ok(Some(row)) => engine.serve(conversation, row.machine_id),
                Ok(None) => {}
                // Ten seconds later the pass asks again.
                Err(error) => tracing::warn!(
                    conversation.id = %conversation,
                    %error,
                    "conversation {conversation} could not be looked up for its adoption"
                ),
            }
        });
    }

    fn is_live(&self, conversation: ConversationId) -> bool {
        Engine::is_live(self, conversation)
    }

    fn is_occupied(&self, machine: MachineId) -> bool {
        !self.live_on(machine).is_empty()
    }

    fn owner(&self, machine: MachineId) -> Addr<MachineActor> {
        self.machine(machine)
    }
}
