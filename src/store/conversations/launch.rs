//! How a conversation begins: on a machine of its own, or on one that exists (M1, lifecycle 4.1, 5.7, 8; RUL-5, RUL-11,
//! RUL-18, RUL-L-39, RUL-L-80 to 85).

use diesel::prelude::*;
use diesel::result::{DatabaseErrorKind, Error};

use fountain_actors::domain::conversation::{Conversation, ConversationStatus, ConversationView};
use fountain_actors::domain::machine::{Machine, MachineMode, MachineState, MachineStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::conversations::{Attach, Launch};

use super::{guests, rows, views};
use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{Id, Word, key};
use crate::store::events::Outbox;
use crate::store::machines::{quota, rows as machines};
use crate::store::schema::conversations;
use crate::store::turns::rows as turns;

/// The quota transaction of M1.
pub fn launch(db: &mut Db, launch: Launch) -> Result<(ConversationView, Outbox), Fault> {
    let account = launch.conversation.account_id;
    let machine = &launch.machine;
    // All launches of an account stand in one line from here on, so two for one identity cannot both miss the home.
    quota::lock(db, account)?;
    if machine.mode == MachineMode::Persistent {
        let runtime = machine.runtime.as_str();
        let home = machines::home(
            db,
            account,
            machine.agent_id,
            machine.environment_id,
            machine.vault_id,
            runtime,
        )?;
        if let Some(home) = home {
            return Err(StoreError::HomeTaken(home).into());
        }
    }
    quota::admit(db, account, launch.limits)?;
    let machine = machines::insert(db, account, machine, launch.now).map_err(missing_parent)?;
    let new = &launch.conversation;
    rows::insert(db, new, machine.id, ConversationStatus::Pending, launch.now).map_err(missing_parent)?;
    if let Some((turn, prompt)) = &launch.prompt {
        let mut conversation = rows::require(db, new.id)?;
        let opening = turns::Opening {
            id: *turn,
            machine: None,
            spawn_id: None,
            pending_until: Some(launch.pending_until),
        };
        turns::insert(db, &conversation, opening, prompt, launch.now)?;
        conversation.last_active_at = Some(launch.now);
        rows::save(db, &conversation)?;
    }
    let view = views::one(db, account, new.id)?.ok_or_else(|| Fault::not_found("conversation"))?;
    let mut outbox = Outbox::default();
    outbox.audit(launch.audit, launch.now);
    Ok((view, outbox))
}

/// An agent, environment, vault or parent that was deleted since the caller looked.
fn missing_parent(fault: Fault) -> Fault {
    match fault {
        Fault::Query(Error::DatabaseError(DatabaseErrorKind::ForeignKeyViolation, _)) => Fault::not_found("agent"),
        other => other,
    }
}

/// A conversation joins a machine.
pub fn attach(db: &mut Db, attach: Attach) -> Result<(ConversationView, Outbox), Fault> {
    let account = attach.conversation.account_id;
    let machine = machines::lock(db, attach.machine_id)?
        .filter(|machine| machine.account_id == Some(account))
        .ok_or(ErrorCode::SandboxNotFound)
        .map_err(Fault::from)?;
    let clock = lease_clock(db, attach.now)?;
    quota::require_active(db, account)?;
    may_attach(db, &machine, &attach, clock)?;
    let mut new = attach.conversation;
    if machine.agent_id != Some(new.agent_id) {
        // Pinned: the guest's agent may move, the disk that it shares does not (RUL-L-83).
        new.environment_id = attach.environment_id;
    }
    rows::insert(db, &new, machine.id, ConversationStatus::Idle, attach.now).map_err(missing_parent)?;
    let view = views::one(db, account, new.id)?.ok_or_else(|| Fault::not_found("conversation"))?;
    let mut outbox = Outbox::default();
    outbox.audit(attach.audit, attach.now);
    Ok((view, outbox))
}

/// The attach rules in their order: lasting refusals before passing ones (lifecycle 2.3, 5.7).
fn may_attach(db: &mut Db, machine: &Machine, attach: &Attach, clock: Moment) -> Result<(), Fault> {
    match machine.state(clock) {
        MachineState::Doomed { .. } => return Err(ErrorCode::SandboxResetPending.into()),
        MachineState::Gone(status) => return Err(Refusal::NotAttachable(status).into()),
        _ => {}
    }
    if !matches!(machine.status, MachineStatus::Ready | MachineStatus::Suspended) {
        return Err(Refusal::NotAttachable(machine.status).into());
    }
    let new = &attach.conversation;
    if machine.vault_id != new.vault_id || machine.environment_id != attach.environment_id {
        return Err(ErrorCode::SandboxIdentityMismatch.into());
    }
    if machine.agent_id != Some(new.agent_id) {
        guests::may_join(db, machine, new, &attach.scope)?;
    } else if machine.runtime.as_deref() != Some(new.runtime.as_str()) {
        return Err(ErrorCode::SandboxRuntimeMismatch.into());
    }
    if machine.lease_live(clock) {
        return Err(ErrorCode::SandboxUnavailable.into());
    }
    Ok(())
}

/// The latest live conversation of a channel.
pub fn of_channel(
    db: &mut Db,
    account: AccountId,
    channel: &str,
    agent: AgentId,
    vault: Option<VaultId>,
    environment: Option<EnvironmentId>,
) -> Result<Option<Conversation>, Fault> {
    let live = conversations::table
        .filter(conversations::account_id.eq(key(account)))
        .filter(conversations::channel_id.eq(channel))
        .filter(conversations::agent_id.eq(key(agent)))
        .filter(conversations::status.ne_all([Word(ConversationStatus::Failed), Word(ConversationStatus::Terminated)]))
        .order((conversations::inserted_at.desc(), conversations::id.desc()))
        .select((
            conversations::id,
            conversations::vault_id,
            conversations::environment_id,
        ))
        .load::<(Id<ConversationId>, Option<Id<VaultId>>, Option<Id<EnvironmentId>>)>(db)?;
    let latest = live.into_iter().find(|(_, of_vault, of_environment)| {
        of_vault.map(|id| id.0) == vault && of_environment.map(|id| id.0) == environment
    });
    match latest {
        Some((id, _, _)) => rows::find(db, id.0),
        None => Ok(None),
    }
}
