use actix_web::test::TestRequest;
use chrono::TimeDelta;
use fountain_actors::domain::{AccountId, KeyId};
use secrecy::ExposeSecret;

use super::*;

fn now() -> Moment {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

fn account() -> Account {
    Account {
        id: AccountId(uuid::Uuid::nil()),
        email: Some("a@example.com".into()),
        email_verified_at: Some(now()),
        is_admin: false,
        comped: false,
        sandbox_limit_override: None,
        suspended_at: None,
        deleting_at: None,
        inserted_at: now(),
    }
}

fn key(scope: Scope) -> ApiKey {
    ApiKey {
        id: KeyId(uuid::Uuid::nil()),
        account_id: AccountId(uuid::Uuid::nil()),
        name: "k".into(),
        prefix: "ftn_abcdefgh".into(),
        scope,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
        inserted_at: now(),
    }
}

#[test]
fn a_key_is_judged_in_the_order_of_the_contract() {
    let (mut key, mut account) = (key(Scope::Full), account());
    assert_eq!(judge(&key, &account, now()), Ok(()));
    account.email_verified_at = None;
    assert_eq!(judge(&key, &account, now()), Err(Denial::EmailUnverified));
    account.suspended_at = Some(now());
    assert_eq!(judge(&key, &account, now()), Err(Denial::AccountUnavailable));
    key.expires_at = Some(now());
    assert_eq!(judge(&key, &account, now()), Err(Denial::KeyExpired));
    key.expires_at = Some(now() + TimeDelta::seconds(1));
    key.revoked_at = Some(now());
    assert_eq!(judge(&key, &account, now()), Err(Denial::KeyRevoked));
}

#[test]
fn the_gates_let_through_whom_they_should() {
    let caller = |scope: Scope, is_admin: bool| Caller {
        account: Account { is_admin, ..account() },
        key_id: KeyId(uuid::Uuid::nil()),
        scope,
        remote_ip: None,
    };
    let sprite = Scope::Sprite(ConversationId(uuid::Uuid::nil()));
    let runner = Scope::Runner("mini".into());
    let scope = Err(Denial::InsufficientScope);
    for (gate, full, in_sprite, of_runner) in [
        (Gate::Public, Ok(()), Ok(()), Ok(())),
        (Gate::Any, Ok(()), Ok(()), scope),
        (Gate::Full, Ok(()), scope, scope),
        (Gate::Keys, Ok(()), scope, scope),
        (Gate::Admin, Err(Denial::AdminRequired), scope, scope),
        (Gate::Dial, Ok(()), Ok(()), Ok(())),
    ] {
        assert_eq!(check(gate, &caller(Scope::Full, false)), full, "{gate:?}");
        assert_eq!(check(gate, &caller(sprite.clone(), true)), in_sprite, "{gate:?}");
        assert_eq!(check(gate, &caller(runner.clone(), true)), of_runner, "{gate:?}");
    }
    assert_eq!(check(Gate::Admin, &caller(Scope::Full, true)), Ok(()));
}

#[test]
fn only_a_bearer_header_carries_a_key() {
    let seen = |value: &str| {
        bearer(
            &TestRequest::default()
                .insert_header(("authorization", value))
                .to_srv_request(),
        )
    };
    assert_eq!(seen("Bearer ftn_x"), Some(digest("ftn_x")));
    assert_eq!(seen("bearer   ftn_x "), Some(digest("ftn_x")));
    let long = format!("Bearer {}", "x".repeat(LONGEST_KEY + 1));
    for wrong in ["", "Bearer", "Bearer ", "Basic ftn_x", "ftn_x", &long] {
        assert_eq!(seen(wrong), None, "{wrong}");
    }
    assert_eq!(bearer(&TestRequest::with_uri("/?api_key=ftn_x").to_srv_request()), None);
}

struct Ones;

impl Rng for Ones {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0xff);
    }
}

#[test]
fn rul_19_a_key_has_32_random_bytes_and_shows_twelve_characters() {
    let minted = mint(&Ones);
    let key = minted.key.expose_secret();
    assert_eq!(key.len(), 4 + 43);
    assert!(key.starts_with("ftn_") && key.starts_with(&minted.prefix));
    assert_eq!(minted.prefix.len(), 12);
    assert_eq!(minted.sha256, digest(key));
}
