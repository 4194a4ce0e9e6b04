//! Conversations: launch, attach, the views of the API, labels, and their end.
//!
//! Follows lifecycle 1.5, 2.5, 4.1, 5.5, 5.7 and http-api 4.4; RUL-5, 11, 12, 18, 28a, RUL-L-29, 39, 80.

mod end;
mod guests;
pub(super) mod launch;
pub mod rows;
pub mod views;

pub(super) use end::close;

use std::collections::BTreeMap;

use diesel::prelude::*;

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::conversation::{Conversation, ConversationFilter, ConversationView};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::{Attach, ConversationStore, Ended, Launch};
use fountain_actors::ports::store::{Answer, Committed};

use super::SqlStore;
use super::backend::{Access, Db, Fault};
use super::columns::{at, key};
use super::machines::rows as machines;
use super::schema::conversations as table;
use super::turns::commit;

/// Most labels of a conversation after a merge (http-api 4.12).
const MAX_LABELS: usize = 32;

impl ConversationStore for SqlStore {
    fn launch(&self, launch: Launch) -> Answer<'_, Committed<ConversationView>> {
        self.answer("conversation.launch", Access::Write, move |db| {
            let (view, outbox) = launch::launch(db, launch)?;
            commit(db, view, outbox)
        })
    }

    fn attach(&self, attach: Attach) -> Answer<'_, Committed<ConversationView>> {
        self.answer("conversation.attach", Access::Write, move |db| {
            let (view, outbox) = launch::attach(db, attach)?;
            commit(db, view, outbox)
        })
    }

    fn home_of(
        &self,
        account: AccountId,
        agent: AgentId,
        environment: Option<EnvironmentId>,
        vault: Option<VaultId>,
        runtime: Runtime,
    ) -> Answer<'_, Option<MachineId>> {
        self.answer("conversation.home_of", Access::Read, move |db| {
            machines::home(db, account, agent, environment, vault, runtime.as_str())
        })
    }

    fn channel_conversation(
        &self,
        account: AccountId,
        channel: String,
        agent: AgentId,
        vault: Option<VaultId>,
        environment: Option<EnvironmentId>,
    ) -> Answer<'_, Option<Conversation>> {
        self.answer("conversation.of_channel", Access::Snapshot, move |db| {
            launch::of_channel(db, account, &channel, agent, vault, environment)
        })
    }

    fn conversation(&self, id: ConversationId) -> Answer<'_, Option<Conversation>> {
        self.answer("conversation.read", Access::Read, move |db| rows::find(db, id))
    }

    fn conversation_view(&self, account: AccountId, id: ConversationId) -> Answer<'_, Option<ConversationView>> {
        self.answer("conversation.view", Access::Snapshot, move |db| {
            views::one(db, account, id)
        })
    }

    fn conversation_views(&self, account: AccountId, filter: ConversationFilter) -> Answer<'_, Vec<ConversationView>> {
        self.answer("conversation.views", Access::Snapshot, move |db| {
            views::all(db, account, filter)
        })
    }

    fn merge_labels(
        &self,
        account: AccountId,
        id: ConversationId,
        changes: BTreeMap<String, Option<String>>,
        now: Moment,
    ) -> Answer<'_, Conversation> {
        self.answer("conversation.merge_labels", Access::Write, move |db| {
            merge_labels(db, account, id, changes, now)
        })
    }

    fn mark_read(&self, account: AccountId, id: ConversationId, now: Moment) -> Answer<'_, ()> {
        self.answer("conversation.mark_read", Access::Write, move |db| {
            let touched = diesel::update(table::table.find(key(id)))
                .filter(table::account_id.eq(key(account)))
                .set(table::last_read_at.eq(at(now)))
                .execute(db)?;
            match touched {
                0 => Err(Fault::not_found("conversation")),
                _ => Ok(()),
            }
        })
    }

    fn terminate(
        &self,
        account: AccountId,
        id: ConversationId,
        actor: Actor,
        request_ip: Option<String>,
        now: Moment,
    ) -> Answer<'_, Committed<Ended>> {
        self.answer("conversation.terminate", Access::Write, move |db| {
            let (ended, outbox) = end::terminate(db, account, id, actor, request_ip, now)?;
            commit(db, ended, outbox)
        })
    }

    fn delete_conversation(
        &self,
        account: AccountId,
        id: ConversationId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, ()> {
        self.answer("conversation.delete", Access::Write, move |db| {
            end::delete(db, account, id, &audit, now)
        })
    }
}

fn merge_labels(
    db: &mut Db,
    account: AccountId,
    id: ConversationId,
    changes: BTreeMap<String, Option<String>>,
    now: Moment,
) -> Result<Conversation, Fault> {
    rows::of_account(db, account, id)?;
    let mut conversation = rows::require(db, id)?;
    for (name, value) in changes {
        match value {
            Some(value) => conversation.labels.insert(name, value),
            None => conversation.labels.remove(&name),
        };
    }
    if conversation.labels.len() > MAX_LABELS {
        return Err(Refusal::field("labels", format!("at most {MAX_LABELS} labels")).into());
    }
    conversation.updated_at = now;
    rows::save(db, &conversation)?;
    Ok(conversation)
}
