//! Secrets at rest: what is written, what is opened again, and that nothing ever shows one.

use diesel::prelude::*;
use secrecy::ExposeSecret;

use fountain::store::schema::{data_keys, secrets};
use fountain::store::secrets::MasterKey;
use fountain::store::{SqlStore, StoreConfig};
use fountain_actors::domain::environment::{EnvironmentConfig, SecretHome};
use fountain_actors::domain::*;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::catalog::{CatalogStore, NewVault};

use crate::support::{Backend, Dice, audit, audited, config, id, not_found};

const VALUE: &str = "hunter2-\u{1f511}-value";

struct Homes {
    account: AccountId,
    environment: EnvironmentId,
    vault: VaultId,
}

async fn homes(db: &Backend) -> Homes {
    let account = db.account().await.id;
    let environment = db
        .store
        .create_environment(
            account,
            id(),
            EnvironmentConfig::named("e"),
            audit(account, "x"),
            db.tick(),
        )
        .await
        .unwrap()
        .id;
    let vault = NewVault {
        name: "v".into(),
        description: String::new(),
        metadata: Default::default(),
    };
    let vault = db
        .store
        .create_vault(account, id(), vault, audit(account, "x"), db.tick())
        .await
        .unwrap()
        .id;
    Homes {
        account,
        environment,
        vault,
    }
}

async fn put(db: &Backend, of: &Homes, home: SecretHome, key: &str, value: &str) {
    let entry = audit(of.account, "secret.put");
    let put = db.store.put_secret(
        of.account,
        home,
        key.into(),
        value.to_owned().into(),
        None,
        entry,
        db.tick(),
    );
    put.await.unwrap();
}

/// All sealed bytes of the database.
fn sealed(db: &Backend) -> Vec<Vec<u8>> {
    secrets::table
        .select(secrets::sealed)
        .order(secrets::id)
        .load(&mut db.raw())
        .unwrap()
}

#[actix::test]
async fn a_machine_gets_the_values_and_the_database_never_has_them() {
    for db in Backend::all().await {
        let of = homes(&db).await;
        put(&db, &of, SecretHome::Environment(of.environment), "TOKEN", VALUE).await;
        put(&db, &of, SecretHome::Vault(of.vault), "TOKEN", "of the vault").await;
        let bundle = db
            .store
            .secret_bundle(of.account, Some(of.environment), Some(of.vault))
            .await
            .unwrap();
        assert_eq!(bundle.environment["TOKEN"].expose_secret(), VALUE);
        assert_eq!(bundle.vault["TOKEN"].expose_secret(), "of the vault");
        assert!(!format!("{bundle:?}").contains("hunter2"));
        for bytes in sealed(&db) {
            assert!(!bytes.windows(7).any(|part| part == b"hunter2"));
        }
        let only = db.store.secret_bundle(of.account, None, Some(of.vault)).await.unwrap();
        assert!(only.environment.is_empty());
        let none = db.store.secret_bundle(of.account, None, None).await.unwrap();
        assert!(none.environment.is_empty() && none.vault.is_empty());
    }
}

#[actix::test]
async fn a_secret_is_replaced_by_key_keeps_its_id_and_goes() {
    for db in Backend::all().await {
        let of = homes(&db).await;
        let home = SecretHome::Vault(of.vault);
        let expiry = db.tick();
        let entry = || audit(of.account, "secret.put");
        let value = |text: &str| text.to_owned().into();
        let first = db
            .store
            .put_secret(
                of.account,
                home,
                "B".into(),
                value("1"),
                Some(expiry),
                entry(),
                db.tick(),
            )
            .await
            .unwrap();
        assert_eq!(
            (first.key.as_str(), first.home, first.expires_at),
            ("B", home, Some(expiry))
        );
        let again = db
            .store
            .put_secret(of.account, home, "B".into(), value("2"), None, entry(), db.tick())
            .await
            .unwrap();
        assert_eq!(
            (again.id, again.inserted_at, again.expires_at),
            (first.id, first.inserted_at, None)
        );
        assert!(again.updated_at > first.updated_at);
        put(&db, &of, home, "A", "3").await;
        let list = db.store.secrets(of.account, home).await.unwrap();
        let keys: Vec<&str> = list.iter().map(|secret| secret.key.as_str()).collect();
        assert_eq!(keys, ["A", "B"]);
        assert_eq!(
            db.store
                .vault(of.account, of.vault)
                .await
                .unwrap()
                .unwrap()
                .secret_count,
            2
        );
        let bundle = db.store.secret_bundle(of.account, None, Some(of.vault)).await.unwrap();
        assert_eq!(bundle.vault["B"].expose_secret(), "2");

        let later = db.tick();
        let set = db
            .store
            .set_secret_expiry(of.account, home, "B".into(), Some(later), db.tick())
            .await
            .unwrap();
        assert_eq!((set.id, set.expires_at), (first.id, Some(later)));
        not_found(
            db.store
                .set_secret_expiry(of.account, home, "C".into(), None, db.tick())
                .await,
        );

        db.store
            .delete_secret(
                of.account,
                home,
                "B".into(),
                audit(of.account, "secret.deleted"),
                db.tick(),
            )
            .await
            .unwrap();
        not_found(
            db.store
                .delete_secret(of.account, home, "B".into(), entry(), db.tick())
                .await,
        );
        assert_eq!(db.store.secrets(of.account, home).await.unwrap().len(), 1);
        assert_eq!(
            audited(&db, of.account).last().map(String::as_str),
            Some("secret.deleted")
        );
    }
}

#[actix::test]
async fn secrets_go_with_their_home() {
    for db in Backend::all().await {
        let of = homes(&db).await;
        put(&db, &of, SecretHome::Environment(of.environment), "A", "1").await;
        put(&db, &of, SecretHome::Vault(of.vault), "A", "2").await;
        db.store
            .delete_environment(of.account, of.environment, audit(of.account, "x"), db.tick())
            .await
            .unwrap();
        db.store
            .delete_vault(of.account, of.vault, audit(of.account, "x"), db.tick())
            .await
            .unwrap();
        assert!(sealed(&db).is_empty());
        not_found(db.store.secret_bundle(of.account, Some(of.environment), None).await);
    }
}

#[track_caller]
fn does_not_open<T>(answer: Result<T, StoreError>) {
    let Err(error) = answer else { panic!("it opened") };
    assert!(matches!(error, StoreError::Internal { .. }), "{error:?}");
    for text in [
        error.to_string(),
        format!("{error:?}"),
        format!("{:?}", error.refusal()),
    ] {
        assert!(!text.contains("hunter2") && !text.contains("TOKEN"), "{text}");
    }
}

#[actix::test]
async fn a_changed_or_moved_row_opens_nothing_and_shows_nothing() {
    for db in Backend::all().await {
        let of = homes(&db).await;
        let theirs = homes(&db).await;
        put(&db, &of, SecretHome::Vault(of.vault), "TOKEN", VALUE).await;
        put(&db, &of, SecretHome::Environment(of.environment), "TOKEN", "other").await;
        put(&db, &theirs, SecretHome::Vault(theirs.vault), "TOKEN", "theirs").await;
        let in_vault = |vault: VaultId| secrets::table.filter(secrets::vault_id.eq(vault.to_string()));
        let read = |vault: VaultId| {
            in_vault(vault)
                .select((secrets::sealed, secrets::nonce))
                .first::<(Vec<u8>, Vec<u8>)>(&mut db.raw())
                .unwrap()
        };
        let write = |vault: VaultId, (sealed, nonce): (Vec<u8>, Vec<u8>)| {
            diesel::update(in_vault(vault))
                .set((secrets::sealed.eq(sealed), secrets::nonce.eq(nonce)))
                .execute(&mut db.raw())
                .unwrap();
        };
        let open = || db.store.secret_bundle(of.account, None, Some(of.vault));
        let good = read(of.vault);

        let mut flipped = good.clone();
        flipped.0[0] ^= 1;
        write(of.vault, flipped);
        does_not_open(open().await);
        write(of.vault, (vec![], vec![]));
        does_not_open(open().await);

        let environment_row: (Vec<u8>, Vec<u8>) = secrets::table
            .filter(secrets::environment_id.eq(of.environment.to_string()))
            .select((secrets::sealed, secrets::nonce))
            .first(&mut db.raw())
            .unwrap();
        write(of.vault, environment_row);
        does_not_open(open().await);
        write(of.vault, read(theirs.vault));
        does_not_open(open().await);

        write(of.vault, good);
        assert_eq!(
            open().await.unwrap().vault["TOKEN"].expose_secret(),
            VALUE,
            "the row itself still opens"
        );

        // Another account's data key in place of one's own.
        let foreign: (Vec<u8>, Vec<u8>) = data_keys::table
            .find(theirs.account.to_string())
            .select((data_keys::wrapped_key, data_keys::nonce))
            .first(&mut db.raw())
            .unwrap();
        diesel::update(data_keys::table.find(of.account.to_string()))
            .set((data_keys::wrapped_key.eq(foreign.0), data_keys::nonce.eq(foreign.1)))
            .execute(&mut db.raw())
            .unwrap();
        does_not_open(open().await);
    }
}

#[actix::test]
async fn another_master_key_opens_nothing_and_a_deleted_data_key_shreds() {
    for db in Backend::all().await {
        let of = homes(&db).await;
        put(&db, &of, SecretHome::Vault(of.vault), "TOKEN", VALUE).await;
        let other = SqlStore::open(StoreConfig {
            master_key: MasterKey::parse(&MasterKey::generate(&Dice)).unwrap(),
            ..config(&db.url())
        })
        .unwrap();
        does_not_open(other.secret_bundle(of.account, None, Some(of.vault)).await);
        diesel::delete(data_keys::table.find(of.account.to_string()))
            .execute(&mut db.raw())
            .unwrap();
        not_found(db.store.secret_bundle(of.account, None, Some(of.vault)).await);
    }
}

#[test]
fn neither_store_nor_configuration_prints_what_it_was_given() {
    let config = StoreConfig::new(
        "postgres://user:hunter2@127.0.0.1:1/x".to_owned().into(),
        crate::support::master_key(),
        std::sync::Arc::new(Dice),
    );
    assert!(!format!("{:?} {:?}", config.master_key, config.url).contains("hunter2"));
    // Nothing listens there: what libpq says about it must not hold the password.
    let error = SqlStore::open(config).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("127.0.0.1") && !shown.contains("hunter2"), "{shown}");
}
