//! The launch queue, schedules, money and administrators over HTTP (http-api 5.9, 5.11, 5.14, 5.20).

use std::sync::Arc;

use actix_web::web::Data;
use fountain::api::AppState;
use fountain_actors::domain::account::Actor;
use fountain_actors::domain::credit::{CreditSettings, CreditTerms};
use fountain_actors::domain::queue::RequestStatus;
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::{ErrorCode, Refusal};
use serde_json::{Value, json};

use crate::world::*;

/// A world where machines cost money.
fn billed() -> World {
    let mut world = World::default();
    let settings = Settings {
        credits: Some(CreditSettings {
            terms: CreditTerms {
                reserve_cents: 200,
                floor: 2,
            },
            opening_cents: 500,
            opening_lasts: std::time::Duration::from_secs(14 * 24 * 60 * 60),
            turn_hour_cents: 25,
            packs_cents: vec![1000],
        }),
        ..Settings::default()
    };
    let old = world.state.clone();
    world.state = Data::new(AppState {
        store: old.store.clone(),
        doors: old.doors.clone(),
        bus: old.bus.clone(),
        clock: old.clock.clone(),
        rng: old.rng.clone(),
        runners: old.runners.clone(),
        settings: Arc::new(settings),
        api: old.api.clone(),
        catalog: old.catalog.clone(),
        blocks: old.blocks,
        landing: old.landing.clone(),
        measure: old.measure.clone(),
        stamps: old.stamps.clone(),
        closing: old.closing.clone(),
    });
    world
}

async fn send(world: &World, method: &str, path: &str, body: Value) -> Answered {
    call(&world.app().await, signed(method, path, &world.ann.full).set_json(body)).await
}

async fn get(world: &World, path: &str) -> Answered {
    call(&world.app().await, signed("GET", path, &world.ann.full)).await
}

fn admin(world: &World, action: &str) -> String {
    format!("/api/admin/users/{}{action}", world.bob.account)
}

#[actix_web::test]
async fn queue_true_waits_with_202_and_without_it_the_refusal_stands() {
    let world = World::default();
    let full = Refusal::QuotaExceeded { active: 2, limit: 2 };
    *world.doors.refusal.lock().unwrap() = Some(full);
    let create = |queue: bool| json!({"agent_id": world.ann.agent, "prompt": "hi", "queue": queue});
    let refused = send(&world, "POST", "/api/conversations", create(false)).await;
    assert_eq!(refused.code(), (429, "sandbox_quota_exceeded".into()));
    let waits = send(&world, "POST", "/api/conversations", create(true)).await;
    assert_eq!(waits.status, 202);
    let data = &waits.json()["data"];
    assert_eq!(
        (
            &data["status"],
            &data["kind"],
            &data["position"],
            &data["conversation_id"]
        ),
        (&json!("queued"), &json!("start"), &json!(1), &Value::Null)
    );
    assert!(
        !waits.json().to_string().contains("hi\""),
        "what was asked is not shown"
    );
}

#[actix_web::test]
async fn a_waiting_launch_is_listed_shown_and_given_up_once() {
    let world = World::default();
    let list = get(&world, "/api/sandbox-queue").await;
    let id = list.json()["data"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/api/sandbox-queue/{id}");
    assert_eq!(get(&world, &path).await.json()["data"]["position"], 1);
    assert_eq!(send(&world, "DELETE", &path, json!({})).await.status, 204);
    assert_eq!(get(&world, "/api/sandbox-queue").await.json()["data"], json!([]));
    let shown = get(&world, &path).await.json();
    assert_eq!(
        (&shown["data"]["status"], &shown["data"]["position"]),
        (&json!("cancelled"), &Value::Null)
    );
    assert_eq!(
        send(&world, "DELETE", &path, json!({})).await.code(),
        (404, "not_found".into())
    );
    assert!(world.rows.edit(|t| {
        let own = t
            .launches
            .requests
            .iter()
            .find(|request| request.account_id == world.ann.account);
        own.is_some_and(|own| own.launch.is_none() && own.status == RequestStatus::Cancelled)
    }));
}

#[actix_web::test]
async fn schedules_are_read_written_and_judged() {
    let world = World::default();
    let path = format!("/api/team/{}/schedules", world.ann.agent);
    let wrong = send(&world, "POST", &path, json!({"cron": "@reboot", "prompt": " "})).await;
    assert_eq!(wrong.code(), (422, "validation_failed".into()));
    assert!(wrong.json()["errors"]["cron"].is_array() && wrong.json()["errors"]["prompt"].is_array());
    let made = send(
        &world,
        "POST",
        &path,
        json!({"cron": "@daily", "prompt": "report", "name": "r"}),
    )
    .await;
    assert_eq!(made.status, 201);
    let schedule = made.json()["data"].clone();
    // The world's clock stands at 2026-01-02 03:04:05.
    assert_eq!(schedule["next_run_at"], "2026-01-03T00:00:00Z");
    assert_eq!(
        (
            &schedule["cron"],
            &schedule["enabled"],
            &schedule["one_off"],
            &schedule["last_error"]
        ),
        (&json!("@daily"), &json!(true), &json!(false), &Value::Null)
    );
    let own = format!("{path}/{}", schedule["id"].as_str().unwrap());
    let off = send(&world, "PATCH", &own, json!({"enabled": false})).await.json();
    assert_eq!(off["data"]["next_run_at"], Value::Null);
    let on = send(&world, "PATCH", &own, json!({"enabled": true, "cron": "0 5 * * *"}))
        .await
        .json();
    assert_eq!(on["data"]["next_run_at"], "2026-01-02T05:00:00Z");
    let null = send(&world, "PATCH", &own, json!({"cron": null})).await;
    assert_eq!(null.status, 422, "null is no expression");
    let run = send(&world, "POST", &format!("{own}/run"), json!({})).await;
    assert_eq!(run.status, 202);
    assert_eq!(
        run.json(),
        json!({"status": "queued", "conversation_id": world.ann.conversation.to_string()})
    );
    assert_eq!(send(&world, "DELETE", &own, json!({})).await.status, 204);
    assert_eq!(get(&world, &own).await.status, 404);
    let others = format!("/api/team/{}/schedules", world.bob.agent);
    assert_eq!(get(&world, &others).await.status, 404);
}

#[actix_web::test]
async fn a_run_says_what_a_message_would() {
    let world = World::default();
    *world.doors.refusal.lock().unwrap() = Some(ErrorCode::ConversationBusy.into());
    let path = format!("/api/team/{}/schedules/{}/run", world.ann.agent, world.ann.schedule());
    assert_eq!(
        send(&world, "POST", &path, json!({})).await.code(),
        (400, "conversation_busy".into())
    );
}

#[actix_web::test]
async fn without_credits_there_is_no_billing() {
    let world = World::default();
    let none = get(&world, "/api/account/billing").await;
    assert_eq!(none.code(), (404, "billing_disabled".into()));
    assert_eq!(none.json()["billing"], "disabled");
    assert_eq!(get(&world, "/api/auth/me").await.json()["comped"], Value::Null);
    for (action, body) in [("/comp", json!({"comped": true})), ("/credits", json!({"cents": 5}))] {
        let answer = send(&world, "POST", &admin(&world, action), body).await;
        assert_eq!(answer.code(), (404, "billing_disabled".into()), "{action}");
    }
}

#[actix_web::test]
async fn a_grant_shows_in_the_balance_the_cap_and_the_audit_trail() {
    let world = billed();
    assert_eq!(get(&world, "/api/auth/me").await.json()["comped"], false);
    let nothing = get(&world, &admin(&world, "")).await.json();
    assert_eq!(nothing["data"]["max_concurrent_sandboxes"], 0, "no balance, no machine");
    let zero = send(&world, "POST", &admin(&world, "/credits"), json!({"cents": 0})).await;
    assert_eq!(zero.code(), (422, "validation_failed".into()));
    let granted = send(
        &world,
        "POST",
        &admin(&world, "/credits"),
        json!({"cents": 1000, "note": "hello"}),
    )
    .await;
    let user = granted.json()["data"].clone();
    assert_eq!(
        (&user["credit_balance_cents"], &user["max_concurrent_sandboxes"]),
        (&json!(1000), &json!(5))
    );
    let audit = world.rows.edit(|t| t.audits.pop()).unwrap();
    assert_eq!(audit.action, "admin.credits.granted");
    assert_eq!(audit.account_id, Some(world.bob.account));
    assert_eq!(audit.actor, Actor::Admin(world.ann.account));
    let own = call(
        &world.app().await,
        signed("GET", "/api/account/billing", &world.bob.full),
    )
    .await;
    let data = own.json()["data"].clone();
    assert_eq!(data["credits"]["balance_cents"], 1000);
    assert_eq!(data["credits"]["turn_hour_cents"], 25);
    assert_eq!(
        (&data["sandbox_cap"], &data["usage"]["turn_hours"]),
        (&json!(5), &json!(1.5))
    );
}

#[actix_web::test]
async fn limits_comp_role_and_suspension_have_their_own_refusals() {
    let world = billed();
    let post = |action: &'static str, body: Value| {
        let path = admin(&world, action);
        let world = &world;
        async move { send(world, "POST", &path, body).await }
    };
    for bad in [json!({}), json!({"limit": -1}), json!({"limit": "2"})] {
        assert_eq!(post("/sandbox-limit", bad).await.code(), (422, "invalid_limit".into()));
    }
    let blocked = post("/sandbox-limit", json!({"limit": 0})).await.json();
    assert_eq!(blocked["data"]["max_concurrent_sandboxes"], 0);
    assert_eq!(post("/sandbox-limit", json!({"limit": null})).await.status, 200);
    assert_eq!(
        post("/comp", json!({"comped": false})).await.code(),
        (422, "not_comped".into())
    );
    let comped = post("/comp", json!({"comped": true})).await.json();
    assert_eq!(comped["data"]["max_concurrent_sandboxes"], 20, "the ceiling");
    assert_eq!(
        post("/role", json!({"role": "king"})).await.code(),
        (422, "invalid_role".into())
    );
    assert_eq!(
        post("/role", json!({"role": "admin"})).await.json()["data"]["role"],
        "admin"
    );
    let own = |action: &str| format!("/api/admin/users/{}{action}", world.ann.account);
    assert_eq!(
        send(&world, "POST", &own("/role"), json!({"role": "user"}))
            .await
            .code(),
        (422, "cannot_change_own_role".into())
    );
    assert_eq!(
        send(&world, "POST", &own("/suspend"), json!({"suspended": true}))
            .await
            .code(),
        (422, "cannot_suspend_self".into())
    );
}

#[actix_web::test]
async fn suspending_ends_keys_and_machines() {
    let world = World::default();
    let path = admin(&world, "/suspend");
    let answer = send(&world, "POST", &path, json!({"suspended": true})).await;
    assert_eq!(answer.json()["data"]["suspended"], true);
    assert!(world.online.revoked.lock().unwrap().contains(&world.bob.full_id));
    assert_eq!(*world.doors.asked.lock().unwrap(), ["destroy 1"]);
    let bobs = call(&world.app().await, signed("GET", "/api/auth/me", &world.bob.full)).await;
    assert_eq!(bobs.status, 401);
    let back = send(&world, "POST", &path, json!({"suspended": false})).await;
    assert_eq!(back.json()["data"]["suspended_at"], Value::Null);
}

#[actix_web::test]
async fn administrators_list_accounts_page_by_page() {
    let world = World::default();
    let page = get(&world, "/api/admin/users?per_page=1&page=2&sort=email&dir=asc")
        .await
        .json();
    assert_eq!(page["meta"], json!({"page": 2, "per_page": 1, "total": 2}));
    assert_eq!(page["data"][0]["email"], "user2@example.com");
    let admins = get(&world, "/api/admin/users?role=admin").await.json();
    assert_eq!(admins["meta"]["total"], 1);
    for bad in [
        "per_page=101",
        "page=0",
        "sort=height",
        "dir=up",
        "role=king",
        "comped=perhaps",
    ] {
        assert_eq!(
            get(&world, &format!("/api/admin/users?{bad}")).await.status,
            422,
            "{bad}"
        );
    }
    let bobs = signed("GET", "/api/admin/users", &world.bob.full);
    assert_eq!(call(&world.app().await, bobs).await.status, 403);
}
