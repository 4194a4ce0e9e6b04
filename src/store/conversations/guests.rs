//! Everybody who was ever on a machine, and the rules for another agent on it (lifecycle 5.7; RUL-L-82 to 85).
//!
//! Read under the machine's lock, so a second guest that races the first sees the first one's row. The row of
//! an attach is the evidence: nothing here is written, and nothing that ended or was deleted stops counting.

use std::collections::BTreeSet;

use diesel::prelude::*;

use fountain_actors::domain::account::Scope;
use fountain_actors::domain::guest::{self, Tenant};
use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::NewConversation;

use super::end::Descriptor;
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Json, key};
use crate::store::schema::{conversations, machines};

/// Rules 5 and 6, for a conversation of another agent than the home's. No verb ends the older conversation of the same
/// agent in this transaction, so nobody is a successor yet and a sandbox key never brings a guest (RUL-L-85).
pub fn may_join(db: &mut Db, machine: &Machine, new: &NewConversation, scope: &Scope) -> Result<(), Fault> {
    let ever = ever_on(db, machine.id)?;
    if !guest::admits(machine, new.agent_id, new.runtime, &ever) {
        return Err(ErrorCode::SandboxIdentityMismatch.into());
    }
    match scope {
        Scope::Full => Ok(()),
        Scope::Sprite(_) | Scope::Runner(_) => {
            Err(Refusal::ScopeTooSmall(ErrorCode::GuestAttachRequiresFullScope).into())
        }
    }
}

/// Conversations on the machine in whatever state, and descriptors of deleted ones.
fn ever_on(db: &mut Db, machine: MachineId) -> Result<Vec<Tenant>, Fault> {
    let bound: Vec<(String, Option<Id<AgentId>>)> = conversations::table
        .filter(conversations::machine_id.eq(key(machine)))
        .select((conversations::runtime, conversations::agent_id))
        .distinct()
        .load(db)?;
    let Json(departed) = machines::table
        .find(key(machine))
        .select(machines::departed_conversations)
        .first::<Json<BTreeSet<Descriptor>>>(db)?;
    let bound = bound.into_iter().map(|(runtime, agent)| Tenant {
        runtime,
        agent_id: agent.map(|id| id.0),
    });
    Ok(bound.chain(departed.into_iter().map(Descriptor::into_tenant)).collect())
}
