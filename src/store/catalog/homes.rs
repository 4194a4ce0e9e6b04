//! Fencing the homes whose ground is taken away (RUL-L-46, RUL-L-81): an agent or its environment moves or goes, a
//! vault goes.
//!
//! One transaction with the change itself: machine locks in id order, then the conversations on them in id order, then
//! the stamps. A turn anywhere on them refuses the whole change with `sandbox_mid_turn`, except when the agent itself
//! goes: then its homes' conversations end, guests included, because they are selected under the machine locks. The
//! account's quota lock is held by the caller, so no launch adds a home meanwhile. Nothing here calls a provider; a
//! crash after the commit leaves DOOMED rows, which `passes/teardown` finishes.

use diesel::prelude::*;

use fountain_actors::domain::account::NewAudit;
use fountain_actors::domain::conversation::Conversation;
use fountain_actors::domain::event::{NewStage, Stage, StageState};
use fountain_actors::domain::machine::{DestroyReason, Machine, MachineMode, MachineStatus, Transition};
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::*;
use fountain_actors::ports::store::catalog::Fenced;

use super::Change;
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Word, key};
use crate::store::conversations::{close, rows as conversation_rows};
use crate::store::events::Outbox;
use crate::store::machines::{doom, rows as machine_rows};
use crate::store::schema::{conversations, machines, turns};

/// Which live homes of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Homes {
    OfAgent(AgentId),
    /// Built for the agent on this environment; None is "none".
    OfAgentOn(AgentId, Option<EnvironmentId>),
    On(EnvironmentId),
    With(VaultId),
}

impl Homes {
    fn include(self, machine: &Machine) -> bool {
        machine.mode == MachineMode::Persistent
            && !machine.status.is_terminal()
            && match self {
                Self::OfAgent(agent) => machine.agent_id == Some(agent),
                Self::OfAgentOn(agent, environment) => {
                    machine.agent_id == Some(agent) && machine.environment_id == environment
                }
                Self::On(environment) => machine.environment_id == Some(environment),
                Self::With(vault) => machine.vault_id == Some(vault),
            }
    }

    /// Ids of machines that may be meant, in order. They are looked at again under their locks.
    fn candidates(self, db: &mut Db, account: AccountId) -> Result<Vec<MachineId>, Fault> {
        let live = machines::table
            .filter(machines::account_id.eq(key(account)))
            .filter(machines::mode.eq(Word(MachineMode::Persistent)))
            .filter(machines::status.ne_all([Word(MachineStatus::Terminated), Word(MachineStatus::Failed)]))
            .order(machines::id)
            .select(machines::id);
        let ids: Vec<Id<MachineId>> = match self {
            Self::OfAgent(agent) | Self::OfAgentOn(agent, _) => {
                live.filter(machines::agent_id.eq(key(agent))).load(db)?
            }
            Self::On(environment) => live.filter(machines::environment_id.eq(key(environment))).load(db)?,
            Self::With(vault) => live.filter(machines::vault_id.eq(key(vault))).load(db)?,
        };
        Ok(ids.into_iter().map(|id| id.0).collect())
    }
}

/// Fences `homes` for `reason`. Answers what is to be destroyed and which conversations ended; their stages and audit
/// rows are in `outbox`.
///
/// # Errors
/// `sandbox_mid_turn` when a turn is open on one of them, unless the agent itself goes.
pub(super) fn fence(
    db: &mut Db,
    change: &Change,
    homes: Homes,
    reason: DestroyReason,
    outbox: &mut Outbox,
) -> Result<Fenced, Fault> {
    let mut locked = Vec::new();
    for id in homes.candidates(db, change.account)? {
        locked.extend(machine_rows::lock(db, id)?.filter(|machine| homes.include(machine)));
    }
    if locked.is_empty() {
        return Ok(Fenced::default());
    }
    let tenants = lock_tenants(db, &locked)?;
    let mut fenced = Fenced::default();
    if reason == DestroyReason::AgentDeleted {
        for conversation in tenants {
            fenced.ended.extend(end_conversation(db, change, conversation, outbox)?);
        }
    } else {
        refuse_mid_turn(db, &locked, &tenants)?;
        for mut conversation in tenants {
            // The disk that the session lives on goes.
            if conversation.runtime_session_id.take().is_some() && !conversation.status.is_terminal() {
                conversation.updated_at = change.now;
                conversation_rows::save(db, &conversation)?;
            }
        }
    }
    for mut machine in locked {
        // A first stamp stays, and so does whoever destroys it (lifecycle 2.4).
        if machine.transition == Some(Transition::Destroying) {
            continue;
        }
        let (actor, ip) = (change.audit.actor.clone(), change.audit.request_ip.clone());
        doom(db, outbox, &mut machine, reason, actor, ip, change.now)?;
        fenced.machines.push(machine.id);
    }
    Ok(fenced)
}

/// Everyone on these machines, in the order of their ids across all of them (RUL-L-9).
fn lock_tenants(db: &mut Db, machines: &[Machine]) -> Result<Vec<Conversation>, Fault> {
    let on: Vec<String> = machines.iter().map(|machine| key(machine.id)).collect();
    let ids: Vec<String> = conversations::table
        .filter(conversations::machine_id.eq_any(on))
        .select(conversations::id)
        .load(db)?;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    conversation_rows::lock_many(db, ids)
}

fn refuse_mid_turn(db: &mut Db, machines: &[Machine], tenants: &[Conversation]) -> Result<(), Fault> {
    let on: Vec<String> = machines.iter().map(|machine| key(machine.id)).collect();
    let of: Vec<String> = tenants.iter().map(|conversation| key(conversation.id)).collect();
    let open: i64 = turns::table
        .filter(turns::status.eq_any([Word(TurnStatus::Pending), Word(TurnStatus::Running)]))
        .filter(
            turns::machine_id
                .eq_any(on)
                .or(turns::conversation_id.eq_any(of).nullable()),
        )
        .count()
        .get_result(db)?;
    if open > 0 {
        Err(ErrorCode::SandboxMidTurn.into())
    } else {
        Ok(())
    }
}

/// Ends one conversation with its agent: the open turn interrupted, then `terminated`, as a terminate does (RUL-L-29).
/// None when it had ended before.
fn end_conversation(
    db: &mut Db,
    change: &Change,
    mut conversation: Conversation,
    outbox: &mut Outbox,
) -> Result<Option<ConversationId>, Fault> {
    if conversation.status.is_terminal() {
        return Ok(None);
    }
    close(db, outbox, &mut conversation, change.now)?;
    let stage = NewStage::new(Stage::Terminate, StageState::Done).with("reason", DestroyReason::AgentDeleted.as_str());
    outbox.stage(conversation.account_id, conversation.id, stage, change.now);
    let ended = NewAudit {
        action: "conversation.terminated",
        resource_type: "conversation",
        resource_id: Some(key(conversation.id)),
        metadata: [("reason", DestroyReason::AgentDeleted.as_str().into())].into(),
        ..change.audit.clone()
    };
    outbox.audit(ended, change.now);
    Ok(Some(conversation.id))
}
