"""What users and accidents do to a server, and what it must still be afterwards. Cases carry the spec's numbers."""

import base64
import http.client
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid

from world import OPEN, SpritesWorld, World, numbers, processes_with, until

PLANTED = "planted-" + secrets.token_hex(12)
# Says 1 to 6000 for about three seconds.
COUNTING = "run: i=0; while [ $i -lt 60 ]; do seq $((i*100+1)) $((i*100+100)); i=$((i+1)); sleep 0.05; done"
COUNT = 6000


def code(answer):
    return (answer[0], answer[1].get("error") if isinstance(answer[1], dict) else answer[1])


def rul_8_bad_requests_hear_the_documented_envelope(world):
    agent, nobody = world.agent_id, str(uuid.uuid4())
    launch = "/api/conversations"
    big = b'{"agent_id":"x","prompt":"' + b"x" * (65 << 20) + b'"}'
    for label, expected, answer in [
        ("syntax", (400, "invalid_request"), world.raw("POST", launch, '{"a":')),
        ("depth", (400, "invalid_request"), world.raw("POST", launch, "[" * 100_000)),
        ("utf-8", (400, "invalid_request"), world.raw("POST", launch, b'{"prompt":"\xff"}')),
        ("type", (400, "invalid_request"), world.raw("POST", launch, "{}", content_type="text/plain")),
        ("field", (422, "validation_failed"), world.raw("POST", launch, {"agent_id": 5, "prompt": []})),
        ("list", (422, "validation_failed"), world.raw("POST", launch, [])),
        ("nul", (422, "validation_failed"), world.raw("POST", launch, {"agent_id": agent, "prompt": "a\0b"})),
        ("long", (422, "validation_failed"), world.raw("POST", "/api/environments", {"name": "n" * 100_000})),
        ("blank", (422, "invalid_prompt"), world.raw("POST", launch, {"agent_id": agent, "prompt": " \n\u2003"})),
        ("unknown", (404, "not_found"), world.raw("POST", launch, {"agent_id": nobody, "prompt": "x"})),
        ("body", (413, "payload_too_large"), world.raw("POST", launch, big)),
        ("small body", (413, "payload_too_large"), world.raw("POST", "/api/agents", {"name": "x" * (1 << 20)})),
        ("image", (422, "invalid_images"), world.raw("POST", launch, {"agent_id": agent, "prompt": "x", "images": [{"media_type": "image/png", "data": "%%"}]})),
        ("route", (404, "not_found"), world.raw("GET", "/api/nothing-here")),
        ("method", (404, "not_found"), world.raw("BREW", launch)),
        ("id", (404, "not_found"), world.raw("GET", launch + "/..%2f..%2fetc%2fpasswd")),
        ("nul id", (404, "not_found"), world.raw("GET", launch + "/%00")),
        ("runner name", (422, "validation_failed"), world.raw("POST", "/api/runners/keys", {"name": "../x"})),
    ]:
        assert code(answer) == expected, (label, answer[:2])
    errors = world.raw("POST", launch, {"agent_id": 5, "prompt": []})[1]["errors"]
    assert set(errors) == {"agent_id", "prompt"}, errors


def rul_8_a_key_comes_before_every_other_fault(world):
    for key in (None, "ftn_" + "a" * 43, "nonsense"):
        for body in ('{"a":', b"x" * (2 << 20)):
            answer = world.raw("POST", "/api/agents", body, key=key)
            assert answer[0] == 401 and answer[1]["reason"] == "api_key_invalid", answer[:2]
    runner = world.api("POST", "/api/runners/keys", {"name": "narrow"})["key"]
    narrow = world.raw("GET", "/api/agents", key=runner)
    assert (narrow[0], narrow[1]["reason"]) == (403, "insufficient_scope"), narrow


def rul_17_metrics_are_not_on_the_public_port(world):
    assert code(world.raw("GET", "/metrics", key=None)) == (404, "not_found")
    status, text, _ = world.raw("GET", "/metrics", key=None, port=world.metrics_port)
    assert status == 200 and b"# TYPE" in text, text[:200]


def rul_7_fifty_prompts_at_once_admit_one(world):
    conversation = world.launch("hello")
    world.ended(conversation)
    answers, gate = [], threading.Barrier(50)

    def prompt():
        gate.wait()
        answers.append(code(world.prompt(conversation, "slow 10")))

    threads = [threading.Thread(target=prompt) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [(200, None)] + [(400, "conversation_busy")] * 49, answers
    assert world.ended(conversation, 2)["status"] == "completed"
    assert len(world.turns(conversation)) == 2
    # The stream of an idle conversation, asked from places that are none.
    for cursor in ("garbage", "-5", "9" * 40):
        stream = http.client.HTTPConnection("127.0.0.1", int(world.listen.rsplit(":", 1)[1]), timeout=10)
        headers = {"Authorization": f"Bearer {world.api_key}", "Last-Event-ID": cursor}
        stream.request("GET", f"/api/conversations/{conversation}/stream?wait=false", headers=headers)
        answer = stream.getresponse()
        body = answer.read()
        assert answer.status == 200 and b"turn/" not in body and body.startswith(b": connected"), body[:200]
        assert body.count(b'"stage":"turn"') >= 4, "from the start"
        stream.close()


def rul_39_p39_agents_that_die_or_talk_nonsense_end_their_turn_with_the_reason(world):
    speaks = "import sys,json\nfor l in sys.stdin:\n m=json.loads(l)\n print(json.dumps({'jsonrpc':'2.0','id':m.get('id'),'result':{'protocolVersion':99}}),flush=True)"
    python = base64.b64encode(speaks.encode()).decode()
    expected = {
        "exit-0": ("exit 0", "agent_exited_before_prompt", 0),
        "exit-3": ("echo oh dear >&2; exit 3", "agent_exited_before_prompt", 3),
        "segv": ("kill -SEGV $$", "agent_exited_before_prompt", 139),
        "no-such": ("exec /no/such/program", "agent_exited_before_prompt", 127),
        "noise": ("head -c 300000 /dev/urandom", "agent_exited_before_prompt", 0),
        "one-line": ("head -c 17000000 /dev/zero | tr '\\0' x", "agent_exited_before_prompt", 0),
        "other-version": (f"echo {python} | base64 -d >a.py; exec python3 a.py", "acp_protocol_version", None),
    }
    started = {name: world.launch("hello", world.agent(name, command)) for name, (command, _, _) in expected.items()}
    for name, (_, reason, exit_code) in expected.items():
        conversation = started[name]
        turn = world.ended(conversation)
        end = [e for e in world.events(conversation) if e["kind"] == "stage" and e["stage"] == "turn"][-1]
        data = json.loads(end["data"])
        assert (turn["status"], data["reason"], data.get("exit_code")) == ("failed", reason, exit_code), (name, turn, data)
        assert world.conversation(conversation)["status"] == "idle", name
        # Its machine took no harm.
        assert world.prompt(conversation, "again")[0] == 200, name
        assert world.ended(conversation, 2)["status"] == "failed", name
        world.api("POST", f"/api/conversations/{conversation}/terminate")


def p45_p46_children_neither_hold_a_turn_open_nor_outlive_the_machine(world):
    mark = f"77{secrets.randbelow(10**6):06d}"
    agent = world.agent("litter", f"sleep {mark} & exec {world.demo}")
    conversation = world.launch("exit 0", agent)
    world.ended(conversation)
    assert processes_with(f"sleep {mark}"), "the child lives as long as its machine"
    world.api("POST", f"/api/conversations/{conversation}/terminate")
    until("the child is gone", lambda: not processes_with(f"sleep {mark}"))


def rul_l_93_p47_an_agent_that_ignores_every_request_to_end_is_killed(world):
    mark = f"deaf{secrets.randbelow(10**6):06d}"
    script = f"trap '' TERM INT; while :; do sleep 1; done # {mark}"
    conversation = world.launch(f"run: bash -c \"{script}\"")
    until("it runs", lambda: processes_with(mark) and world.turns(conversation)[0]["status"] == "running")
    world.api("POST", f"/api/conversations/{conversation}/interrupt")
    assert world.ended(conversation)["status"] == "interrupted"
    until("it is killed", lambda: not processes_with(mark))
    assert world.prompt(conversation, "run: echo alive")[0] == 200
    assert world.ended(conversation, 2)["status"] == "completed"


def rul_31_a_full_disk_refuses_writes_serves_reads_and_the_turn_goes_on(world):
    # It must not come to its end while the disk is full: the agent keeps its session there, too.
    conversation = world.launch(COUNTING.replace("sleep 0.05", "sleep 0.2"))
    until("it counts", lambda: len(world.counted(conversation)) > 200)

    def refused(path, body):
        # Again each time: machines of earlier cases are still being cleared away, which makes room.
        world.fill_disk()
        answer = world.raw("POST", path, body)
        return answer if answer[0] == 503 else None

    def environment():
        return {"name": "full-" + uuid.uuid4().hex, "description": "y" * 20_000}

    answer = until("writes are refused", lambda: refused("/api/environments", environment()))
    assert answer[1]["error"] == "store_unavailable" and answer[2]["Retry-After"] == "10", answer
    launch = {"agent_id": world.agent_id, "prompt": "x" * 20_000}
    answer = until("launches are refused", lambda: refused("/api/conversations", launch))
    assert code(answer) == (503, "store_unavailable"), answer
    assert world.raw("GET", "/health/ready", key=None)[0] == 200
    assert world.turns(conversation)[0]["status"] == "running"
    waits = "keeping it"
    until("output waits", lambda: world.log.read_text(errors="replace").count(waits) >= 5)
    before = [one["id"] for one in world.api("GET", "/api/conversations")["data"]]
    world.free_disk()
    ended = world.ended(conversation)["status"]
    assert ended == "completed", (ended, world.text(conversation)[-300:], world.reason(conversation), world.stages(conversation))
    assert world.counted(conversation) == numbers(COUNT), "every byte once, in order"
    assert before == [one["id"] for one in world.api("GET", "/api/conversations")["data"]], "a refusal left nothing behind"
    assert world.prompt(conversation, "run: echo ok")[0] == 200
    assert world.ended(conversation, 2)["status"] == "completed"


def rul_26_a_long_turn_and_its_end_do_not_end_the_server(world):
    # Whatever a server keeps for each line of a turn is let go here at once: on a stack of 2 MiB it must not nest.
    conversation = world.launch("run: seq 1 20000")
    assert world.ended(conversation)["status"] == "completed"
    assert world.counted(conversation) == numbers(20_000)
    world.api("POST", f"/api/conversations/{conversation}/terminate")
    machine = world.conversation(conversation)["sandbox_id"]
    until("its machine is gone", lambda: world.api("GET", f"/api/sandboxes/{machine}")["data"]["status"] == "terminated")
    assert world.server.handle.poll() is None


def stage(name):
    return lambda world, conversation: name in world.stages(conversation)


def said(count):
    return lambda world, conversation: len(world.counted(conversation)) >= count


def answer(world, conversation):
    asked = world.conversation(conversation)["pending_requests"][0]
    option = next(o for o in asked["options"] if o["kind"].startswith("allow"))["optionId"]
    return world.raw("POST", f"/api/conversations/{conversation}/requests/{asked['request_id']}", {"option_id": option})


ASKED = "ask: may I?\n" + COUNTING
# Where the server is killed; whether the agent may have lost its prompt there, honestly reported.
KILLS = [
    ("accepted", COUNTING, lambda world, conversation: True, True),
    ("claimed", COUNTING, stage("provision/started"), True),
    ("built", COUNTING, stage("provision/done"), True),
    ("started", COUNTING, stage("turn/started"), True),
    ("first words", COUNTING, said(1), False),
    ("half way", COUNTING, said(COUNT // 2), False),
    ("asked", ASKED, stage("request/started"), False),
    ("answered", ASKED, stage("request/started"), False),
]


def inv_81_inv_119_rul_36_kill_9_at_every_point_of_a_turn(world):
    for label, prompt, reached, may_be_lost in KILLS:
        conversation = world.launch(prompt)
        until(label, lambda: reached(world, conversation))
        if label == "answered":
            assert answer(world, conversation)[0] == 200
        world.restart()
        if label == "asked":
            assert answer(world, conversation)[0] == 200
        if prompt == ASKED:
            turn_over = world.turns(conversation)[0]["status"] not in OPEN
            late = world.raw("POST", f"/api/conversations/{conversation}/requests/any.0123456789abcdef", {"option_id": "x"})
            assert code(late) == (409, "permission_request_resolved"), (turn_over, late)
        turn = world.ended(conversation)
        stages = world.stages(conversation)
        assert stages.count("turn/started") <= 1, (label, stages)
        if turn["status"] == "interrupted" and may_be_lost:
            assert world.reason(conversation) in ("acp_prompt_not_sent", "no_active_session"), (label, stages)
            assert world.counted(conversation) == [], label
        else:
            assert turn["status"] == "completed", (label, turn, world.reason(conversation), stages)
            assert world.counted(conversation) == numbers(COUNT), (label, len(world.counted(conversation)))
        assert world.prompt(conversation, "run: echo again")[0] == 200, label
        assert world.ended(conversation, 2)["status"] == "completed", label
        world.api("POST", f"/api/conversations/{conversation}/terminate")
        machine = world.conversation(conversation)["sandbox_id"]
        until("its machine is gone", lambda: world.api("GET", f"/api/sandboxes/{machine}")["data"]["status"] == "terminated")


def rul_46b_p55_a_runner_killed_in_mid_turn_ends_the_turn_and_leaves_no_orphan(world):
    mark = f"99{secrets.randbelow(10**6):06d}"
    conversation = world.launch(f"run: echo 1; exec sleep {mark}")
    until("it runs", lambda: world.counted(conversation) == ["1"])
    os.kill(world.runner_process(), signal.SIGKILL)
    until("it is missed", lambda: not any(r["online"] for r in world.api("GET", "/api/runners")["data"]))
    refused = world.raw("POST", "/api/conversations", {"agent_id": world.agent_id, "prompt": "x"})
    assert code(refused) == (409, "no_runner_online"), refused
    assert code(world.prompt(conversation, "x")) == (400, "conversation_busy")
    world.start_runner()
    assert world.ended(conversation)["status"] in ("interrupted", "failed")
    assert world.reason(conversation), world.stages(conversation)
    until("no orphan", lambda: not processes_with(f"sleep {mark}"))
    assert world.prompt(conversation, "run: echo 2")[0] == 200
    assert world.ended(conversation, 2)["status"] == "completed"
    assert world.counted(conversation) == ["1", "2"]


def rul_45_a_second_runner_of_one_name_waits_and_one_that_leaves_its_folder_is_refused(world):
    key = json.loads((world.data / "runner.json").read_text())["api_key"]
    second = world.foreign_runner("--name", "local", "--root", str(world.folder / "second"), key=key)
    try:
        assert "another daemon is connected under this name" in second.stderr.readline()
    finally:
        second.terminate()
        second.wait(30)
        second.stderr.close()
    conversation = world.launch("run: echo first")
    assert world.ended(conversation)["status"] == "completed", "the first one kept its work"
    shared = str(world.data / "runner" / "sandboxes")
    for name, root, with_key, words in [
        ("../x", str(world.folder / "x"), world.api_key, "cannot be a runner's name"),
        ("other", shared, world.api_key, "in use by another daemon"),
        ("other", str(world.folder / "x"), key, "runner_name_mismatch"),
        ("other", str(world.folder / "x"), "ftn_" + "b" * 43, "401"),
    ]:
        refused = world.foreign_runner("--name", name, "--root", root, key=with_key)
        _, text = refused.communicate(timeout=60)
        assert refused.returncode != 0 and words in text and with_key not in text, (name, text)


def inv_8_no_secret_in_logs_metrics_or_the_transcript(world):
    made = world.api("POST", "/api/vaults", {"name": "planted"})["data"]
    world.api("POST", f"/api/vaults/{made['id']}/secrets", {"key": "PLANTED", "value": PLANTED})
    body = {"agent_id": world.agent_id, "vault_id": made["id"], "prompt": "run: echo $PLANTED; echo $PLANTED >&2\nstderr: " + PLANTED}
    conversation = world.api("POST", "/api/conversations", body)["data"]["id"]
    world.ended(conversation)
    output = json.dumps([event["data"] for event in world.events(conversation)])
    assert PLANTED not in output and "[REDACTED]" in output
    runner_key = json.loads((world.data / "runner.json").read_text())["api_key"]
    _, metrics, _ = world.raw("GET", "/metrics", key=None, port=world.metrics_port)
    texts = {"metrics": metrics.decode()}
    for log in [*world.folder.glob("*.log"), *world.data.glob("*.log")]:
        texts[log.name] = log.read_text(errors="replace")
    assert len(texts) >= 3, list(texts)
    for name, text in texts.items():
        for label, secret in (("vault", PLANTED), ("api key", world.api_key), ("runner key", runner_key)):
            assert secret not in text, f"the {label} is in {name}"
        assert (world.data / "master.key").read_text().strip() not in text, name


def rul_58_a_start_on_broken_files_says_which_and_changes_nothing(world):
    folder = world.folder / "broken"
    arguments = [world.binary, "dev", "--json", "--listen", "127.0.0.1:0", "--data-dir", str(folder)]

    def start():
        """(key, complaint): a start that works is stopped again."""
        env = {name: value for name, value in world.env.items() if name != "METRICS_PORT"}
        with open(world.folder / "broken.log", "w+") as log:
            process = subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
            line = process.stdout.readline()
            if line:
                process.terminate()
            process.wait(60)
            process.stdout.close()
            log.seek(0)
            text = log.read()
        assert "panicked" not in text, text[-2000:]
        return (json.loads(line)["api_key"], "") if line else (None, text)

    key, _ = start()
    master = (folder / "master.key").read_text()
    assert start() == (key, "")
    (folder / "runner.json").write_text('{"url')
    assert start() == (key, ""), "what can be made again is"
    (folder / "master.key").write_text(base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("="))
    assert "master key" in start()[1]
    (folder / "master.key").unlink()
    assert "master.key is missing" in start()[1]
    (folder / "master.key").write_text(master)
    (folder / "runner.json").unlink()
    (folder / "runner.json").mkdir()
    assert "runner.json could not be replaced" in start()[1]
    (folder / "runner.json").rmdir()
    assert start() == (key, "")
    taken = subprocess.run([*arguments[:2], "--listen", world.listen, "--data-dir", str(world.folder / "other")], env=world.env, capture_output=True, text=True, timeout=60)
    assert taken.returncode == 1 and "cannot be listened on" in taken.stderr, taken.stderr


CASES = [
    rul_8_bad_requests_hear_the_documented_envelope,
    rul_8_a_key_comes_before_every_other_fault,
    rul_17_metrics_are_not_on_the_public_port,
    rul_7_fifty_prompts_at_once_admit_one,
    rul_39_p39_agents_that_die_or_talk_nonsense_end_their_turn_with_the_reason,
    p45_p46_children_neither_hold_a_turn_open_nor_outlive_the_machine,
    rul_l_93_p47_an_agent_that_ignores_every_request_to_end_is_killed,
    rul_31_a_full_disk_refuses_writes_serves_reads_and_the_turn_goes_on,
    rul_26_a_long_turn_and_its_end_do_not_end_the_server,
    inv_81_inv_119_rul_36_kill_9_at_every_point_of_a_turn,
    rul_46b_p55_a_runner_killed_in_mid_turn_ends_the_turn_and_leaves_no_orphan,
    rul_45_a_second_runner_of_one_name_waits_and_one_that_leaves_its_folder_is_refused,
    rul_58_a_start_on_broken_files_says_which_and_changes_nothing,
    inv_8_no_secret_in_logs_metrics_or_the_transcript,
]


def rul_57_a_turn_on_a_machine_that_is_kept_apart(world):
    conversation = world.launch("run: id -u; hostname; pwd; ls -d ~root/* /home/*; cat /proc/1/comm")
    assert world.ended(conversation)["status"] == "completed"
    said = world.text(conversation)
    assert "/home/sprite" in said and str(world.folder) not in said, said
    machine = world.conversation(conversation)["sandbox_id"]
    facts = world.api("GET", f"/api/sandboxes/{machine}")["data"]
    assert facts["provider"] == "sprites" and facts["sprite_name"] in said, (facts, said)
    world.api("POST", f"/api/conversations/{conversation}/terminate")
    until("its machine is gone", lambda: world.api("GET", f"/api/sandboxes/{machine}")["data"]["status"] == "terminated")
    left = [path.name for path in (world.data / "sprites" / "sprites").iterdir()]
    assert left == [], left


def rul_l_113_a_limited_environment_has_its_policy_before_the_agent(world):
    config = {"name": "limited", "networking_type": "limited", "networking_config": {"allowed_hosts": []}}
    environment = world.api("POST", "/api/environments", config)["data"]["id"]
    prompt = "run: getent hosts example.com; echo code $?; (echo > /dev/tcp/1.1.1.1/80) 2>&1 | grep -q refused; echo $?"
    body = {"agent_id": world.agent_id, "environment_id": environment, "prompt": prompt}
    conversation = world.api("POST", "/api/conversations", body)["data"]["id"]
    assert world.ended(conversation)["status"] == "completed", world.stages(conversation)
    stages = world.stages(conversation)
    assert stages.index("network/done") < stages.index("turn/started"), stages
    assert world.text(conversation).split() == ["code", "2", "0"], world.text(conversation)
    world.api("POST", f"/api/conversations/{conversation}/terminate")


def rul_l_33_rul_l_34_a_second_machine_starts_from_the_checkpoint(world):
    config = {"name": "warm", "setup_script": "date +%s%N > ~/stamp; ls -A > ~/was-there"}
    environment = world.api("POST", "/api/environments", config)["data"]["id"]

    def stamp():
        body = {"agent_id": world.agent_id, "environment_id": environment, "prompt": "run: cat stamp was-there; echo mine > own"}
        conversation = world.api("POST", "/api/conversations", body)["data"]["id"]
        assert world.ended(conversation)["status"] == "completed", world.stages(conversation)
        said, stages = world.text(conversation).split(), world.stages(conversation)
        world.api("POST", f"/api/conversations/{conversation}/terminate")
        return said, stages

    cold, stages = stamp()
    assert "setup/done" in stages and "checkpoint_restore/started" not in stages, stages
    warm, stages = stamp()
    assert "checkpoint_restore/done" in stages and "setup/started" not in stages, stages
    assert warm == cold, (cold, warm)
    # Nothing of a conversation was on the disk when it was taken.
    assert not {"own", ".env"} & set(warm), warm
    world.api("PATCH", f"/api/environments/{environment}", {"env_vars": {"A": "1"}})
    again, stages = stamp()
    assert "setup/done" in stages and again[0] != cold[0], (stages, again)


def rul_l_4_r_21_the_provider_is_down_and_comes_back(world):
    """Seed 000's failure model: what is not a machine still works, a launch ends with the step named, a wake loses nothing."""
    kept = world.launch("run: echo kept > note")
    assert world.ended(kept)["status"] == "completed"
    world.kill_sprites()
    assert world.raw("GET", "/health/ready", key=False)[0] == 200
    assert world.raw("GET", "/api/agents")[0] == 200
    assert world.raw("POST", "/api/environments", {"name": "made-meanwhile"})[0] == 201
    assert "turn/done" in world.stages(kept)
    fresh = world.launch("run: echo hello")
    turn = world.ended(fresh)
    assert turn["status"] == "failed", turn
    stages = world.stages(fresh)
    assert "provision/failed" in stages and "turn/started" not in stages, stages
    world.start_sprites()
    assert world.prompt(kept, "run: cat note")[0] == 200
    assert world.ended(kept, 2)["status"] == "completed", world.reason(kept)
    assert world.text(kept).split() == ["kept"], world.text(kept)
    assert world.prompt(fresh, "run: echo hello")[0] in (200, 410), "a conversation whose first build failed"
    world.api("POST", f"/api/conversations/{kept}/terminate")


SPRITES_CASES = [
    rul_57_a_turn_on_a_machine_that_is_kept_apart,
    rul_l_113_a_limited_environment_has_its_policy_before_the_agent,
    rul_l_33_rul_l_34_a_second_machine_starts_from_the_checkpoint,
    p45_p46_children_neither_hold_a_turn_open_nor_outlive_the_machine,
    rul_l_93_p47_an_agent_that_ignores_every_request_to_end_is_killed,
    rul_26_a_long_turn_and_its_end_do_not_end_the_server,
    inv_81_inv_119_rul_36_kill_9_at_every_point_of_a_turn,
    rul_l_4_r_21_the_provider_is_down_and_comes_back,
]


def run(world, cases, wanted):
    """(passed, failed) of these cases in one world."""
    passed = failed = 0
    for case in cases:
        name = f"{world.provider}: {case.__name__}"
        if wanted and not any(word in name for word in wanted):
            continue
        started = time.monotonic()
        try:
            case(world)
            passed += 1
            verdict = "ok"
        except Exception:
            failed += 1
            verdict = "FAILED"
            traceback.print_exc()
        print(f"{name} ... {verdict} ({time.monotonic() - started:.1f} s)")
    ended, problems = world.close(), world.errors()
    if ended != 0 or problems:
        failed += 1
        print(f"the server ended with {ended}; errors in its log: {problems[:5]}")
        print(pathlib.Path(world.log).read_text(errors="replace")[-4000:])
    return passed, failed


def main():
    binary, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    counts = [run(World(binary), CASES, wanted), run(SpritesWorld(binary), SPRITES_CASES, wanted)]
    passed, failed = (sum(column) for column in zip(*counts))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
