//! Cases 12 to 16: frames, input, and the end of both.

use bytes::Bytes;
use fountain_actors::ports::sandbox::*;

use crate::bench::{Bench, Lab};

pub async fn case_12_output_then_one_exit<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let (command, mut frames) = lab.spawn(&handle, &lab.bench.ok(), false).await;
    assert_eq!((command.provider, &command.machine), (handle.provider, &handle.name));
    frames.until(b"hello").await;
    assert_eq!(frames.verdict().await, Ok(0));
}

/// Where no command can drop the transport, the line is missing and the bench must say why: its machine is then killed
/// by `destroy` under the attachment, which must still be no exit 0.
pub async fn case_13_a_dropped_transport_is_no_exit<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    match lab.bench.drops() {
        Some(line) => {
            let (_, mut frames) = lab.spawn(&handle, &line, false).await;
            let verdict = frames.verdict().await;
            assert!(!frames.stdout.is_empty());
            assert_eq!(verdict, Err(SandboxError::Unavailable(CLOSED_BEFORE_EXIT.into())));
        }
        None => {
            let (_, mut frames) = lab.spawn(&handle, &lab.bench.stays(), true).await;
            frames.until(b"ready").await;
            lab.adapter.destroy(&handle, None).await.unwrap();
            assert_ne!(frames.verdict().await, Ok(0));
        }
    }
}

pub async fn case_14_late_input_is_command_exited<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let (command, mut frames) = lab.spawn(&handle, &lab.bench.ok(), true).await;
    assert_eq!(frames.verdict().await, Ok(0));
    let late = lab.adapter.write_stdin(&command, Bytes::from_static(b"late\n")).await;
    assert_eq!(late, Err(SandboxError::CommandExited));
    assert_eq!(
        lab.adapter.close_stdin(&command).await,
        Ok(()),
        "an end after the end is fine"
    );
}

pub async fn case_15_input_and_its_end<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let (command, mut frames) = lab.spawn(&handle, &lab.bench.stays(), true).await;
    frames.until(b"ready").await;
    let written = lab.adapter.write_stdin(&command, Bytes::from_static(b"ping")).await;
    assert_eq!(written, Ok(()));
    frames.until(b"ping").await;
    assert_eq!(lab.adapter.close_stdin(&command).await, Ok(()));
    assert_eq!(frames.verdict().await, Ok(0));
}

pub async fn case_16_stop_command_twice<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let (command, mut frames) = lab.spawn(&handle, &lab.bench.stays(), true).await;
    frames.until(b"ready").await;
    lab.adapter.stop_command(&command).await;
    lab.adapter.stop_command(&command).await;
    // F7: no frame follows, whatever the process does.
    let (other, mut others) = lab.attach(&handle, &command.session_id).await;
    others.until(b"ready").await;
    lab.adapter
        .write_stdin(&other, Bytes::from_static(b"ping"))
        .await
        .unwrap();
    others.until(b"ping").await;
    frames.assert_quiet().await;
    lab.adapter.close_stdin(&other).await.unwrap();
    assert_eq!(others.verdict().await, Ok(0), "a detachable process goes on");
}
