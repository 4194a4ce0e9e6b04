//! Create, prompts, interrupt, terminate, delete, answers: what reaches the doors and what comes back (http-api 5.7).

use fountain_actors::domain::machine::MachineStatus;
use fountain_actors::domain::{ConversationId, ErrorCode, Refusal};
use serde_json::{Value, json};

use crate::world::*;

async fn post(world: &World, path: &str, key: &str, body: Value) -> Answered {
    call(&world.app().await, signed("POST", path, key).set_json(body)).await
}

fn conversation(world: &World, action: &str) -> String {
    format!("/api/conversations/{}/{action}", world.ann.conversation)
}

#[actix_web::test]
async fn create_answers_201_with_meta_and_passes_every_field_on() {
    let world = World::default();
    let body = json!({
        "agent_id": world.ann.agent, "prompt": "hi", "title": "t", "vault_id": world.ann.vault,
        "environment_id": world.ann.environment, "model": "anthropic/x", "permission_policy": {"Bash": "ask"},
        "sandbox_mode": "persistent", "sandbox_api_access": "none", "sprite_name": "box", "channel_id": "c", "fresh": true,
        "labels": {"a": "b", "gone": null}, "client_request_id": "r", "images": [], "queue": true,
        "execution_limits": {}, "session_config": {},
    });
    let request = signed("POST", "/api/conversations", &world.ann.full)
        .insert_header(("X-Fountain-Parent-Conversation-Id", world.ann.other.to_string()))
        .set_json(body);
    let answer = call(&world.app().await, request).await;
    assert_eq!(answer.status, 201);
    assert_eq!(answer.json()["meta"], json!({"resumed": false}));
    assert_eq!(answer.json()["data"]["first_prompt"], "hi");
    let launch = world.doors.launches.lock().unwrap().pop().unwrap();
    let prompt = launch.prompt.as_ref().unwrap();
    assert_eq!(
        (prompt.text.as_str(), prompt.client_request_id.as_deref()),
        ("hi", Some("r"))
    );
    assert_eq!(
        launch.labels.into_iter().collect::<Vec<_>>(),
        [("a".to_owned(), "b".to_owned())]
    );
    assert_eq!(launch.parent, Some(world.ann.other.to_string()));
    assert_eq!(
        format!(
            "{:?} {:?} {:?} {:?}",
            launch.sandbox_mode, launch.sandbox_api_access, launch.sprite_name, launch.fresh
        ),
        "Some(Persistent) None Some(\"box\") true"
    );
}

#[actix_web::test]
async fn run_channel_resume_preserves_client_request_id() {
    let world = World::default();
    *world.doors.resumes.lock().unwrap() = true;
    let body = json!({"agent_id": world.ann.agent, "channel_id": "c", "prompt": "hi", "client_request_id": "r-1"});
    let resumed = post(&world, "/api/conversations", &world.ann.full, body).await;
    assert_eq!(
        (resumed.status, &resumed.json()["meta"]),
        (200, &json!({"resumed": true}))
    );
    let body = json!({"prompt": "hi", "client_request_id": "r-1"});
    let prompted = post(&world, &conversation(&world, "prompts"), &world.ann.full, body).await;
    assert_eq!(prompted.json(), json!({"status": "queued", "client_request_id": "r-1"}));
    assert_eq!(
        world.doors.prompts.lock().unwrap()[0].client_request_id.as_deref(),
        Some("r-1")
    );
}

#[actix_web::test]
async fn rul_19a_blank_prompts_are_refused_and_absent_ones_are_none() {
    let world = World::default();
    let create = |extra: Value| {
        let mut body = json!({"agent_id": world.ann.agent});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for blank in ["", "  \n\t", "\u{3000}"] {
        for (path, body) in [
            ("/api/conversations".to_owned(), create(json!({"prompt": blank}))),
            (conversation(&world, "prompts"), json!({"prompt": blank})),
        ] {
            let answer = post(&world, &path, &world.ann.full, body).await;
            assert_eq!(answer.code(), (422, "invalid_prompt".into()), "{path}");
        }
    }
    for none in [json!({}), json!({"prompt": null, "client_request_id": "ignored"})] {
        assert_eq!(
            post(&world, "/api/conversations", &world.ann.full, create(none))
                .await
                .status,
            201
        );
        assert_eq!(world.doors.launches.lock().unwrap().pop().unwrap().prompt, None);
    }
    let image = json!([{"media_type": "image/png", "data": "AAAA"}]);
    let answer = post(
        &world,
        "/api/conversations",
        &world.ann.full,
        create(json!({"images": image})),
    )
    .await;
    assert_eq!(answer.code(), (422, "invalid_prompt".into()));
}

#[actix_web::test]
async fn images_that_are_none_are_refused() {
    let world = World::default();
    for image in [
        json!({"media_type": "image/bmp", "data": "AAAA"}),
        json!({"media_type": "image/png", "data": "?"}),
        json!({"media_type": "image/png", "data": ""}),
        json!({"media_type": "image/png", "data": 1}),
        json!("AAAA"),
    ] {
        let body = json!({"prompt": "look", "images": [image]});
        let answer = post(&world, &conversation(&world, "prompts"), &world.ann.full, body.clone()).await;
        assert_eq!(answer.code(), (422, "invalid_images".into()), "{body}");
    }
}

#[actix_web::test]
async fn rul_18_what_is_not_built_is_refused() {
    let world = World::default();
    for (field, value, code) in [
        (
            "execution_limits",
            json!({"max_seconds": 5}),
            "execution_limits_unsupported",
        ),
        ("execution_limits", json!([]), "execution_limits_invalid"),
        ("session_config", json!({"mode": "plan"}), "session_config_invalid"),
        ("sandbox_mode", json!("eternal"), "invalid_sandbox_mode"),
        ("sandbox_api_access", json!("all"), "invalid_sandbox_api_access"),
        ("permission_policy", json!("ask"), "permission_policy_invalid"),
    ] {
        let body = json!({"agent_id": world.ann.agent, field: value});
        let answer = post(&world, "/api/conversations", &world.ann.full, body).await;
        assert_eq!(answer.code(), (422, code.into()), "{field}");
    }
    let body = json!({"prompt": "x", "session_config": {"a": true}});
    let answer = post(&world, &conversation(&world, "prompts"), &world.ann.full, body).await;
    assert_eq!(answer.code(), (422, "session_config_invalid".into()));
    assert!(world.doors.asked.lock().unwrap().is_empty());
}

#[actix_web::test]
async fn labels_have_bounds_and_faults_name_the_key() {
    let world = World::default();
    let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("k{n}"), json!("v"))).collect();
    for labels in [
        json!(many),
        json!({"k".repeat(65): "v"}),
        json!({"": "v"}),
        json!({"key": "v".repeat(257)}),
    ] {
        let body = json!({"agent_id": world.ann.agent, "labels": labels});
        let answer = post(&world, "/api/conversations", &world.ann.full, body).await;
        assert_eq!(answer.faults(), ["labels"]);
    }
    let body = json!({"agent_id": world.ann.agent, "labels": {"the-key": 5}});
    let answer = post(&world, "/api/conversations", &world.ann.full, body).await;
    assert!(
        answer.json()["errors"]["labels"][0]
            .as_str()
            .unwrap()
            .starts_with("the-key")
    );
    let path = conversation(&world, "labels");
    for (body, labels) in [
        (json!({"labels": {"a": "1", "b": "2"}}), json!({"a": "1", "b": "2"})),
        (json!({"labels": {"a": null, "c": "3"}}), json!({"b": "2", "c": "3"})),
    ] {
        let merged = call(
            &world.app().await,
            signed("PATCH", &path, &world.ann.full).set_json(body),
        )
        .await;
        assert_eq!(merged.json()["data"]["labels"], labels);
    }
}

#[actix_web::test]
async fn a_sandbox_key_may_label_its_own_conversation_only() {
    let world = World::default();
    let app = world.app().await;
    let label = |id: ConversationId| {
        let path = format!("/api/conversations/{id}/labels");
        signed("PATCH", &path, &world.ann.sprite).set_json(json!({"labels": {"a": "b"}}))
    };
    assert_eq!(call(&app, label(world.ann.conversation)).await.status, 200);
    let code = (403, "sprite_may_not_label_another_conversation".to_owned());
    assert_eq!(call(&app, label(world.ann.other)).await.code(), code);
    world
        .rows
        .edit(|t| t.conversations[1].conversation.channel_id = Some("c".into()));
    let body = json!({"agent_id": world.ann.agent, "channel_id": "c", "labels": {"a": "b"}});
    assert_eq!(
        post(&world, "/api/conversations", &world.ann.sprite, body.clone())
            .await
            .code(),
        code
    );
    assert_eq!(
        post(&world, "/api/conversations", &world.ann.full, body).await.status,
        201
    );
}

#[actix_web::test]
async fn a_sandbox_key_may_not_put_another_agent_on_a_machine() {
    let world = World::default();
    world.rows.edit(|t| t.machines[0].1.machine.agent_id = None);
    let body = json!({"agent_id": world.ann.agent, "sandbox_id": world.ann.machine});
    let answer = post(&world, "/api/conversations", &world.ann.sprite, body.clone()).await;
    assert_eq!(answer.code(), (403, "guest_attach_requires_full_scope".into()));
    assert_eq!(answer.json()["reason"], "insufficient_scope");
    assert_eq!(answer.json()["required_scope"], "full");
    assert_eq!(
        post(&world, "/api/conversations", &world.ann.full, body).await.status,
        201
    );
}

#[actix_web::test]
async fn a_sandbox_key_may_not_answer_and_that_wins_over_the_body() {
    let world = World::default();
    let path = conversation(&world, "requests/0.a");
    let request = signed("POST", &path, &world.ann.sprite).set_payload("{broken");
    assert_eq!(
        call(&world.app().await, request).await.code(),
        (403, "sprite_may_not_answer".into())
    );
}

#[actix_web::test]
async fn rul_10_a_permission_answer_goes_to_the_request_that_the_path_names() {
    let world = World::default();
    for (segment, id) in [("0.0123456789abcdef", "0.0123456789abcdef"), ("a%2Fb.c", "a/b.c")] {
        let path = conversation(&world, &format!("requests/{segment}"));
        let answer = post(&world, &path, &world.ann.full, json!({"option_id": "allow"})).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"ok": true})));
        assert_eq!(
            world.doors.asked.lock().unwrap().pop().unwrap(),
            format!("answer {id} allow")
        );
        for body in [json!({}), json!({"option_id": null}), json!({"option_id": ""})] {
            let answer = post(&world, &path, &world.ann.full, body).await;
            assert_eq!(answer.code(), (422, "option_id_required".into()));
        }
    }
}

#[actix_web::test]
async fn actions_answer_what_the_contract_says() {
    let world = World::default();
    let app = world.app().await;
    let prompted = post(
        &world,
        &conversation(&world, "prompts"),
        &world.ann.full,
        json!({"prompt": "more"}),
    )
    .await;
    assert_eq!(
        (prompted.status, prompted.json()),
        (200, json!({"status": "queued", "client_request_id": null}))
    );
    let path = format!("/api/conversations/{}", world.ann.conversation);
    let sandbox = format!("/api/sandboxes/{}", world.ann.machine);
    for (method, path) in [
        ("POST", format!("{path}/interrupt")),
        ("POST", format!("{path}/terminate")),
        ("DELETE", path),
        ("DELETE", sandbox),
    ] {
        let answer = call(&app, signed(method, &path, &world.ann.full)).await;
        assert_eq!((answer.status, answer.bytes.len()), (204, 0), "{path}");
    }
    let asked = world.doors.asked.lock().unwrap().clone();
    assert_eq!(asked, ["prompt more", "interrupt", "terminate", "delete", "reset"]);
}

#[actix_web::test]
async fn caution_6_7_8_refusals_of_the_engine_arrive_as_they_are() {
    let world = World::default();
    for (refusal, status, retry_after, body) in [
        (
            ErrorCode::ConversationBusy.into(),
            400,
            None,
            json!({"error": "conversation_busy"}),
        ),
        (
            ErrorCode::Provisioning.into(),
            503,
            Some("30"),
            json!({"error": "provisioning"}),
        ),
        (
            ErrorCode::SandboxUnavailable.into(),
            503,
            Some("30"),
            json!({"error": "sandbox_unavailable"}),
        ),
        (
            ErrorCode::SandboxResumeFailed.into(),
            503,
            Some("10"),
            json!({"error": "sandbox_resume_failed"}),
        ),
        (
            ErrorCode::ConversationTerminated.into(),
            410,
            None,
            json!({"error": "conversation_terminated"}),
        ),
        (
            Refusal::QuotaExceeded { active: 20, limit: 20 },
            429,
            None,
            json!({"error": "sandbox_quota_exceeded", "active_sandboxes": 20, "limit": 20}),
        ),
        (
            Refusal::NotAttachable(MachineStatus::Failed),
            409,
            None,
            json!({"error": "sandbox_not_attachable", "status": "failed"}),
        ),
    ] {
        *world.doors.refusal.lock().unwrap() = Some(refusal);
        let answer = post(
            &world,
            &conversation(&world, "prompts"),
            &world.ann.full,
            json!({"prompt": "x"}),
        )
        .await;
        let mut seen = answer.json();
        seen.as_object_mut().unwrap().shift_remove("message");
        assert_eq!(
            (answer.status, answer.header("retry-after"), seen),
            (status, retry_after, body)
        );
    }
}
