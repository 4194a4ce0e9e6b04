//! The schema: up, down, up again, and that `schema.rs` says what is really there.

use std::collections::BTreeMap;

use diesel::prelude::*;
use diesel::sql_types::{Bool, Text};
use diesel_migrations::{FileBasedMigrations, MigrationHarness};
use r2d2::ManageConnection as _;
use secrecy::SecretString;

use fountain::store::backend::{Db, Kind, Manager, Target, Tls, Use};
use fountain::store::{OpenError, SqlStore};

use crate::support::{Backend, Database, config};

fn connect(url: &str) -> Db {
    let target = Target::parse(&SecretString::from(url.to_owned()), &Tls::default()).unwrap();
    Manager::new(target, Use::Anything, None).connect().unwrap()
}

/// Empty databases without a schema, each with what keeps it alive.
fn empty() -> Vec<(String, Box<dyn std::any::Any>)> {
    let files = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", files.path().join("fountain.db").display());
    let mut all: Vec<(String, Box<dyn std::any::Any>)> = vec![(url, Box::new(files))];
    if let Some(database) = Database::empty() {
        all.push((database.url(), Box::new(database)));
    }
    all
}

#[derive(QueryableByName, Debug)]
struct Column {
    #[diesel(sql_type = Text)]
    table_name: String,
    #[diesel(sql_type = Text)]
    column_name: String,
    #[diesel(sql_type = Text)]
    data_type: String,
    #[diesel(sql_type = Bool)]
    required: bool,
}

/// Bookkeeping of diesel and SQLite left out: table -> column -> type, as the database tells it, with `?` behind what may be null.
fn real_schema(db: &mut Db) -> BTreeMap<String, BTreeMap<String, String>> {
    let sqlite = "SELECT m.name AS table_name, c.name AS column_name, c.type AS data_type, c.\"notnull\" AS required \
         FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table' \
         AND m.name NOT LIKE '\\_\\_diesel%' ESCAPE '\\' AND m.name NOT LIKE 'sqlite%'";
    let postgres = "SELECT table_name::text, column_name::text, data_type::text, is_nullable = 'NO' AS required \
         FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE '\\_\\_diesel%' ESCAPE '\\'";
    let columns: Vec<Column> = match db {
        Db::Sqlite(conn) => diesel::sql_query(sqlite).load(conn).unwrap(),
        Db::Postgres(conn) => diesel::sql_query(postgres).load(conn).unwrap(),
    };
    let mut tables: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for column in columns {
        let told = match column.data_type.to_ascii_lowercase().as_str() {
            "text" => "Text",
            "timestamp" | "timestamp without time zone" => "Timestamp",
            "boolean" => "Bool",
            "bigint" | "integer" => "BigInt",
            "blob" | "bytea" => "Binary",
            other => panic!("{} has a type that the schema never uses: {other}", column.column_name),
        };
        let told = if column.required {
            told.to_owned()
        } else {
            format!("{told}?")
        };
        tables
            .entry(column.table_name)
            .or_default()
            .insert(column.column_name, told);
    }
    tables
}

/// The same, as `schema.rs` says it.
fn declared_schema() -> BTreeMap<String, BTreeMap<String, String>> {
    let mut tables: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut table = String::new();
    for line in include_str!("../../src/store/schema.rs").lines() {
        let line = line.trim();
        if let Some((name, _)) = line.split_once(" (").filter(|_| line.ends_with(") {")) {
            table = name.to_owned();
        } else if let Some((column, kind)) = line.trim_end_matches(',').split_once(" -> ") {
            if line.starts_with("diesel::") {
                continue;
            }
            let told = match kind.strip_prefix("Nullable<") {
                Some(inner) => format!("{}?", inner.trim_end_matches('>')),
                None => kind.to_owned(),
            };
            tables.entry(table.clone()).or_default().insert(column.to_owned(), told);
        }
    }
    tables
}

#[actix::test]
async fn the_schema_goes_up_down_and_up_again_and_is_what_the_code_thinks() {
    for (url, _kept) in empty() {
        let store = SqlStore::open(config(&url)).unwrap();
        let pending = store.pending_migrations().await.unwrap();
        assert!(!pending.is_empty());
        assert_eq!(store.migrate().await.unwrap().len(), pending.len());
        assert!(store.pending_migrations().await.unwrap().is_empty());
        assert!(
            store.migrate().await.unwrap().is_empty(),
            "a second run has nothing to do"
        );

        let declared = declared_schema();
        assert!(
            declared.len() > 15,
            "the reader of schema.rs found {} tables",
            declared.len()
        );
        let real = real_schema(&mut connect(&url));
        assert_eq!(real, declared, "{:?}", store.kind());

        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        match connect(&url) {
            Db::Sqlite(mut conn) => {
                let files = FileBasedMigrations::from_path(root.join("sqlite")).unwrap();
                conn.revert_all_migrations(files).unwrap();
            }
            Db::Postgres(mut conn) => {
                let files = FileBasedMigrations::from_path(root.join("postgres")).unwrap();
                conn.revert_all_migrations(files).unwrap();
            }
        }
        assert!(real_schema(&mut connect(&url)).is_empty(), "down leaves nothing behind");
        assert_eq!(store.migrate().await.unwrap().len(), pending.len());
        assert_eq!(real_schema(&mut connect(&url)), declared);
    }
}

#[actix::test]
async fn replicas_that_start_together_migrate_once() {
    for (url, _kept) in empty() {
        let stores: Vec<SqlStore> = (0..4).map(|_| SqlStore::open(config(&url)).unwrap()).collect();
        let answers = futures_util::future::join_all(stores.iter().map(SqlStore::migrate)).await;
        let mut applied: Vec<usize> = answers.into_iter().map(|answer| answer.unwrap().len()).collect();
        applied.sort_unstable();
        assert_eq!(applied[..3], [0, 0, 0]);
        assert!(applied[3] > 0);
        assert_eq!(real_schema(&mut connect(&url)), declared_schema());
    }
}

#[actix::test]
async fn rul_30_one_process_serves_a_file_and_lets_go_of_it() {
    let db = Backend::sqlite(|_| {}).await;
    let held = db.store.serving_lock().unwrap();
    assert!(held.is_some());
    let other = SqlStore::open(config(&db.url())).unwrap();
    assert!(matches!(other.serving_lock(), Err(OpenError::InUse(_))));
    drop(held);
    assert!(other.serving_lock().unwrap().is_some());
    if let Some(db) = Backend::postgres().await {
        assert!(
            db.store.serving_lock().unwrap().is_none(),
            "many processes share PostgreSQL"
        );
    }
}

#[actix::test]
async fn a_store_in_memory_is_one_database_for_everybody() {
    use fountain_actors::ports::store::AccountStore;
    let store = SqlStore::open(config("sqlite::memory:")).unwrap();
    assert_eq!(store.kind(), Kind::Sqlite);
    store.migrate().await.unwrap();
    assert!(store.pending_migrations().await.unwrap().is_empty());
    let (one, two) = futures_util::join!(store.count_accounts(), store.count_accounts());
    assert_eq!((one.unwrap(), two.unwrap()), (0, 0));
    store.answers().await.unwrap();
}
