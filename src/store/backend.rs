//! One connection type over both databases, and what differs between them: opening, transactions, locks, clocks,
//! and which of their errors mean "try again".
//!
//! The backend is chosen by the scheme of the URL and by nothing else: the derived `establish` would try each in turn
//! and hide the real error (toolchain 1.3). Nothing here knows a table of the domain. Locks follow lifecycle 1.8,
//! RUL-L-9 and RUL-23; the lease clock RUL-29; TLS RUL-32.

mod connect;
mod fault;
mod locks;

pub use connect::{ConnectFailed, Manager, Target, Tls, Use};
pub use fault::{Fault, violated};
pub use locks::{lease_clock, lock_account, lock_events, lock_fleet, lock_machine, lock_queue};

pub(super) use connect::migration_connection;
pub(super) use fault::classify;
pub(super) use locks::MIGRATIONS;

use diesel::connection::{AnsiTransactionManager, TransactionManager};
use diesel::pg::PgConnection;
use diesel::sqlite::SqliteConnection;

/// A connection to whichever database this process uses.
#[derive(diesel::MultiConnection)]
pub enum Db {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

impl Db {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Sqlite(_) => Kind::Sqlite,
            Self::Postgres(_) => Kind::Postgres,
        }
    }
}

/// Expands one expression per backend, for what does not compile through the multi connection: upserts, batches,
/// row locks (toolchain 1.3).
#[macro_export]
macro_rules! on_backend {
    ($db:expr, |$conn:ident| $query:expr) => {
        match $db {
            $crate::store::backend::Db::Sqlite($conn) => $query,
            $crate::store::backend::Db::Postgres($conn) => $query,
        }
    };
}

/// Loads rows and locks them where rows can be locked: `FOR NO KEY UPDATE`, never `FOR UPDATE` (RUL-23). SQLite has
/// one writer and needs no lock. The terminal method (`first`, `load`, …) is named last.
#[macro_export]
macro_rules! locked {
    ($db:expr, $method:ident, $query:expr) => {
        match $db {
            $crate::store::backend::Db::Sqlite(conn) => $query.$method(conn),
            $crate::store::backend::Db::Postgres(conn) => $query.for_no_key_update().$method(conn),
        }
    };
}

/// What a verb does to the database, and so which connection and transaction it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One statement; no transaction.
    Read,
    /// Several statements that must see the same moment; nothing is written.
    Snapshot,
    /// A transaction. On SQLite it takes the write lock at once, so it cannot fail half way for being late.
    Write,
}

/// Runs `work` in the transaction that `access` asks for. An error rolls everything back.
pub(super) fn transact<T>(
    db: &mut Db,
    access: Access,
    work: impl FnOnce(&mut Db) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let begin = match (access, db.kind()) {
        (Access::Read, _) => return work(db),
        (Access::Snapshot, Kind::Sqlite) => "BEGIN",
        (Access::Snapshot, Kind::Postgres) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        (Access::Write, Kind::Sqlite) => "BEGIN IMMEDIATE",
        (Access::Write, Kind::Postgres) => "BEGIN",
    };
    on_backend!(db, |conn| AnsiTransactionManager::begin_transaction_sql(
        &mut *conn, begin
    ))?;
    match work(db) {
        Ok(value) => {
            on_backend!(db, |conn| AnsiTransactionManager::commit_transaction(&mut *conn))?;
            Ok(value)
        }
        Err(fault) => {
            // When the rollback fails too, the connection counts as broken and the pool drops it; why the work
            // failed is what the caller needs.
            let _ = on_backend!(db, |conn| AnsiTransactionManager::rollback_transaction(&mut *conn));
            Err(fault)
        }
    }
}
