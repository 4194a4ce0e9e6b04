//! Vaults (lifecycle 1.4, http-api 4.3, 5.6). What is inside them is `sealed`.

use std::collections::HashMap;

use chrono::NaiveDateTime;
use diesel::dsl::count_star;
use diesel::prelude::*;
use serde_json::{Map, Value};

use fountain_actors::domain::environment::Vault;
use fountain_actors::domain::machine::DestroyReason;
use fountain_actors::domain::*;
use fountain_actors::ports::store::Committed;
use fountain_actors::ports::store::catalog::{Fenced, NewVault};

use super::homes::{Homes, fence};
use super::{Change, named};
use crate::locked;
use crate::store::backend::{Db, Fault, lock_account};
use crate::store::columns::{Id, Json, at, json, key, moment};
use crate::store::events::Outbox;
use crate::store::schema::{secrets, vaults};

#[derive(Queryable, Selectable)]
#[diesel(table_name = vaults)]
struct VaultRow {
    id: Id<VaultId>,
    account_id: Id<AccountId>,
    name: String,
    description: String,
    metadata: Json<Map<String, Value>>,
    inserted_at: NaiveDateTime,
    updated_at: NaiveDateTime,
}

impl VaultRow {
    fn into_domain(self, secret_count: i64) -> Vault {
        Vault {
            id: self.id.0,
            account_id: self.account_id.0,
            name: self.name,
            description: self.description,
            metadata: self.metadata.0,
            secret_count,
            inserted_at: moment(self.inserted_at),
            updated_at: moment(self.updated_at),
        }
    }
}

pub(super) fn list(db: &mut Db, account: AccountId) -> Result<Vec<Vault>, Fault> {
    let rows: Vec<VaultRow> = vaults::table
        .filter(vaults::account_id.eq(key(account)))
        .select(VaultRow::as_select())
        .load(db)?;
    let counts: HashMap<Option<String>, i64> = secrets::table
        .filter(secrets::account_id.eq(key(account)))
        .group_by(secrets::vault_id)
        .select((secrets::vault_id, count_star()))
        .load::<(Option<String>, i64)>(db)?
        .into_iter()
        .collect();
    let mut found: Vec<Vault> = rows
        .into_iter()
        .map(|row| {
            let count = counts.get(&Some(key(row.id.0))).copied().unwrap_or(0);
            row.into_domain(count)
        })
        .collect();
    found.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    Ok(found)
}

pub(super) fn get(db: &mut Db, account: AccountId, id: VaultId) -> Result<Option<Vault>, Fault> {
    let row: Option<VaultRow> = vaults::table
        .filter(vaults::id.eq(key(id)))
        .filter(vaults::account_id.eq(key(account)))
        .select(VaultRow::as_select())
        .first(db)
        .optional()?;
    let Some(row) = row else { return Ok(None) };
    let count = secrets::table
        .filter(secrets::vault_id.eq(key(id)))
        .count()
        .get_result(db)?;
    Ok(Some(row.into_domain(count)))
}

fn must_get(db: &mut Db, account: AccountId, id: VaultId) -> Result<Vault, Fault> {
    get(db, account, id)?.ok_or(Fault::not_found("vault"))
}

/// Holds the vault's row until the commit.
fn hold(db: &mut Db, account: AccountId, id: VaultId) -> Result<(), Fault> {
    let row: Option<VaultRow> = locked!(
        db,
        first,
        vaults::table
            .filter(vaults::id.eq(key(id)))
            .filter(vaults::account_id.eq(key(account)))
            .select(VaultRow::as_select())
    )
    .optional()?;
    row.map(drop).ok_or(Fault::not_found("vault"))
}

pub(super) fn create(db: &mut Db, id: VaultId, vault: &NewVault, change: Change) -> Result<Vault, Fault> {
    let inserted = diesel::insert_into(vaults::table)
        .values((
            vaults::id.eq(key(id)),
            vaults::account_id.eq(key(change.account)),
            vaults::name.eq(&vault.name),
            vaults::description.eq(&vault.description),
            vaults::metadata.eq(json(&vault.metadata)),
            vaults::inserted_at.eq(at(change.now)),
            vaults::updated_at.eq(at(change.now)),
        ))
        .execute(db);
    named(inserted, "vaults_name", "vaults.account_id, vaults.name")?;
    let vault = must_get(db, change.account, id)?;
    change.done(db, vault)
}

pub(super) fn update(db: &mut Db, id: VaultId, vault: &NewVault, change: Change) -> Result<Vault, Fault> {
    hold(db, change.account, id)?;
    let updated = diesel::update(vaults::table.find(key(id)))
        .set((
            vaults::name.eq(&vault.name),
            vaults::description.eq(&vault.description),
            vaults::metadata.eq(json(&vault.metadata)),
            vaults::updated_at.eq(at(change.now)),
        ))
        .execute(db);
    named(updated, "vaults_name", "vaults.account_id, vaults.name")?;
    let vault = must_get(db, change.account, id)?;
    change.done(db, vault)
}

pub(super) fn delete(db: &mut Db, id: VaultId, change: Change) -> Result<Committed<Fenced>, Fault> {
    lock_account(db, change.account)?;
    hold(db, change.account, id)?;
    let mut outbox = Outbox::default();
    let fenced = fence(db, &change, Homes::With(id), DestroyReason::VaultDeleted, &mut outbox)?;
    diesel::delete(vaults::table.find(key(id))).execute(db)?;
    change.commit(db, outbox, fenced)
}
