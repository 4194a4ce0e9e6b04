//! The row of a turn: read, locked, inserted, written back.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use serde_json::Value;

use fountain_actors::domain::conversation::Conversation;
use fountain_actors::domain::turn::{Origin, PendingPermission, Prompt, PromptImage, Turn, TurnStatus, Usage};
use fountain_actors::domain::*;

use crate::locked;
use crate::store::backend::{Db, Fault, violated};
use crate::store::columns::{Id, Json, Word, at, inner, json, key, maybe_at, maybe_key, maybe_moment, moment};
use crate::store::schema::{turn_images, turns};

/// Statuses of an open turn (RUL-27).
pub const OPEN: [Word<TurnStatus>; 2] = [Word(TurnStatus::Pending), Word(TurnStatus::Running)];

#[derive(Queryable, Selectable)]
#[diesel(table_name = turns)]
pub struct TurnRow {
    id: Id<TurnId>,
    conversation_id: Id<ConversationId>,
    number: i64,
    prompt: String,
    origin: Word<Origin>,
    client_request_id: Option<String>,
    status: Word<TurnStatus>,
    started_at: Option<NaiveDateTime>,
    ended_at: Option<NaiveDateTime>,
    exit_code: Option<i64>,
    limit_reason: Option<String>,
    orphaned_at: Option<NaiveDateTime>,
    acp_prompt_id: Option<i64>,
    spawn_id: Option<Id<SpawnId>>,
    pending_permission: Option<Json<PendingPermission>>,
    waiting: bool,
    pending_until: Option<NaiveDateTime>,
    reattach_deadline: Option<NaiveDateTime>,
    reattach_first_loss: Option<NaiveDateTime>,
    usage: Option<Json<Usage>>,
    model_selection: Option<Json<Value>>,
    reply_text: Option<String>,
    image_count: i64,
    inserted_at: NaiveDateTime,
}

impl From<TurnRow> for Turn {
    fn from(row: TurnRow) -> Self {
        Self {
            id: row.id.0,
            conversation_id: row.conversation_id.0,
            number: row.number,
            prompt: row.prompt,
            origin: row.origin.0,
            client_request_id: row.client_request_id,
            status: row.status.0,
            started_at: maybe_moment(row.started_at),
            ended_at: maybe_moment(row.ended_at),
            exit_code: row.exit_code,
            limit_reason: row.limit_reason,
            orphaned_at: maybe_moment(row.orphaned_at),
            acp_prompt_id: row.acp_prompt_id,
            spawn_id: inner(row.spawn_id),
            pending_permission: inner(row.pending_permission),
            waiting: row.waiting,
            pending_until: maybe_moment(row.pending_until),
            reattach_deadline: maybe_moment(row.reattach_deadline),
            reattach_first_loss: maybe_moment(row.reattach_first_loss),
            usage: inner(row.usage),
            model_selection: inner(row.model_selection),
            reply_text: row.reply_text,
            image_count: row.image_count,
            inserted_at: moment(row.inserted_at),
        }
    }
}

/// The open turn of a conversation whose row is locked.
pub fn open(db: &mut Db, conversation: ConversationId) -> Result<Option<Turn>, Fault> {
    let row: Option<TurnRow> = locked!(
        db,
        first,
        turns::table
            .filter(turns::conversation_id.eq(key(conversation)))
            .filter(turns::status.eq_any(OPEN))
            .select(TurnRow::as_select())
    )
    .optional()?;
    Ok(row.map(Turn::from))
}

/// A turn by its id, without a lock.
pub fn find(db: &mut Db, id: TurnId) -> Result<Option<Turn>, Fault> {
    let row = turns::table
        .find(key(id))
        .select(TurnRow::as_select())
        .first(db)
        .optional()?;
    Ok(row.map(Turn::from))
}

/// A turn of a conversation whose row is locked.
pub fn of_conversation(db: &mut Db, conversation: ConversationId, id: TurnId) -> Result<Option<Turn>, Fault> {
    let row: Option<TurnRow> = locked!(
        db,
        first,
        turns::table
            .find(key(id))
            .filter(turns::conversation_id.eq(key(conversation)))
            .select(TurnRow::as_select())
    )
    .optional()?;
    Ok(row.map(Turn::from))
}

/// Ascending numbers.
pub fn all(db: &mut Db, conversation: ConversationId) -> Result<Vec<Turn>, Fault> {
    let rows = turns::table
        .filter(turns::conversation_id.eq(key(conversation)))
        .order(turns::number)
        .select(TurnRow::as_select())
        .load(db)?;
    Ok(rows.into_iter().map(Turn::from).collect())
}

/// Writes a locked row back.
pub fn save(db: &mut Db, turn: &Turn) -> Result<(), Fault> {
    let deadline = turn.pending_permission.as_ref().map(|open| at(open.deadline));
    diesel::update(turns::table.find(key(turn.id)))
        .set((
            turns::status.eq(Word(turn.status)),
            turns::started_at.eq(maybe_at(turn.started_at)),
            turns::ended_at.eq(maybe_at(turn.ended_at)),
            turns::exit_code.eq(turn.exit_code),
            turns::orphaned_at.eq(maybe_at(turn.orphaned_at)),
            turns::acp_prompt_id.eq(turn.acp_prompt_id),
            turns::spawn_id.eq(maybe_key(turn.spawn_id)),
            turns::pending_permission.eq(turn.pending_permission.as_ref().map(json)),
            turns::permission_deadline.eq(deadline),
            turns::waiting.eq(turn.waiting),
            turns::reattach_deadline.eq(maybe_at(turn.reattach_deadline)),
            turns::reattach_first_loss.eq(maybe_at(turn.reattach_first_loss)),
            turns::usage.eq(turn.usage.as_ref().map(json)),
            turns::model_selection.eq(turn.model_selection.as_ref().map(json)),
            turns::reply_text.eq(turn.reply_text.as_deref()),
        ))
        .execute(db)?;
    Ok(())
}

/// How a new turn begins.
pub struct Opening {
    pub id: TurnId,
    /// Running on this machine; None waits for one until `pending_until`.
    pub machine: Option<MachineId>,
    pub spawn_id: Option<SpawnId>,
    pub pending_until: Option<Moment>,
}

/// Inserts the next turn of a locked conversation, with its images.
///
/// # Errors
/// `conversation_busy` when the partial index finds an open turn (RUL-27).
pub fn insert(
    db: &mut Db,
    conversation: &Conversation,
    opening: Opening,
    prompt: &Prompt,
    now: Moment,
) -> Result<Turn, Fault> {
    let last: Option<i64> = turns::table
        .filter(turns::conversation_id.eq(key(conversation.id)))
        .select(diesel::dsl::max(turns::number))
        .first(db)?;
    let status = if opening.machine.is_some() {
        TurnStatus::Running
    } else {
        TurnStatus::Pending
    };
    let turn = Turn {
        id: opening.id,
        conversation_id: conversation.id,
        number: last.unwrap_or(0) + 1,
        prompt: prompt.text.clone(),
        origin: Origin::User,
        client_request_id: prompt.client_request_id.clone(),
        status,
        started_at: opening.machine.map(|_| now),
        ended_at: None,
        exit_code: None,
        limit_reason: None,
        orphaned_at: None,
        acp_prompt_id: None,
        spawn_id: opening.spawn_id,
        pending_permission: None,
        waiting: false,
        pending_until: opening.pending_until,
        reattach_deadline: None,
        reattach_first_loss: None,
        usage: None,
        model_selection: None,
        reply_text: None,
        image_count: i64::try_from(prompt.images.len()).unwrap_or(i64::MAX),
        inserted_at: now,
    };
    diesel::insert_into(turns::table)
        .values((
            turns::id.eq(key(turn.id)),
            turns::account_id.eq(key(conversation.account_id)),
            turns::conversation_id.eq(key(turn.conversation_id)),
            turns::machine_id.eq(maybe_key(opening.machine)),
            turns::number.eq(turn.number),
            turns::prompt.eq(&turn.prompt),
            turns::origin.eq(Word(turn.origin)),
            turns::client_request_id.eq(turn.client_request_id.as_deref()),
            turns::status.eq(Word(turn.status)),
            turns::started_at.eq(maybe_at(turn.started_at)),
            turns::spawn_id.eq(maybe_key(turn.spawn_id)),
            turns::waiting.eq(false),
            turns::pending_until.eq(maybe_at(turn.pending_until)),
            turns::image_count.eq(turn.image_count),
            turns::inserted_at.eq(at(now)),
        ))
        .execute(db)
        .map_err(|error| {
            let open = violated(&error, "turns_open", "turns.conversation_id");
            if open {
                Fault::from(ErrorCode::ConversationBusy)
            } else {
                error.into()
            }
        })?;
    for (position, image) in (0_i64..).zip(&prompt.images) {
        diesel::insert_into(turn_images::table)
            .values((
                turn_images::turn_id.eq(key(turn.id)),
                turn_images::position.eq(position),
                turn_images::media_type.eq(&image.media_type),
                turn_images::bytes.eq(image.bytes.as_ref()),
            ))
            .execute(db)?;
    }
    Ok(turn)
}

/// Images of a prompt, in order.
pub fn images(db: &mut Db, turn: TurnId) -> Result<Vec<PromptImage>, Fault> {
    let rows = turn_images::table
        .filter(turn_images::turn_id.eq(key(turn)))
        .order(turn_images::position)
        .select((turn_images::media_type, turn_images::bytes))
        .load::<(String, Vec<u8>)>(db)?;
    Ok(rows
        .into_iter()
        .map(|(media_type, bytes)| PromptImage {
            media_type,
            bytes: bytes.into(),
        })
        .collect())
}

/// Whether any open turn stands on a machine: running there, or waiting on a conversation that is bound to it.
pub fn any_open_on(db: &mut Db, machine: MachineId) -> Result<bool, Fault> {
    use crate::store::schema::conversations;
    let count: i64 = turns::table
        .inner_join(conversations::table)
        .filter(conversations::machine_id.eq(key(machine)))
        .filter(turns::status.eq_any(OPEN))
        .count()
        .get_result(db)?;
    Ok(count > 0)
}

/// Whether one of these conversations has an open turn on a machine.
pub fn any_open_of(db: &mut Db, machine: MachineId, of: &[ConversationId]) -> Result<bool, Fault> {
    use crate::store::schema::conversations;
    if of.is_empty() {
        return Ok(false);
    }
    let of: Vec<String> = of.iter().map(key).collect();
    let count: i64 = turns::table
        .inner_join(conversations::table)
        .filter(conversations::machine_id.eq(key(machine)))
        .filter(conversations::id.eq_any(of))
        .filter(turns::status.eq_any(OPEN))
        .count()
        .get_result(db)?;
    Ok(count > 0)
}
