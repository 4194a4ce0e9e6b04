//! What a request leaves in the log: ids and patterns, never what the client wrote (P80, RUL-64b, DESIGN promise 8).

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::world::*;

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Captured {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[actix_web::test]
async fn p80_no_key_query_body_or_path_of_a_client_stands_in_the_log() {
    let captured = Captured::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(captured.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let world = World::default();
    let app = world.app().await;
    let path = format!(
        "/api/conversations/{}/prompts?token=sesame-query",
        world.ann.conversation
    );
    let prompt = signed("POST", &path, &world.ann.full).set_json(json!({"prompt": "sesame-body"}));
    assert_eq!(call(&app, prompt).await.status, 200);
    call(&app, signed("GET", "/api/sesame-path?x=sesame-query", "ftn_sesame-key")).await;
    let secret = format!("/api/vaults/{}/secrets", world.ann.vault);
    call(
        &app,
        signed("POST", &secret, &world.ann.full).set_json(json!({"key": "A", "value": "sesame-body"})),
    )
    .await;
    world.rows.down.store(true, std::sync::atomic::Ordering::SeqCst);
    call(&app, signed("GET", "/api/agents?search=sesame-query", &world.ann.full)).await;
    drop(guard);
    let log = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
    assert!(!log.contains("sesame") && !log.contains(&world.ann.full), "{log}");
    let route = "route=\"/api/conversations/{id}/prompts\"";
    let account = format!("account.id={}", world.ann.account);
    let line = log.lines().find(|line| line.contains(route)).unwrap();
    for field in [
        account.as_str(),
        "method=\"POST\"",
        "status=200",
        "request.id=",
        "duration_ms=",
    ] {
        assert!(line.contains(field), "{field} in {line}");
    }
    assert_eq!(
        log.matches("the store is unavailable").count(),
        1 + log.matches("(fake): planned").count(),
        "{log}"
    );
}
