//! Embedded migrations, and the lock of a serving process beside an SQLite file (STYLE 8, RUL-30).
//!
//! The same names in the same order on both databases. Several replicas may start at once: on PostgreSQL the first one
//! migrates under a session lock while the others wait for it, on SQLite one write transaction does the same. A
//! database is never migrated down by this program.

use std::fs::{File, OpenOptions, TryLockError};

use diesel::prelude::*;
use diesel::sql_types::Integer;
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};

use super::backend::{Db, Kind, MIGRATIONS as LOCK, Target, migration_connection};
use super::{Execution, OpenError, SqlStore};

const SQLITE: EmbeddedMigrations = embed_migrations!("migrations/sqlite");
const POSTGRES: EmbeddedMigrations = embed_migrations!("migrations/postgres");

fn failed(error: impl std::fmt::Display) -> OpenError {
    OpenError::Migrate(error.to_string())
}

/// Applies what is pending and answers its names, oldest first.
fn apply(db: &mut Db) -> Result<Vec<String>, OpenError> {
    match db {
        Db::Sqlite(conn) => conn.immediate_transaction(|conn| {
            let done = conn.run_pending_migrations(SQLITE).map_err(Failed::Migration)?;
            Ok::<_, Failed>(done.iter().map(ToString::to_string).collect())
        }),
        Db::Postgres(conn) => {
            // Held by the session, so that a future migration may run outside a transaction; let go when it closes.
            diesel::sql_query("SELECT pg_advisory_lock($1, 0)")
                .bind::<Integer, _>(LOCK)
                .execute(conn)
                .map_err(failed)?;
            let done = conn.run_pending_migrations(POSTGRES).map_err(Failed::Migration);
            done.map(|done| done.iter().map(ToString::to_string).collect())
        }
    }
    .map_err(failed)
}

fn pending(db: &mut Db) -> Result<Vec<String>, OpenError> {
    let names = match db {
        Db::Sqlite(conn) => names(conn.pending_migrations(SQLITE).map_err(failed)?),
        Db::Postgres(conn) => names(conn.pending_migrations(POSTGRES).map_err(failed)?),
    };
    Ok(names)
}

fn names<B: diesel::backend::Backend>(migrations: Vec<Box<dyn diesel::migration::Migration<B>>>) -> Vec<String> {
    migrations
        .iter()
        .map(|migration| migration.name().to_string())
        .collect()
}

/// Why a migration failed inside its transaction.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Query(#[from] diesel::result::Error),
    #[error("{0}")]
    Migration(Box<dyn std::error::Error + Send + Sync>),
}

/// Held while a process serves an SQLite file: proof that no other one does, so that every lease in it is dead
/// (RUL-30). Let go when it is dropped, and by the system when the process dies.
#[derive(Debug)]
pub struct ServingLock {
    _file: File,
}

impl SqlStore {
    /// Brings the schema up to date. Answers which migrations were applied. Safe to call from several replicas at once.
    ///
    /// # Errors
    /// `Connect` and `Migrate`.
    pub async fn migrate(&self) -> Result<Vec<String>, OpenError> {
        self.on_migration_connection(apply).await
    }

    /// Names of migrations that this build knows and the database does not.
    ///
    /// # Errors
    /// `Connect` and `Migrate`.
    pub async fn pending_migrations(&self) -> Result<Vec<String>, OpenError> {
        self.on_migration_connection(pending).await
    }

    async fn on_migration_connection<T: Send + 'static>(
        &self,
        work: fn(&mut Db) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let target = self.inner.target.clone();
        let pool = self.inner.writer.pool.clone();
        let work = move || match target {
            // The pool's connection is the database.
            Target::Memory => work(&mut *pool.get().map_err(failed)?),
            target => work(&mut migration_connection(&target)?),
        };
        match self.inner.execution {
            Execution::Inline => work(),
            Execution::Blocking => actix_web::web::block(work).await.map_err(failed)?,
        }
    }

    /// Claims the database file for this process. None where there is no file: PostgreSQL is shared by design.
    ///
    /// # Errors
    /// `InUse` while another process holds it.
    pub fn serving_lock(&self) -> Result<Option<ServingLock>, OpenError> {
        let Target::File(path) = &self.inner.target else {
            return Ok(None);
        };
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let shown = path.to_string_lossy().into_owned();
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&name)
            .map_err(|e| OpenError::Connect(super::backend::ConnectFailed(format!("lock file of {shown}: {e}"))))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(ServingLock { _file: file })),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse(shown)),
            Err(TryLockError::Error(e)) => Err(OpenError::Connect(super::backend::ConnectFailed(format!(
                "lock file of {shown}: {e}"
            )))),
        }
    }

    /// Whether leases of other incarnations are dead at boot: only where one process alone serves (RUL-30).
    pub fn is_single_process(&self) -> bool {
        self.kind() == Kind::Sqlite
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_databases_have_the_same_migrations() {
        use diesel::migration::MigrationSource;
        let sqlite = MigrationSource::<diesel::sqlite::Sqlite>::migrations(&SQLITE).expect("they are embedded");
        let postgres = MigrationSource::<diesel::pg::Pg>::migrations(&POSTGRES).expect("they are embedded");
        assert_eq!(names(sqlite), names(postgres));
    }
}
