//! Secrets of environments and vaults: sealed before they are written, opened only for a machine (lifecycle 1.4).
//!
//! Lists never read the sealed bytes. Writers of one home wait for each other on the home's row, so an upsert by key
//! needs no conflict clause. What does not open is an error of the whole bundle: a machine never starts with half of
//! its secrets.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use secrecy::SecretString;

use fountain_actors::domain::environment::{SecretBundle, SecretHome, SecretInfo};
use fountain_actors::domain::*;
use fountain_actors::ports::Rng;

use super::Change;
use crate::locked;
use crate::store::backend::{Db, Fault};
use crate::store::columns::{Id, at, inner, key, maybe_at, maybe_moment, moment};
use crate::store::schema::{data_keys, environments, secrets, vaults};
use crate::store::secrets::{DataKey, Identity, MasterKey, Sealed};

/// What seals and opens.
pub(super) struct Safe {
    pub master: MasterKey,
    pub rng: Arc<dyn Rng>,
}

impl Safe {
    fn data_key(&self, db: &mut Db, account: AccountId) -> Result<DataKey, Fault> {
        let (sealed, nonce): (Vec<u8>, Vec<u8>) = data_keys::table
            .find(key(account))
            .select((data_keys::wrapped_key, data_keys::nonce))
            .first(db)
            .optional()?
            .ok_or(Fault::not_found("account"))?;
        self.master
            .unwrap_data_key(account, &Sealed { nonce, sealed })
            .map_err(|e| Fault::internal("secret.data_key", e.to_string()))
    }
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = secrets)]
struct SecretRow {
    id: Id<SecretId>,
    environment_id: Option<Id<EnvironmentId>>,
    vault_id: Option<Id<VaultId>>,
    key: String,
    expires_at: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
    updated_at: NaiveDateTime,
}

impl SecretRow {
    fn into_domain(self) -> Result<SecretInfo, Fault> {
        let home = match (inner(self.environment_id), inner(self.vault_id)) {
            (Some(id), None) => SecretHome::Environment(id),
            (None, Some(id)) => SecretHome::Vault(id),
            _ => return Err(Fault::internal("secret.read", "a secret has no home, or two")),
        };
        Ok(SecretInfo {
            id: self.id.0,
            key: self.key,
            home,
            expires_at: maybe_moment(self.expires_at),
            inserted_at: moment(self.inserted_at),
            updated_at: moment(self.updated_at),
        })
    }
}

/// The columns `environment_id` and `vault_id` of a home.
fn home_columns(home: SecretHome) -> (Option<String>, Option<String>) {
    match home {
        SecretHome::Environment(id) => (Some(key(id)), None),
        SecretHome::Vault(id) => (None, Some(key(id))),
    }
}

/// The secrets of one home of one account. The column that the home does not use is compared with NULL, which is never
/// true.
macro_rules! at_home {
    ($account:expr, $home:expr) => {{
        let (environment, vault) = home_columns($home);
        secrets::table
            .filter(secrets::account_id.eq(key($account)))
            .filter(secrets::environment_id.eq(environment).or(secrets::vault_id.eq(vault)))
    }};
}

/// Holds the home's row until the commit. `NotFound` when it is not this account's.
fn hold_home(db: &mut Db, account: AccountId, home: SecretHome) -> Result<(), Fault> {
    match home {
        SecretHome::Environment(id) => {
            let found: Option<String> = locked!(
                db,
                first,
                environments::table
                    .filter(environments::id.eq(key(id)))
                    .filter(environments::account_id.eq(key(account)))
                    .select(environments::id)
            )
            .optional()?;
            found.map(drop).ok_or(Fault::not_found("environment"))
        }
        SecretHome::Vault(id) => {
            let found: Option<String> = locked!(
                db,
                first,
                vaults::table
                    .filter(vaults::id.eq(key(id)))
                    .filter(vaults::account_id.eq(key(account)))
                    .select(vaults::id)
            )
            .optional()?;
            found.map(drop).ok_or(Fault::not_found("vault"))
        }
    }
}

/// `NotFound` when the home is not this account's; holds nothing.
fn check_home(db: &mut Db, account: AccountId, home: SecretHome) -> Result<(), Fault> {
    let (what, found): (_, i64) = match home {
        SecretHome::Environment(id) => {
            let own = environments::table
                .filter(environments::id.eq(key(id)))
                .filter(environments::account_id.eq(key(account)));
            ("environment", own.count().get_result(db)?)
        }
        SecretHome::Vault(id) => {
            let own = vaults::table
                .filter(vaults::id.eq(key(id)))
                .filter(vaults::account_id.eq(key(account)));
            ("vault", own.count().get_result(db)?)
        }
    };
    if found == 0 {
        Err(Fault::not_found(what))
    } else {
        Ok(())
    }
}

pub(super) fn list(db: &mut Db, account: AccountId, home: SecretHome) -> Result<Vec<SecretInfo>, Fault> {
    check_home(db, account, home)?;
    let rows: Vec<SecretRow> = at_home!(account, home).select(SecretRow::as_select()).load(db)?;
    let mut found = rows
        .into_iter()
        .map(SecretRow::into_domain)
        .collect::<Result<Vec<_>, _>>()?;
    found.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

fn must_get(db: &mut Db, account: AccountId, home: SecretHome, name: &str) -> Result<SecretInfo, Fault> {
    let row: Option<SecretRow> = at_home!(account, home)
        .filter(secrets::key.eq(name))
        .select(SecretRow::as_select())
        .first(db)
        .optional()?;
    row.ok_or(Fault::not_found("secret"))?.into_domain()
}

pub(super) fn put(
    db: &mut Db,
    safe: &Safe,
    home: SecretHome,
    name: &str,
    value: &SecretString,
    expires_at: Option<Moment>,
    change: Change,
) -> Result<SecretInfo, Fault> {
    let (account, now) = (change.account, change.now);
    hold_home(db, account, home)?;
    let identity = Identity {
        account,
        home,
        key: name,
    };
    let sealed = safe.data_key(db, account)?.seal(value, &identity, &*safe.rng);
    let changed = (
        secrets::sealed.eq(sealed.sealed),
        secrets::nonce.eq(sealed.nonce),
        secrets::expires_at.eq(maybe_at(expires_at)),
        secrets::updated_at.eq(at(now)),
    );
    let (environment, vault) = home_columns(home);
    let known: Option<String> = at_home!(account, home)
        .filter(secrets::key.eq(name))
        .select(secrets::id)
        .first(db)
        .optional()?;
    match known {
        Some(id) => diesel::update(secrets::table.find(id)).set(changed).execute(db)?,
        None => diesel::insert_into(secrets::table)
            .values((
                secrets::id.eq(key(SecretId(safe.rng.uuid()))),
                secrets::account_id.eq(key(account)),
                secrets::environment_id.eq(environment),
                secrets::vault_id.eq(vault),
                secrets::key.eq(name),
                secrets::inserted_at.eq(at(now)),
                changed,
            ))
            .execute(db)?,
    };
    let info = must_get(db, account, home, name)?;
    change.done(db, info)
}

pub(super) fn set_expiry(
    db: &mut Db,
    account: AccountId,
    home: SecretHome,
    name: &str,
    expires_at: Option<Moment>,
    now: Moment,
) -> Result<SecretInfo, Fault> {
    hold_home(db, account, home)?;
    let known = must_get(db, account, home, name)?;
    diesel::update(secrets::table.find(key(known.id)))
        .set((
            secrets::expires_at.eq(maybe_at(expires_at)),
            secrets::updated_at.eq(at(now)),
        ))
        .execute(db)?;
    must_get(db, account, home, name)
}

pub(super) fn delete(db: &mut Db, home: SecretHome, name: &str, change: Change) -> Result<(), Fault> {
    hold_home(db, change.account, home)?;
    let known = must_get(db, change.account, home, name)?;
    diesel::delete(secrets::table.find(key(known.id))).execute(db)?;
    change.done(db, ())
}

pub(super) fn bundle(
    db: &mut Db,
    safe: &Safe,
    account: AccountId,
    environment: Option<EnvironmentId>,
    vault: Option<VaultId>,
) -> Result<SecretBundle, Fault> {
    let mut bundle = SecretBundle::default();
    if environment.is_none() && vault.is_none() {
        return Ok(bundle);
    }
    let data_key = safe.data_key(db, account)?;
    if let Some(id) = environment {
        bundle.environment = opened(db, &data_key, account, SecretHome::Environment(id))?;
    }
    if let Some(id) = vault {
        bundle.vault = opened(db, &data_key, account, SecretHome::Vault(id))?;
    }
    Ok(bundle)
}

fn opened(
    db: &mut Db,
    data_key: &DataKey,
    account: AccountId,
    home: SecretHome,
) -> Result<BTreeMap<String, SecretString>, Fault> {
    check_home(db, account, home)?;
    let rows: Vec<(String, Vec<u8>, Vec<u8>)> = at_home!(account, home)
        .select((secrets::key, secrets::sealed, secrets::nonce))
        .load(db)?;
    rows.into_iter()
        .map(|(name, sealed, nonce)| {
            let identity = Identity {
                account,
                home,
                key: &name,
            };
            let value = data_key
                .open(&Sealed { nonce, sealed }, &identity)
                .map_err(|e| Fault::internal("secret.bundle", e.to_string()))?;
            Ok((name, value))
        })
        .collect()
}
