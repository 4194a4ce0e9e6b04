//! The shapes of every resource, pinned key by key (http-api 4, 5).

use fountain_actors::domain::SecretId;
use fountain_actors::domain::account::Scope;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::turn::PendingPermission;
use serde_json::{Value, json};

use crate::world::*;

async fn get(world: &World, path: &str) -> Answered {
    call(&world.app().await, signed("GET", path, &world.ann.full)).await
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[actix_web::test]
async fn auth_me_is_not_enveloped() {
    let world = World::default();
    let answer = get(&world, "/api/auth/me").await;
    assert_eq!(
        answer.json(),
        json!({
            "id": world.ann.account, "email": "user1@example.com", "role": "admin", "email_verified": true,
            "onboarding_completed": true, "comped": null, "brokered": false, "connections_enabled": false,
            "connections_manageable": false, "chatgpt_subscriptions_enabled": false, "expires_at": null,
        })
    );
    let bob = call(&world.app().await, signed("GET", "/api/auth/me", &world.bob.sprite)).await;
    assert_eq!(bob.json()["role"], "user");
}

#[actix_web::test]
async fn rul_19b_health_is_flat_and_readiness_lists_what_is_configured() {
    let world = World::default();
    let app = world.app().await;
    assert_eq!(
        call(&app, request("GET", "/health")).await.json(),
        json!({"status": "ok"})
    );
    let ready = call(&app, request("GET", "/health/ready")).await;
    assert_eq!(
        (ready.status, ready.json()),
        (200, json!({"status": "ok", "checks": {"database": "ok"}}))
    );
    world.rows.down.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(call(&app, request("GET", "/health")).await.status, 200);
    let down = call(&app, request("GET", "/health/ready")).await;
    assert_eq!(
        (down.status, down.json()),
        (503, json!({"status": "error", "checks": {"database": "error"}}))
    );
    let page = call(&app, request("GET", "/")).await;
    assert_eq!(
        (page.header("content-type"), &page.bytes[..]),
        (Some("text/html; charset=utf-8"), &b"<p>hello</p>"[..])
    );
}

#[actix_web::test]
async fn an_agent_is_created_shown_changed_listed_and_deleted() {
    let world = World::default();
    let app = world.app().await;
    let (ann, key) = (&world.ann, &world.ann.full);
    let body = json!({
        "name": "Bob", "runtime": "claude", "model": "anthropic/claude-sonnet-5", "environment_id": ann.environment,
        "permission_policy": {"default": "ask"}, "sandbox_mode": "persistent", "sandbox_provider": "runner",
    });
    let made = call(&app, signed("POST", "/api/agents", key).set_json(&body)).await;
    assert_eq!(made.status, 201);
    let agent = made.json()["data"].clone();
    assert_eq!(
        agent,
        json!({
            "id": agent["id"], "name": "Bob", "description": "", "system": "", "model": "anthropic/claude-sonnet-5",
            "runtime": "claude", "runtime_command": null, "acp": true, "sandbox_provider": "runner",
            "sandbox_mode": "persistent", "environment_id": ann.environment, "skills": [], "mcp_servers": {},
            "metadata": {}, "allowed_vault_ids": null, "allowed_environment_ids": null,
            "allowed_inference_credential_ids": null, "inference_credential_id": null,
            "permission_policy": {"default": "ask"}, "session_config": {}, "conversation_count": 0,
            "avatar_media_type": null, "inserted_at": "2026-01-02T03:04:05Z", "updated_at": "2026-01-02T03:04:05Z",
        })
    );
    let path = format!("/api/agents/{}", agent["id"].as_str().unwrap());
    for method in ["PATCH", "PUT"] {
        let changed = call(&app, signed(method, &path, key).set_json(json!({"name": method}))).await;
        assert_eq!((changed.status, &changed.json()["data"]["name"]), (200, &json!(method)));
        assert_eq!(changed.json()["data"]["model"], "anthropic/claude-sonnet-5");
    }
    let taken = call(
        &app,
        signed("POST", "/api/agents", key).set_json(json!({"name": "demo", "runtime": "acp", "runtime_command": "x"})),
    )
    .await;
    assert_eq!(taken.faults(), ["name"]);
    let names = |path: &'static str| {
        let (app, key) = (&app, key);
        async move {
            let list = call(app, signed("GET", path, key)).await.json();
            list["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|a| a["name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(names("/api/agents").await, ["demo", "PUT"]);
    assert_eq!(names("/api/agents?search=EM").await, ["demo"]);
    assert_eq!(names("/api/agents?runtime=claude,codex").await, ["PUT"]);
    assert_eq!(names("/api/agents?runtime=cobol").await, Vec::<String>::new());
    assert_eq!(names("/api/agents?environment_id=nope").await, Vec::<String>::new());
    let demo = format!("/api/agents/{}", ann.agent);
    assert_eq!(call(&app, signed("DELETE", &demo, key)).await.status, 204);
    assert_eq!(
        *world.doors.asked.lock().unwrap(),
        ["destroy 0", "destroy 0", "destroy 1"]
    );
    assert_eq!(call(&app, signed("DELETE", &demo, key)).await.status, 404);
}

#[actix_web::test]
async fn list_empty_collection_is_an_empty_list() {
    let world = World::default();
    world.rows.edit(|t| {
        t.agents.clear();
        t.environments.clear();
        t.vaults.clear();
        t.conversations.clear();
        t.machines.clear();
        t.runners.clear();
    });
    for path in [
        "agents",
        "environments",
        "vaults",
        "conversations",
        "sandboxes",
        "runners",
    ] {
        assert_eq!(
            get(&world, &format!("/api/{path}")).await.json(),
            json!({"data": []}),
            "{path}"
        );
    }
}

#[actix_web::test]
async fn environments_have_every_key_and_defaults() {
    let world = World::default();
    let app = world.app().await;
    let made = call(
        &app,
        signed("POST", "/api/environments", &world.ann.full).set_json(json!({"name": "x"})),
    )
    .await;
    let environment = made.json()["data"].clone();
    assert_eq!(made.status, 201);
    assert_eq!(
        environment,
        json!({
            "id": environment["id"], "name": "x", "packages": {}, "env_vars": {}, "setup_script": "",
            "setup_timeout_seconds": 120, "networking_type": "unrestricted", "networking_config": {},
            "repositories": [], "metadata": {}, "secret_count": 0, "agent_count": 0,
            "inserted_at": "2026-01-02T03:04:05Z", "updated_at": "2026-01-02T03:04:05Z",
        })
    );
    let path = format!("/api/environments/{}", environment["id"].as_str().unwrap());
    let body =
        json!({"repositories": [{"url": "https://a.example/b", "mount_path": "/b"}], "networking_type": "limited"});
    let changed = call(&app, signed("PATCH", &path, &world.ann.full).set_json(&body))
        .await
        .json();
    assert_eq!(
        changed["data"]["repositories"],
        json!([{"url": "https://a.example/b", "mount_path": "/b"}])
    );
    assert_eq!(call(&app, signed("DELETE", &path, &world.ann.full)).await.status, 204);
}

#[actix_web::test]
async fn caution_11_a_secret_is_201_also_on_overwrite_and_goes_by_its_key() {
    let world = World::default();
    let app = world.app().await;
    for (home, parent, extra) in [
        (
            format!("/api/environments/{}", world.ann.environment),
            "environment_id",
            vec![],
        ),
        (
            format!("/api/vaults/{}", world.ann.vault),
            "vault_id",
            vec!["expires_at"],
        ),
    ] {
        let secrets = format!("{home}/secrets");
        for value in ["first-value", "second-value"] {
            let put = signed("POST", &secrets, &world.ann.full).set_json(json!({"key": "NEW_KEY", "value": value}));
            let answer = call(&app, put).await;
            assert_eq!(answer.status, 201);
            let body = answer.json();
            let mut expected = vec!["id", "key", "inserted_at", "updated_at", parent];
            expected.extend(&extra);
            assert_eq!(keys(&body["data"]), expected);
            assert!(!String::from_utf8_lossy(&answer.bytes).contains("-value"));
        }
        let listed = call(&app, signed("GET", &secrets, &world.ann.full)).await;
        assert_eq!(listed.json()["data"].as_array().unwrap().len(), 2);
        assert!(!String::from_utf8_lossy(&listed.bytes).contains("hunter2"));
        let gone = format!("{secrets}/NEW_KEY");
        assert_eq!(call(&app, signed("DELETE", &gone, &world.ann.full)).await.status, 204);
        assert_eq!(
            call(&app, signed("DELETE", &gone, &world.ann.full)).await.code(),
            (404, "not_found".into())
        );
    }
    let stored = world
        .rows
        .edit(|t| t.secrets.iter().map(|(s, _)| s.id).collect::<Vec<SecretId>>());
    assert_eq!(stored.len(), 4);
    let reserved = json!({"key": "FOUNTAIN_TOKEN", "value": "x"});
    let path = format!("/api/vaults/{}/secrets", world.ann.vault);
    assert_eq!(
        call(&app, signed("POST", &path, &world.ann.full).set_json(&reserved))
            .await
            .faults(),
        ["key"]
    );
}

#[actix_web::test]
async fn a_vault_secrets_expiry_is_set_cleared_and_nothing_else() {
    let world = World::default();
    let app = world.app().await;
    let path = format!("/api/vaults/{}/secrets/TOKEN", world.ann.vault);
    let set = |value: Value| signed("PATCH", &path, &world.ann.full).set_json(json!({"expires_at": value}));
    let answer = call(&app, set(json!("2027-01-01T00:00:00+01:00"))).await;
    assert_eq!(
        (answer.status, &answer.json()["data"]["expires_at"]),
        (200, &json!("2026-12-31T23:00:00Z"))
    );
    assert_eq!(
        call(&app, set(json!(null))).await.json()["data"]["expires_at"],
        json!(null)
    );
    let missing = format!("/api/vaults/{}/secrets/NOPE", world.ann.vault);
    let missing = signed("PATCH", &missing, &world.ann.full).set_json(json!({"expires_at": null}));
    assert_eq!(call(&app, missing).await.code(), (404, "not_found".into()));
}

#[actix_web::test]
async fn vaults_have_every_key() {
    let world = World::default();
    let vaults = get(&world, "/api/vaults").await.json();
    assert_eq!(
        keys(&vaults["data"][0]),
        [
            "id",
            "name",
            "description",
            "metadata",
            "secret_count",
            "inserted_at",
            "updated_at"
        ]
    );
}

#[actix_web::test]
async fn api_keys_are_shown_once_listed_without_the_key_and_revoked_at_once() {
    let world = World::default();
    let app = world.app().await;
    let made = call(
        &app,
        signed("POST", "/api/auth/api-keys", &world.ann.full).set_json(json!({"name": "ci"})),
    )
    .await;
    assert_eq!(made.status, 201);
    let body = made.json();
    assert_eq!(keys(&body), ["id", "name", "key", "prefix", "created_at"]);
    let key = body["key"].as_str().unwrap();
    assert_eq!(key.len(), 47);
    assert!(key.starts_with(body["prefix"].as_str().unwrap()));
    let list = call(&app, signed("GET", "/api/auth/api-keys", key)).await;
    assert!(!String::from_utf8_lossy(&list.bytes).contains(key));
    let list = list.json();
    assert_eq!(
        keys(&list["data"][0]),
        [
            "id",
            "name",
            "prefix",
            "scopes",
            "created_at",
            "last_used_at",
            "expires_at"
        ]
    );
    assert_eq!(
        (&list["data"][0]["name"], &list["data"][0]["scopes"]),
        (&json!("ci"), &json!(["full"]))
    );
    let path = format!("/api/auth/api-keys/{}", body["id"].as_str().unwrap());
    assert_eq!(call(&app, signed("DELETE", &path, key)).await.status, 204);
    assert_eq!(
        call(&app, signed("GET", "/api/auth/me", key)).await.json()["reason"],
        "api_key_revoked"
    );
}

#[actix_web::test]
async fn rp_v43_rp_v44_a_runner_key_has_one_scope_one_name_and_ends_its_connection() {
    let world = World::default();
    let app = world.app().await;
    let made = call(
        &app,
        signed("POST", "/api/runners/keys", &world.ann.full).set_json(json!({"name": "mini"})),
    )
    .await;
    assert_eq!(made.status, 201);
    let body = made.json();
    assert_eq!(keys(&body), ["id", "runner_name", "key", "prefix"]);
    let stored = world.rows.edit(|t| t.keys.last().unwrap().1.clone());
    assert_eq!(
        (stored.scope.clone(), stored.scope.wire()),
        (Scope::Runner("mini".into()), "runner".into())
    );
    let refused = call(&app, signed("GET", "/api/auth/me", body["key"].as_str().unwrap())).await;
    assert_eq!(
        (refused.status, &refused.json()["reason"]),
        (403, &json!("insufficient_scope"))
    );
    for name in ["Mini", "", "-x", "a/b"] {
        let bad = signed("POST", "/api/runners/keys", &world.ann.full).set_json(json!({"name": name}));
        assert_eq!(call(&app, bad).await.faults(), ["name"], "{name}");
    }
    let path = format!("/api/auth/api-keys/{}", body["id"].as_str().unwrap());
    assert_eq!(call(&app, signed("DELETE", &path, &world.ann.full)).await.status, 204);
    let revoked = world
        .online
        .revoked
        .lock()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    assert_eq!(
        revoked,
        [body["id"].as_str().unwrap()],
        "its connection ends, and no other one"
    );
}

#[actix_web::test]
async fn runners_say_whether_they_are_online_and_are_forgotten() {
    let world = World::default();
    world.online.online.lock().unwrap().push(world.ann.runner);
    let runner = get(&world, "/api/runners").await.json()["data"][0].clone();
    assert_eq!(
        runner,
        json!({
            "id": world.ann.runner, "name": "mini", "hostname": "mini.local", "os": null, "arch": null,
            "version": null, "root": "/srv", "online": true, "connected_at": "2026-01-02T03:04:05Z",
            "last_seen_at": "2026-01-02T03:04:05Z", "created_at": "2026-01-02T03:04:05Z",
        })
    );
    let path = format!("/api/runners/{}", world.ann.runner);
    assert_eq!(
        call(&world.app().await, signed("DELETE", &path, &world.ann.full))
            .await
            .status,
        204
    );
    assert_eq!(*world.online.ended.lock().unwrap(), [world.ann.runner]);
    assert_eq!(get(&world, "/api/runners").await.json(), json!({"data": []}));
}

#[actix_web::test]
async fn a_sandbox_has_every_key_short_and_in_detail() {
    let world = World::default();
    let short = [
        "id",
        "sprite_name",
        "status",
        "provider",
        "mode",
        "agent_id",
        "environment_id",
        "vault_id",
        "url",
        "checkpoint",
        "runner",
    ];
    let detail = get(&world, &format!("/api/sandboxes/{}", world.ann.machine))
        .await
        .json()["data"]
        .clone();
    let mut expected = short.to_vec();
    expected.extend(["conversations", "inserted_at", "last_resumed_at"]);
    assert_eq!(keys(&detail), expected);
    assert_eq!(
        detail["runner"],
        json!({"id": world.ann.runner, "name": "mini", "hostname": "mini.local", "online": false,
               "path": "/srv/fountain-1-box"})
    );
    assert_eq!(
        detail["conversations"],
        json!([{"id": world.ann.conversation, "status": "idle", "runtime": "acp", "title": null, "mid_turn": false,
                "inserted_at": "2026-01-02T03:04:05Z"}])
    );
    let conversation = get(&world, &format!("/api/conversations/{}", world.ann.conversation))
        .await
        .json();
    assert_eq!(keys(&conversation["data"]["sandbox"]), short);
    assert_eq!(
        get(&world, "/api/sandboxes?status=ready,failed").await.json()["data"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        get(&world, "/api/sandboxes?status=suspended").await.json(),
        json!({"data": []})
    );
    assert_eq!(
        get(&world, "/api/sandboxes?status=asleep").await.code(),
        (400, "invalid_status".into())
    );
}

#[actix_web::test]
async fn a_conversation_has_every_key() {
    let world = World::default();
    let permission = PendingPermission {
        request_id: "0.0123456789abcdef".into(),
        rpc_id: json!(0),
        tool: Some("Bash".into()),
        options: vec![json!({"optionId": "allow", "kind": "allow_once", "name": "Allow"})],
        asked_at: start(),
        deadline: start(),
        detached_until: None,
        answer: None,
    };
    world
        .rows
        .edit(|t| t.conversations[0].pending_requests.push((world.ann.turn, permission)));
    let mut conversation = get(&world, &format!("/api/conversations/{}", world.ann.conversation))
        .await
        .json();
    let conversation = conversation["data"].take();
    assert_eq!(
        keys(&conversation),
        [
            "id",
            "title",
            "first_prompt",
            "status",
            "runtime",
            "acp",
            "agent_id",
            "agent_version_id",
            "agent_version",
            "environment_id",
            "vault_id",
            "model",
            "sandbox_api_access",
            "permission_policy",
            "session_config",
            "session_config_options",
            "runtime_session_id",
            "source",
            "parent_conversation_id",
            "channel_id",
            "labels",
            "turn_count",
            "last_active_at",
            "last_read_at",
            "unread",
            "usage_total",
            "pending_requests",
            "sandbox_id",
            "sandbox",
            "inserted_at",
            "updated_at",
        ]
    );
    assert_eq!(
        conversation["pending_requests"],
        json!([{
            "request_id": "0.0123456789abcdef", "tool": "Bash",
            "options": [{"optionId": "allow", "kind": "allow_once", "name": "Allow"}],
            "asked_at": "2026-01-02T03:04:05.123456Z", "deadline": "2026-01-02T03:04:05.123456Z",
            "turn_id": world.ann.turn,
        }])
    );
    assert_eq!(conversation["last_active_at"], "2026-01-02T03:04:05.123456Z");
    assert_eq!(
        (&conversation["unread"], &conversation["labels"]),
        (&json!(true), &json!({}))
    );
    let path = format!("/api/conversations/{}/read", world.ann.conversation);
    assert_eq!(
        call(&world.app().await, signed("POST", &path, &world.ann.full))
            .await
            .status,
        204
    );
    let read = get(&world, &format!("/api/conversations/{}", world.ann.conversation))
        .await
        .json();
    assert_eq!(read["data"]["unread"], false);
}

#[actix_web::test]
async fn the_conversation_list_filters_and_says_what_it_does_not_know() {
    let world = World::default();
    world.set_status(world.ann.other, ConversationStatus::Failed);
    world.rows.edit(|t| {
        t.conversations[0]
            .conversation
            .labels
            .insert("team".into(), "a:b".into());
    });
    let count = |query: &str| {
        let path = format!("/api/conversations?{query}");
        let world = &world;
        async move { get(world, &path).await.json()["data"].as_array().unwrap().len() }
    };
    assert_eq!(count("").await, 2);
    assert_eq!(count("status=idle,failed").await, 2);
    assert_eq!(count("status=failed").await, 1);
    assert_eq!(count("label=team:a:b").await, 1);
    assert_eq!(count("label[]=team:a:b&label=x:y").await, 0);
    assert_eq!(count("limit=1").await, 1);
    for (query, code) in [
        ("status=asleep", (400, "invalid_status")),
        ("label=team", (400, "invalid_label_filter")),
        ("label=:x", (400, "invalid_label_filter")),
        ("limit=0", (422, "validation_failed")),
        ("limit=501", (422, "validation_failed")),
        ("limit=many", (422, "validation_failed")),
        ("agent_id=bob", (422, "validation_failed")),
    ] {
        let answer = get(&world, &format!("/api/conversations?{query}")).await;
        assert_eq!(answer.code(), (code.0, code.1.to_owned()), "{query}");
    }
}

#[actix_web::test]
async fn turns_have_every_key_and_their_images_bytes() {
    let world = World::default();
    let path = format!("/api/conversations/{}/turns", world.ann.conversation);
    let turns = get(&world, &path).await.json();
    assert_eq!(
        turns,
        json!({"data": [{
            "id": world.ann.turn, "turn_number": 1, "prompt": "hi", "status": "completed", "origin": "user",
            "client_request_id": "c-1", "waiting": false, "exit_code": null, "limit_reason": null,
            "started_at": "2026-01-02T03:04:05Z", "ended_at": "2026-01-02T03:04:05Z",
            "inserted_at": "2026-01-02T03:04:05Z", "image_count": 1, "model_selection": null,
            "config_selection": null, "inference": null, "usage": {"input": 12, "output": 34},
        }]})
    );
    let image = get(&world, &format!("{path}/{}/images/0", world.ann.turn)).await;
    assert_eq!(
        (image.header("content-type"), &image.bytes[..]),
        (Some("image/png"), &b"png"[..])
    );
    let foreign = format!("{path}/{}/images/0", world.bob.turn);
    for miss in [
        format!("{path}/{}/images/1", world.ann.turn),
        format!("{path}/x/images/0"),
        foreign,
    ] {
        assert_eq!(get(&world, &miss).await.code(), (404, "not_found".into()), "{miss}");
    }
}

#[actix_web::test]
async fn rul_51_the_catalog_lists_what_is_enabled() {
    let world = World::default();
    let catalog = get(&world, "/api/catalog").await.json()["data"].clone();
    assert_eq!(
        keys(&catalog),
        [
            "runtimes",
            "models",
            "model_providers",
            "sandbox_providers",
            "sandbox_api_access",
            "package_managers",
            "apps",
            "mcp_servers",
            "first_request",
        ]
    );
    assert_eq!(catalog["runtimes"], json!(["acp"]));
    assert_eq!(
        catalog["sandbox_providers"],
        json!({"enabled": ["runner"], "default": "sprites"})
    );
    assert_eq!(catalog["sandbox_api_access"], json!(["owner", "none"]));
    assert_eq!(
        keys(&catalog["first_request"]),
        ["curl", "typescript", "prompt", "placeholders"]
    );
}

#[actix_web::test]
async fn every_change_leaves_an_audit_row_without_a_value() {
    let world = World::default();
    let app = world.app().await;
    let key = &world.ann.full;
    let secrets = format!("/api/environments/{}/secrets", world.ann.environment);
    let put = signed("POST", &secrets, key).set_json(json!({"key": "A", "value": "open-sesame"}));
    assert_eq!(call(&app, put).await.status, 201);
    assert_eq!(
        call(&app, signed("POST", "/api/vaults", key).set_json(json!({"name": "v"})))
            .await
            .status,
        201
    );
    let audits = world.rows.edit(|t| format!("{:?}", t.audits));
    assert!(
        audits.contains("secret.stored") && audits.contains("vault.created"),
        "{audits}"
    );
    assert!(!audits.contains("open-sesame"), "{audits}");
}
