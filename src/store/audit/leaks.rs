//! Promise 8 in the rows: no value that somebody keeps as a secret stands in a text of the database.
//!
//! Searched are all text columns that the database has, not a list of ours: a column that is added is searched as well.
//! A finding names table, column and row, never the value.

use diesel::prelude::*;
use diesel::sql_types::{BigInt, Text};
use secrecy::{ExposeSecret, SecretString};

use fountain_actors::domain::environment::SecretHome;
use fountain_actors::domain::*;

use super::Violation;
use crate::store::backend::{Db, Fault, Kind};
use crate::store::columns::{Id, key};
use crate::store::schema::{data_keys, secrets};
use crate::store::secrets::{Identity, MasterKey, Sealed};

/// A prompt is what its user typed, kept word for word for the agent; a secret in it is the user's doing (INV-90 names
/// rows, replies and snapshots).
const TYPED: &str = "prompt";
/// Shorter ones are words that stand everywhere.
const SHORTEST: usize = 6;

#[derive(QueryableByName)]
struct Column {
    #[diesel(sql_type = Text)]
    in_table: String,
    #[diesel(sql_type = Text)]
    name: String,
    /// The first column of its table, which says which row it is.
    #[diesel(sql_type = Text)]
    row_key: String,
}

#[derive(QueryableByName)]
struct Found {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = BigInt)]
    times: i64,
}

const COLUMNS_SQLITE: &str = "SELECT m.name AS in_table, c.name AS name, k.name AS row_key FROM sqlite_master m \
     JOIN pragma_table_info(m.name) c ON upper(c.type) = 'TEXT' JOIN pragma_table_info(m.name) k ON k.cid = 0 \
     WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY 1, 2";
const COLUMNS_POSTGRES: &str = "SELECT c.table_name::text AS in_table, c.column_name::text AS name, \
     k.column_name::text AS row_key FROM information_schema.columns c JOIN information_schema.columns k \
     ON k.table_schema = c.table_schema AND k.table_name = c.table_name AND k.ordinal_position = 1 \
     WHERE c.table_schema = current_schema() AND c.data_type IN ('text', 'character varying') ORDER BY 1, 2";

/// Looks for `given`, and for every secret that `master` opens.
pub(super) fn find(db: &mut Db, master: &MasterKey, given: &[SecretString]) -> Result<Vec<Violation>, Fault> {
    let mut values: Vec<String> = given.iter().map(|value| value.expose_secret().to_owned()).collect();
    values.extend(sealed(db, master)?);
    // As it stands inside a JSON text.
    let escaped: Vec<String> = values.iter().map(|value| in_json(value)).collect();
    values.extend(escaped);
    values.retain(|value| value.len() >= SHORTEST);
    values.sort_unstable();
    values.dedup();
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let (columns, holds) = match db.kind() {
        Kind::Sqlite => (COLUMNS_SQLITE, "instr"),
        Kind::Postgres => (COLUMNS_POSTGRES, "strpos"),
    };
    let columns: Vec<Column> = diesel::sql_query(columns).load(db)?;
    let mut found = Vec::new();
    let written = columns.into_iter().filter(|column| column.name != TYPED);
    for Column {
        in_table,
        name,
        row_key,
    } in written
    {
        let query = format!(
            "SELECT CAST(min(\"{row_key}\") AS TEXT) AS id, count(*) AS times FROM \"{in_table}\" \
             WHERE {holds}(\"{name}\", $1) > 0 HAVING count(*) > 0"
        );
        for value in &values {
            let rows: Vec<Found> = diesel::sql_query(&query).bind::<Text, _>(value).load(db)?;
            found.extend(rows.into_iter().map(|row| Violation {
                law: "promise 8",
                rule: "a secret stands in no text",
                row: format!("{in_table} {}", row.id),
                detail: format!("column {name}, {} rows", row.times),
            }));
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The value between the quotes of its JSON.
fn in_json(value: &str) -> String {
    serde_json::Value::from(value).to_string().trim_matches('"').to_owned()
}

type SecretRow = (
    Id<AccountId>,
    Option<Id<EnvironmentId>>,
    Option<Id<VaultId>>,
    String,
    Vec<u8>,
    Vec<u8>,
);

/// What the database keeps sealed. A key that does not open one row opens none; then only the given values are looked
/// for.
fn sealed(db: &mut Db, master: &MasterKey) -> Result<Vec<String>, Fault> {
    let rows: Vec<SecretRow> = secrets::table
        .select((
            secrets::account_id,
            secrets::environment_id,
            secrets::vault_id,
            secrets::key,
            secrets::sealed,
            secrets::nonce,
        ))
        .load(db)?;
    let mut values = Vec::new();
    for (account, environment, vault, name, sealed, nonce) in rows {
        let home = match (environment, vault) {
            (Some(id), None) => SecretHome::Environment(id.0),
            (None, Some(id)) => SecretHome::Vault(id.0),
            _ => continue,
        };
        let wrapped: Option<(Vec<u8>, Vec<u8>)> = data_keys::table
            .find(key(account.0))
            .select((data_keys::wrapped_key, data_keys::nonce))
            .first(db)
            .optional()?;
        let Some((wrapped, wrapping_nonce)) = wrapped else {
            continue;
        };
        let wrapped = Sealed {
            nonce: wrapping_nonce,
            sealed: wrapped,
        };
        let Ok(data_key) = master.unwrap_data_key(account.0, &wrapped) else {
            continue;
        };
        let identity = Identity {
            account: account.0,
            home,
            key: &name,
        };
        if let Ok(value) = data_key.open(&Sealed { nonce, sealed }, &identity) {
            values.push(value.expose_secret().to_owned());
        }
    }
    Ok(values)
}
