//! Commands that run to their end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server::*;

fn exec(script: &str) -> Value {
    json!({"op": "exec", "name": SB, "cmd": "sh", "args": ["-c", script]})
}

fn text(result: &Value) -> String {
    String::from_utf8(bytes(&result["output"])).unwrap()
}

#[actix::test]
async fn rp_v13_exec_answers_standard_output_and_the_code() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let result = peer.get(exec("echo hello; echo err >&2")).await;
    assert_eq!(result, json!({"output": "aGVsbG8K", "code": 0}));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v14_exec_merges_both_streams_in_their_order_when_asked() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let mut request = exec("echo oops >&2; exit 3");
    request["stderr_to_stdout"] = json!(true);
    assert_eq!(peer.get(request).await, json!({"output": "b29wcwo=", "code": 3}));
    let mut request = exec("for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done");
    request["stderr_to_stdout"] = json!(true);
    let merged = text(&peer.get(request).await);
    assert_eq!(merged, "out1\nerr1\nout2\nerr2\nout3\nerr3\nout4\nerr4\nout5\nerr5\n");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v15_home_is_the_sandbox_in_environment_script_and_directory() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let result = peer.get(exec("echo $HOME; echo /home/sprite/x; pwd -P")).await;
    let directory = daemon.sandbox();
    let real = directory.canonicalize().unwrap();
    let (directory, real) = (directory.display(), real.display());
    assert_eq!(text(&result), format!("{directory}\n{directory}/x\n{real}\n"));
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn the_working_directory_is_mapped_and_falls_back_to_the_sandbox() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    std::fs::create_dir(daemon.sandbox().join("work")).unwrap();
    let real = daemon.sandbox().canonicalize().unwrap();
    for (dir, expected) in [
        ("/home/sprite/work", real.join("work")),
        ("work", real.join("work")),
        ("nope", real),
    ] {
        let mut request = exec("pwd -P");
        request["dir"] = json!(dir);
        assert_eq!(text(&peer.get(request).await), format!("{}\n", expected.display()));
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v16_the_environment_of_the_request_arrives() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let mut request = exec("echo $FOO");
    request["env"] = json!([["FOO", "bar"], ["ignored"], ["x", "y", "z"]]);
    assert_eq!(text(&peer.get(request).await), "bar\n");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v17_a_missing_program_is_127_with_the_reason() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    for cmd in ["no-such-program", "./no-such-program", "/home/sprite/none", ""] {
        let result = peer.get(json!({"op": "exec", "name": SB, "cmd": cmd})).await;
        assert_eq!(result["code"], 127, "{cmd}");
        let said = text(&result);
        let name = cmd.rsplit('/').next().unwrap();
        assert!(
            said.contains(name) && said.ends_with('\n') && said.len() > name.len() + 3,
            "{said:?}"
        );
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v18_a_command_out_of_time_is_124_at_once_and_its_group_is_gone() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let mut request = exec("echo $$; sleep 600 & sleep 600");
    request["timeout_ms"] = json!(200);
    let began = Instant::now();
    let result = peer.get(request).await;
    assert_eq!(result["code"], 124);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let said = text(&result);
    assert!(said.ends_with("\nfountain runner: command timed out\n"), "{said:?}");
    assert_group_is_gone(said.lines().next().unwrap()).await;
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn no_limit_is_none_zero_or_negative() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    for limit in [json!(null), json!(0), json!(-5)] {
        let mut request = exec("echo done");
        request["timeout_ms"] = limit;
        assert_eq!(peer.get(request).await["code"], 0);
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rp_v19_programs_of_the_sandbox_are_found_by_their_bare_name() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    executable(
        &daemon.sandbox().join(".local/bin/fake-agent-acp"),
        "#!/bin/sh\necho found\n",
    );
    let result = peer
        .get(json!({"op": "exec", "name": SB, "cmd": "fake-agent-acp"}))
        .await;
    assert_eq!((text(&result).as_str(), &result["code"]), ("found\n", &json!(0)));
    let (_, session) = peer
        .spawn(json!({"op": "spawn", "name": SB, "cmd": "fake-agent-acp"}))
        .await;
    assert_eq!(peer.exit(&session).await, 0);
    assert_eq!(all_output(&peer.seen, &session, "stdout"), b"found\n");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn the_program_is_looked_up_in_the_path_of_the_request_alone() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    executable(&daemon.sandbox().join("tools/mine"), "#!/bin/sh\necho mine\n");
    let tools = daemon.sandbox().join("tools");
    let with_path = |cmd: &str| json!({"op": "exec", "name": SB, "cmd": cmd, "env": [["PATH", tools]]});
    assert_eq!(text(&peer.get(with_path("mine")).await), "mine\n");
    assert_eq!(peer.get(with_path("sh")).await["code"], 127);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_46_a_death_by_signal_is_128_and_the_signal() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    for (signal, code) in [("SEGV", 139), ("KILL", 137), ("TERM", 143)] {
        assert_eq!(peer.get(exec(&format!("kill -{signal} $$"))).await["code"], code);
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn children_of_a_finished_exec_are_killed_and_do_not_hold_it() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let began = Instant::now();
    let result = peer.get(exec("echo $$; sleep 600 &")).await;
    assert_eq!(result["code"], 0);
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_group_is_gone(text(&result).trim()).await;
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn output_that_does_not_end_with_the_command_is_124_and_says_why() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    // A process that left the group survives the kill and keeps the pipe.
    let result = peer.get(exec("echo first; setsid sh -c 'echo $$ > escaped; exec sleep 600' & while ! [ -s escaped ]; do sleep 0.01; done")).await;
    let escaped = std::fs::read_to_string(daemon.sandbox().join("escaped")).unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(escaped.trim().parse().unwrap()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
    assert_eq!(result["code"], 124);
    assert_eq!(
        text(&result),
        "first\n\nfountain runner: command output did not close\n"
    );
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn a_megabyte_of_output_and_every_byte_value_come_back_unchanged() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 256) as u8).collect();
    peer.get(json!({"op": "write_file", "name": SB, "path": "all", "data": base64(&content)}))
        .await;
    let result = peer.get(exec("cat all")).await;
    assert!(bytes(&result["output"]) == content);
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn output_that_fits_into_no_message_is_an_error_and_not_a_part() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let (code, _) = peer.refusal(exec("head -c 60000000 /dev/zero")).await;
    assert_eq!(code, "truncated");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn rul_48_the_daemons_key_does_not_reach_a_command_and_rul_50_its_path_does() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let result = peer.get(exec("env")).await;
    let environment = text(&result);
    let ours: Vec<_> = environment
        .lines()
        .filter(|line| line.starts_with("FOUNTAIN_"))
        .collect();
    let names: Vec<_> = ours.iter().map(|line| line.split('=').next().unwrap()).collect();
    for name in names {
        assert!(
            ["FOUNTAIN_SANDBOX_DIR", "FOUNTAIN_RUNNER_PATH", "FOUNTAIN_SESSION"].contains(&name),
            "{name}"
        );
    }
    executable(
        &daemon.sandbox().join(".npm-global/bin/agent"),
        "#!/bin/sh\necho agent\n",
    );
    let script = r#"PATH="$FOUNTAIN_RUNNER_PATH${FOUNTAIN_RUNNER_PATH:+:}$PATH"; export PATH; agent"#;
    let login = json!({"op": "exec", "name": SB, "cmd": "bash", "args": ["-lc", script]});
    assert_eq!(text(&peer.get(login).await), "agent\n");
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn what_no_process_can_take_is_invalid() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    for part in [
        json!({"cmd": "a\0b"}),
        json!({"args": ["\0"]}),
        json!({"env": [["A", "\0"]]}),
        json!({"env": [["A=B", "x"]]}),
    ] {
        let mut request = json!({"op": "exec", "name": SB, "cmd": "true"});
        request
            .as_object_mut()
            .unwrap()
            .extend(part.as_object().unwrap().clone());
        assert_eq!(peer.refusal(request).await.0, "invalid", "{part}");
    }
    daemon.stop().await.unwrap();
}

#[actix::test]
async fn suspend_stops_a_running_exec_with_137() {
    let (daemon, _server, mut peer) = Daemon::connected().await;
    let id = peer.send(exec("touch started; sleep 600"));
    let started = daemon.sandbox().join("started");
    eventually("the command runs", || started.exists()).await;
    peer.get(json!({"op": "suspend", "name": SB})).await;
    assert_eq!(peer.reply(id).await["result"]["code"], 137);
    daemon.stop().await.unwrap();
}

pub async fn assert_group_is_gone(leader: &str) {
    let group = nix::unistd::Pid::from_raw(leader.trim().parse().unwrap());
    eventually("the group is gone", || {
        let listed = std::process::Command::new("ps")
            .args(["-A", "-o", "pgid=,stat="])
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        !listed.lines().any(|line| {
            let mut fields = line.split_whitespace();
            fields.next() == Some(&group.to_string()) && !fields.next().unwrap_or_default().starts_with('Z')
        })
    })
    .await;
}
