//! What can go wrong inside a verb, before it is a [`StoreError`] that names the verb.

use diesel::result::{DatabaseErrorKind, Error};

use fountain_actors::domain::{ErrorCode, Refusal};
use fountain_actors::ports::store::StoreError;

/// An error inside a transaction. Either a verdict of the verb, or the database's.
#[derive(Debug)]
pub enum Fault {
    Verdict(StoreError),
    Query(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Query(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Verdict(error)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Verdict(refusal.into())
    }
}

impl From<ErrorCode> for Fault {
    fn from(code: ErrorCode) -> Self {
        Self::Verdict(code.into())
    }
}

impl Fault {
    /// The row is missing, or another account's.
    pub fn not_found(what: &'static str) -> Self {
        Self::Verdict(StoreError::NotFound(what))
    }

    /// A bug, or a row that cannot be read. `detail` never holds values.
    pub fn internal(op: &'static str, detail: impl Into<String>) -> Self {
        Self::Verdict(StoreError::Internal {
            op,
            detail: detail.into(),
        })
    }
}

/// Whether `error` is the refusal of one unique index. SQLite names the columns of an index (`table.a, table.b`) or
/// the index itself when it is over expressions; PostgreSQL names the index.
pub fn violated(error: &Error, index: &str, columns: &str) -> bool {
    let Error::DatabaseError(DatabaseErrorKind::UniqueViolation, info) = error else {
        return false;
    };
    match info.constraint_name() {
        Some(name) => name == index,
        None => {
            let said = info.message();
            said.ends_with(columns) || said.ends_with(&format!("'{index}'"))
        }
    }
}

/// Sentences of both databases for states that pass: the disk is full, somebody else is busy, the server goes.
///
/// The drivers give no code for these (diesel keeps the SQLSTATE of a few kinds only), so the words have to do. A
/// server whose messages are translated falls back to `Internal`, which is a worse answer but not a wrong one.
const PASSING: &[&str] = &[
    // SQLite
    "database is locked",
    "database table is locked",
    "database or disk is full",
    "disk i/o error",
    "unable to open database file",
    "attempt to write a readonly database",
    // PostgreSQL
    "lock timeout",
    "statement timeout",
    "deadlock detected",
    "no space left on device",
    "disk full",
    "terminating connection",
    "the database system is",
    "remaining connection slots",
    "too many clients",
    "too many connections",
    "cannot execute",
    "server closed the connection",
    "connection to server",
    "no connection to the server",
    "out of shared memory",
    "ssl connection has been closed",
    "could not receive data from server",
    "could not send data to server",
];

fn passes(error: &Error) -> bool {
    match error {
        Error::DatabaseError(kind, info) => match kind {
            DatabaseErrorKind::ClosedConnection
            | DatabaseErrorKind::UnableToSendCommand
            | DatabaseErrorKind::SerializationFailure
            | DatabaseErrorKind::ReadOnlyTransaction => true,
            DatabaseErrorKind::Unknown => {
                let said = info.message().to_ascii_lowercase();
                PASSING.iter().any(|known| said.contains(known))
            }
            _ => false,
        },
        // A commit or rollback that failed for a passing reason is passing.
        Error::RollbackErrorOnCommit { commit_error, .. } => passes(commit_error),
        Error::BrokenTransactionManager => true,
        _ => false,
    }
}

/// Whether `fault` says that a lock was not had in time.
pub(super) fn is_lock_timeout(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(DatabaseErrorKind::Unknown, info) if info.message().contains("lock timeout"))
}

/// The error that the port promises. The database's message names tables and constraints, never values: PostgreSQL
/// puts those into the detail, which is not taken.
pub fn classify(op: &'static str, fault: Fault) -> StoreError {
    match fault {
        Fault::Verdict(error) => error,
        Fault::Query(error) if passes(&error) => StoreError::Unavailable {
            op,
            detail: error.to_string(),
        },
        Fault::Query(error) => StoreError::Internal {
            op,
            detail: error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kind: DatabaseErrorKind, message: &str) -> Error {
        Error::DatabaseError(kind, Box::new(message.to_owned()))
    }

    #[test]
    fn rul_31_a_full_disk_is_worth_another_try_and_a_broken_rule_is_not() {
        let full = said(DatabaseErrorKind::Unknown, "database or disk is full");
        assert!(classify("x", full.into()).is_transient());
        let check = said(DatabaseErrorKind::CheckViolation, "CHECK constraint failed");
        assert!(!classify("x", check.into()).is_transient());
    }

    #[test]
    fn a_unique_index_is_told_from_another_one() {
        let error = said(
            DatabaseErrorKind::UniqueViolation,
            "UNIQUE constraint failed: agents.account_id, agents.name",
        );
        assert!(violated(&error, "agents_name", "agents.account_id, agents.name"));
        assert!(!violated(&error, "vaults_name", "vaults.account_id, vaults.name"));
        let error = said(
            DatabaseErrorKind::UniqueViolation,
            "UNIQUE constraint failed: index 'accounts_email'",
        );
        assert!(violated(&error, "accounts_email", "-"));
    }
}
