//! Cases 17 to 20: a second owner, a stop with proof, egress, checkpoints.

use bytes::Bytes;
use fountain_actors::ports::sandbox::*;

use crate::bench::{Bench, Lab};

pub async fn case_17_a_second_owner_replays_and_follows<B: Bench>(lab: &Lab<B>) {
    assert!(lab.has(Capability::Attach), "every adapter of ours has it");
    let handle = lab.made().await;
    let (command, mut own) = lab.spawn(&handle, &lab.bench.stays(), true).await;
    own.until(b"ready").await;
    let before = own.stdout.clone();
    let sessions = lab.adapter.list_sessions(&handle).await.unwrap();
    assert_eq!(sessions[0].id, command.session_id);
    let (_, mut other) = lab.attach(&handle, &sessions[0].id).await;
    other.until(&before).await;
    assert_eq!(other.stdout, before);
    let written = lab.adapter.write_stdin(&command, Bytes::from_static(b"after-attach"));
    written.await.unwrap();
    own.until(b"after-attach").await;
    other.until(b"after-attach").await;
    assert_eq!(other.stdout, own.stdout);
    assert!(
        own.replayed.is_none_or(|lengths| lengths == (0, 0)),
        "the first owner must not hear a replay"
    );
}

pub async fn case_18_terminate_ends_one_session<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    if !lab.has(Capability::TerminateSession) {
        // An adapter may offer the plain operation below the capability; the facade must not (sandbox-contract 5.3).
        let refused = checked::terminate_session(&*lab.adapter, &handle, "some-session", Terminate::GRACEFUL);
        assert_eq!(refused.await, Err(SandboxError::NotSupported));
        return;
    }
    let (command, mut frames) = lab.spawn(&handle, &lab.bench.stays(), true).await;
    frames.until(b"ready").await;
    let sessions = lab.adapter.list_sessions(&handle).await.unwrap();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    lab.adapter.stop_command(&command).await;
    let how = Terminate::within(lab.bench.timeout());
    for _ in 0..2 {
        let ended = lab.adapter.terminate_session(&handle, &sessions[0].id, how).await;
        assert_eq!(ended, Ok(()));
    }
    lab.adapter.get(&handle).await.unwrap();
    assert_eq!(lab.output(&handle, &lab.bench.ok()).await.trim_ascii(), b"hello");
}

pub async fn case_19_network_policy<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    for allow in [vec![], vec!["api.example.com".to_owned()]] {
        let policy = NetworkPolicy { allow };
        let applied = lab.adapter.apply_network_policy(&handle, &policy, None).await;
        let read = lab.adapter.network_policy(&handle).await;
        if lab.has(Capability::NetworkPolicy) {
            assert_eq!((applied, read), (Ok(()), Ok(policy)), "RUL-64a: it reads back");
        } else {
            let refused = SandboxError::NotSupported;
            assert_eq!((applied, read), (Err(refused.clone()), Err(refused)));
        }
    }
}

pub async fn case_20_checkpoints<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    if !lab.has(Capability::Checkpoint) {
        let created = lab.adapter.create_checkpoint(&handle, "comment", None).await;
        assert_eq!(created, Err(SandboxError::NotSupported));
        let restored = lab.adapter.restore_checkpoint(&handle, "cp-1", None).await;
        assert_eq!(restored, Err(SandboxError::NotSupported));
        return;
    }
    let path = lab.bench.path();
    let write = async |text: &'static str| {
        let bytes = Bytes::from_static(text.as_bytes());
        lab.adapter.write_file(&handle, &path, bytes, None, None).await.unwrap();
    };
    write("before").await;
    let id = lab.adapter.create_checkpoint(&handle, "comment", None).await.unwrap();
    write("after").await;
    assert_eq!(lab.adapter.restore_checkpoint(&handle, &id, None).await, Ok(()));
    let look = crate::bench::line("cat", &[&path]);
    assert_eq!(lab.output(&handle, &look).await, "before");
}
