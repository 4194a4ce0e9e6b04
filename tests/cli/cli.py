"""The command line: what it prints, where it reads its key from, how it ends (docs/cli.md)."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import time
import traceback

from stack import Stack, clean_environment, until


def fountain(stack, *arguments, stdin=None, env=None, timeout=90):
    """Runs one command with the key of the environment; answers its exit code, output and errors."""
    given = stack.env | {"FOUNTAIN_API_KEY": stack.api_key, "FOUNTAIN_BASE_URL": stack.url}
    done = subprocess.run(
        [stack.binary, *arguments],
        env=given if env is None else env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return done.returncode, done.stdout, done.stderr


def run_streams_the_answer(stack):
    code, out, err = fountain(stack, "run", "run: echo from-the-machine", "--agent", "demo")
    assert (code, out) == (0, "from-the-machine\n"), (code, out, err)
    assert "turn done" in err and "\x1b" not in err, err


def run_prints_a_frame_a_line_with_json(stack):
    code, out, _ = fountain(stack, "run", "run: echo hi", "--agent", "demo", "--json")
    frames = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [f["id"] for f in frames] == sorted(f["id"] for f in frames), out
    assert frames[-1]["stage"] == "turn" and frames[-1]["state"] == "done", frames[-1]


def run_ends_with_the_turns_verdict(stack):
    assert fountain(stack, "run", "crash", "--agent", "demo")[0] == 1
    code, _, err = fountain(stack, "run", "hello", "--agent", "nobody")
    assert code == 1 and "fountain agents list" in err, err


def the_only_agent_needs_no_name(stack):
    code, out, _ = fountain(stack, "run", "-", stdin="run: echo piped")
    assert (code, out) == (0, "piped\n"), (code, out)


def groups_list_get_and_delete(stack):
    for group in ("agents", "agent", "environments", "env", "vaults", "conversations", "conv", "sandboxes", "runners"):
        code, out, err = fountain(stack, group, "list", "--json")
        assert code == 0 and isinstance(json.loads(out), list), (group, err)
    body = {"name": "mine", "runtime": "acp", "runtime_command": "true", "sandbox_provider": "runner"}
    code, out, err = fountain(stack, "agents", "create", "--file", "-", "--json", stdin=json.dumps(body))
    assert code == 0, err
    made = json.loads(out)
    assert json.loads(fountain(stack, "agent", "show", "mine", "--json")[1])["id"] == made["id"]
    assert fountain(stack, "agents", "delete", "mine")[0] == 0
    assert fountain(stack, "agents", "get", made["id"])[0] == 1
    assert fountain(stack, "vaults", "create", "v")[0] == 0
    assert fountain(stack, "vaults", "set-secret", "v", "TOKEN", stdin="a-secret-value\n")[0] == 0
    code, out, _ = fountain(stack, "vaults", "get", "v", "--json")
    assert json.loads(out)["secret_count"] == 1 and "a-secret-value" not in out
    assert fountain(stack, "vaults", "delete-secret", "v", "TOKEN")[0] == 0
    assert fountain(stack, "vault", "rm", "v")[0] == 0
    code, out, _ = fountain(stack, "runners", "get", "local", "--json")
    assert json.loads(out)["online"] is True


def a_conversation_goes_on_and_ends(stack):
    _, out, _ = fountain(stack, "run", "hello", "--agent", "demo", "--detach", "--json")
    conversation = json.loads(out)["id"]
    until("its turn ends", lambda: json.loads(fountain(stack, "conv", "show", conversation, "--json")[1])["status"] == "idle")
    code, out, _ = fountain(stack, "conversations", "prompt", conversation, "run: echo second")
    assert (code, out) == (0, "second\n"), (code, out)
    code, out, _ = fountain(stack, "conversations", "interrupt", conversation)
    assert code == 0 and "no turn is running" in out
    assert fountain(stack, "conversations", "terminate", conversation)[0] == 0
    code, _, err = fountain(stack, "conversations", "prompt", conversation, "hello")
    assert code == 1 and "conversation_terminated" in err, err
    assert fountain(stack, "conversations", "delete", conversation)[0] == 0
    assert fountain(stack, "conversations", "get", conversation)[0] == 1


def an_ephemeral_sandbox_is_not_reset_and_a_home_is(stack):
    code, out, _ = fountain(stack, "sandboxes", "list", "--status", "ready", "--json")
    ephemeral = json.loads(out)[0]["id"]
    code, _, err = fountain(stack, "sandbox", "reset", ephemeral)
    assert code == 1 and "sandbox_not_resettable" in err, err
    body = {"agent_id": stack.agent_id, "prompt": "write kept.txt: x", "sandbox_mode": "persistent"}
    made = stack.api("POST", "/api/conversations", body)["data"]
    until("it is idle", lambda: stack.api("GET", f"/api/conversations/{made['id']}")["data"]["status"] == "idle")
    code, out, err = fountain(stack, "sandbox", "reset", made["sandbox_id"])
    assert code == 0, err
    code, out, _ = fountain(stack, "conversations", "prompt", made["id"], "run: ls kept.txt 2>&1 || echo gone")
    assert code == 0 and "gone" in out, out


def login_keeps_a_private_profile(stack):
    env = clean_environment(stack.home)
    code, _, err = fountain(stack, "auth", "whoami", env=env)
    assert code == 3 and "fountain auth login" in err, (code, err)
    code, out, err = fountain(stack, "auth", "login", "--base-url", stack.url, stdin=stack.api_key + "\n", env=env)
    assert code == 0, err
    file = stack.home / ".fountain" / "credentials"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stack.api_key in file.read_text()
    code, out, _ = fountain(stack, "auth", "whoami", "--json", env=env)
    assert json.loads(out)["id"] == stack.account_id
    code, _, err = fountain(stack, "agents", "list", env=env | {"FOUNTAIN_API_KEY": "ftn_wrong"})
    assert code == 3 and "api_key_invalid" in err and "ftn_wrong" not in err, err
    code, _, err = fountain(stack, "agents", "list", env=env | {"FOUNTAIN_BASE_URL": "http://127.0.0.1:1"})
    assert code == 3 and "fountain dev" in err, err


def rul_60_the_second_process_is_refused_and_the_second_start_keeps_everything(stack):
    data = str(stack.folder / "data")
    code, out, err = fountain(stack, "dev", "--json", "--listen", "127.0.0.1:0", "--data-dir", data, env=stack.env)
    assert code == 1 and out == "" and "another process" in err, (code, out, err)
    code, _, err = fountain(stack, "serve", "--json", "--listen", "127.0.0.1:0", "--data-dir", data, env=stack.env)
    assert code == 1 and "another process" in err, err
    before = dict(stack.ready)
    runner = (stack.folder / "data" / "runner.lock").read_text()
    stack.restart()
    assert stack.ready == before, "the same ids and the same key"
    assert (stack.folder / "data" / "runner.lock").read_text() == runner, "the runner was adopted"


def rul_60_serve_opens_what_dev_made(stack):
    assert stack.server.end() == 0
    data = stack.folder / "data"
    until("the runner has gone with dev", lambda: not runner_lives(data))
    env = stack.env
    serve = subprocess.Popen(
        [stack.binary, "serve", "--json", "--listen", stack.listen, "--data-dir", str(data)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=open(stack.log, "ab"),
    )
    ready = json.loads(serve.stdout.readline())
    assert ready == {"url": stack.url}, ready
    assert stack.api("GET", "/api/auth/me")["id"] == stack.account_id
    assert not any(r["online"] for r in stack.api("GET", "/api/runners")["data"]), "serve starts no runner"
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(30) == 0
    stack.start()


def runner_lives(data):
    pid = (data / "runner.lock").read_text().strip()
    return pid and pathlib.Path(f"/proc/{pid}").exists()


def rul_58_a_missing_master_key_refuses(stack):
    data = stack.folder / "data"
    assert stack.server.end() == 0
    (data / "master.key").rename(data / "aside")
    code, _, err = fountain(stack, "dev", "--json", "--data-dir", str(data), env=stack.env)
    assert code == 1 and "master.key" in err, err
    (data / "aside").rename(data / "master.key")
    stack.start()
    for name in ("master.key", "dev.json", "runner.json"):
        assert stat.S_IMODE((data / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def a_clean_stop_ends_the_turn(stack):
    _, out, _ = fountain(stack, "run", "slow 600", "--agent", "demo", "--detach", "--json")
    conversation = json.loads(out)["id"]
    path = f"/api/conversations/{conversation}/turns"
    until("its turn runs", lambda: stack.api("GET", path)["data"][0]["status"] == "running")
    assert stack.server.end() == 0
    stack.start()
    turn = stack.api("GET", path)["data"][0]
    assert turn["status"] == "interrupted", turn
    events = stack.api("GET", f"/api/conversations/{conversation}/events?limit=1000")["data"]
    assert any("server_terminated_normally" in event["data"] for event in events), events[-3:]


def help_and_version(stack):
    code, out, _ = fountain(stack, "--help")
    assert code == 0 and all(word in out for word in ("dev", "serve", "runner", "run", "conversations")), out
    code, out, _ = fountain(stack, "version")
    assert code == 0 and re.fullmatch(r"fountain \d+\.\d+\.\d+\n", out), out
    assert fountain(stack, "no-such-command")[0] == 2
    code, out, _ = fountain(stack, "completions", "bash")
    assert code == 0 and "complete" in out


CASES = [
    help_and_version,
    the_only_agent_needs_no_name,
    run_streams_the_answer,
    run_prints_a_frame_a_line_with_json,
    run_ends_with_the_turns_verdict,
    groups_list_get_and_delete,
    a_conversation_goes_on_and_ends,
    an_ephemeral_sandbox_is_not_reset_and_a_home_is,
    login_keeps_a_private_profile,
    rul_60_the_second_process_is_refused_and_the_second_start_keeps_everything,
    a_clean_stop_ends_the_turn,
    rul_60_serve_opens_what_dev_made,
    rul_58_a_missing_master_key_refuses,
]


def main():
    stack = Stack(os.path.abspath(sys.argv[1]))
    passed = failed = 0
    for case in CASES:
        if sys.argv[2:] and case.__name__ not in sys.argv[2:]:
            continue
        started = time.monotonic()
        try:
            case(stack)
            passed += 1
            verdict = "ok"
        except Exception:
            failed += 1
            verdict = "FAILED"
            traceback.print_exc()
        print(f"cli: {case.__name__} ... {verdict} ({time.monotonic() - started:.1f} s)")
    code, problems = stack.close(), stack.errors()
    if code != 0 or problems:
        failed += 1
        print(f"the server ended with {code}; errors in its log: {problems[:5]}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
