//! Runner rows.

use fountain_actors::domain::runner::RunnerDetails;
use fountain_actors::domain::*;
use fountain_actors::ports::store::RunnerStore;

use crate::support::{Backend, audited, id, not_found};

fn details(version: &str) -> RunnerDetails {
    RunnerDetails {
        hostname: Some("mini.local".into()),
        os: Some("linux".into()),
        arch: None,
        version: Some(version.into()),
        root: Some("/home/u/fountain".into()),
        root_id: Some("a1b2".into()),
        features: vec!["replay_end".into(), "terminate".into()],
    }
}

#[actix::test]
async fn a_name_keeps_its_row_and_what_the_daemon_says_is_renewed() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let first_id = id();
        let at = db.tick();
        let (first, is_new) = db
            .store
            .dial_runner(account, first_id, "mini".into(), details("1"), at)
            .await
            .unwrap();
        assert!(is_new);
        assert_eq!(
            (first.id, first.connected_at, first.last_seen_at),
            (first_id, Some(at), Some(at))
        );
        assert_eq!(first.details, details("1"));
        let later = db.tick();
        let (again, is_new) = db
            .store
            .dial_runner(account, id(), "mini".into(), details("2"), later)
            .await
            .unwrap();
        assert!(!is_new);
        assert_eq!(
            (again.id, again.inserted_at, again.connected_at),
            (first_id, at, Some(later))
        );
        assert_eq!(again.details, details("2"));
        assert_eq!(db.store.runner(first_id).await.unwrap(), Some(again));
        assert_eq!(db.store.runner(id()).await.unwrap(), None);
        assert_eq!(audited(&db, account), ["account.created", "runner.registered"]);
        not_found(db.store.dial_runner(id(), id(), "mini".into(), details("1"), at).await);
    }
}

#[actix::test]
async fn two_dials_of_a_new_name_at_once_make_one_row() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let now = db.tick();
        let dial = || db.store.dial_runner(account, id(), "mini".into(), details("1"), now);
        let (a, b) = futures_util::join!(dial(), dial());
        let ((a, a_new), (b, b_new)) = (a.unwrap(), b.unwrap());
        assert_eq!(a.id, b.id);
        assert!(a_new != b_new, "one of them registered it");
        assert_eq!(db.store.runners(account).await.unwrap().len(), 1);
    }
}

#[actix::test]
async fn rul_l_95_a_forgotten_runner_is_hidden_and_comes_back_with_its_id() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let stranger = db.account().await.id;
        let (mini, _) = db
            .store
            .dial_runner(account, id(), "mini".into(), details("1"), db.tick())
            .await
            .unwrap();
        not_found(db.store.forget_runner(stranger, mini.id, db.tick()).await);
        let at = db.tick();
        let gone = db.store.forget_runner(account, mini.id, at).await.unwrap();
        assert_eq!((gone.id, gone.forgotten_at), (mini.id, Some(at)));
        assert_eq!(db.store.runners(account).await.unwrap(), []);
        not_found(db.store.forget_runner(account, mini.id, db.tick()).await);
        let (back, is_new) = db
            .store
            .dial_runner(account, id(), "mini".into(), details("1"), db.tick())
            .await
            .unwrap();
        assert_eq!((back.id, back.forgotten_at, is_new), (mini.id, None, false));
        assert_eq!(
            audited(&db, account),
            ["account.created", "runner.registered", "runner.deleted"]
        );
    }
}

#[actix::test]
async fn the_list_has_the_newest_connection_first_and_only_ones_own() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let stranger = db.account().await.id;
        for (of, name) in [(account, "a"), (account, "b"), (account, "c"), (stranger, "d")] {
            db.store
                .dial_runner(of, id(), name.into(), details("1"), db.tick())
                .await
                .unwrap();
        }
        db.store
            .dial_runner(account, id(), "a".into(), details("1"), db.tick())
            .await
            .unwrap();
        let list = db.store.runners(account).await.unwrap();
        let names: Vec<&str> = list.iter().map(|runner| runner.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "b"]);
    }
}

#[actix::test]
async fn rul_45_one_statement_says_that_many_runners_were_seen() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let mut ids: Vec<RunnerId> = Vec::new();
        for name in ["a", "b", "c"] {
            ids.push(
                db.store
                    .dial_runner(account, id(), name.into(), details("1"), db.tick())
                    .await
                    .unwrap()
                    .0
                    .id,
            );
        }
        let now = db.tick();
        db.store.touch_runners(ids[..2].to_vec(), now).await.unwrap();
        db.store.touch_runners(Vec::new(), db.tick()).await.unwrap();
        for (at, id) in ids.iter().enumerate() {
            let seen = db.store.runner(*id).await.unwrap().unwrap().last_seen_at;
            assert_eq!(seen == Some(now), at < 2, "runner {at}");
        }
    }
}
