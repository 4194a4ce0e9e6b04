//! Permission requests on their turns: the first answer wins and is durable before it is sent (RUL-56, RUL-L-57).

use diesel::prelude::*;
use serde_json::Value;

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::turn::{AnswerOutcome, PendingPermission, PermissionAnswer, Turn, TurnStatus};
use fountain_actors::domain::*;

use super::rows::{self, TurnRow};
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Json, Word, at, key};
use crate::store::conversations::rows as conversations;
use crate::store::events::audit_row;
use crate::store::schema::turns;

/// Requests of a conversation that nobody answered yet, oldest first.
pub fn unanswered(db: &mut Db, conversation: ConversationId) -> Result<Vec<(TurnId, PendingPermission)>, Fault> {
    Ok(asked(db, conversation)?
        .into_iter()
        .filter_map(|turn| turn.pending_permission.map(|open| (turn.id, open)))
        .filter(|(_, open)| open.answer.is_none())
        .collect())
}

fn asked(db: &mut Db, conversation: ConversationId) -> Result<Vec<Turn>, Fault> {
    let rows = turns::table
        .filter(turns::conversation_id.eq(key(conversation)))
        .filter(turns::permission_deadline.is_not_null())
        .order(turns::number)
        .select(TurnRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Turn::from).collect())
}

/// Stores a person's answer.
pub fn answer(
    db: &mut Db,
    account: AccountId,
    id: ConversationId,
    request_id: &str,
    option_id: &str,
    actor: Actor,
    now: Moment,
) -> Result<(TurnId, PendingPermission), Fault> {
    conversations::of_account(db, account, id)?;
    conversations::require(db, id)?;
    let resolved = || Fault::from(ErrorCode::PermissionRequestResolved);
    let mut turn = asked(db, id)?
        .into_iter()
        .find(|turn| {
            turn.pending_permission
                .as_ref()
                .is_some_and(|open| !turn.status.is_terminal() && open.request_id == request_id)
        })
        .ok_or_else(resolved)?;
    let open = turn.pending_permission.as_mut().ok_or_else(resolved)?;
    if open.answer.is_some() || open.deadline <= now {
        return Err(resolved());
    }
    let offered = |option: &Value| option.get("optionId").and_then(Value::as_str) == Some(option_id);
    if !open.options.iter().any(offered) {
        return Err(ErrorCode::UnknownOption.into());
    }
    open.answer = Some(PermissionAnswer {
        outcome: AnswerOutcome::Answered,
        option_id: Some(option_id.to_owned()),
        at: now,
    });
    let stored = open.clone();
    rows::save(db, &turn)?;
    let audit = NewAudit {
        account_id: Some(account),
        action: "conversation.request_answered",
        resource_type: "conversation",
        resource_id: Some(key(id)),
        actor,
        request_ip: None,
        metadata: [("turn_id", key(turn.id).into()), ("request_id", request_id.into())].into(),
    };
    audit_row(db, &audit, now)?;
    Ok((turn.id, stored))
}

/// Stores the denial of an unanswered request whose deadline has passed.
pub fn expire(db: &mut Db, turn: TurnId, request_id: &str, now: Moment) -> Result<Option<PendingPermission>, Fault> {
    let Some(seen) = rows::find(db, turn)? else {
        return Ok(None);
    };
    conversations::require(db, seen.conversation_id)?;
    let Some(mut turn) = rows::of_conversation(db, seen.conversation_id, turn)? else {
        return Ok(None);
    };
    if turn.status.is_terminal() {
        return Ok(None); // detached meanwhile: its deadline is another
    }
    let due =
        |open: &&mut PendingPermission| open.request_id == request_id && open.answer.is_none() && open.deadline <= now;
    let Some(open) = turn.pending_permission.as_mut().filter(due) else {
        return Ok(None);
    };
    open.answer = Some(PermissionAnswer {
        outcome: AnswerOutcome::Timeout,
        option_id: None,
        at: now,
    });
    let stored = open.clone();
    rows::save(db, &turn)?;
    Ok(Some(stored))
}

/// Requests of running turns past their deadline, answered or not, the most overdue first. Detached ones have a sweep of
/// their own.
pub fn expired(db: &mut Db, now: Moment, limit: i64) -> Result<Vec<(ConversationId, TurnId, String)>, Fault> {
    let rows = turns::table
        .filter(turns::permission_deadline.is_not_null())
        .filter(turns::permission_deadline.le(at(now)))
        .filter(turns::status.eq(Word(TurnStatus::Running)))
        .order((turns::permission_deadline, turns::id))
        .limit(limit)
        .select((turns::conversation_id, turns::id, turns::pending_permission))
        .load::<(Id<ConversationId>, Id<TurnId>, Option<Json<PendingPermission>>)>(db)?;
    Ok(rows
        .into_iter()
        .filter_map(|(conversation, turn, open)| Some((conversation.0, turn.0, open?.0.request_id)))
        .collect())
}
