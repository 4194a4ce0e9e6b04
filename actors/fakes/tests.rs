//! The fake against the contract that every adapter keeps (sandbox-contract 12, 14), as far as the actors use it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::domain::Epoch;
use crate::ports::sandbox::*;

fn fake() -> FakeSandbox {
    FakeSandbox::new(Arc::new(FakeClock::default()))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn with_stdin() -> SpawnOptions {
    SpawnOptions {
        stdin: true,
        detachable: true,
        ..SpawnOptions::default()
    }
}

/// All output that is there, and the verdict if there is one.
fn drained(frames: &mut FrameStream) -> (String, Option<Frame>) {
    let mut text = String::new();
    while let Ok(frame) = frames.try_recv() {
        match frame {
            Frame::Stdout(held) | Frame::Stderr(held) => text.push_str(&String::from_utf8_lossy(&held.bytes)),
            Frame::ReplayEnd { .. } => text.push('|'),
            verdict => return (text, Some(verdict)),
        }
    }
    (text, None)
}

async fn made(fake: &FakeSandbox, name: &str) -> Handle {
    fake.create(name, None).await.unwrap().handle
}

#[tokio::test(start_paused = true)]
async fn vectors_1_to_4_of_the_contract() {
    let fake = fake();
    let machine = made(&fake, "m").await;
    let run = async |line: &[&str], merged| {
        let options = ExecOptions {
            stderr_to_stdout: merged,
            ..ExecOptions::default()
        };
        let answer = fake.exec(&machine, "emit", &words(line), options).await;
        answer.map(|done| (String::from_utf8_lossy(&done.output).into_owned(), done.code))
    };
    assert_eq!(run(&["out:hello"], false).await, Ok(("hello".into(), 0)));
    assert_eq!(run(&["out:a", "err:b", "exit:4"], true).await, Ok(("ab".into(), 4)));
    assert_eq!(run(&["out:a", "err:b", "exit:4"], false).await, Ok(("a".into(), 4)));
    assert_eq!(
        run(&["out:partial", "drop"], false).await,
        Err(SandboxError::Unavailable(CLOSED_BEFORE_EXIT.into()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_second_attachment_replays_from_byte_0_and_both_follow() {
    let fake = fake();
    let machine = made(&fake, "m").await;
    let line = words(&["out:ready", "stay"]);
    let (first, mut own) = fake.spawn(&machine, "victim", &line, with_stdin()).await.unwrap();
    let sessions = fake.list_sessions(&machine).await.unwrap();
    assert_eq!(sessions[0].command.as_deref(), Some("victim out:ready stay"));
    let (second, mut other) = fake.attach(&machine, &sessions[0].id).await.unwrap();
    fake.write_stdin(&second, Bytes::from_static(b"input")).await.unwrap();
    assert_eq!(drained(&mut own).0, "readyecho:input");
    assert_eq!(drained(&mut other).0, "ready|echo:input");
    fake.stop_command(&first).await;
    fake.stop_command(&first).await;
    fake.close_stdin(&second).await.unwrap();
    assert!(matches!(drained(&mut other).1, Some(Frame::Exit(0))));
    assert!(drained(&mut own).1.is_none(), "a stopped attachment hears nothing");
    assert_eq!(
        fake.write_stdin(&second, Bytes::from_static(b"late")).await,
        Err(SandboxError::CommandExited)
    );
    let (_, mut late) = fake.attach(&machine, &sessions[0].id).await.unwrap();
    assert!(matches!(drained(&mut late), (text, Some(Frame::Exit(0))) if text == "readyecho:input|"));
}

#[tokio::test(start_paused = true)]
async fn absence_is_definitive_and_a_delete_of_nothing_is_done() {
    let fake = fake();
    let never = fake.handle("never");
    assert_eq!(fake.get(&never).await, Err(SandboxError::NotFound));
    assert_eq!(fake.suspend(&never, None).await, Err(SandboxError::NotFound));
    assert_eq!(fake.destroy(&never, None).await, Ok(()));
    let machine = made(&fake, "m").await;
    assert!(fake.create("m", None).await.unwrap().adopted);
    assert!(fake.list_all_names().await.unwrap().contains("m"));
    fake.destroy(&machine, None).await.unwrap();
    assert_eq!(fake.get(&machine).await, Err(SandboxError::NotFound));
}

#[tokio::test(start_paused = true)]
async fn suspending_ends_processes_and_keeps_the_disk() {
    let fake = fake();
    let machine = made(&fake, "m").await;
    let disk = fake.disk("m");
    fake.write_file(&machine, "/a", Bytes::from_static(b"x"), Some(0o600), None)
        .await
        .unwrap();
    let (_, mut frames) = fake
        .spawn(&machine, "emit", &words(&["stay"]), with_stdin())
        .await
        .unwrap();
    fake.suspend(&machine, None).await.unwrap();
    assert!(matches!(drained(&mut frames).1, Some(Frame::Exit(137))));
    assert!(fake.exec(&machine, "emit", &[], ExecOptions::default()).await.is_err());
    fake.resume(&machine, None).await.unwrap();
    assert_eq!(fake.disk("m"), disk);
    assert_eq!(fake.file("m", "/a"), Some((Bytes::from_static(b"x"), Some(0o600))));
}

#[tokio::test(start_paused = true)]
async fn a_slow_request_takes_effect_although_its_caller_has_gone() {
    let fake = fake();
    fake.plan(Op::Create, Fault::Slow(Duration::from_secs(90)));
    let gave_up = tokio::time::timeout(Duration::from_secs(1), fake.create("m", Some(Epoch(3)))).await;
    assert!(gave_up.is_err());
    assert!(fake.machines().is_empty());
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(fake.machines(), ["m"]);
    let log = fake.log();
    assert_eq!(log.len(), 2, "asked and done, never answered: {log:?}");
    assert_eq!(
        (log[1].what, log[1].at.as_secs(), log[1].epoch),
        (Logged::Effect, 90, Some(Epoch(3)))
    );
}

#[tokio::test(start_paused = true)]
async fn lost_and_late_answers_are_unavailable_with_the_effect() {
    let fake = fake();
    fake.plan(Op::Create, Fault::LostAnswer);
    assert!(matches!(
        fake.create("a", None).await,
        Err(SandboxError::Unavailable(_))
    ));
    assert_eq!(fake.machines(), ["a"]);
    fake.plan(Op::Create, Fault::LateSuccess(Duration::from_secs(5)));
    assert!(matches!(
        fake.create("b", None).await,
        Err(SandboxError::Unavailable(_))
    ));
    assert_eq!(fake.machines(), ["a"]);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(fake.machines(), ["a", "b"]);
    fake.plan(Op::Create, Fault::Refused(SandboxError::Denied("no".into())));
    assert_eq!(fake.create("c", None).await, Err(SandboxError::Denied("no".into())));
    fake.plan(Op::Create, Fault::Exists);
    assert!(fake.create("d", None).await.unwrap().adopted);
    assert_eq!(fake.unused_faults(), 0);
}

#[tokio::test(start_paused = true)]
async fn rul_l_2_a_server_that_honours_epochs_refuses_an_older_one() {
    let fake = fake().honouring_epochs();
    fake.create("m", Some(Epoch(4))).await.unwrap();
    let machine = fake.handle("m");
    assert_eq!(
        fake.suspend(&machine, Some(Epoch(3))).await,
        Err(SandboxError::Invalid("stale_epoch".into()))
    );
    assert_eq!(fake.suspend(&machine, None).await, Ok(()), "absent means accepted");
    assert_eq!(fake.resume(&machine, Some(Epoch(4))).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_programmed_agent_asks_waits_and_answers() {
    let agent = FakeAgent::new(|text| {
        vec![
            AgentStep::Say(text.to_uppercase()),
            AgentStep::Sleep(Duration::from_secs(60)),
            AgentStep::Ask(vec!["allow".into(), "deny".into()]),
            AgentStep::Stop("end_turn"),
        ]
    });
    let fake = fake().with_program(agent.program());
    let machine = made(&fake, "m").await;
    let (command, mut frames) = fake.spawn(&machine, "agent", &[], with_stdin()).await.unwrap();
    let send = async |line: &str| {
        fake.write_stdin(&command, Bytes::from(format!("{line}\n")))
            .await
            .unwrap();
    };
    send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#).await;
    send(r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{}}"#).await;
    let (said, _) = drained(&mut frames);
    assert!(
        said.contains(r#""protocolVersion":1"#) && said.contains(r#""sessionId":"agent-"#),
        "{said}"
    );
    send(r#"{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"prompt":[{"type":"text","text":"hi"}]}}"#)
        .await;
    assert!(drained(&mut frames).0.contains(r#""text":"HI""#));
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(drained(&mut frames).0.contains("session/request_permission"));
    send(r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"selected","optionId":"allow"}}}"#).await;
    let (said, _) = drained(&mut frames);
    assert!(
        said.contains(r#""text":"allow""#) && said.contains(r#""stopReason":"end_turn""#),
        "{said}"
    );
}
