//! Who may run: servers, prompts on a machine that is up, prompts that wait for a build (lifecycle 6.2; RUL-3 to 7,
//! RUL-13, RUL-27).
//!
//! Every rule is read again here, under the machine's lock and then the conversation's; what the caller saw before is
//! a guess.

use diesel::prelude::*;

use fountain_actors::domain::conversation::{Conversation, ConversationEvent};
use fountain_actors::domain::event::{NewStage, Stage, StageState};
use fountain_actors::domain::machine::{Machine, MachineMode, MachineState};
use fountain_actors::domain::turn::{Ending, Origin, Turn, TurnEvent, TurnStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::turns::{Admit, QueueTurn, Serving};

use super::{detached, ending, processes, rows};
use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{Word, key};
use crate::store::conversations::rows as conversations;
use crate::store::events::Outbox;
use crate::store::machines::{journal, quota, rows as machines};
use crate::store::schema::{conversations as conversation_table, turns};

/// Locks the machine of a conversation and then the conversation (RUL-L-9); a rebind in between is followed.
pub fn lock_bound(db: &mut Db, id: ConversationId) -> Result<(Conversation, Machine), Fault> {
    let gone = || Fault::not_found("conversation");
    let mut seen = conversations::find(db, id)?.ok_or_else(gone)?.machine_id;
    for _ in 0..3 {
        let machine = machines::lock(db, seen)?.ok_or_else(|| Fault::not_found("sandbox"))?;
        let conversation = conversations::lock(db, id)?.ok_or_else(gone)?;
        if conversation.machine_id == seen {
            return Ok((conversation, machine));
        }
        seen = conversation.machine_id;
    }
    Err(ErrorCode::SandboxUnavailable.into())
}

fn refuse_ended(conversation: &Conversation) -> Result<(), Fault> {
    match conversation.status.is_terminal() {
        true => Err(ErrorCode::ConversationTerminated.into()),
        false => Ok(()),
    }
}

/// Starts a generation of a conversation's server (RUL-L-8).
pub fn start_server(db: &mut Db, id: ConversationId, now: Moment) -> Result<Serving, Fault> {
    let (mut conversation, mut machine) = lock_bound(db, id)?;
    refuse_ended(&conversation)?;
    match machine.state(lease_clock(db, now)?) {
        MachineState::Doomed { .. } => return Err(ErrorCode::SandboxResetPending.into()),
        MachineState::Gone(_) => {}
        _ => {
            // The marker is bookkeeping: `updated_at` does not move with it.
            machine.woken_at = Some(now);
            machines::save(db, &machine)?;
        }
    }
    conversation.server_epoch.0 += 1;
    conversations::save(db, &conversation)?;
    let open_turn = rows::open(db, id)?;
    let processes = processes::live_of(db, id)?;
    Ok(Serving {
        conversation,
        machine,
        open_turn,
        processes,
    })
}

/// Whether this server may still write, and for this machine.
fn guard(conversation: &Conversation, server: ServerEpoch, machine: MachineId) -> Result<(), Fault> {
    if conversation.server_epoch != server {
        return Err(StoreError::Stale("server generation").into());
    }
    if conversation.machine_id != machine {
        return Err(StoreError::Stale("binding").into());
    }
    Ok(())
}

/// Whether a turn may start on this machine: up, nothing under way, its account in good standing.
fn require_up(db: &mut Db, conversation: &Conversation, machine: &Machine, clock: Moment) -> Result<(), Fault> {
    match machine.state(clock) {
        // A park whose owner died stopped nothing for certain; the caller settled it before it came here (RUL-L-45).
        MachineState::Up | MachineState::ParkStale if ending::carries_turns(machine.status) => {}
        _ => return Err(ErrorCode::SandboxUnavailable.into()),
    }
    // Nor did what nobody has looked after yet: an old suspend may be about to stop the machine (RUL-L-45).
    if journal::owes_look(db, machine, clock)? {
        return Err(ErrorCode::SandboxUnavailable.into());
    }
    quota::require_active(db, conversation.account_id)
}

/// Whether other conversations run as many turns of this runtime on the machine as it carries (INV-77). The machine's
/// lock is held, and with it every admission on it.
fn at_capacity(db: &mut Db, conversation: &Conversation, machine: MachineId) -> Result<bool, Fault> {
    let Some(limit) = conversation.runtime.turns_at_once() else {
        return Ok(false);
    };
    let running: i64 = turns::table
        .inner_join(conversation_table::table)
        .filter(turns::machine_id.eq(key(machine)))
        .filter(turns::status.eq(Word(TurnStatus::Running)))
        .filter(conversation_table::runtime.eq(Word(conversation.runtime)))
        .filter(conversation_table::id.ne(key(conversation.id)))
        .count()
        .get_result(db)?;
    Ok(running >= limit)
}

/// C2 of a prompt.
pub fn admit(db: &mut Db, admit: Admit) -> Result<(Turn, Outbox), Fault> {
    let machine = machines::lock(db, admit.machine_id)?;
    let mut conversation = conversations::require(db, admit.conversation_id)?;
    refuse_ended(&conversation)?;
    guard(&conversation, admit.server_epoch, admit.machine_id)?;
    let machine = machine.ok_or(StoreError::Stale("binding"))?;
    let clock = lease_clock(db, admit.now)?;
    if clock > admit.deadline {
        return Err(ErrorCode::SandboxUnavailable.into());
    }
    require_up(db, &conversation, &machine, clock)?;
    if conversation.configuration_revision != admit.revision {
        return Err(ErrorCode::ConfigurationChanged.into());
    }
    let mut outbox = Outbox::default();
    match rows::open(db, conversation.id)? {
        Some(turn) if turn.origin == Origin::Autonomous => {
            let superseded = Ending::completed(turn.id, "superseded", admit.now);
            ending::end(db, &mut outbox, &mut conversation, turn, superseded)?;
        }
        Some(_) => return Err(ErrorCode::ConversationBusy.into()),
        None => {}
    }
    if at_capacity(db, &conversation, machine.id)? {
        // With this transaction goes the end of an autonomous turn: a refusal leaves it as it was.
        return Err(ErrorCode::SandboxAtCapacity.into());
    }
    if let Some(answer) = &admit.answers {
        detached::resolve(db, &mut outbox, &conversation, answer, admit.now)?;
    }
    let opening = rows::Opening {
        id: admit.turn_id,
        machine: Some(machine.id),
        spawn_id: admit.spawn_id,
        pending_until: None,
    };
    let turn = rows::insert(db, &conversation, opening, &admit.prompt, admit.now)?;
    runs(db, &mut conversation, admit.now)?;
    if admit.announce {
        outbox.stage(
            conversation.account_id,
            conversation.id,
            started(&turn, false),
            admit.now,
        );
    }
    outbox.audit(admit.audit, admit.now);
    Ok((turn, outbox))
}

fn runs(db: &mut Db, conversation: &mut Conversation, now: Moment) -> Result<(), Fault> {
    conversation.status = conversation
        .status
        .on(ConversationEvent::Admitted)
        .map_err(|illegal| Fault::internal("turn.admit", illegal.to_string()))?;
    conversation.last_active_at = Some(now);
    conversation.updated_at = now;
    conversations::save(db, conversation)
}

/// `turn/started` (http-api 3.4).
pub fn started(turn: &Turn, reused: bool) -> NewStage {
    let mode = match (turn.origin, turn.number) {
        (Origin::Autonomous, _) => "autonomous",
        (Origin::User, 1) => "run",
        (Origin::User, _) => "continue",
    };
    let mut stage = NewStage::new(Stage::Turn, StageState::Started)
        .of_turn(turn.id, turn.number)
        .with("mode", mode);
    if reused {
        stage = stage.with("connection", "reused");
    }
    match &turn.client_request_id {
        Some(id) => stage.with("client_request_id", id.as_str()),
        None => stage,
    }
}

/// `pending` to `running`, once (INV-119).
pub fn open_pending(
    db: &mut Db,
    id: ConversationId,
    server: ServerEpoch,
    machine_id: MachineId,
    turn_id: TurnId,
    spawn_id: SpawnId,
    now: Moment,
) -> Result<(Turn, Outbox), Fault> {
    let machine = machines::lock(db, machine_id)?;
    let mut conversation = conversations::require(db, id)?;
    refuse_ended(&conversation)?;
    guard(&conversation, server, machine_id)?;
    let machine = machine.ok_or(StoreError::Stale("binding"))?;
    let clock = lease_clock(db, now)?;
    require_up(db, &conversation, &machine, clock)?;
    let mut turn = rows::of_conversation(db, id, turn_id)?.ok_or_else(|| Fault::not_found("turn"))?;
    let Ok(running) = turn.status.on(TurnEvent::Admitted) else {
        // Interrupted meanwhile, or opened by somebody who got here first.
        return Err(StoreError::Stale("turn").into());
    };
    if at_capacity(db, &conversation, machine_id)? {
        // Its client has had its answer long ago, and a turn over the capacity is never queued (runtimes 1).
        let mut outbox = Outbox::default();
        let mut full = Ending::failed(turn_id, ErrorCode::SandboxAtCapacity.as_str(), now);
        full.message = Some("another conversation runs a turn on this sandbox".into());
        let ended = ending::end(db, &mut outbox, &mut conversation, turn, full)?;
        conversations::save(db, &conversation)?;
        let ended = ended.ok_or(StoreError::Stale("turn"))?;
        return Ok((ended, outbox));
    }
    turn.status = running;
    turn.started_at = Some(now);
    turn.spawn_id = Some(spawn_id);
    rows::save(db, &turn)?;
    diesel::update(turns::table.find(key(turn_id)))
        .set(turns::machine_id.eq(key(machine_id)))
        .execute(db)?;
    runs(db, &mut conversation, now)?;
    let mut outbox = Outbox::default();
    outbox.stage(conversation.account_id, id, started(&turn, false), now);
    Ok((turn, outbox))
}

/// A `pending` turn for a prompt that found no machine to run on (RUL-5, RUL-6).
pub fn queue(db: &mut Db, queue: QueueTurn) -> Result<(Turn, Machine, Outbox), Fault> {
    if queue.fresh.is_some() {
        quota::lock(db, queue.account_id)?;
    }
    let seen = machines::lock(db, queue.seen_machine)?;
    let mut conversation = conversations::lock(db, queue.conversation_id)?
        .filter(|conversation| conversation.account_id == queue.account_id)
        .ok_or_else(|| Fault::not_found("conversation"))?;
    refuse_ended(&conversation)?;
    let seen = seen
        .filter(|seen| seen.id == conversation.machine_id)
        .ok_or(ErrorCode::SandboxUnavailable)
        .map_err(Fault::from)?;
    if matches!(seen.state(lease_clock(db, queue.now)?), MachineState::Doomed { .. }) {
        return Err(ErrorCode::SandboxResetPending.into());
    }
    if rows::open(db, conversation.id)?.is_some() {
        return Err(ErrorCode::ConversationBusy.into());
    }
    let machine = match (&queue.fresh, seen.status.is_terminal()) {
        (None, false) => {
            quota::require_active(db, queue.account_id)?;
            seen
        }
        (Some(_), true) => replace(db, &queue, &mut conversation)?,
        // What the caller looked at has changed: it looks again.
        _ => return Err(ErrorCode::SandboxUnavailable.into()),
    };
    let opening = rows::Opening {
        id: queue.turn_id,
        machine: None,
        spawn_id: None,
        pending_until: Some(queue.pending_until),
    };
    let turn = rows::insert(db, &conversation, opening, &queue.prompt, queue.now)?;
    conversation.last_active_at = Some(queue.now);
    conversation.updated_at = queue.now;
    conversations::save(db, &conversation)?;
    let mut outbox = Outbox::default();
    if let Some(answer) = &queue.answers {
        detached::resolve(db, &mut outbox, &conversation, answer, queue.now)?;
    }
    outbox.audit(queue.audit, queue.now);
    Ok((turn, machine, outbox))
}

/// Gives a conversation whose machine is gone another one: the living home of the same identity where there is one
/// else a machine of its own. The disk is new, so the agent's session is forgotten.
fn replace(db: &mut Db, queue: &QueueTurn, conversation: &mut Conversation) -> Result<Machine, Fault> {
    let fresh = queue.fresh.as_ref().ok_or(ErrorCode::SandboxUnavailable)?;
    let home = match fresh.mode {
        MachineMode::Persistent => machines::home(
            db,
            queue.account_id,
            fresh.agent_id,
            fresh.environment_id,
            fresh.vault_id,
            fresh.runtime.as_str(),
        )?,
        MachineMode::Ephemeral => None,
    };
    let machine = match home {
        Some(home) => {
            let home = machines::lock(db, home)?.ok_or(ErrorCode::SandboxUnavailable)?;
            if matches!(
                home.state(lease_clock(db, queue.now)?),
                MachineState::Doomed { .. } | MachineState::Gone(_)
            ) {
                return Err(ErrorCode::SandboxResetPending.into());
            }
            quota::require_active(db, queue.account_id)?;
            home
        }
        None => {
            quota::admit(db, queue.account_id, queue.limits)?;
            machines::insert(db, queue.account_id, fresh, queue.now)?
        }
    };
    conversation.machine_id = machine.id;
    conversation.runtime_session_id = None;
    Ok(machine)
}

/// C9 and C4 without a turn: a build without an opening prompt has finished, or failed for good.
pub fn settle_pending(
    db: &mut Db,
    id: ConversationId,
    machine: MachineId,
    event: ConversationEvent,
    now: Moment,
) -> Result<(), Fault> {
    let mut conversation = conversations::require(db, id)?;
    if conversation.machine_id != machine || rows::open(db, id)?.is_some() {
        return Ok(());
    }
    if let Ok(settled) = conversation.status.on(event) {
        conversation.status = settled;
        conversation.updated_at = now;
        conversations::save(db, &conversation)?;
    }
    Ok(())
}
