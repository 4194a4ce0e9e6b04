//! Accounts and keys.

use fountain_actors::domain::account::{NewApiKey, Scope};
use fountain_actors::domain::*;
use fountain_actors::ports::Rng;
use fountain_actors::ports::store::accounts::{AccountStore, NewAccount};

use crate::support::{Backend, Dice, audit, audited, id, not_found, refused_fields};

fn key_of(account: AccountId, name: &str, scope: Scope) -> NewApiKey {
    let mut sha256 = [0u8; 32];
    Dice.fill(&mut sha256);
    NewApiKey {
        id: id(),
        account_id: account,
        name: name.into(),
        prefix: "ftn_12345678".into(),
        sha256,
        scope,
        expires_at: None,
    }
}

#[actix::test]
async fn an_account_reads_back_and_its_address_is_taken_whatever_its_case() {
    for db in Backend::all().await {
        let now = db.tick();
        let new = |email: &str| NewAccount {
            id: id(),
            email: Some(email.into()),
            email_verified_at: Some(now),
            is_admin: true,
            now,
        };
        let first = db.store.create_account(new("Ada@Example.com")).await.unwrap();
        assert_eq!(first.email_verified_at, Some(now));
        assert!(first.is_admin && first.is_active());
        assert_eq!(db.store.account(first.id).await.unwrap(), Some(first.clone()));
        assert_eq!(
            db.store.account_by_email("aDA@example.com".into()).await.unwrap(),
            Some(first.clone())
        );
        assert_eq!(db.store.account_by_email("ada@example.org".into()).await.unwrap(), None);
        assert_eq!(
            refused_fields(db.store.create_account(new("ADA@example.com")).await),
            ["email"]
        );
        assert_eq!(
            db.store.count_accounts().await.unwrap(),
            1,
            "{:?}: the refused one left nothing",
            db.kind()
        );
        assert_eq!(audited(&db, first.id), ["account.created"]);
    }
}

#[actix::test]
async fn two_accounts_without_an_address_do_not_collide() {
    for db in Backend::all().await {
        for _ in 0..2 {
            let account = NewAccount {
                id: id(),
                email: None,
                email_verified_at: None,
                is_admin: false,
                now: db.tick(),
            };
            db.store.create_account(account).await.unwrap();
        }
        assert_eq!(db.store.count_accounts().await.unwrap(), 2);
        assert_eq!(db.store.account(id()).await.unwrap(), None);
    }
}

#[actix::test]
async fn rul_19_a_key_is_found_by_its_hash_with_its_scope() {
    for db in Backend::all().await {
        let account = db.account().await;
        for scope in [Scope::Full, Scope::Runner("mini".into()), Scope::Sprite(id())] {
            let new = key_of(account.id, "k", scope.clone());
            let made = db
                .store
                .create_key(new.clone(), Some(audit(account.id, "key.created")), db.tick())
                .await
                .unwrap();
            let (found, owner) = db.store.key_by_hash(new.sha256).await.unwrap().expect("it was stored");
            assert_eq!((&found, &owner), (&made, &account));
            assert_eq!(found.scope, scope);
        }
        assert!(db.store.key_by_hash([7; 32]).await.unwrap().is_none());
        assert_eq!(audited(&db, account.id).len(), 4);
    }
}

#[actix::test]
async fn the_list_shows_what_still_works_and_is_for_people_newest_first() {
    for db in Backend::all().await {
        let account = db.account().await;
        let old = db.tick();
        let mut expired = key_of(account.id, "expired", Scope::Full);
        expired.expires_at = Some(old);
        let first = key_of(account.id, "first", Scope::Full);
        let second = key_of(account.id, "second", Scope::Runner("r".into()));
        let revoked = key_of(account.id, "revoked", Scope::Full);
        let sandbox = key_of(account.id, "sandbox", Scope::Sprite(id()));
        for key in [&expired, &first, &second, &revoked, &sandbox] {
            db.store.create_key(key.clone(), None, db.tick()).await.unwrap();
        }
        let stranger = db.account().await;
        db.store
            .create_key(key_of(stranger.id, "theirs", Scope::Full), None, db.tick())
            .await
            .unwrap();
        db.store
            .revoke_key(account.id, revoked.id, None, db.tick())
            .await
            .unwrap();
        let names: Vec<String> = db
            .store
            .keys(account.id, db.tick())
            .await
            .unwrap()
            .into_iter()
            .map(|key| key.name)
            .collect();
        assert_eq!(names, ["second", "first"]);
    }
}

#[actix::test]
async fn a_revoke_counts_once_and_only_for_the_owner() {
    for db in Backend::all().await {
        let account = db.account().await;
        let stranger = db.account().await;
        let new = key_of(account.id, "k", Scope::Full);
        db.store.create_key(new.clone(), None, db.tick()).await.unwrap();
        not_found(
            db.store
                .revoke_key(stranger.id, new.id, Some(audit(stranger.id, "key.revoked")), db.tick())
                .await,
        );
        not_found(db.store.revoke_key(account.id, id(), None, db.tick()).await);
        let at = db.tick();
        let entry = || Some(audit(account.id, "key.revoked"));
        let first = db.store.revoke_key(account.id, new.id, entry(), at).await.unwrap();
        assert_eq!(first.revoked_at, Some(at));
        let again = db
            .store
            .revoke_key(account.id, new.id, entry(), db.tick())
            .await
            .unwrap();
        assert_eq!(again.revoked_at, Some(at), "the first moment stays");
        let (found, _) = db
            .store
            .key_by_hash(new.sha256)
            .await
            .unwrap()
            .expect("a revoked key is found, too");
        assert_eq!(found.revoked_at, Some(at));
        assert_eq!(audited(&db, account.id), ["account.created", "key.revoked"]);
        assert_eq!(audited(&db, stranger.id), ["account.created"]);
    }
}

#[actix::test]
async fn a_later_use_wins_over_an_earlier_one_whichever_is_written_first() {
    for db in Backend::all().await {
        let account = db.account().await;
        let new = key_of(account.id, "k", Scope::Full);
        db.store.create_key(new.clone(), None, db.tick()).await.unwrap();
        let (early, late) = (db.tick(), db.tick());
        db.store.stamp_keys(vec![(new.id, late), (id(), late)]).await.unwrap();
        db.store.stamp_keys(vec![(new.id, early)]).await.unwrap();
        let (found, _) = db.store.key_by_hash(new.sha256).await.unwrap().unwrap();
        assert_eq!(found.last_used_at, Some(late));
    }
}

#[actix::test]
async fn a_key_of_a_missing_account_is_refused() {
    for db in Backend::all().await {
        not_found(
            db.store
                .create_key(key_of(id(), "k", Scope::Full), None, db.tick())
                .await,
        );
    }
}

#[actix::test]
async fn an_audit_row_of_its_own_is_kept() {
    for db in Backend::all().await {
        let account = db.account().await;
        let committed = db
            .store
            .audit(audit(account.id, "auth.device"), db.tick())
            .await
            .unwrap();
        assert!(committed.cursors.is_empty());
        assert_eq!(audited(&db, account.id), ["account.created", "auth.device"]);
    }
}
