//! A1 to A12 of sandbox-contract 12.1: what the published suite does not ask.

use std::time::{Duration, Instant};

use bytes::Bytes;
use fountain_actors::ports::sandbox::*;

use crate::bench::{Bench, Lab, contains, line};

pub async fn a01_a_rebuilt_handle_does_everything<B: Bench>(lab: &Lab<B>) {
    lab.made().await;
    let handle = lab.adapter.handle(&lab.name);
    lab.adapter.get(&handle).await.unwrap();
    let bytes = Bytes::from_static(b"x");
    lab.adapter
        .write_file(&handle, &lab.bench.path(), bytes, None, None)
        .await
        .unwrap();
    assert_eq!(lab.output(&handle, &lab.bench.ok()).await.trim_ascii(), b"hello");
    let (command, mut frames) = lab.spawn(&handle, &lab.bench.stays(), true).await;
    frames.until(b"ready").await;
    assert!(!lab.adapter.list_sessions(&handle).await.unwrap().is_empty());
    lab.attach(&handle, &command.session_id).await.1.until(b"ready").await;
    if lab.has(Capability::Suspend) {
        lab.adapter.suspend(&handle, None).await.unwrap();
        lab.adapter.resume(&handle, None).await.unwrap();
    }
    lab.adapter.destroy(&handle, None).await.unwrap();
    assert_eq!(lab.adapter.get(&handle).await, Err(SandboxError::NotFound));
}

pub async fn a02_stderr_is_dropped_or_merged<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    for merged in [false, true] {
        let options = ExecOptions {
            stderr_to_stdout: merged,
            ..ExecOptions::default()
        };
        let done = lab.exec(&handle, &lab.bench.both(), options).await.unwrap();
        assert!(contains(&done.output, b"out"), "{merged}");
        assert_eq!(contains(&done.output, b"err"), merged);
    }
}

pub async fn a03_no_time_dispatches_nothing<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let options = ExecOptions {
        timeout: Some(Duration::ZERO),
        ..ExecOptions::default()
    };
    let path = lab.bench.path();
    let bytes = Bytes::from_static(b"x");
    lab.adapter.write_file(&handle, &path, bytes, None, None).await.unwrap();
    // On a real machine the file would be gone, had it been dispatched; the fake has no `rm` and counts requests.
    let answer = lab.exec(&handle, &line("rm", &[&path]), options).await;
    assert_eq!(answer, Err(SandboxError::Unavailable("exec_timeout 0".into())));
    assert_eq!(lab.output(&handle, &line("cat", &[&path])).await, "x");
}

pub async fn a04_steady_output_does_not_extend_a_deadline<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let limit = Duration::from_millis(500);
    let options = ExecOptions {
        timeout: Some(limit),
        ..ExecOptions::default()
    };
    let began = Instant::now();
    let answer = lab.exec(&handle, &lab.bench.pours(), options).await;
    let took = began.elapsed();
    assert_eq!(answer.map(|done| done.code), lab.bench.out_of_time());
    assert!(took >= limit && took < limit + Duration::from_secs(1), "{took:?}");
}

pub async fn a05_attach_after_the_end_replays_and_repeats_the_verdict<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let (command, mut frames) = lab.spawn(&handle, &lab.bench.both(), false).await;
    assert_eq!(frames.verdict().await, Ok(0));
    let (_, mut late) = lab.attach(&handle, &command.session_id).await;
    assert_eq!(late.verdict().await, Ok(0));
    assert_eq!((&late.stdout, &late.stderr), (&frames.stdout, &frames.stderr));
    let (failing, mut frames) = lab.spawn(&handle, &lab.bench.fails(), false).await;
    assert_eq!(frames.verdict().await, Ok(3));
    assert_eq!(lab.attach(&handle, &failing.session_id).await.1.verdict().await, Ok(3));
}

pub async fn a06_attach_to_an_unknown_session<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let unknown = lab.adapter.attach(&handle, "no-such-session").await;
    assert_eq!(unknown.map(drop), Err(SandboxError::NotFound));
}

pub async fn a07_attachers_do_not_see_each_others_replay<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let (command, mut own) = lab.spawn(&handle, &lab.bench.stays(), true).await;
    own.until(b"ready").await;
    let (_, mut first) = lab.attach(&handle, &command.session_id).await;
    first.until(b"ready").await;
    let (_, mut second) = lab.attach(&handle, &command.session_id).await;
    second.until(b"ready").await;
    lab.adapter
        .write_stdin(&command, Bytes::from_static(b"ping"))
        .await
        .unwrap();
    lab.adapter.close_stdin(&command).await.unwrap();
    for frames in [&mut own, &mut first, &mut second] {
        assert_eq!(frames.verdict().await, Ok(0));
        let text = String::from_utf8_lossy(&frames.stdout).into_owned();
        assert_eq!(text.matches("ready").count(), 1, "{text}");
        assert_eq!(text.matches("ping").count(), 1, "{text}");
    }
}

pub async fn a08_a_mebibyte_through_cat<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let (command, mut frames) = lab.spawn(&handle, &lab.bench.cat(), true).await;
    let sent: Vec<u8> = (0..1024 * 1024_u32).map(|n| (n % 251) as u8).collect();
    lab.adapter.write_stdin(&command, sent.clone().into()).await.unwrap();
    lab.adapter.close_stdin(&command).await.unwrap();
    assert_eq!(frames.verdict().await, Ok(0));
    assert_eq!(frames.stdout.len(), sent.len());
    assert!(frames.stdout == sent, "the bytes differ");
}

pub async fn a09_every_byte_value<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(lab.output(&handle, &lab.bench.bytes()).await, all);
    let (_, mut frames) = lab.spawn(&handle, &lab.bench.bytes(), false).await;
    assert_eq!(frames.verdict().await, Ok(0));
    assert_eq!(frames.stdout, all);
}

pub async fn a10_a_file_with_mode_and_parents<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let path = lab.bench.path();
    let bytes = Bytes::from_static(b"hel\0lo");
    lab.adapter
        .write_file(&handle, &path, bytes.clone(), Some(0o600), None)
        .await
        .unwrap();
    assert_eq!(lab.output(&handle, &line("cat", &[&path])).await, bytes);
    let mode = lab.output(&handle, &line("stat", &["-c", "%a", &path])).await;
    assert_eq!(mode.trim_ascii(), b"600");
}

pub async fn a11_concurrent_creates_make_one<B: Bench>(lab: &Lab<B>) {
    let create = || lab.adapter.create(&lab.name, None);
    let (first, second) = futures_util::future::join(create(), create()).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.adopted != second.adopted, "one made it, one found it");
    let names = lab.adapter.list_all_names().await.unwrap();
    assert_eq!(names.iter().filter(|name| **name == lab.name).count(), 1);
}

pub async fn a12_a_suspended_disk_comes_back<B: Bench>(lab: &Lab<B>) {
    assert!(lab.has(Capability::Suspend), "every adapter of ours has it");
    let handle = lab.made().await;
    let path = lab.bench.path();
    let bytes = Bytes::from_static(b"kept");
    lab.adapter.write_file(&handle, &path, bytes, None, None).await.unwrap();
    lab.adapter.suspend(&handle, None).await.unwrap();
    lab.adapter.resume(&handle, None).await.unwrap();
    assert_eq!(lab.output(&handle, &line("cat", &[&path])).await, "kept");
}
