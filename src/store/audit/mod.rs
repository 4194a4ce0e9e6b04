//! The auditor's half that reads rows: whether what stands in the database keeps the promises (DESIGN 1, 9).
//!
//! Every check is a query for the rows that break it ([`checks`]), so an honest database answers nothing. All of them run
//! in one snapshot: they hold at every commit, whoever works meanwhile. Nothing here writes. The other half compares the
//! journal with a provider's own log (`tests/audit`) and starts from [`facts`]. Run by `fountain audit` and at the end of
//! every integration test.

mod checks;
pub mod facts;
mod leaks;

use diesel::QueryableByName;
use diesel::sql_types::Text;
use secrecy::SecretString;

use fountain_actors::ports::store::StoreError;

use super::SqlStore;
use super::backend::{Access, Db, Fault, Kind};
pub use facts::Facts;

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Violation {
    /// The number of the specification: `INV-56`, `promise 8`.
    pub law: &'static str,
    /// What should hold.
    pub rule: &'static str,
    /// The row that breaks it: table and key.
    pub row: String,
    /// What it says instead. Never a secret.
    pub detail: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ({}: {})", self.law, self.rule, self.row, self.detail)
    }
}

/// What every check selects.
#[derive(QueryableByName)]
struct Broken {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Text)]
    detail: String,
}

/// Rows of one check that are told; one row says it all, and a sweep that went wrong breaks thousands.
const MOST: usize = 20;

impl SqlStore {
    /// Looks at every row. `secrets` are values that may stand in no text (promise 8); those that the database itself
    /// keeps sealed are added when the master key opens them.
    ///
    /// # Errors
    /// The database does not answer, or its schema is not this build's.
    pub async fn audit_rows(&self, secrets: Vec<SecretString>) -> Result<Vec<Violation>, StoreError> {
        let master = self.inner.master_key.clone();
        self.run("audit.rows", Access::Snapshot, move |db| {
            let mut found = run_all(db)?;
            found.extend(leaks::find(db, &master, &secrets)?);
            Ok(found)
        })
        .await
    }

    /// What the journal and the rows say about the machines, for comparing with a provider's own account.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn audit_facts(&self) -> Result<Facts, StoreError> {
        self.run("audit.facts", Access::Snapshot, facts::read).await
    }
}

fn run_all(db: &mut Db) -> Result<Vec<Violation>, Fault> {
    use diesel::RunQueryDsl as _;
    let late = match db.kind() {
        Kind::Sqlite => "(julianday(earlier) - julianday(later)) * 86400 > 60",
        Kind::Postgres => "earlier > later + interval '60 seconds'",
    };
    let mut found = Vec::new();
    for check in checks::ALL {
        let query = format!("{} LIMIT {MOST}", check.broken.replace("{later_by_a_minute}", late));
        let rows: Vec<Broken> = diesel::sql_query(query).load(db)?;
        found.extend(rows.into_iter().map(|row| Violation {
            law: check.law,
            rule: check.rule,
            row: format!("{} {}", check.table, row.id),
            detail: row.detail,
        }));
    }
    Ok(found)
}
