//! Rows of `accounts` and `api_keys`, and what they mean.

use chrono::NaiveDateTime;
use diesel::prelude::*;

use fountain_actors::domain::account::{Account, ApiKey, Scope};
use fountain_actors::domain::{AccountId, ConversationId, KeyId};

use crate::store::backend::Fault;
use crate::store::columns::{Id, key, maybe_moment, moment};
use crate::store::schema::{accounts, api_keys};

#[derive(Queryable, Selectable)]
#[diesel(table_name = accounts)]
pub struct AccountRow {
    id: Id<AccountId>,
    email: Option<String>,
    email_verified_at: Option<NaiveDateTime>,
    is_admin: bool,
    comped: bool,
    sandbox_limit_override: Option<i64>,
    suspended_at: Option<NaiveDateTime>,
    deleting_at: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
}

impl AccountRow {
    pub fn into_domain(self) -> Account {
        Account {
            id: self.id.0,
            email: self.email,
            email_verified_at: maybe_moment(self.email_verified_at),
            is_admin: self.is_admin,
            comped: self.comped,
            sandbox_limit_override: self.sandbox_limit_override,
            suspended_at: maybe_moment(self.suspended_at),
            deleting_at: maybe_moment(self.deleting_at),
            inserted_at: moment(self.inserted_at),
        }
    }
}

/// The hash is not among the columns: nothing that reads a key needs it.
#[derive(Queryable, Selectable)]
#[diesel(table_name = api_keys)]
pub(super) struct KeyRow {
    id: Id<KeyId>,
    account_id: Id<AccountId>,
    name: String,
    prefix: String,
    scope: String,
    conversation_id: Option<Id<ConversationId>>,
    runner_name: Option<String>,
    expires_at: Option<NaiveDateTime>,
    revoked_at: Option<NaiveDateTime>,
    last_used_at: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
}

impl KeyRow {
    pub(super) fn into_domain(self) -> Result<ApiKey, Fault> {
        let scope = match (self.scope.as_str(), self.conversation_id, self.runner_name) {
            ("full", None, None) => Scope::Full,
            ("sprite", Some(conversation), None) => Scope::Sprite(conversation.0),
            ("runner", None, Some(name)) => Scope::Runner(name),
            _ => return Err(Fault::internal("key.read", "a key has a scope that does not exist")),
        };
        Ok(ApiKey {
            id: self.id.0,
            account_id: self.account_id.0,
            name: self.name,
            prefix: self.prefix,
            scope,
            expires_at: maybe_moment(self.expires_at),
            revoked_at: maybe_moment(self.revoked_at),
            last_used_at: maybe_moment(self.last_used_at),
            inserted_at: moment(self.inserted_at),
        })
    }
}

/// `scope`, `conversation_id` and `runner_name` of a key.
pub(super) fn scope_columns(scope: &Scope) -> (&'static str, Option<String>, Option<String>) {
    match scope {
        Scope::Full => ("full", None, None),
        Scope::Sprite(conversation) => ("sprite", Some(key(conversation)), None),
        Scope::Runner(name) => ("runner", None, Some(name.clone())),
    }
}
