//! Malformed requests (RUL-8): what is 400, what is 413, what is 422, and that nothing is 500.

use actix_web::test::TestRequest;
use fountain::api::ApiSettings;
use serde_json::{Value, json};

use crate::world::*;

/// Every route that reads fields, with a body whose every field is of a wrong type, and the faults to be named.
fn typed(tenant: &Tenant) -> Vec<(&'static str, String, Value, Vec<&'static str>)> {
    let conversation = format!("/api/conversations/{}", tenant.conversation);
    let environment = format!("/api/environments/{}", tenant.environment);
    let vault = format!("/api/vaults/{}", tenant.vault);
    vec![
        ("POST", "/api/auth/api-keys".into(), json!({"name": 1}), vec!["name"]),
        ("POST", "/api/runners/keys".into(), json!({"name": []}), vec!["name"]),
        (
            "POST",
            "/api/agents".into(),
            json!({"name": 1, "runtime": 2, "model": {}, "skills": {}, "mcp_servers": [], "environment_id": "x"}),
            vec!["environment_id", "mcp_servers", "model", "name", "runtime", "skills"],
        ),
        (
            "PATCH",
            format!("/api/agents/{}", tenant.agent),
            json!({"system": 1}),
            vec!["system"],
        ),
        (
            "POST",
            "/api/environments".into(),
            json!({"env_vars": []}),
            vec!["env_vars", "name"],
        ),
        (
            "PUT",
            environment.clone(),
            json!({"setup_timeout_seconds": "60"}),
            vec!["setup_timeout_seconds"],
        ),
        (
            "POST",
            format!("{environment}/secrets"),
            json!({"key": "lower", "value": ""}),
            vec!["key", "value"],
        ),
        ("POST", "/api/vaults".into(), json!({}), vec!["name"]),
        ("PATCH", vault.clone(), json!({"metadata": "x"}), vec!["metadata"]),
        (
            "POST",
            format!("{vault}/secrets"),
            json!({"key": 1, "expires_at": "soon"}),
            vec!["expires_at", "key", "value"],
        ),
        (
            "PATCH",
            format!("{vault}/secrets/TOKEN"),
            json!({"expires_at": null, "value": "x"}),
            vec!["value"],
        ),
        ("PATCH", format!("{vault}/secrets/TOKEN"), json!({}), vec!["expires_at"]),
        (
            "POST",
            "/api/conversations".into(),
            json!({
                "agent_id": "x", "prompt": 1, "title": "t".repeat(121), "labels": {"a": 1}, "client_request_id": "",
                "vault_id": 1, "fresh": "yes", "queue": 1, "channel_id": [], "images": {},
            }),
            vec![
                "agent_id",
                "channel_id",
                "client_request_id",
                "fresh",
                "images",
                "labels",
                "prompt",
                "queue",
                "title",
                "vault_id",
            ],
        ),
        ("POST", "/api/conversations".into(), json!({}), vec!["agent_id"]),
        (
            "POST",
            format!("{conversation}/prompts"),
            json!({"prompt": null}),
            vec!["prompt"],
        ),
        (
            "POST",
            format!("{conversation}/prompts"),
            json!({"prompt": ["x"], "client_request_id": "x".repeat(201)}),
            vec!["client_request_id", "prompt"],
        ),
        (
            "PATCH",
            format!("{conversation}/labels"),
            json!({"labels": {"k": "v".repeat(257)}}),
            vec!["labels"],
        ),
        (
            "POST",
            format!("{conversation}/requests/0.a"),
            json!({"option_id": 1}),
            vec!["option_id"],
        ),
    ]
}

fn raw(method: &str, path: &str, key: &str, media: &str, body: impl Into<actix_web::web::Bytes>) -> TestRequest {
    signed(method, path, key)
        .insert_header(("content-type", media))
        .set_payload(body)
}

#[actix_web::test]
async fn rul_08_wrong_types_and_missing_fields_are_422_by_field_all_at_once() {
    let world = World::default();
    let app = world.app().await;
    for (method, path, body, faults) in typed(&world.ann) {
        let answer = call(&app, signed(method, &path, &world.ann.full).set_json(&body)).await;
        assert_eq!(answer.faults(), faults, "{method} {path} {body}");
    }
    assert!(world.doors.asked.lock().unwrap().is_empty());
}

#[actix_web::test]
async fn rul_08_what_does_not_parse_is_400_and_what_is_no_object_is_422() {
    let world = World::default();
    let app = world.app().await;
    let deep = "[".repeat(100_000);
    for (method, path, _, _) in typed(&world.ann) {
        for broken in ["{", "{\"a\":}", "nope", "{} {}", "\u{1}", &deep] {
            let answer = call(
                &app,
                raw(method, &path, &world.ann.full, "application/json", broken.to_owned()),
            )
            .await;
            assert_eq!(answer.code(), (400, "invalid_request".into()), "{method} {path}");
        }
        let utf8 = raw(
            method,
            &path,
            &world.ann.full,
            "application/json",
            &b"{\"name\":\"\xff\"}"[..],
        );
        assert_eq!(
            call(&app, utf8).await.code(),
            (400, "invalid_request".into()),
            "{method} {path}"
        );
        let list = raw(method, &path, &world.ann.full, "application/json", "[]");
        assert!(
            call(&app, list).await.faults().contains(&"body".to_owned()),
            "{method} {path}"
        );
    }
}

#[actix_web::test]
async fn rul_08_another_content_type_is_400_and_none_is_taken_as_json() {
    let world = World::default();
    let app = world.app().await;
    for media in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
        "applicationjson",
    ] {
        let answer = call(
            &app,
            raw("POST", "/api/vaults", &world.ann.full, media, "{\"name\":\"v\"}"),
        )
        .await;
        assert_eq!(answer.code(), (400, "invalid_request".into()), "{media}");
    }
    for media in [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/merge-patch+json",
    ] {
        let answer = call(
            &app,
            raw("POST", "/api/vaults", &world.ann.full, media, "{\"name\":\"v\"}"),
        )
        .await;
        assert_eq!(answer.status, 201, "{media}");
    }
    let bare = signed("POST", "/api/vaults", &world.ann.full).set_payload("{\"name\":\"v\"}");
    assert_eq!(call(&app, bare).await.status, 201);
}

#[actix_web::test]
async fn rul_08_a_nul_in_any_text_is_422() {
    let world = World::default();
    let app = world.app().await;
    for (method, path, _, _) in typed(&world.ann) {
        let body = json!({"name": "a\0", "metadata": {"x": ["\0"]}});
        let answer = call(&app, signed(method, &path, &world.ann.full).set_json(&body)).await;
        let faults = answer.faults();
        assert!(
            faults.contains(&"name".to_owned()) && faults.contains(&"metadata/x/0".to_owned()),
            "{faults:?}"
        );
    }
}

#[actix_web::test]
async fn rul_08_a_body_over_its_limit_is_413_with_and_without_a_declared_length() {
    let settings = ApiSettings {
        small_body: 100,
        large_body: 1000,
        ..ApiSettings::default()
    };
    let world = World::with(settings);
    let app = world.app().await;
    let conversation = format!("/api/conversations/{}", world.ann.conversation);
    for (method, path, limit) in [
        ("POST", "/api/vaults".to_owned(), 100),
        ("POST", "/api/conversations".to_owned(), 1000),
        ("POST", format!("{conversation}/prompts"), 1000),
        ("POST", format!("{conversation}/requests/0.a"), 100),
    ] {
        let fits = format!("{{{}", " ".repeat(limit - 1));
        let answer = call(&app, raw(method, &path, &world.ann.full, "application/json", fits)).await;
        assert_eq!(answer.code(), (400, "invalid_request".into()), "{path}");
        let over = format!("{{{}", " ".repeat(limit));
        let answer = call(&app, raw(method, &path, &world.ann.full, "application/json", over)).await;
        assert_eq!(answer.code(), (413, "payload_too_large".into()), "{path}");
        let declared = signed(method, &path, &world.ann.full).insert_header(("content-length", "100000"));
        assert_eq!(
            call(&app, declared).await.code(),
            (413, "payload_too_large".into()),
            "{path}"
        );
    }
}

#[actix_web::test]
async fn caution_3_several_images_of_ten_megabytes_pass() {
    let world = World::default();
    let app = world.app().await;
    let image = json!({"media_type": "image/png", "data": "AAAA".repeat(10 * 1024 * 1024 / 3)});
    let body = json!({"prompt": "look", "images": [image.clone(), image.clone(), image]});
    let path = format!("/api/conversations/{}/prompts", world.ann.conversation);
    let answer = call(&app, signed("POST", &path, &world.ann.full).set_json(&body)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let prompts = world.doors.prompts.lock().unwrap();
    let sizes: Vec<_> = prompts[0].images.iter().map(|image| image.bytes.len()).collect();
    assert_eq!(sizes, [10_485_759, 10_485_759, 10_485_759]);
}

#[actix_web::test]
async fn unknown_fields_are_ignored_and_an_absent_body_is_an_empty_one() {
    let world = World::default();
    let app = world.app().await;
    let body = json!({"name": "v", "user_id": 7, "whatever": {"x": []}});
    assert_eq!(
        call(&app, signed("POST", "/api/vaults", &world.ann.full).set_json(&body))
            .await
            .status,
        201
    );
    let answer = call(&app, signed("POST", "/api/vaults", &world.ann.full)).await;
    assert_eq!(answer.faults(), ["name"]);
}

#[actix_web::test]
async fn action_routes_take_no_body_an_empty_object_and_anything_else() {
    let world = World::default();
    let app = world.app().await;
    for action in ["interrupt", "terminate", "read"] {
        let path = format!("/api/conversations/{}/{action}", world.ann.conversation);
        for body in ["", "{}", "{\"x\":1}"] {
            let request = raw("POST", &path, &world.ann.full, "application/json", body);
            let answer = call(&app, request).await;
            assert_eq!((answer.status, answer.bytes.len()), (204, 0), "{action} {body}");
        }
        let python = signed("POST", &path, &world.ann.full).insert_header(("content-length", "0"));
        assert_eq!(call(&app, python).await.status, 204, "{action}");
    }
}
