//! Permission requests that outlived their turn: found, answered by the turn that carries the answer, denied
//! (lifecycle 6.7, 6.10; ).

use diesel::prelude::*;
use serde_json::Value;

use fountain_actors::domain::conversation::Conversation;
use fountain_actors::domain::event::{NewStage, Stage, StageState};
use fountain_actors::domain::turn::{AnswerOutcome, DetachedAnswer, Turn, TurnStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::detached::{Detached, DetachedStore};
use fountain_actors::ports::store::{Answer, Committed};

use super::rows::{self, TurnRow};
use crate::store::SqlStore;
use crate::store::backend::{Access, Db, Fault};
use crate::store::columns::{Id, Word, at, key};
use crate::store::conversations::rows as conversation_rows;
use crate::store::events::Outbox;
use crate::store::schema::{conversations, turns};

fn detached(account: AccountId, turn: Turn) -> Option<Detached> {
    Some(Detached {
        account_id: account,
        conversation_id: turn.conversation_id,
        turn_id: turn.id,
        permission: turn.pending_permission.clone()?,
    })
}

/// The completed turn on which this request stands.
fn find(db: &mut Db, conversation: ConversationId, request_id: &str) -> Result<Option<Turn>, Fault> {
    let waiting = turns::table
        .filter(turns::conversation_id.eq(key(conversation)))
        .filter(turns::permission_deadline.is_not_null())
        .filter(turns::status.eq(Word(TurnStatus::Completed)))
        .order(turns::number.desc())
        .select(TurnRow::as_select())
        .load(db)?;
    Ok(waiting.into_iter().map(Turn::from).find(|turn| {
        turn.pending_permission
            .as_ref()
            .is_some_and(|open| open.request_id == request_id)
    }))
}

/// Takes the request off its turn, in the transaction that admits the turn with its answer. The conversation's row is
/// locked.
pub fn resolve(
    db: &mut Db,
    outbox: &mut Outbox,
    conversation: &Conversation,
    answer: &DetachedAnswer,
    now: Moment,
) -> Result<(), Fault> {
    let resolved = || Fault::from(ErrorCode::PermissionRequestResolved);
    let mut turn = find(db, conversation.id, &answer.request_id)?.ok_or_else(resolved)?;
    let open = turn.pending_permission.take().ok_or_else(resolved)?;
    let is_late = open.deadline <= now;
    if is_late != (answer.outcome == AnswerOutcome::Timeout) {
        return Err(resolved());
    }
    if let Some(option) = &answer.option_id {
        let offered = |offer: &Value| offer.get("optionId").and_then(Value::as_str) == Some(option);
        if !open.options.iter().any(offered) {
            return Err(ErrorCode::UnknownOption.into());
        }
    }
    rows::save(db, &turn)?;
    let stage = NewStage::new(Stage::Request, StageState::Done)
        .of_turn(turn.id, turn.number)
        .with("request_id", open.request_id)
        .with("outcome", answer.outcome.as_str())
        .with("option_id", answer.option_id.clone());
    outbox.stage(conversation.account_id, conversation.id, stage, now);
    Ok(())
}

fn deny(db: &mut Db, id: ConversationId, request_id: String, now: Moment) -> Result<(bool, Outbox), Fault> {
    let mut outbox = Outbox::default();
    let conversation = conversation_rows::require(db, id)?;
    let denial = DetachedAnswer {
        request_id,
        outcome: AnswerOutcome::Timeout,
        option_id: None,
    };
    if find(db, id, &denial.request_id)?.is_none() {
        return Ok((false, outbox));
    }
    resolve(db, &mut outbox, &conversation, &denial, now)?;
    Ok((true, outbox))
}

fn expired(db: &mut Db, now: Moment, limit: i64) -> Result<Vec<Detached>, Fault> {
    let found: Vec<(TurnRow, Id<AccountId>)> = turns::table
        .inner_join(conversations::table)
        .filter(turns::permission_deadline.is_not_null())
        .filter(turns::permission_deadline.le(at(now)))
        .filter(turns::status.eq(Word(TurnStatus::Completed)))
        .order((turns::permission_deadline, turns::id))
        .limit(limit)
        .select((TurnRow::as_select(), conversations::account_id))
        .load(db)?;
    Ok(found
        .into_iter()
        .filter_map(|(turn, account)| detached(account.0, Turn::from(turn)))
        .collect())
}

impl DetachedStore for SqlStore {
    fn detached_request(
        &self,
        account: AccountId,
        conversation: ConversationId,
        request_id: String,
    ) -> Answer<'_, Option<Detached>> {
        self.answer("permission.detached", Access::Read, move |db| {
            conversation_rows::of_account(db, account, conversation)?;
            Ok(find(db, conversation, &request_id)?.and_then(|turn| detached(account, turn)))
        })
    }

    fn expired_detached(&self, now: Moment, limit: i64) -> Answer<'_, Vec<Detached>> {
        self.answer("permission.expired_detached", Access::Read, move |db| {
            expired(db, now, limit)
        })
    }

    fn deny_detached(
        &self,
        conversation: ConversationId,
        request_id: String,
        now: Moment,
    ) -> Answer<'_, Committed<bool>> {
        self.answer("permission.deny_detached", Access::Write, move |db| {
            let (denied, outbox) = deny(db, conversation, request_id, now)?;
            super::commit(db, denied, outbox)
        })
    }
}
