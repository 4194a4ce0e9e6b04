//! The row of a conversation: read, locked, written back.

use std::collections::BTreeMap;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use diesel::sql_types::{Array, BigInt, Nullable, Text, Timestamp};
use serde_json::{Map, Value};

use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::conversation::{Conversation, ConversationStatus, SandboxApiAccess, Source};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::NewConversation;

use crate::locked;
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, Json, Word, at, inner, json, key, maybe_at, maybe_key, maybe_moment, moment};
use crate::store::schema::conversations;

#[derive(Queryable, Selectable)]
#[diesel(table_name = conversations)]
pub struct ConversationRow {
    id: Id<ConversationId>,
    account_id: Id<AccountId>,
    status: Word<ConversationStatus>,
    runtime: Word<Runtime>,
    configuration_revision: i64,
    runtime_session_id: Option<String>,
    machine_id: Id<MachineId>,
    agent_id: Option<Id<AgentId>>,
    agent_version_id: Option<Id<AgentVersionId>>,
    vault_id: Option<Id<VaultId>>,
    environment_id: Option<Id<EnvironmentId>>,
    parent_conversation_id: Option<Id<ConversationId>>,
    source: Word<Source>,
    channel_id: Option<String>,
    title: Option<String>,
    labels: Json<BTreeMap<String, String>>,
    model: Option<String>,
    sandbox_api_access: Word<SandboxApiAccess>,
    permission_policy: Option<Json<Map<String, Value>>>,
    callback_key_id: Option<Id<KeyId>>,
    server_epoch: i64,
    output_bytes: i64,
    usage_input_tokens: i64,
    usage_output_tokens: i64,
    last_active_at: Option<NaiveDateTime>,
    last_read_at: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
    updated_at: NaiveDateTime,
}

impl From<ConversationRow> for Conversation {
    fn from(row: ConversationRow) -> Self {
        Self {
            id: row.id.0,
            account_id: row.account_id.0,
            status: row.status.0,
            runtime: row.runtime.0,
            configuration_revision: row.configuration_revision,
            runtime_session_id: row.runtime_session_id,
            machine_id: row.machine_id.0,
            agent_id: inner(row.agent_id),
            agent_version_id: inner(row.agent_version_id),
            vault_id: inner(row.vault_id),
            environment_id: inner(row.environment_id),
            parent_conversation_id: inner(row.parent_conversation_id),
            source: row.source.0,
            channel_id: row.channel_id,
            title: row.title,
            labels: row.labels.0,
            model: row.model,
            sandbox_api_access: row.sandbox_api_access.0,
            permission_policy: inner(row.permission_policy),
            callback_key_id: inner(row.callback_key_id),
            server_epoch: ServerEpoch(row.server_epoch),
            output_bytes: row.output_bytes,
            usage_input_tokens: row.usage_input_tokens,
            usage_output_tokens: row.usage_output_tokens,
            last_active_at: maybe_moment(row.last_active_at),
            last_read_at: maybe_moment(row.last_read_at),
            inserted_at: moment(row.inserted_at),
            updated_at: moment(row.updated_at),
        }
    }
}

pub fn find(db: &mut Db, id: ConversationId) -> Result<Option<Conversation>, Fault> {
    let row = conversations::table
        .find(key(id))
        .select(ConversationRow::as_select())
        .first(db)
        .optional()?;
    Ok(row.map(Conversation::from))
}

/// A conversation that a caller names: another account's is `NotFound` like a missing one.
pub fn of_account(db: &mut Db, account: AccountId, id: ConversationId) -> Result<Conversation, Fault> {
    find(db, id)?
        .filter(|conversation| conversation.account_id == account)
        .ok_or_else(|| Fault::not_found("conversation"))
}

/// Locks the row. Several are locked in the order of their ids; the machine comes first (RUL-L-9).
pub fn lock(db: &mut Db, id: ConversationId) -> Result<Option<Conversation>, Fault> {
    let row: Option<ConversationRow> = locked!(
        db,
        first,
        conversations::table.find(key(id)).select(ConversationRow::as_select())
    )
    .optional()?;
    Ok(row.map(Conversation::from))
}

/// Locks a conversation that has to be there.
pub fn require(db: &mut Db, id: ConversationId) -> Result<Conversation, Fault> {
    lock(db, id)?.ok_or_else(|| Fault::not_found("conversation"))
}

/// All conversations on a machine, locked in the order of their ids.
pub fn lock_on_machine(db: &mut Db, machine: MachineId) -> Result<Vec<Conversation>, Fault> {
    let rows: Vec<ConversationRow> = locked!(
        db,
        load,
        conversations::table
            .filter(conversations::machine_id.eq(key(machine)))
            .order(conversations::id)
            .select(ConversationRow::as_select())
    )?;
    Ok(rows.into_iter().map(Conversation::from).collect())
}

/// Conversations by id, locked in the order of their ids.
pub fn lock_many(db: &mut Db, ids: Vec<String>) -> Result<Vec<Conversation>, Fault> {
    let rows: Vec<ConversationRow> = locked!(
        db,
        load,
        conversations::table
            .filter(conversations::id.eq_any(ids))
            .order(conversations::id)
            .select(ConversationRow::as_select())
    )?;
    Ok(rows.into_iter().map(Conversation::from).collect())
}

/// Writes a locked row back: what verbs of this half change.
pub fn save(db: &mut Db, conversation: &Conversation) -> Result<(), Fault> {
    diesel::update(conversations::table.find(key(conversation.id)))
        .set((
            conversations::status.eq(Word(conversation.status)),
            conversations::runtime_session_id.eq(conversation.runtime_session_id.as_deref()),
            conversations::machine_id.eq(key(conversation.machine_id)),
            conversations::title.eq(conversation.title.as_deref()),
            conversations::labels.eq(json(&conversation.labels)),
            conversations::server_epoch.eq(conversation.server_epoch.0),
            conversations::output_bytes.eq(conversation.output_bytes),
            conversations::usage_input_tokens.eq(conversation.usage_input_tokens),
            conversations::usage_output_tokens.eq(conversation.usage_output_tokens),
            conversations::last_active_at.eq(maybe_at(conversation.last_active_at)),
            conversations::updated_at.eq(at(conversation.updated_at)),
        ))
        .execute(db)?;
    Ok(())
}

/// Writes back locked rows of which only the output moved, as most appends do: on PostgreSQL in one round trip.
pub fn save_output(db: &mut Db, moved: &[&Conversation]) -> Result<(), Fault> {
    match db {
        Db::Postgres(conn) if !moved.is_empty() => {
            let ids: Vec<String> = moved.iter().map(|conversation| key(conversation.id)).collect();
            let bytes: Vec<i64> = moved.iter().map(|conversation| conversation.output_bytes).collect();
            let active: Vec<_> = moved
                .iter()
                .map(|conversation| maybe_at(conversation.last_active_at))
                .collect();
            diesel::sql_query(
                "UPDATE conversations SET output_bytes = n.bytes, last_active_at = n.active \
                 FROM unnest($1, $2, $3) AS n (id, bytes, active) WHERE conversations.id = n.id",
            )
            .bind::<Array<Text>, _>(ids)
            .bind::<Array<BigInt>, _>(bytes)
            .bind::<Array<Nullable<Timestamp>>, _>(active)
            .execute(conn)?;
        }
        _ => {
            for conversation in moved {
                diesel::update(conversations::table.find(key(conversation.id)))
                    .set((
                        conversations::output_bytes.eq(conversation.output_bytes),
                        conversations::last_active_at.eq(maybe_at(conversation.last_active_at)),
                    ))
                    .execute(db)?;
            }
        }
    }
    Ok(())
}

/// Inserts a conversation on `machine`.
pub fn insert(
    db: &mut Db,
    new: &NewConversation,
    machine: MachineId,
    status: ConversationStatus,
    now: Moment,
) -> Result<(), Fault> {
    diesel::insert_into(conversations::table)
        .values((
            conversations::id.eq(key(new.id)),
            conversations::account_id.eq(key(new.account_id)),
            conversations::status.eq(Word(status)),
            conversations::runtime.eq(Word(new.runtime)),
            conversations::configuration_revision.eq(0_i64),
            conversations::machine_id.eq(key(machine)),
            conversations::agent_id.eq(key(new.agent_id)),
            conversations::agent_version_id.eq(key(new.agent_version_id)),
            conversations::vault_id.eq(maybe_key(new.vault_id)),
            conversations::environment_id.eq(maybe_key(new.environment_id)),
            conversations::parent_conversation_id.eq(maybe_key(new.parent_conversation_id)),
            conversations::source.eq(Word(new.source)),
            conversations::channel_id.eq(new.channel_id.as_deref()),
            conversations::title.eq(new.title.as_deref()),
            conversations::labels.eq(json(&new.labels)),
            conversations::model.eq(new.model.as_deref()),
            conversations::sandbox_api_access.eq(Word(new.sandbox_api_access)),
            conversations::permission_policy.eq(new.permission_policy.as_ref().map(json)),
            conversations::server_epoch.eq(0_i64),
            conversations::output_bytes.eq(0_i64),
            conversations::usage_input_tokens.eq(0_i64),
            conversations::usage_output_tokens.eq(0_i64),
            conversations::inserted_at.eq(at(now)),
            conversations::updated_at.eq(at(now)),
        ))
        .execute(db)?;
    Ok(())
}
