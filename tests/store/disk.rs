//! A database that fails: full disk, cut connections, a server that is gone (RUL-9, RUL-31).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel::connection::SimpleConnection;

use fountain::store::SqlStore;
use fountain::store::backend::Db;
use fountain_actors::domain::*;
use fountain_actors::ports::store::catalog::{CatalogStore, NewVault};
use fountain_actors::ports::store::{AccountStore, StoreError};

use crate::support::{Backend, audit, config, id};

fn heavy(name: &str) -> NewVault {
    NewVault {
        name: name.into(),
        description: "x".repeat(20_000),
        metadata: Default::default(),
    }
}

#[actix::test]
async fn rul_31_a_full_disk_refuses_writes_serves_reads_and_recovers() {
    let db = Backend::sqlite(|config| config.page_limit = Some(200)).await;
    let account = db.account().await.id;
    let mut made = Vec::new();
    let refusal = loop {
        let new = heavy(&format!("v{}", made.len()));
        match db
            .store
            .create_vault(account, id(), new, audit(account, "vault.created"), db.tick())
            .await
        {
            Ok(vault) => made.push(vault.id),
            Err(error) => break error,
        }
        assert!(made.len() < 200, "the limit of the file does not hold");
    };
    assert!(matches!(refusal, StoreError::Unavailable { .. }), "{refusal:?}");
    assert!(refusal.is_transient());
    assert_eq!(refusal.refusal().code(), ErrorCode::StoreUnavailable);
    db.store.answers().await.unwrap();
    assert_eq!(
        db.store.vaults(account).await.unwrap().len(),
        made.len(),
        "reads go on, half a write is not there"
    );
    db.store
        .delete_vault(account, made[0], audit(account, "vault.deleted"), db.tick())
        .await
        .unwrap();
    db.store
        .create_vault(
            account,
            id(),
            heavy("again"),
            audit(account, "vault.created"),
            db.tick(),
        )
        .await
        .unwrap();
}

#[actix::test]
async fn cut_connections_are_replaced_without_a_failed_verb() {
    let Some(db) = Backend::postgres().await else { return };
    db.account().await;
    let Db::Postgres(mut killer) = db.raw() else {
        unreachable!("it is PostgreSQL")
    };
    killer
        .batch_execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .unwrap();
    db.account().await;
    assert_eq!(db.store.count_accounts().await.unwrap(), 2);
}

#[actix::test]
async fn a_lock_that_is_not_had_in_time_is_unavailable_and_nothing_was_written() {
    let Some(db) = Backend::postgres().await else { return };
    let account = db.account().await.id;
    let vault = db
        .store
        .create_vault(account, id(), heavy("v"), audit(account, "x"), db.tick())
        .await
        .unwrap();
    let Db::Postgres(mut holder) = db.raw() else {
        unreachable!("it is PostgreSQL")
    };
    holder.batch_execute("BEGIN; LOCK TABLE vaults IN SHARE MODE").unwrap();
    let answer = db
        .store
        .delete_vault(account, vault.id, audit(account, "x"), db.tick())
        .await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    holder.batch_execute("ROLLBACK").unwrap();
    db.store
        .delete_vault(account, vault.id, audit(account, "x"), db.tick())
        .await
        .unwrap();
}

#[actix::test]
async fn every_verb_is_measured_and_a_verdict_counts_as_an_answer() {
    let seen: Arc<Mutex<Vec<(&'static str, bool)>>> = Arc::default();
    let log = seen.clone();
    let db = Backend::sqlite(move |config| {
        config.observer = Arc::new(move |op: &'static str, took: Duration, answered: bool| {
            assert!(took < Duration::from_secs(60));
            log.lock().unwrap().push((op, answered));
        });
    })
    .await;
    let account = db.account().await.id;
    db.store
        .delete_vault(account, id(), audit(account, "x"), db.tick())
        .await
        .unwrap_err();
    let Db::Sqlite(mut raw) = db.raw() else {
        unreachable!("it is SQLite")
    };
    raw.batch_execute("DROP TABLE secrets; DROP TABLE vaults").unwrap();
    db.store.vaults(account).await.unwrap_err();
    let expected = [("account.create", true), ("vault.delete", true), ("vault.list", false)];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[actix::test]
async fn a_panic_inside_a_verb_is_an_error_and_the_store_goes_on() {
    let db = Backend::sqlite(|config| {
        config.observer = Arc::new(|_, _, _| {});
        config.rng = Arc::new(Rigged);
    })
    .await;
    let account = db.account().await.id;
    let vault = db
        .store
        .create_vault(account, id(), heavy("v"), audit(account, "x"), db.tick())
        .await
        .unwrap();
    let home = fountain_actors::domain::environment::SecretHome::Vault(vault.id);
    let put = db.store.put_secret(
        account,
        home,
        "A".into(),
        "panic".to_owned().into(),
        None,
        audit(account, "x"),
        db.tick(),
    );
    assert!(matches!(put.await, Err(StoreError::Internal { .. })));
    assert!(db.store.secrets(account, home).await.unwrap().is_empty());
    db.store
        .update_vault(account, vault.id, heavy("w"), audit(account, "x"), db.tick())
        .await
        .unwrap();
}

/// Breaks while the account's secrets are sealed: the third draw after the data key and its nonce.
struct Rigged;

impl fountain_actors::ports::Rng for Rigged {
    fn fill(&self, bytes: &mut [u8]) {
        static DRAWS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        if DRAWS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 2 {
            panic!("the source of randomness broke");
        }
        rand::fill(bytes);
    }
}

#[actix::test]
async fn a_server_that_is_not_there_is_told_at_once() {
    let error = SqlStore::open(config("postgres://u:hunter2@127.0.0.1:1/x")).unwrap_err();
    assert!(!error.to_string().contains("hunter2"));
    let error = SqlStore::open(config("sqlite:///nonexistent-directory/x/fountain.db")).unwrap_err();
    assert!(error.to_string().contains("nonexistent-directory"), "{error}");
}
