//! Accounts, their keys, and audit rows of their own (lifecycle 1.1, 1.2; http-api 1.3, 5.3; RUL-19).
//!
//! A key is known by its SHA-256 alone. Look-ups answer revoked and expired keys too: what they are worth is the
//! door's judgement. When a key was last used is never written on a request's path.

pub(super) mod rows;

use diesel::prelude::*;
use diesel::sql_types::{Nullable, Text};

use fountain_actors::domain::account::{Account, Actor, ApiKey, NewApiKey, NewAudit, Scope};
use fountain_actors::domain::{AccountId, ConversationId, KeyId, Moment, Refusal, ServerEpoch};
use fountain_actors::ports::store::accounts::{AccountStore, NewAccount};
use fountain_actors::ports::store::{Answer, Committed, StoreError};

use super::SqlStore;
use super::backend::{Access, Db, Fault, violated};
use super::columns::{Id, at, key, maybe_at};
use super::events::audit_row;
use super::schema::{accounts, api_keys, conversations, data_keys};
use super::secrets::Sealed;
use rows::{AccountRow, KeyRow, scope_columns};

diesel::define_sql_function! {
    /// As the database folds case: what the unique index on addresses does, too.
    fn lower(text: Nullable<Text>) -> Nullable<Text>;
}

impl SqlStore {
    /// Whether the master key is the one under which this database seals (RUL-58). True while it seals nothing.
    ///
    /// # Errors
    /// What the database says.
    pub async fn master_key_opens(&self) -> Result<bool, StoreError> {
        let row = self
            .answer("account.any_data_key", Access::Read, |db| {
                let row: Option<(Id<AccountId>, Vec<u8>, Vec<u8>)> = data_keys::table
                    .select((data_keys::account_id, data_keys::wrapped_key, data_keys::nonce))
                    .order(data_keys::inserted_at)
                    .first(db)
                    .optional()?;
                Ok(row)
            })
            .await?;
        let opens = |(account, sealed, nonce): (Id<AccountId>, _, _)| {
            let wrapped = Sealed { nonce, sealed };
            self.inner.master_key.unwrap_data_key(account.0, &wrapped).is_ok()
        };
        Ok(row.is_none_or(opens))
    }
}

impl AccountStore for SqlStore {
    fn create_account(&self, account: NewAccount) -> Answer<'_, Account> {
        let (_, wrapped) = self.inner.master_key.new_data_key(account.id, &*self.inner.rng);
        self.answer("account.create", Access::Write, move |db| {
            let now = at(account.now);
            let inserted = diesel::insert_into(accounts::table)
                .values((
                    accounts::id.eq(key(account.id)),
                    accounts::email.eq(&account.email),
                    accounts::email_verified_at.eq(maybe_at(account.email_verified_at)),
                    accounts::is_admin.eq(account.is_admin),
                    accounts::comped.eq(false),
                    accounts::inserted_at.eq(now),
                    accounts::updated_at.eq(now),
                ))
                .execute(db);
            match inserted {
                Err(error) if violated(&error, "accounts_email", "-") => {
                    return Err(Refusal::field("email", "has already been taken").into());
                }
                other => other?,
            };
            diesel::insert_into(data_keys::table)
                .values((
                    data_keys::account_id.eq(key(account.id)),
                    data_keys::wrapped_key.eq(wrapped.sealed),
                    data_keys::nonce.eq(wrapped.nonce),
                    data_keys::inserted_at.eq(now),
                ))
                .execute(db)?;
            let created = NewAudit {
                account_id: Some(account.id),
                action: "account.created",
                resource_type: "account",
                resource_id: Some(key(account.id)),
                actor: Actor::System("accounts"),
                request_ip: None,
                metadata: Default::default(),
            };
            audit_row(db, &created, account.now)?;
            load_account(db, account.id)?.ok_or(Fault::not_found("account"))
        })
    }

    fn account(&self, id: AccountId) -> Answer<'_, Option<Account>> {
        self.answer("account.get", Access::Read, move |db| load_account(db, id))
    }

    fn account_by_email(&self, email: String) -> Answer<'_, Option<Account>> {
        self.answer("account.by_email", Access::Read, move |db| {
            let row = accounts::table
                .filter(lower(accounts::email).eq(lower(Some(email))))
                .select(AccountRow::as_select())
                .first(db)
                .optional()?;
            Ok(row.map(AccountRow::into_domain))
        })
    }

    fn count_accounts(&self) -> Answer<'_, i64> {
        self.answer("account.count", Access::Read, |db| {
            Ok(accounts::table.count().get_result(db)?)
        })
    }

    fn key_by_hash(&self, sha256: [u8; 32]) -> Answer<'_, Option<(ApiKey, Account)>> {
        self.answer("key.by_hash", Access::Read, move |db| {
            let found: Option<(KeyRow, AccountRow)> = api_keys::table
                .inner_join(accounts::table)
                .filter(api_keys::sha256.eq(sha256.to_vec()))
                .select((KeyRow::as_select(), AccountRow::as_select()))
                .first(db)
                .optional()?;
            found
                .map(|(key, account)| Ok((key.into_domain()?, account.into_domain())))
                .transpose()
        })
    }

    fn create_key(&self, new: NewApiKey, audit: Option<NewAudit>, now: Moment) -> Answer<'_, ApiKey> {
        self.answer("key.create", Access::Write, move |db| {
            let created = insert_key(db, new, now)?;
            record(db, audit, now)?;
            Ok(created)
        })
    }

    fn keys(&self, account: AccountId, now: Moment) -> Answer<'_, Vec<ApiKey>> {
        self.answer("key.list", Access::Read, move |db| {
            let rows: Vec<KeyRow> = api_keys::table
                .filter(api_keys::account_id.eq(key(account)))
                .filter(api_keys::scope.eq_any(["full", "runner"]))
                .filter(api_keys::revoked_at.is_null())
                .filter(api_keys::expires_at.is_null().or(api_keys::expires_at.gt(at(now))))
                .order((api_keys::inserted_at.desc(), api_keys::id.desc()))
                .select(KeyRow::as_select())
                .load(db)?;
            rows.into_iter().map(KeyRow::into_domain).collect()
        })
    }

    fn revoke_key(&self, account: AccountId, id: KeyId, audit: Option<NewAudit>, now: Moment) -> Answer<'_, ApiKey> {
        self.answer("key.revoke", Access::Write, move |db| {
            let own = || {
                api_keys::table
                    .filter(api_keys::id.eq(key(id)))
                    .filter(api_keys::account_id.eq(key(account)))
            };
            let revoked = diesel::update(own().filter(api_keys::revoked_at.is_null()))
                .set(api_keys::revoked_at.eq(at(now)))
                .execute(db)?;
            let row = own()
                .select(KeyRow::as_select())
                .first(db)
                .optional()?
                .ok_or(Fault::not_found("key"))?;
            if revoked > 0 {
                record(db, audit, now)?;
            }
            row.into_domain()
        })
    }

    fn stamp_keys(&self, used: Vec<(KeyId, Moment)>) -> Answer<'_, ()> {
        self.answer("key.stamp", Access::Write, move |db| {
            for (id, when) in used {
                // Two replicas stamp one key: the later use wins, whichever writes first.
                let earlier = api_keys::last_used_at.is_null().or(api_keys::last_used_at.lt(at(when)));
                diesel::update(api_keys::table.filter(api_keys::id.eq(key(id))).filter(earlier))
                    .set(api_keys::last_used_at.eq(at(when)))
                    .execute(db)?;
            }
            Ok(())
        })
    }

    fn mint_callback_key(
        &self,
        conversation: ConversationId,
        server_epoch: ServerEpoch,
        new: NewApiKey,
        now: Moment,
    ) -> Answer<'_, ApiKey> {
        self.answer("key.mint_callback", Access::Write, move |db| {
            if new.scope != Scope::Sprite(conversation) {
                return Err(Fault::internal(
                    "key.mint_callback",
                    "the key is not for this conversation",
                ));
            }
            let account = key(new.account_id);
            let own = || {
                conversations::table
                    .filter(conversations::id.eq(key(conversation)))
                    .filter(conversations::account_id.eq(&account))
            };
            let touched = diesel::update(own().filter(conversations::server_epoch.eq(server_epoch.0)))
                .set(conversations::callback_key_id.eq(key(new.id)))
                .execute(db)?;
            if touched == 0 {
                let found: i64 = own().count().get_result(db)?;
                return Err(if found == 0 {
                    Fault::not_found("conversation")
                } else {
                    StoreError::Stale("conversation server").into()
                });
            }
            insert_key(db, new, now)
        })
    }

    fn audit(&self, entry: NewAudit, now: Moment) -> Answer<'_, Committed<()>> {
        self.answer("audit.record", Access::Write, move |db| {
            audit_row(db, &entry, now)?;
            Ok(Committed {
                value: (),
                cursors: Vec::new(),
            })
        })
    }
}

fn load_account(db: &mut Db, id: AccountId) -> Result<Option<Account>, Fault> {
    let row = accounts::table
        .find(key(id))
        .select(AccountRow::as_select())
        .first(db)
        .optional()?;
    Ok(row.map(AccountRow::into_domain))
}

fn record(db: &mut Db, audit: Option<NewAudit>, now: Moment) -> Result<(), Fault> {
    audit.map_or(Ok(()), |entry| audit_row(db, &entry, now))
}

fn insert_key(db: &mut Db, new: NewApiKey, now: Moment) -> Result<ApiKey, Fault> {
    use diesel::result::{DatabaseErrorKind, Error};
    let (scope, conversation, runner) = scope_columns(&new.scope);
    let inserted = diesel::insert_into(api_keys::table)
        .values((
            api_keys::id.eq(key(new.id)),
            api_keys::account_id.eq(key(new.account_id)),
            api_keys::name.eq(&new.name),
            api_keys::prefix.eq(&new.prefix),
            api_keys::sha256.eq(new.sha256.to_vec()),
            api_keys::scope.eq(scope),
            api_keys::conversation_id.eq(conversation),
            api_keys::runner_name.eq(runner),
            api_keys::expires_at.eq(maybe_at(new.expires_at)),
            api_keys::inserted_at.eq(at(now)),
        ))
        .execute(db);
    match inserted {
        // The account was deleted meanwhile.
        Err(Error::DatabaseError(DatabaseErrorKind::ForeignKeyViolation, _)) => {
            return Err(Fault::not_found("account"));
        }
        other => other?,
    };
    let row = api_keys::table
        .find(key(new.id))
        .select(KeyRow::as_select())
        .first(db)?;
    KeyRow::into_domain(row)
}
