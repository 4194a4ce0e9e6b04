//! Every route of the table against every kind of caller (http-api 1.3, 2.2, 2.3; RUL-63, RUL-64b).

use actix_web::http::StatusCode;
use fountain::api::routes::{Gate, Limit, Media, Route, routes};
use fountain_actors::domain::AccountId;
use serde_json::json;

use crate::world::*;

/// The path of a route with this tenant's ids in it.
fn path_of(route: &Route, tenant: &Tenant) -> String {
    let mut nouns = route.path.split('/').skip(2).filter(|word| *word != "admin");
    let id = match nouns.next().unwrap_or_default() {
        "agents" => tenant.agent.to_string(),
        "environments" => tenant.environment.to_string(),
        "vaults" => tenant.vault.to_string(),
        "conversations" => tenant.conversation.to_string(),
        "sandboxes" => tenant.machine.to_string(),
        "runners" => tenant.runner.to_string(),
        "sandbox-queue" => tenant.request().to_string(),
        "team" => tenant.schedule().to_string(),
        "users" => tenant.account.to_string(),
        _ => tenant.full_id.to_string(),
    };
    let turn = tenant.turn.to_string();
    let agent = tenant.agent.to_string();
    let words = [
        ("{agent_id}", agent.as_str()),
        ("{id}", id.as_str()),
        ("{key}", "TOKEN"),
        ("{turn_id}", &turn),
        ("{position}", "0"),
        ("{provider}", "sprites"),
        ("{request_id}", "0.a"),
    ];
    words
        .iter()
        .fold(route.path.to_owned(), |path, (word, value)| path.replace(word, value))
}

/// A body that each route takes.
fn body_of(route: &Route, tenant: &Tenant) -> serde_json::Value {
    match (route.method.as_str(), route.path) {
        ("POST", "/api/auth/api-keys") | ("POST", "/api/runners/keys") => json!({"name": "k"}),
        ("POST", "/api/agents") => json!({"name": "new", "runtime": "acp", "runtime_command": "x"}),
        ("POST", "/api/environments" | "/api/vaults") => json!({"name": "new"}),
        ("POST", path) if path.ends_with("/secrets") => json!({"key": "A", "value": "b"}),
        ("PATCH", path) if path.ends_with("/secrets/{key}") => json!({"expires_at": null}),
        ("POST", "/api/conversations") => json!({"agent_id": tenant.agent}),
        ("POST", "/api/team/{agent_id}/schedules") => json!({"cron": "@daily", "prompt": "hi"}),
        ("POST", path) if path.ends_with("/prompts") => json!({"prompt": "hi"}),
        ("PATCH", path) if path.ends_with("/labels") => json!({"labels": {"a": "b"}}),
        ("POST", path) if path.ends_with("/requests/{request_id}") => json!({"option_id": "yes"}),
        _ => json!({}),
    }
}

fn keyed() -> Vec<Route> {
    routes()
        .into_iter()
        .filter(|route| route.gate != Gate::Public)
        .collect()
}

#[actix_web::test]
async fn every_keyed_route_answers_401_without_a_key_whatever_else_is_wrong() {
    let world = World::default();
    let app = world.app().await;
    for route in keyed() {
        let path = path_of(&route, &world.ann);
        let broken = request(route.method.as_str(), &path)
            .insert_header(("content-type", "application/json"))
            .set_payload("{broken");
        let answer = call(&app, broken).await;
        assert_eq!(answer.status, 401, "{} {path}", route.method);
        assert_eq!(answer.json()["reason"], "api_key_invalid");
    }
}

#[actix_web::test]
async fn rul_64b_an_unknown_key_wins_over_every_fault_of_the_body() {
    let world = World::default();
    let app = world.app().await;
    for route in keyed().into_iter().filter(|route| route.limit == Limit::Large) {
        let request = signed(route.method.as_str(), &path_of(&route, &world.ann), "ftn_nobody")
            .insert_header(("content-length", "999999999999"))
            .insert_header(("content-type", "text/plain"));
        assert_eq!(
            call(&app, request).await.json()["reason"],
            "api_key_invalid",
            "{}",
            route.path
        );
    }
}

#[actix_web::test]
async fn every_gate_refuses_the_scopes_below_it_with_403() {
    let world = World::default();
    let app = world.app().await;
    for route in keyed() {
        let path = path_of(&route, &world.ann);
        for (key, is_runner) in [(&world.ann.sprite, false), (&world.ann.runner_key, true)] {
            let let_in = match route.gate {
                Gate::Public | Gate::Dial => true,
                Gate::Any => !is_runner,
                Gate::Full | Gate::Keys | Gate::Admin => false,
            };
            if let_in {
                continue;
            }
            let broken = signed(route.method.as_str(), &path, key)
                .insert_header(("content-type", "application/json"))
                .set_payload("{broken");
            let answer = call(&app, broken).await;
            assert_eq!(answer.status, 403, "{} {path}", route.method);
            let body = answer.json();
            assert_eq!(
                (&body["reason"], &body["required_scope"]),
                (&json!("insufficient_scope"), &json!("full"))
            );
        }
    }
}

#[actix_web::test]
async fn a_sandbox_key_passes_every_route_marked_any_but_its_own_refusals() {
    let world = World::default();
    let app = world.app().await;
    for route in keyed()
        .into_iter()
        .filter(|route| route.gate == Gate::Any && !route.path.ends_with("/stream"))
    {
        let world = World::default();
        let app_of_its_own = world.app().await;
        let request = signed(route.method.as_str(), &path_of(&route, &world.ann), &world.ann.sprite)
            .set_json(body_of(&route, &world.ann));
        let answer = call(&app_of_its_own, request).await;
        if route.path.ends_with("/requests/{request_id}") {
            assert_eq!(answer.code(), (403, "sprite_may_not_answer".into()));
        } else {
            assert!(
                StatusCode::from_u16(answer.status).unwrap().is_success(),
                "{} {answer:?}",
                route.path
            );
        }
    }
    drop(app);
}

/// Promise of DESIGN 5: every query carries the account.
#[actix_web::test]
async fn another_accounts_ids_are_404_on_every_route() {
    let world = World::default();
    let app = world.app().await;
    // Other accounts are what administrators' routes are for.
    let tenants = keyed().into_iter().filter(|route| route.gate != Gate::Admin);
    for route in tenants.filter(|route| route.path.contains("{id}") || route.path.contains("{agent_id}")) {
        let path = path_of(&route, &world.bob);
        let request = signed(route.method.as_str(), &path, &world.ann.full).set_json(body_of(&route, &world.ann));
        let answer = call(&app, request).await;
        assert_eq!(answer.code(), (404, "not_found".into()), "{} {path}", route.method);
        assert_eq!(answer.json(), json!({"error": "not_found"}));
    }
}

#[actix_web::test]
async fn caution_2_a_path_that_is_no_id_is_404_on_every_route() {
    let world = World::default();
    let app = world.app().await;
    for route in keyed().into_iter().filter(|route| route.path.contains("{id}")) {
        for wrong in [
            "nope",
            "5b0f1c1e6d0a4f5e9a510d7a4b1f2c33",
            "%00",
            "..%2F..%2Fetc",
            "%F0%28%8C%28",
        ] {
            let path = route.path.replace("{id}", wrong);
            let request = signed(route.method.as_str(), &path, &world.ann.full).set_json(body_of(&route, &world.ann));
            assert_eq!(
                call(&app, request).await.code(),
                (404, "not_found".into()),
                "{} {path}",
                route.method
            );
        }
    }
}

#[actix_web::test]
async fn an_unknown_api_path_is_401_without_a_key_and_404_with_one() {
    let world = World::default();
    let app = world.app().await;
    for path in [
        "/api",
        "/api/",
        "/api/nope",
        "/api/agents/x/y/z/w",
        "/api/team",
        "/api/openapi.json",
    ] {
        assert_eq!(call(&app, request("GET", path)).await.status, 401, "{path}");
        let answer = call(&app, signed("GET", path, &world.ann.full)).await;
        assert_eq!(answer.json(), json!({"error": "not_found"}), "{path}");
        assert_eq!(answer.status, 404, "{path}");
    }
}

#[actix_web::test]
async fn an_unknown_path_elsewhere_is_404_and_so_is_a_wrong_method() {
    let world = World::default();
    let app = world.app().await;
    for path in ["/nope", "/apix", "/metrics"] {
        assert_eq!(
            call(&app, request("GET", path)).await.json(),
            json!({"error": "not_found"}),
            "{path}"
        );
    }
    for (method, path) in [
        ("POST", "/health"),
        ("DELETE", "/api/catalog"),
        ("PATCH", "/api/conversations"),
    ] {
        let answer = call(&app, signed(method, path, &world.ann.full)).await;
        assert_eq!(answer.code(), (404, "not_found".into()), "{method} {path}");
    }
    assert_eq!(call(&app, request("DELETE", "/api/catalog")).await.status, 401);
}

#[actix_web::test]
async fn json_routes_want_a_client_that_takes_json_and_the_others_do_not_care() {
    let world = World::default();
    let app = world.app().await;
    for route in keyed().into_iter().filter(|route| !route.path.ends_with("/stream")) {
        let request = signed(route.method.as_str(), &path_of(&route, &world.ann), "ftn_nobody")
            .insert_header(("accept", "text/event-stream"));
        let answer = call(&app, request).await;
        match route.media {
            Media::Json => {
                assert_eq!(answer.status, 406, "{}", route.path);
                assert_eq!(answer.json(), json!({"errors": {"detail": "Not Acceptable"}}));
            }
            Media::Free => assert_eq!(answer.status, 401, "{}", route.path),
        }
    }
}

#[actix_web::test]
async fn keys_that_ended_say_why() {
    let world = World::default();
    let app = world.app().await;
    let me = |key: &str| signed("GET", "/api/auth/me", key);
    let (ann, bob) = (&world.ann, &world.bob);
    let edit = |account: AccountId, edit: fn(&mut fountain_actors::domain::account::Account)| {
        world
            .rows
            .edit(|t| edit(t.accounts.iter_mut().find(|a| a.id == account).unwrap()))
    };
    world.rows.edit(|t| t.keys[1].1.expires_at = Some(start()));
    assert_eq!(call(&app, me(&ann.sprite)).await.json()["reason"], "api_key_expired");
    world.rows.edit(|t| t.keys[1].1.revoked_at = Some(start()));
    assert_eq!(call(&app, me(&ann.sprite)).await.json()["reason"], "api_key_revoked");
    edit(bob.account, |account| account.email_verified_at = None);
    let unverified = call(&app, me(&bob.full)).await;
    assert_eq!(
        (unverified.status, &unverified.json()["reason"]),
        (403, &json!("email_unverified"))
    );
    edit(bob.account, |account| account.suspended_at = Some(start()));
    let suspended = call(&app, me(&bob.full)).await;
    assert_eq!(
        (suspended.status, &suspended.json()["reason"]),
        (401, &json!("account_unavailable"))
    );
}

#[actix_web::test]
async fn rul_31_a_store_that_is_down_is_503_everywhere_and_never_a_wrong_key() {
    let world = World::default();
    let app = world.app().await;
    world.rows.down.store(true, std::sync::atomic::Ordering::SeqCst);
    for route in keyed() {
        let request = signed(route.method.as_str(), &path_of(&route, &world.ann), &world.ann.full);
        let answer = call(&app, request).await;
        assert_eq!(answer.code(), (503, "store_unavailable".into()), "{}", route.path);
        assert_eq!(answer.header("retry-after"), Some("10"));
    }
}

#[actix_web::test]
async fn a_panic_is_an_internal_error_with_an_id_and_the_next_request_is_served() {
    let world = World::default();
    let app = world.app().await;
    for path in ["/health/ready", "/api/agents"] {
        world.rows.cursed.store(true, std::sync::atomic::Ordering::SeqCst);
        let answer = call(&app, signed("GET", path, &world.ann.full)).await;
        assert_eq!(answer.code(), (500, "internal_error".into()));
        assert_eq!(answer.json()["request_id"].as_str(), answer.header("x-request-id"));
        world.rows.cursed.store(false, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(call(&app, signed("GET", path, &world.ann.full)).await.status, 200);
    }
}

#[actix_web::test]
async fn every_answer_has_a_request_id_and_is_measured_by_its_pattern() {
    let world = World::default();
    let app = world.app().await;
    let path = format!("/api/agents/{}", world.ann.agent);
    let good = call(&app, signed("GET", &path, &world.ann.full)).await;
    let bad = call(&app, request("GET", "/api/secret-in-a-path")).await;
    let (good, bad) = (
        good.header("x-request-id").unwrap(),
        bad.header("x-request-id").unwrap(),
    );
    assert_ne!(good, bad);
    let measured = world.measured.lock().unwrap();
    let seen: Vec<_> = measured.iter().map(|m| (m.method, m.route, m.status)).collect();
    assert_eq!(seen, [("GET", "/api/agents/{id}", 200), ("GET", "unmatched", 401)]);
}

#[actix_web::test]
async fn the_use_of_a_key_is_noted_off_the_request_path() {
    let world = World::default();
    let app = world.app().await;
    for _ in 0..3 {
        assert_eq!(
            call(&app, signed("GET", "/api/auth/me", &world.ann.full)).await.status,
            200
        );
    }
    assert!(world.rows.edit(|t| t.stamps.is_empty()));
    world.closing.send_replace(true);
    let (stamps, store) = (world.state.stamps.clone(), world.state.store.clone());
    fountain::api::stamps::write_stamps(stamps, store, world.state.clock.clone(), world.closing.subscribe()).await;
    assert_eq!(
        world.rows.edit(|t| t.stamps.clone()),
        vec![(world.ann.full_id, start())]
    );
}
