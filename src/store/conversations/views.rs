//! Conversations as the API shows them: one query for the rows and what is counted beside them, one for runners,
//! however many conversations there are (http-api 4.4, 5.7.3).

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Bool, Nullable, Text};

use fountain_actors::domain::conversation::{Conversation, ConversationFilter, ConversationView};
use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::*;

use super::rows::ConversationRow;
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Word, json, key};
use crate::store::machines::rows::MachineRow;
use crate::store::machines::views::{runner_of, runners_of};
use crate::store::schema::{conversations, machines};
use crate::store::turns::permissions;

/// "All" for a list without a limit.
const NO_LIMIT: i64 = i64::MAX;

const AGENT_VERSION: &str = "(SELECT v.version FROM agent_versions v WHERE v.id = conversations.agent_version_id)";
const FIRST_PROMPT: &str = "(SELECT t.prompt FROM turns t WHERE t.conversation_id = conversations.id AND t.number = 1)";
const TURN_COUNT: &str = "(SELECT count(*) FROM turns t WHERE t.conversation_id = conversations.id)";

type Found = (ConversationRow, MachineRow, Option<i64>, Option<String>, i64);

fn view_of((conversation, machine, agent_version, first_prompt, turn_count): Found) -> ConversationView {
    ConversationView {
        conversation: Conversation::from(conversation),
        machine: Machine::from(machine),
        runner: None,
        agent_version,
        first_prompt,
        turn_count,
        pending_requests: Vec::new(),
    }
}

/// One conversation with its open permission requests. None when it is not this account's.
pub fn one(db: &mut Db, account: AccountId, id: ConversationId) -> Result<Option<ConversationView>, Fault> {
    let found = conversations::table
        .inner_join(machines::table)
        .filter(conversations::id.eq(key(id)))
        .filter(conversations::account_id.eq(key(account)))
        .select((
            ConversationRow::as_select(),
            MachineRow::as_select(),
            sql::<Nullable<BigInt>>(AGENT_VERSION),
            sql::<Nullable<Text>>(FIRST_PROMPT),
            sql::<BigInt>(TURN_COUNT),
        ))
        .first::<Found>(db)
        .optional()?;
    let Some(mut view) = found.map(view_of) else {
        return Ok(None);
    };
    view.pending_requests = permissions::unanswered(db, id)?;
    let runners = runners_of(db, account, std::iter::once(&view.machine))?;
    view.runner = runner_of(&view.machine, &runners);
    Ok(Some(view))
}

/// Most recently updated first.
pub fn all(db: &mut Db, account: AccountId, filter: ConversationFilter) -> Result<Vec<ConversationView>, Fault> {
    let statuses: Vec<_> = match filter.statuses.is_empty() {
        true => conversation::ConversationStatus::ALL.to_vec(),
        false => filter.statuses,
    }
    .into_iter()
    .map(Word)
    .collect();
    // One text whatever is asked for: a filter that is not set lets everything pass.
    let agent = filter.agent_id.map(key);
    let machine = filter.machine_id.map(key);
    let optional = sql::<Bool>("(")
        .bind::<Bool, _>(!filter.roots_only)
        .sql(" OR conversations.parent_conversation_id IS NULL) AND (")
        .bind::<Bool, _>(agent.is_none())
        .sql(" OR conversations.agent_id = ")
        .bind::<Text, _>(agent.unwrap_or_default())
        .sql(") AND (")
        .bind::<Bool, _>(machine.is_none())
        .sql(" OR conversations.machine_id = ")
        .bind::<Text, _>(machine.unwrap_or_default())
        .sql(") AND (")
        .bind::<Bool, _>(filter.channel_id.is_none())
        .sql(" OR conversations.channel_id = ")
        .bind::<Text, _>(filter.channel_id.unwrap_or_default())
        .sql(")");
    // Labels are in SQL too where one is asked for, so that the limit counts only what fits; several are narrowed here.
    let mut labels = filter.labels.into_iter();
    let first = labels.next().map(|label| label_text(&label));
    let rest: Vec<(String, String)> = labels.collect();
    let in_sql = if rest.is_empty() {
        filter.limit.unwrap_or(NO_LIMIT)
    } else {
        NO_LIMIT
    };
    let labelled = sql::<Bool>("(")
        .bind::<Bool, _>(first.is_none())
        .sql(" OR replace(replace(conversations.labels, ")
        .bind::<Text, _>(format!("{{{}", first.clone().unwrap_or_default()))
        .sql(", ''), ")
        .bind::<Text, _>(format!(",{}", first.unwrap_or_default()))
        .sql(", '') <> conversations.labels)");
    let found = conversations::table
        .inner_join(machines::table)
        .filter(conversations::account_id.eq(key(account)))
        .filter(conversations::status.eq_any(statuses))
        .filter(optional)
        .filter(labelled)
        .order((conversations::updated_at.desc(), conversations::id.desc()))
        .limit(in_sql)
        .select((
            ConversationRow::as_select(),
            MachineRow::as_select(),
            sql::<Nullable<BigInt>>(AGENT_VERSION),
            sql::<Nullable<Text>>(FIRST_PROMPT),
            sql::<BigInt>(TURN_COUNT),
        ))
        .load::<Found>(db)?;
    let limit = usize::try_from(filter.limit.unwrap_or(NO_LIMIT)).unwrap_or(usize::MAX);
    let mut views: Vec<ConversationView> = found
        .into_iter()
        .map(view_of)
        .filter(|view| {
            let has = |(key, value): &(String, String)| view.conversation.labels.get(key) == Some(value);
            rest.iter().all(has)
        })
        .take(limit)
        .collect();
    let runners = runners_of(db, account, views.iter().map(|view| &view.machine))?;
    for view in &mut views {
        view.runner = runner_of(&view.machine, &runners);
    }
    Ok(views)
}

/// A label as it stands in the JSON text of the column. An unescaped quote cannot stand inside a JSON string, so with
/// the brace or comma before it this matches a whole pair and nothing else.
fn label_text((name, value): &(String, String)) -> String {
    format!("{}:{}", json(name), json(value))
}
