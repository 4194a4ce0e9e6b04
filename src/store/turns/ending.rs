//! How a turn ends, in one place: by the agent, by a person, by a sweep, with its machine (lifecycle 2.6, RUL-25).
//!
//! The row, the conversation's status, its tokens and the stages commit together. A terminal turn stays as it is and
//! nothing is published (INV-71). The caller holds the conversation's lock and writes its row back.

use diesel::prelude::*;
use serde_json::{Map, Value};

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::conversation::{Conversation, ConversationEvent};
use fountain_actors::domain::event::{NewStage, Stage, StageState};
use fountain_actors::domain::machine::MachineStatus;
use fountain_actors::domain::turn::{AnswerOutcome, Ending, Origin, OrphanReason, Turn, TurnStatus};
use fountain_actors::domain::*;

use super::rows;
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Word, key};
use crate::store::conversations::rows as conversations;
use crate::store::events::{Outbox, Usage, storable};
use crate::store::schema::turns;

/// The stop reason of a turn that leaves its permission request open for later (lifecycle 6.7).
const WAITING: &str = "waiting";

/// Ends `turn`. None when it was terminal already.
pub fn end(
    db: &mut Db,
    outbox: &mut Outbox,
    conversation: &mut Conversation,
    mut turn: Turn,
    ending: Ending,
) -> Result<Option<Turn>, Fault> {
    if turn.status.is_terminal() {
        return Ok(None);
    }
    let Some(event) = ending.event(turn.origin) else {
        return Err(Fault::internal("turn.end", format!("'{}' ends no turn", ending.status)));
    };
    let status = turn
        .status
        .on(event)
        .map_err(|illegal| Fault::internal("turn.end", illegal.to_string()))?;
    let account = conversation.account_id;
    let waits = ending.status == TurnStatus::Completed
        && ending.stop_reason.as_deref() == Some(WAITING)
        && turn
            .pending_permission
            .as_ref()
            .is_some_and(|open| open.answer.is_none());
    let closed = if waits { None } else { turn.pending_permission.take() };
    if let Some(open) = turn.pending_permission.as_mut() {
        open.deadline = open.detached_until.unwrap_or(open.deadline); // only a detached one is left
    }
    turn.status = status;
    turn.ended_at = Some(ending.at);
    turn.exit_code = ending.exit_code;
    turn.waiting = waits;
    turn.reattach_deadline = None;
    turn.reattach_first_loss = None;
    turn.orphaned_at = ending.orphan.map(|_| ending.at);
    turn.reply_text = ending.reply_text.clone().map(storable);
    // A second delivery of one turn's usage never reaches here: the turn is terminal then (INV-83).
    turn.usage = ending.usage.clone();
    rows::save(db, &turn)?;

    // C3. A conversation that ended meanwhile stays ended (C8).
    if let Ok(idle) = conversation.status.on(ConversationEvent::TurnEnded) {
        conversation.status = idle;
    }
    if let Some(usage) = &ending.usage {
        conversation.usage_input_tokens += usage.input;
        conversation.usage_output_tokens += usage.output;
    }
    conversation.last_active_at = Some(ending.at);
    conversation.updated_at = ending.at;

    if let Some(open) = closed {
        let outcome = AnswerOutcome::TurnEnded;
        let stage = NewStage::new(Stage::Request, StageState::Done)
            .of_turn(turn.id, turn.number)
            .with("request_id", open.request_id)
            .with("outcome", outcome.as_str());
        outbox.stage(account, conversation.id, stage, ending.at);
    }
    if let Some(reason) = ending.orphan {
        orphaned(outbox, conversation, &turn, reason, ending.at);
    } else if turn.started_at.is_some() {
        outbox.usage(usage_of(conversation, &turn, ending.at));
    }
    outbox.stage(account, conversation.id, stage_of(&turn, &ending), ending.at);
    Ok(Some(turn))
}

/// The `turn` stage of an ending (http-api 3.4).
fn stage_of(turn: &Turn, ending: &Ending) -> NewStage {
    let state = match ending.status {
        TurnStatus::Completed => StageState::Done,
        TurnStatus::Interrupted => StageState::Interrupted,
        TurnStatus::Failed | TurnStatus::Pending | TurnStatus::Running => StageState::Failed,
    };
    let mut stage = NewStage::new(Stage::Turn, state).of_turn(turn.id, turn.number);
    let autonomous = turn.origin == Origin::Autonomous;
    if autonomous {
        stage = stage.with("origin", Origin::Autonomous.as_str());
    }
    if let Some(reason) = &ending.stop_reason {
        stage = stage.with(if autonomous { "cycle" } else { "stop_reason" }, reason.as_str());
    }
    if let Some(reason) = &ending.reason {
        stage = stage.with("reason", reason.as_str());
    }
    if let Some(message) = &ending.message {
        stage = stage.with("message", message.as_str());
    }
    if let Some(code) = ending.exit_code {
        stage = stage.with("exit_code", code);
    }
    if let Some(open) = turn.pending_permission.as_ref().filter(|_| turn.waiting) {
        stage = stage
            .with("waiting", true)
            .with("waiting_request_id", open.request_id.as_str())
            .with(
                "waiting_deadline",
                open.deadline.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
            );
    }
    match turn.started_at.and_then(|started| (ending.at - started).to_std().ok()) {
        Some(duration) => stage.took(duration),
        None => stage,
    }
}

fn orphaned(outbox: &mut Outbox, conversation: &Conversation, turn: &Turn, reason: OrphanReason, now: Moment) {
    let stage = NewStage::new(Stage::Reattach, StageState::Interrupted)
        .of_turn(turn.id, turn.number)
        .with("reason", reason.as_str());
    outbox.stage(conversation.account_id, conversation.id, stage, now);
    let audit = NewAudit {
        account_id: Some(conversation.account_id),
        action: "conversation.turn.orphaned",
        resource_type: "conversation",
        resource_id: Some(key(conversation.id)),
        actor: Actor::System("turn_recovery"),
        request_ip: None,
        metadata: [
            ("turn_id", Value::from(key(turn.id))),
            ("reason", reason.as_str().into()),
        ]
        .into(),
    };
    outbox.audit(audit, now);
}

/// One row a turn; orphaned ones have none (INV-83).
fn usage_of(conversation: &Conversation, turn: &Turn, now: Moment) -> Usage {
    let mut metadata = Map::new();
    metadata.insert("status".into(), turn.status.as_str().into());
    if let Some(started) = turn.started_at {
        metadata.insert("duration_ms".into(), (now - started).num_milliseconds().into());
    }
    if let Some(usage) = &turn.usage {
        metadata.insert("input".into(), usage.input.into());
        metadata.insert("output".into(), usage.output.into());
    }
    Usage {
        account: Some(conversation.account_id),
        kind: "turn",
        machine: None,
        turn: Some((conversation.id, turn.id)),
        metadata,
        at: now,
    }
}

/// Ends a turn from outside its server (C3, C4). None when it is terminal or the conversation is bound elsewhere.
pub fn close(
    db: &mut Db,
    id: ConversationId,
    ending: Ending,
    binding: Option<MachineId>,
    fail_conversation: bool,
) -> Result<(Option<Turn>, Outbox), Fault> {
    let mut outbox = Outbox::default();
    let mut conversation = conversations::require(db, id)?;
    if binding.is_some_and(|machine| machine != conversation.machine_id) {
        return Ok((None, outbox));
    }
    let Some(turn) = rows::of_conversation(db, id, ending.turn_id)? else {
        return Err(Fault::not_found("turn"));
    };
    let failed = conversation.status.on(ConversationEvent::BuildFailed).ok();
    let ended = end(db, &mut outbox, &mut conversation, turn, ending)?;
    if ended.is_some() {
        if let Some(failed) = failed.filter(|_| fail_conversation) {
            conversation.status = failed; // C4: only the first build
        }
        conversations::save(db, &conversation)?;
    }
    Ok((ended, outbox))
}

/// Orphans the running turn of a conversation, if there is one and the binding holds.
pub fn orphan(
    db: &mut Db,
    id: ConversationId,
    binding: Option<MachineId>,
    reason: OrphanReason,
    now: Moment,
) -> Result<(Option<Turn>, Outbox), Fault> {
    let mut outbox = Outbox::default();
    let mut conversation = conversations::require(db, id)?;
    if binding.is_some_and(|machine| machine != conversation.machine_id) {
        return Ok((None, outbox));
    }
    let running = rows::open(db, id)?.filter(|turn| turn.status == TurnStatus::Running);
    let Some(turn) = running else {
        return Ok((None, outbox));
    };
    let ending = Ending::orphaned(turn.id, reason, now);
    let ended = end(db, &mut outbox, &mut conversation, turn, ending)?;
    conversations::save(db, &conversation)?;
    Ok((ended, outbox))
}

/// Ends every turn that runs on a machine; they end with it (INV-56, RUL-L-38). Conversation rows are locked here, in
/// the order of their ids; the machine's lock is held. Turns that wait for a build have no machine and go on waiting.
pub fn end_on_machine(
    db: &mut Db,
    outbox: &mut Outbox,
    machine: MachineId,
    reason: OrphanReason,
    now: Moment,
) -> Result<Vec<(ConversationId, Turn)>, Fault> {
    let on_it: Vec<String> = turns::table
        .filter(turns::machine_id.eq(key(machine)))
        .filter(turns::status.eq(Word(TurnStatus::Running)))
        .select(turns::conversation_id)
        .load(db)?;
    if on_it.is_empty() {
        return Ok(Vec::new());
    }
    let mut ended = Vec::new();
    for mut conversation in conversations::lock_many(db, on_it)? {
        let Some(turn) = rows::open(db, conversation.id)?.filter(|turn| turn.status == TurnStatus::Running) else {
            continue;
        };
        if machine_of(db, turn.id)? != Some(machine) {
            continue;
        }
        let ending = Ending::orphaned(turn.id, reason, now);
        if let Some(turn) = end(db, outbox, &mut conversation, turn, ending)? {
            conversations::save(db, &conversation)?;
            ended.push((conversation.id, turn));
        }
    }
    Ok(ended)
}

/// The machine that a turn was admitted on.
fn machine_of(db: &mut Db, turn: TurnId) -> Result<Option<MachineId>, Fault> {
    let found: Option<Option<Id<MachineId>>> = turns::table
        .find(key(turn))
        .select(turns::machine_id)
        .first(db)
        .optional()?;
    Ok(found.flatten().map(|id| id.0))
}

/// Statuses of a machine that may still carry a turn.
pub fn carries_turns(status: MachineStatus) -> bool {
    status == MachineStatus::Ready
}
