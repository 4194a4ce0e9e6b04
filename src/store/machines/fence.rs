//! The fence (M15, lifecycle 2.4): after its commit nobody attaches, is admitted or wakes, whatever the lease says.

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::conversation::Conversation;
use fountain_actors::domain::machine::{DestroyReason, Machine, MachineMode, MachineStatus, Transition};
use fountain_actors::domain::*;
use fountain_actors::ports::store::machines::{Fence, FenceAnswer};

use super::rows;
use crate::store::backend::{Db, Fault};
use crate::store::columns::key;
use crate::store::conversations::rows as conversations;
use crate::store::events::Outbox;
use crate::store::turns::rows as turns;

/// Fences a machine. The first stamp stays.
pub fn fence(db: &mut Db, fence: Fence) -> Result<(FenceAnswer, Outbox), Fault> {
    let mut outbox = Outbox::default();
    let Some(mut machine) = rows::lock(db, fence.machine_id)? else {
        return Err(Fault::not_found("sandbox"));
    };
    if fence.reset {
        may_reset(db, &machine)?;
        for conversation in conversations::lock_on_machine(db, machine.id)? {
            forget_session(db, conversation, fence.now)?;
        }
    } else if machine.status.is_terminal() {
        return Ok((FenceAnswer::AlreadyTerminal(machine), outbox));
    }
    doom(
        db,
        &mut outbox,
        &mut machine,
        fence.reason,
        fence.actor,
        fence.request_ip,
        fence.now,
    )?;
    Ok((FenceAnswer::Fenced(machine), outbox))
}

/// The reset's refusals, the lasting ones first (lifecycle 5.4).
fn may_reset(db: &mut Db, machine: &Machine) -> Result<(), Fault> {
    let not = |why: &str| Err(Refusal::NotResettable(why.to_owned()).into());
    if machine.mode == MachineMode::Ephemeral {
        return not("ephemeral");
    }
    if machine.status.is_terminal() {
        return not(machine.status.as_str());
    }
    if machine.transition == Some(Transition::Destroying) {
        return Err(ErrorCode::SandboxResetPending.into());
    }
    if matches!(machine.status, MachineStatus::Pending | MachineStatus::Starting) {
        return not(machine.status.as_str());
    }
    if turns::any_open_on(db, machine.id)? {
        return Err(ErrorCode::SandboxMidTurn.into());
    }
    Ok(())
}

fn forget_session(db: &mut Db, mut conversation: Conversation, now: Moment) -> Result<(), Fault> {
    if conversation.status.is_terminal() || conversation.runtime_session_id.is_none() {
        return Ok(());
    }
    conversation.runtime_session_id = None;
    conversation.updated_at = now;
    conversations::save(db, &conversation)
}

/// Stamps a locked, live row and audits it once. A row that is DOOMED already keeps its first stamp.
pub fn doom(
    db: &mut Db,
    outbox: &mut Outbox,
    machine: &mut Machine,
    reason: DestroyReason,
    actor: Actor,
    request_ip: Option<String>,
    now: Moment,
) -> Result<(), Fault> {
    if machine.transition == Some(Transition::Destroying) {
        return Ok(());
    }
    machine.transition = Some(Transition::Destroying);
    machine.transition_reason = Some(reason.as_str().to_owned());
    machine.transition_at = Some(now);
    machine.next_attempt_at = None;
    machine.updated_at = now;
    rows::save(db, machine)?;
    let action = match reason {
        DestroyReason::Reset => "sandbox.reset_requested",
        _ => "sandbox.teardown_requested",
    };
    let audit = NewAudit {
        account_id: machine.account_id,
        action,
        resource_type: "sandbox",
        resource_id: Some(key(machine.id)),
        actor,
        request_ip,
        metadata: [
            ("reason", reason.as_str().into()),
            ("sprite_name", machine.name.clone().into()),
        ]
        .into(),
    };
    outbox.audit(audit, now);
    Ok(())
}
