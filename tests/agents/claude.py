"""The claude adapter as a runtime `acp` agent on a runner: a tool call, a permission, a resume after a kill."""

import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

from stack import Stack, clean_environment, until

HERE = pathlib.Path(__file__).parent


def model(folder):
    """The scripted model; its port is the kernel's choice and its first line."""
    log = open(folder / "model.log", "wb")
    node = subprocess.Popen(
        ["node", str(HERE / "model" / "server.mjs"), "0"],
        env=clean_environment(folder),
        stdout=subprocess.PIPE,
        stderr=log,
        stdin=subprocess.DEVNULL,
    )
    line = node.stdout.readline().decode()
    port = "".join(c for c in line.split(":")[-1] if c.isdigit())
    assert port, line
    return node, f"http://127.0.0.1:{port}"


def events(stack, conversation):
    after, out = 0, []
    while True:
        page = stack.api("GET", f"/api/conversations/{conversation}/events?limit=1000&blocks=true&after={after}")
        out += page["data"]
        if not page["meta"]["has_more"]:
            return out
        after = page["meta"]["next_cursor"]


def blocks(stack, conversation):
    return [block for event in events(stack, conversation) for block in event["blocks"] or []]


def turn_end(stack, conversation, number, limit=120):
    def ended():
        turns = stack.api("GET", f"/api/conversations/{conversation}/turns")["data"]
        mine = [t for t in turns if t["turn_number"] == number and t["ended_at"]]
        return mine and mine[0]

    return until(f"turn {number} ends", ended, limit)


def launch(stack, agent, prompt, **more):
    body = {"agent_id": agent, "prompt": prompt, **more}
    return stack.api("POST", "/api/conversations", body)["data"]["id"]


def a_turn_with_a_tool_call(stack, agent):
    conversation = launch(stack, agent, "run: echo hello-from-the-machine\nsay: all finished")
    turn = turn_end(stack, conversation, 1)
    assert turn["status"] == "completed", (turn, events(stack, conversation)[-5:])
    seen = blocks(stack, conversation)
    kinds = [block["kind"] for block in seen]
    assert "tool_use" in kinds and "tool_result" in kinds, kinds
    result = next(block for block in seen if block["kind"] == "tool_result")
    assert "hello-from-the-machine" in result["body"] and not result["error"], result
    text = "".join(block["body"] for block in seen if block["kind"] == "text")
    assert "all finished" in text, text
    assert turn["usage"] and turn["usage"]["output"] > 0, turn
    follow = stack.api("POST", f"/api/conversations/{conversation}/prompts", {"prompt": "recall:"})
    assert follow["status"] == "queued"
    assert turn_end(stack, conversation, 2)["status"] == "completed"
    stack.api("POST", f"/api/conversations/{conversation}/terminate")


def a_permission_that_is_asked(stack, agent):
    policy = {"default": "ask"}
    conversation = launch(stack, agent, "run: touch asked.txt\nsay: done", permission_policy=policy)

    def open_request():
        return stack.api("GET", f"/api/conversations/{conversation}")["data"]["pending_requests"]

    request = until("the agent asks", open_request, 120)[0]
    allow = next(o for o in request["options"] if o["kind"] == "allow_once")
    answer = f"/api/conversations/{conversation}/requests/{request['request_id']}"
    assert stack.api("POST", answer, {"option_id": allow["optionId"]}) == {"ok": True}
    assert turn_end(stack, conversation, 1)["status"] == "completed"
    stack.api("POST", f"/api/conversations/{conversation}/terminate")


def a_turn_survives_a_killed_server(stack, agent):
    conversation = launch(stack, agent, "slow: 60")

    def speaking():
        return [b for b in blocks(stack, conversation) if b["kind"] == "text"]

    until("it speaks", speaking, 120)
    stack.restart()
    stack.runner_online()
    turn = turn_end(stack, conversation, 1)
    assert turn["status"] == "completed", (turn, events(stack, conversation)[-5:])
    words = "".join(block["body"] for block in blocks(stack, conversation) if block["kind"] == "text").split()
    assert len(words) == len(set(words)) == 60, (len(words), words[:3], words[-3:])
    stack.api("POST", f"/api/conversations/{conversation}/terminate")


def main():
    binary, adapter = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    stack = Stack(binary)
    node, url = model(stack.folder)
    settings = json.dumps({"permissions": {"defaultMode": "default"}})
    prepare = f"mkdir -p \"$HOME/.claude\" && printf %s '{settings}' > \"$HOME/.claude/settings.json\""
    environment = {
        "name": "claude",
        "env_vars": {
            "ANTHROPIC_BASE_URL": url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        },
    }
    environment = stack.api("POST", "/api/environments", environment)["data"]["id"]
    secret = {"key": "ANTHROPIC_API_KEY", "value": "scripted-model-key"}
    stack.api("POST", f"/api/environments/{environment}/secrets", secret)
    agent = {
        "name": "claude",
        "runtime": "acp",
        "runtime_command": f"{prepare}; exec node '{adapter}'",
        "sandbox_provider": "runner",
        "environment_id": environment,
    }
    agent = stack.api("POST", "/api/agents", agent)["data"]["id"]
    passed = failed = 0
    for case in (a_turn_with_a_tool_call, a_permission_that_is_asked, a_turn_survives_a_killed_server):
        started = time.monotonic()
        try:
            case(stack, agent)
            passed += 1
            verdict = "ok"
        except Exception:
            failed += 1
            verdict = "FAILED"
            traceback.print_exc()
        print(f"claude: {case.__name__} ... {verdict} ({time.monotonic() - started:.1f} s)")
    node.terminate()
    code, problems = stack.close(), stack.errors()
    if code != 0 or problems:
        failed += 1
        print(f"the server ended with {code}; errors in its log: {problems[:5]}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
