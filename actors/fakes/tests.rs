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

#[tokio::test(start_paused = true)]
async fn vectors_5_6_and_24_input_session_and_file() {
    let fake = fake();
    let machine = made(&fake, "m").await;
    let (command, mut frames) = fake
        .spawn(&machine, "emit", &words(&["stay"]), with_stdin())
        .await
        .unwrap();
    fake.write_stdin(&command, Bytes::from(["in", "put"].concat()))
        .await
        .unwrap();
    assert_eq!(drained(&mut frames).0, "echo:input");
    fake.spawn(&machine, "victim", &words(&["out:ready", "stay"]), with_stdin())
        .await
        .unwrap();
    let sessions = fake.list_sessions(&machine).await.unwrap();
    assert_eq!(sessions[0].command.as_deref(), Some("victim out:ready stay"));
    let bytes = Bytes::from(["hel", "lo"].concat());
    fake.write_file(&machine, "/deep/down", bytes, Some(0o600), None)
        .await
        .unwrap();
    let look = async |command, line: &[&str]| {
        let seen = fake
            .exec(&machine, command, &words(line), ExecOptions::default())
            .await
            .unwrap();
        (String::from_utf8_lossy(&seen.output).into_owned(), seen.code)
    };
    assert_eq!(look("cat", &["/deep/down"]).await, ("hello".into(), 0));
    assert_eq!(look("stat", &["-c", "%a", "/deep/down"]).await, ("600\n".into(), 0));
    assert_eq!(look("cat", &["/elsewhere"]).await, (String::new(), 1));
}

#[tokio::test(start_paused = true)]
async fn vector_22_a_handle_prints_provider_and_name_only() {
    let fake = fake();
    let mut handle = fake.handle("m");
    handle.instance_id = Some("sekrit-token".into());
    assert_eq!(format!("{handle:?}"), "Handle(fake, m)");
}

#[tokio::test(start_paused = true)]
async fn an_exec_has_one_deadline_for_everything() {
    let fake = fake();
    let machine = made(&fake, "m").await;
    let within = |limit| ExecOptions {
        timeout: Some(Duration::from_millis(limit)),
        ..ExecOptions::default()
    };
    let line = words(&["out:x"]);
    let before = fake.requests(Op::Exec);
    assert_eq!(
        fake.exec(&machine, "emit", &line, within(0)).await,
        Err(SandboxError::Unavailable("exec_timeout 0".into()))
    );
    assert_eq!(fake.requests(Op::Exec), before, "nothing is dispatched");
    fake.plan(Op::Exec, Fault::Slow(Duration::from_millis(50)));
    assert_eq!(
        fake.exec(&machine, "emit", &line, within(40)).await,
        Err(SandboxError::Unavailable("exec_timeout 40".into()))
    );
    assert_eq!(fake.exec(&machine, "emit", &line, within(40)).await.unwrap().code, 0);
}

#[tokio::test(start_paused = true)]
async fn t16_t17_a_terminated_session_tells_its_subscribers_once_and_keeps_its_code() {
    let fake = fake();
    let machine = made(&fake, "m").await;
    let line = words(&["out:ready", "stay"]);
    let (first, mut own) = fake.spawn(&machine, "emit", &line, with_stdin()).await.unwrap();
    let (other, mut others) = fake.spawn(&machine, "emit", &line, with_stdin()).await.unwrap();
    fake.stop_command(&first).await;
    assert_eq!(
        fake.write_stdin(&first, Bytes::from_static(b"late")).await,
        Err(SandboxError::CommandExited)
    );
    let (_, mut second) = fake.attach(&machine, &first.session_id).await.unwrap();
    for how in [Terminate::GRACEFUL, Terminate::FORCE] {
        assert_eq!(fake.terminate_session(&machine, &first.session_id, how).await, Ok(()));
    }
    assert!(matches!(drained(&mut second), (text, Some(Frame::Exit(137))) if text == "ready|"));
    assert!(second.try_recv().is_err(), "one verdict");
    assert!(matches!(drained(&mut own), (text, None) if text == "ready"));
    let (_, mut late) = fake.attach(&machine, &first.session_id).await.unwrap();
    assert!(matches!(drained(&mut late).1, Some(Frame::Exit(137))));
    // T15: the neighbour still echoes.
    fake.write_stdin(&other, Bytes::from_static(b"x")).await.unwrap();
    assert!(drained(&mut others).0.ends_with("echo:x"));
    assert_eq!(
        fake.terminate_session(&machine, "nobody", Terminate::GRACEFUL).await,
        Ok(())
    );
    assert_eq!(
        fake.terminate_session(&machine, "nobody", Terminate::FORCE).await,
        Err(SandboxError::Unavailable("termination_unconfirmed".into()))
    );
    assert_eq!(
        fake.terminate_session(&fake.handle("never"), "nobody", Terminate::FORCE)
            .await,
        Err(SandboxError::NotFound)
    );
}

#[tokio::test(start_paused = true)]
async fn f8_a_lost_process_is_lost_for_whoever_attaches_later() {
    let fake = fake();
    let machine = made(&fake, "m").await;
    let line = words(&["out:partial", "drop"]);
    let (command, mut frames) = fake.spawn(&machine, "emit", &line, with_stdin()).await.unwrap();
    let (_, mut late) = fake.attach(&machine, &command.session_id).await.unwrap();
    for frames in [&mut frames, &mut late] {
        let (text, verdict) = drained(frames);
        assert!(text.starts_with("partial"), "{text}");
        assert!(
            matches!(&verdict, Some(Frame::Error(SandboxError::Unavailable(why))) if why == CLOSED_BEFORE_EXIT),
            "{verdict:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_keeps_files_and_every_machine_can_restore_it() {
    let fake = fake().offering(Capability::Checkpoint);
    let (one, two) = (made(&fake, "one").await, made(&fake, "two").await);
    let write = async |machine: &Handle, text: &'static str| {
        let bytes = Bytes::from_static(text.as_bytes());
        fake.write_file(machine, "/a", bytes, None, None).await.unwrap();
    };
    write(&one, "before").await;
    let id = fake.create_checkpoint(&one, "comment", None).await.unwrap();
    write(&one, "after").await;
    fake.destroy(&one, None).await.unwrap();
    let (_, mut frames) = fake.spawn(&two, "emit", &words(&["stay"]), with_stdin()).await.unwrap();
    assert_eq!(fake.restore_checkpoint(&two, &id, None).await, Ok(()));
    assert_eq!(fake.file("two", "/a").unwrap().0, "before");
    assert!(matches!(drained(&mut frames).1, Some(Frame::Exit(137))), "sessions end");
    for _ in 0..2 {
        assert_eq!(fake.delete_checkpoint(&two, &id, None).await, Ok(()));
    }
    assert_eq!(
        fake.restore_checkpoint(&two, &id, None).await,
        Err(SandboxError::NotFound)
    );
    fake.plan(Op::Checkpoint, Fault::LostAnswer);
    assert!(fake.create_checkpoint(&two, "", None).await.is_err());
    assert_eq!(
        fake.checkpoints().len(),
        1,
        "the answer was lost, the checkpoint was not"
    );
}

#[tokio::test(start_paused = true)]
async fn rul_l_2_every_operation_with_an_epoch_is_judged_by_it() {
    let fake = fake().honouring_epochs().offering(Capability::Checkpoint);
    fake.create("m", Some(Epoch(4))).await.unwrap();
    let machine = fake.handle("m");
    let old = Some(Epoch(3));
    let exec = ExecOptions {
        epoch: old,
        ..ExecOptions::default()
    };
    let policy = NetworkPolicy { allow: Vec::new() };
    let answers = [
        fake.create("m", old).await.map(drop),
        fake.create_new(
            "m",
            CreateNew {
                epoch: old,
                ..CreateNew::default()
            },
        )
        .await
        .map(drop),
        fake.suspend(&machine, old).await,
        fake.resume(&machine, old).await,
        fake.write_file(&machine, "/a", Bytes::new(), None, old).await,
        fake.exec(&machine, "emit", &[], exec).await.map(drop),
        fake.apply_network_policy(&machine, &policy, old).await,
        fake.create_checkpoint(&machine, "", old).await.map(drop),
        fake.restore_checkpoint(&machine, "x", old).await,
        fake.delete_checkpoint(&machine, "x", old).await,
        fake.destroy(&machine, old).await,
    ];
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, Err(SandboxError::Invalid(STALE_EPOCH.into())), "{number}");
    }
    assert_eq!(fake.machines(), ["m"]);
}
