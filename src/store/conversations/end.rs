//! How a conversation ends and goes: terminate in one transaction, delete with a descriptor left behind (C5; RUL-12,
//! RUL-28a, RUL-L-29, RUL-L-80).

use std::collections::BTreeSet;

use diesel::prelude::*;
use serde_json::{Value, json};

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::conversation::{Conversation, ConversationStatus};
use fountain_actors::domain::event::{NewStage, Stage, StageState};
use fountain_actors::domain::guest::Tenant;
use fountain_actors::domain::machine::{DestroyReason, Machine, MachineMode, MachineState, MachineStatus};
use fountain_actors::domain::turn::{Ending, Turn};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::Ended;

use super::rows;
use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{Json, Word, at, json as text, key};
use crate::store::events::{Outbox, audit_row};
use crate::store::machines;
use crate::store::schema::{api_keys, conversations, machines as machine_table};
use crate::store::turns::{admission, ending, processes, rows as turns};

/// Terminates a conversation. An ended one is answered as it is.
pub fn terminate(
    db: &mut Db,
    account: AccountId,
    id: ConversationId,
    actor: Actor,
    request_ip: Option<String>,
    now: Moment,
) -> Result<(Ended, Outbox), Fault> {
    let mut outbox = Outbox::default();
    rows::of_account(db, account, id)?;
    let (mut conversation, mut machine) = admission::lock_bound(db, id)?;
    if conversation.status.is_terminal() {
        let ended = Ended {
            conversation,
            fenced: None,
            cut: None,
            to_stop: Vec::new(),
        };
        return Ok((ended, outbox));
    }
    let clock = lease_clock(db, now)?;
    let goes = machine_goes(db, &machine, id)?;
    if goes && matches!(machine.status, MachineStatus::Ready | MachineStatus::Suspended) && machine.lease_live(clock) {
        // An operation is under way on a machine that is in use: the caller waits and asks again (INV-58). A build is
        // fenced at once, because it may take half an hour (RUL-12).
        return Err(ErrorCode::SandboxUnavailable.into());
    }
    let stays = !goes && matches!(machine.status, MachineStatus::Ready | MachineStatus::Suspended) && !doomed(&machine);
    let mut to_stop = Vec::new();
    if stays {
        for mut process in processes::live_of(db, id)? {
            processes::request_stop(db, process.id)?;
            process.stop_requested = true;
            to_stop.push(process);
        }
    }
    let cut = close(db, &mut outbox, &mut conversation, now)?;
    if goes {
        let reason = DestroyReason::Terminated;
        machines::doom(
            db,
            &mut outbox,
            &mut machine,
            reason,
            actor.clone(),
            request_ip.clone(),
            now,
        )?;
    }
    outbox.stage(account, id, NewStage::new(Stage::Terminate, StageState::Done), now);
    let audit = NewAudit {
        account_id: Some(account),
        action: "conversation.terminated",
        resource_type: "conversation",
        resource_id: Some(key(id)),
        actor,
        request_ip,
        metadata: [("sandbox_id", key(machine.id).into()), ("sandbox_kept", (!goes).into())].into(),
    };
    outbox.audit(audit, now);
    let ended = Ended {
        conversation,
        fenced: goes.then_some(machine.id),
        cut,
        to_stop,
    };
    Ok((ended, outbox))
}

/// Ends a locked, live conversation: its open turn is interrupted, its server superseded, its keys open nothing. The
/// stage and the audit row are the caller's. Answers the turn that was cut.
pub fn close(
    db: &mut Db,
    outbox: &mut Outbox,
    conversation: &mut Conversation,
    now: Moment,
) -> Result<Option<Turn>, Fault> {
    let cut = match turns::open(db, conversation.id)? {
        Some(turn) => {
            let ending = Ending::interrupted(turn.id, now);
            ending::end(db, outbox, conversation, turn, ending)?
        }
        None => None,
    };
    conversation.status = ConversationStatus::Terminated;
    conversation.updated_at = now;
    // Whatever its server still wants to write comes after the end (RUL-L-8).
    conversation.server_epoch.0 += 1;
    rows::save(db, conversation)?;
    revoke_keys(db, conversation.id, now)?;
    Ok(cut)
}

fn doomed(machine: &Machine) -> bool {
    // The lease plays no part in this state.
    matches!(machine.state(Moment::MIN_UTC), MachineState::Doomed { .. })
}

/// The last-detach rule (INV-57): an ephemeral machine goes with its last conversation. The machine's lock is held, so
/// an attach is either counted here or finds the fence (RUL-L-80). A machine that is going or gone is left alone.
fn machine_goes(db: &mut Db, machine: &Machine, ending: ConversationId) -> Result<bool, Fault> {
    if machine.status.is_terminal() || doomed(machine) || machine.mode == MachineMode::Persistent {
        return Ok(false);
    }
    let others: i64 = conversations::table
        .filter(conversations::machine_id.eq(key(machine.id)))
        .filter(conversations::id.ne(key(ending)))
        .filter(conversations::status.ne_all([Word(ConversationStatus::Failed), Word(ConversationStatus::Terminated)]))
        .count()
        .get_result(db)?;
    Ok(others == 0)
}

/// Callback keys of an ended conversation open nothing any more, whoever minted them.
fn revoke_keys(db: &mut Db, id: ConversationId, now: Moment) -> Result<(), Fault> {
    diesel::update(api_keys::table)
        .filter(api_keys::conversation_id.eq(key(id)))
        .filter(api_keys::revoked_at.is_null())
        .set(api_keys::revoked_at.eq(at(now)))
        .execute(db)?;
    Ok(())
}

/// Removes an ended conversation. Inserts no event, and so never waits for an event lock (RUL-23).
pub fn delete(db: &mut Db, account: AccountId, id: ConversationId, audit: &NewAudit, now: Moment) -> Result<(), Fault> {
    rows::of_account(db, account, id)?;
    let (conversation, machine) = admission::lock_bound(db, id)?;
    if !conversation.status.is_terminal() {
        return Err(Fault::not_found("conversation"));
    }
    if !machine.status.is_terminal() {
        leave_descriptor(db, &machine, &conversation)?;
    }
    revoke_keys(db, id, now)?;
    diesel::delete(conversations::table.find(key(id))).execute(db)?;
    audit_row(db, audit, now)
}

/// One non-secret descriptor per distinct source of conversations that were on the machine (lifecycle 1.7): who was
/// ever here counts until a reset.
fn leave_descriptor(db: &mut Db, machine: &Machine, conversation: &Conversation) -> Result<(), Fault> {
    let Json(mut departed) = machine_table::table
        .find(key(machine.id))
        .select(machine_table::departed_conversations)
        .first::<Json<BTreeSet<Descriptor>>>(db)?;
    let descriptor = Descriptor {
        runtime: conversation.runtime.as_str().to_owned(),
        agent_id: conversation.agent_id.map(key),
    };
    if departed.insert(descriptor) {
        let departed: Value = json!(departed);
        diesel::update(machine_table::table.find(key(machine.id)))
            .set(machine_table::departed_conversations.eq(text(&departed)))
            .execute(db)?;
    }
    Ok(())
}

/// What stays of a deleted conversation on its machine; no secrets.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) struct Descriptor {
    runtime: String,
    agent_id: Option<String>,
}

impl Descriptor {
    pub(super) fn into_tenant(self) -> Tenant {
        Tenant {
            runtime: self.runtime,
            agent_id: self.agent_id.and_then(|id| id.parse().ok()),
        }
    }
}
