//! The connection against a hand-written daemon: what is on the wire, in which order, and who gets what.

use std::sync::Arc;

use actix::prelude::*;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::connection::{Disconnected, Registered};
use super::*;
use crate::domain::runner::{Runner, RunnerDetails};
use crate::domain::{AccountId, KeyId, RunnerId};
use crate::ports::sandbox::{Frame, RUNNER_DISCONNECTED, SandboxError};

struct Wire {
    addr: Addr<RunnerConnection>,
    out: mpsc::UnboundedReceiver<Outbound>,
    registry: Arc<Connections>,
    runner: Runner,
}

fn runner(features: &[&str]) -> Runner {
    Runner {
        id: RunnerId(uuid::Uuid::from_u128(7)),
        account_id: AccountId(uuid::Uuid::from_u128(1)),
        name: "mini".into(),
        details: RunnerDetails {
            features: features.iter().map(|f| (*f).to_owned()).collect(),
            ..Default::default()
        },
        connected_at: None,
        last_seen_at: None,
        forgotten_at: None,
        inserted_at: chrono::DateTime::UNIX_EPOCH,
    }
}

async fn wire(features: &[&str], limit: usize) -> Wire {
    let runner = runner(features);
    let registry = Arc::new(Connections::default());
    let (tx, out) = mpsc::unbounded_channel();
    let addr = RunnerConnection::new(runner.clone(), Arc::clone(&registry), tx, limit).start();
    let ticket = registry
        .register(runner.clone(), KeyId(uuid::Uuid::nil()), addr.clone())
        .unwrap();
    addr.send(Registered(ticket)).await.unwrap();
    Wire {
        addr,
        out,
        registry,
        runner,
    }
}

impl Wire {
    async fn sent(&mut self) -> Value {
        match self.out.recv().await.expect("something was sent") {
            Outbound::Text(text) => serde_json::from_str(&text).unwrap(),
            Outbound::Close { code, reason } => json!({"close": code, "reason": reason}),
        }
    }

    async fn says(&self, frames: &[Value]) -> bool {
        self.addr
            .send(Incoming(frames.iter().map(Value::to_string).collect()))
            .await
            .unwrap()
    }

    /// Starts a call in the background.
    fn call(&self, op: &'static str, subscribe: bool) -> tokio::task::JoinHandle<Result<CallAnswer, SandboxError>> {
        let addr = self.addr.clone();
        actix_rt::spawn(async move {
            addr.send(Call {
                op,
                arguments: Map::new(),
                subscribe,
            })
            .await
            .unwrap()
        })
    }
}

fn text(frame: Frame) -> String {
    match frame {
        Frame::Stdout(held) => format!("out:{}", String::from_utf8_lossy(&held.bytes)),
        Frame::Stderr(held) => format!("err:{}", String::from_utf8_lossy(&held.bytes)),
        Frame::ReplayEnd {
            stdout_bytes,
            stderr_bytes,
        } => format!("end:{stdout_bytes},{stderr_bytes}"),
        Frame::Exit(code) => format!("exit:{code}"),
        Frame::Error(error) => format!("error:{error}"),
    }
}

fn out(session: &str, data: &str, tag: Option<u64>) -> Value {
    let mut frame = json!({"stream": "stdout", "session_id": session, "data": wire::encode(data.as_bytes())});
    if let Some(tag) = tag {
        frame["replay_for"] = tag.into();
    }
    frame
}

#[actix::test]
async fn replies_come_in_any_order_and_unknown_ids_are_ignored() {
    let mut wire = wire(&[], 1 << 20).await;
    let (first, second) = (wire.call("get", false), wire.call("list", false));
    let (a, b) = (wire.sent().await, wire.sent().await);
    assert_eq!((a["id"].clone(), a["op"].clone()), (json!(1), json!("get")));
    assert_eq!(b["id"], 2);
    assert!(
        wire.says(&[
            json!({"id": 99, "ok": true}),
            json!({"id": 2, "ok": true, "result": {"n": 2}})
        ])
        .await
    );
    assert!(wire.says(&[json!({"id": 1, "ok": false, "error": "not_found"})]).await);
    assert_eq!(first.await.unwrap().unwrap_err(), SandboxError::NotFound);
    assert_eq!(second.await.unwrap().unwrap().result, json!({"n": 2}));
}

#[actix::test]
async fn rp_v20_a_spawns_frames_right_behind_the_reply_are_not_lost() {
    let mut wire = wire(&["replay_end"], 1 << 20).await;
    let call = wire.call("spawn", true);
    wire.sent().await;
    let reply = json!({"id": 1, "ok": true, "result": {"session_id": "s-1"}});
    assert!(
        wire.says(&[reply, out("s-1", "ready\n", Some(1)), out("s-1", "live\n", None)])
            .await
    );
    let (_, mut stream) = call.await.unwrap().unwrap().stream.unwrap();
    assert_eq!(text(stream.recv().await.unwrap()), "out:ready\n");
    assert_eq!(text(stream.recv().await.unwrap()), "out:live\n");
}

#[actix::test]
async fn rp_v22_a_replay_reaches_its_attacher_alone_and_the_exit_everyone() {
    let mut wire = wire(&["replay_end"], 1 << 20).await;
    let (one, two) = (wire.call("spawn", true), wire.call("attach", true));
    wire.sent().await;
    wire.sent().await;
    assert!(
        wire.says(&[
            json!({"id": 1, "ok": true, "result": {"session_id": "s"}}),
            out("s", "a", None)
        ])
        .await
    );
    assert!(
        wire.says(&[
            json!({"id": 2, "ok": true, "result": {"session_id": "s"}}),
            out("s", "a", Some(2)),
            json!({"stream": "replay_end", "session_id": "s", "replay_for": 2, "stdout_bytes": 1, "stderr_bytes": 0}),
            out("s", "b", None),
            json!({"stream": "exit", "session_id": "s", "code": 0}),
            out("s", "after the end", None),
        ])
        .await
    );
    let mut seen = Vec::new();
    for call in [one, two] {
        let (_, mut stream) = call.await.unwrap().unwrap().stream.unwrap();
        let mut frames = Vec::new();
        while let Some(frame) = stream.recv().await {
            frames.push(text(frame));
        }
        seen.push(frames);
    }
    assert_eq!(seen[0], ["out:a", "out:b", "exit:0"]);
    assert_eq!(seen[1], ["out:a", "end:1,0", "out:b", "exit:0"]);
}

#[actix::test]
async fn rp_p1_live_frames_are_held_for_a_fresh_attacher_until_its_replay() {
    let mut wire = wire(&[], 1 << 20).await;
    let call = wire.call("attach", true);
    wire.sent().await;
    assert!(
        wire.says(&[
            json!({"id": 1, "ok": true, "result": {"session_id": "s"}}),
            out("s", "both", None),
            out("s", "before+both", Some(1)),
            out("s", "live", None),
        ])
        .await
    );
    let (_, mut stream) = call.await.unwrap().unwrap().stream.unwrap();
    assert_eq!(text(stream.recv().await.unwrap()), "out:before+both");
    assert_eq!(text(stream.recv().await.unwrap()), "out:live");
}

#[actix::test]
async fn rp_p1_what_was_held_is_delivered_when_the_journal_was_empty() {
    tokio::time::pause();
    let mut wire = wire(&[], 1 << 20).await;
    let call = wire.call("attach", true);
    wire.sent().await;
    assert!(
        wire.says(&[
            json!({"id": 1, "ok": true, "result": {"session_id": "s"}}),
            out("s", "live", None)
        ])
        .await
    );
    let (_, mut stream) = call.await.unwrap().unwrap().stream.unwrap();
    assert_eq!(text(stream.recv().await.unwrap()), "out:live");
}

#[actix::test]
async fn rp_v34_a_dropped_socket_fails_calls_and_subscribers_and_withdraws_first() {
    let mut wire = wire(&["replay_end"], 1 << 20).await;
    let spawn = wire.call("spawn", true);
    wire.sent().await;
    wire.says(&[json!({"id": 1, "ok": true, "result": {"session_id": "s"}})])
        .await;
    let (_, mut stream) = spawn.await.unwrap().unwrap().stream.unwrap();
    let waiting = wire.call("get", false);
    wire.sent().await;
    wire.addr.send(Disconnected).await.unwrap();
    assert!(!RunnerRegistry::is_online(&wire.registry, wire.runner.id));
    assert_eq!(
        waiting.await.unwrap().unwrap_err(),
        SandboxError::Unavailable(RUNNER_DISCONNECTED.into())
    );
    assert_eq!(
        text(stream.recv().await.unwrap()),
        format!("error:unavailable: {RUNNER_DISCONNECTED}")
    );
    assert!(stream.recv().await.is_none(), "no exit follows");
}

#[actix::test]
async fn rp_v35_the_first_connection_wins() {
    let wire = wire(&[], 1 << 20).await;
    let again = wire
        .registry
        .register(wire.runner.clone(), KeyId(uuid::Uuid::nil()), wire.addr.clone());
    assert_eq!(again, Err(registry::AlreadyConnected));
    assert!(
        !wire.registry.withdraw(wire.runner.id, 999),
        "a late withdrawal of another connection is ignored"
    );
    assert!(RunnerRegistry::is_online(&wire.registry, wire.runner.id));
}

#[actix::test]
async fn rp_v36_a_deleted_runner_is_closed_with_4404() {
    let mut wire = wire(&[], 1 << 20).await;
    wire.registry.disconnect(wire.runner.id);
    assert_eq!(wire.sent().await["close"], CLOSE_DELETED);
    assert!(!RunnerRegistry::is_online(&wire.registry, wire.runner.id));
}

#[actix::test]
async fn rp_v37_the_last_subscriber_that_leaves_detaches_the_session() {
    let mut wire = wire(&["replay_end"], 1 << 20).await;
    let spawn = wire.call("spawn", true);
    wire.sent().await;
    wire.says(&[json!({"id": 1, "ok": true, "result": {"session_id": "s"}})])
        .await;
    let (reference, stream) = spawn.await.unwrap().unwrap().stream.unwrap();
    wire.addr
        .send(Unsubscribe {
            session_id: "s".into(),
            reference,
        })
        .await
        .unwrap();
    assert_eq!(wire.sent().await, json!({"id": 0, "op": "detach", "session_id": "s"}));
    drop(stream);
}

#[actix::test]
async fn a_subscriber_that_was_dropped_without_a_word_is_detached_at_its_next_frame() {
    let mut wire = wire(&["replay_end"], 1 << 20).await;
    let spawn = wire.call("spawn", true);
    wire.sent().await;
    wire.says(&[json!({"id": 1, "ok": true, "result": {"session_id": "s"}})])
        .await;
    drop(spawn.await.unwrap().unwrap());
    wire.says(&[out("s", "x", None)]).await;
    assert_eq!(wire.sent().await["op"], "detach");
}

#[actix::test]
async fn rp_v31_garbage_closes_with_1003_and_other_json_does_not() {
    let mut wire = wire(&[], 1 << 20).await;
    assert!(wire.says(&[json!([1])]).await);
    assert!(!wire.addr.send(Incoming(vec!["hello".into()])).await.unwrap());
    assert_eq!(wire.sent().await["close"], 1003);
}

#[actix::test]
async fn rul_43_a_connection_too_far_ahead_of_the_store_is_closed() {
    let mut wire = wire(&["replay_end"], 8).await;
    let spawn = wire.call("spawn", true);
    wire.sent().await;
    assert!(
        wire.says(&[
            json!({"id": 1, "ok": true, "result": {"session_id": "s"}}),
            out("s", "12345678", None)
        ])
        .await
    );
    let (_, mut stream) = spawn.await.unwrap().unwrap().stream.unwrap();
    // Durable bytes come off the ledger, so the same amount may follow.
    drop(stream.recv().await);
    assert!(wire.says(&[out("s", "12345678", None)]).await);
    assert!(!wire.says(&[out("s", "9", None)]).await);
    assert_eq!(wire.sent().await["close"], 1013);
}

#[actix::test]
async fn a_reply_after_its_asker_gave_up_subscribes_nobody() {
    let mut wire = wire(&["replay_end"], 1 << 20).await;
    let call = wire.call("spawn", true);
    wire.sent().await;
    call.abort();
    let _ = call.await;
    assert!(
        wire.says(&[
            json!({"id": 1, "ok": true, "result": {"session_id": "s"}}),
            out("s", "x", None)
        ])
        .await
    );
    assert!(wire.out.try_recv().is_err(), "nothing to detach: nobody was subscribed");
}
