"""What a user of the published Python client does, against a real server, a real runner and a real agent process."""

import os
import sys
import threading
import time
import traceback
import uuid

import fountain
from fountain import Fountain

from stack import Stack, until


def client(stack):
    return Fountain(api_key=stack.api_key, base_url=stack.url)


def run_with_text_and_tool_events(stack):
    run = client(stack).run("run: printf 'one\\ntwo\\n'", agent="demo", collect_events=True)
    kinds = [event["type"] for event in run]
    result = run.result(60)
    assert result.state == "done", result
    assert "one\ntwo" in result.text, result.text
    assert result.tools_used, result
    assert result.status == "idle", result.status
    assert kinds[0] == "conversation" and "turn-start" in kinds and kinds[-1] == "turn-end", kinds
    ids = [event["id"] for event in result.events if isinstance(event.get("id"), int)]
    assert ids == sorted(set(ids)), "every event once, in order"


def follow_up_prompts_on_the_same_conversation(stack):
    sdk = client(stack)
    first = sdk.run("write kept.txt: still here", agent="demo").result(60)
    conversation = sdk.resume(first.conversation_id)
    second = conversation.send("run: cat kept.txt", client_request_id="mine-1").result(60)
    assert (second.turn_number, second.state) == (2, "done"), second
    assert "still here" in second.text, second.text
    turns = conversation.turns()
    assert [turn["turn_number"] for turn in turns] == [1, 2]
    assert turns[1]["client_request_id"] == "mine-1"


def resume_by_channel(stack):
    sdk = client(stack)
    channel = "channel-" + uuid.uuid4().hex
    first = sdk.run("hello", agent="demo", channel_id=channel).result(60)
    again = sdk.run("run: echo again", agent="demo", channel_id=channel, client_request_id="second").result(60)
    assert again.conversation_id == first.conversation_id
    assert (again.turn_number, again.state) == (2, "done"), again
    assert "again" in again.text
    fresh = sdk.run("hello", agent="demo", channel_id=channel, fresh=True).result(60)
    assert fresh.conversation_id != first.conversation_id


def permission_is_answered(stack):
    run = client(stack).run("ask: may I dig?", agent="demo")
    for event in run:
        if event["type"] == "permission":
            request = event["request"]
            allow = next(o for o in request["options"] if o["kind"].startswith("allow"))
            run.answer(request["request_id"], allow["option_id"])
            try:
                run.answer(request["request_id"], allow["option_id"])
                raise AssertionError("a second answer must be refused")
            except fountain.FountainError as error:
                assert error.status == 409 and error.code == "permission_request_resolved", error
    result = run.result(60)
    assert result.state == "done", result
    assert allow["option_id"] in result.text, result.text


def interrupt_stops_the_turn(stack):
    sdk = client(stack)
    run = sdk.run("slow 600", agent="demo")
    next(iter(run.text_stream))
    run.interrupt()
    result = run.result(60)
    assert result.state == "interrupted", result
    assert result.status == "idle", result
    after = sdk.resume(result.conversation_id).send("run: echo alive").result(60)
    assert after.state == "done" and "alive" in after.text, after


def failed_turn_is_reported(stack):
    result = client(stack).run("crash", agent="demo").result(60)
    assert result.state == "failed", result
    assert result.status == "idle", result
    assert result.reason, result


def a_failing_command_is_not_a_failed_turn(stack):
    result = client(stack).run("run: exit 3", agent="demo").result(60)
    assert result.state == "done", result


def history_is_whole(stack):
    sdk = client(stack)
    result = sdk.run("run: seq 1 2000", agent="demo").result(60)
    history = sdk.resume(result.conversation_id).history()
    ids = [event["id"] for event in history]
    assert ids == sorted(set(ids))
    text = "".join(b["body"] for e in history for b in e.get("blocks") or [] if b["kind"] == "text")
    numbers = [int(line) for line in text.split() if line.isdigit()]
    assert numbers == list(range(1, 2001)), (len(numbers), numbers[:3], numbers[-3:])


def names_are_resolved(stack):
    sdk = client(stack)
    vault = stack.vault()
    result = sdk.run("run: echo secret=$TEST_SECRET", agent="DEMO", vault=vault["name"]).result(60)
    assert "secret=[REDACTED]" in result.text, result.text
    assert "open-sesame" not in str(sdk.resume(result.conversation_id).history())
    try:
        sdk.run("hello", agent="nobody-of-this-name").result(60)
        raise AssertionError("an unknown agent must be an error")
    except fountain.FountainError:
        pass


def timeout_keeps_partial_text(stack):
    # Longer than a heartbeat: the client notices its deadline when the silent stream ends (src/api/sse.rs).
    run = client(stack).run("run: echo partial; exec sleep 600", agent="demo", timeout=5)
    try:
        run.result(90)
        raise AssertionError("it must time out")
    except fountain.TimeoutError as error:
        assert error.partial_text == "partial", vars(error)
    run.terminate()


def the_stream_survives_a_killed_server(stack):
    sdk = client(stack)
    count = 60
    run = sdk.run(f"slow {count}", agent="demo", collect_events=True)
    words = iter(run.text_stream)
    for _ in range(5):
        next(words)
    stack.restart()
    result = run.result(120)
    assert result.state == "done", result
    ids = [event["id"] for event in result.events if isinstance(event.get("id"), int)]
    assert ids == sorted(set(ids)), "an event was repeated over the restart"
    whole = sdk.resume(result.conversation_id).history()
    stored = "".join(b["body"] for e in whole for b in e.get("blocks") or [] if b["kind"] == "text").strip()
    assert stored == result.text, "what was streamed is what is stored"
    assert len(result.text.split()) == count, result.text


def errors_are_the_documented_ones(stack):
    wrong = Fountain(api_key="ftn_wrong", base_url=stack.url)
    try:
        wrong.me()
        raise AssertionError("a wrong key must be refused")
    except fountain.FountainError as error:
        assert error.status == 401, error
    sdk = client(stack)
    assert sdk.me()["id"] == stack.account_id
    try:
        sdk.agents.create({"name": "", "runtime": "acp", "runtime_command": "true"})
        raise AssertionError("a blank name must be refused")
    except fountain.FountainError as error:
        assert error.status == 422 and "name" in str(error.body), vars(error)
    conversation = sdk.resume(sdk.run("hello", agent="demo").result(60).conversation_id)
    try:
        conversation.interrupt()
        raise AssertionError("no turn is running")
    except fountain.FountainError as error:
        assert (error.status, error.code) == (409, "no_turn_running"), vars(error)


def terminate_ends_it(stack):
    sdk = client(stack)
    result = sdk.run("hello", agent="demo").result(60)
    conversation = sdk.resume(result.conversation_id)
    conversation.terminate()
    conversation.terminate()
    assert conversation.status() == "terminated"
    try:
        conversation.send("hello").result(60)
        raise AssertionError("an ended conversation takes no prompt")
    except fountain.FountainError as error:
        assert (error.status, error.code) == (410, "conversation_terminated"), vars(error)
    sandbox = conversation.get()["sandbox"]["id"]
    until("its machine is gone", lambda: sdk.sandbox(sandbox)["status"] == "terminated")
    conversation.delete()


def two_prompts_at_once(stack):
    sdk = client(stack)
    conversation = sdk.resume(sdk.run("hello", agent="demo").result(60).conversation_id)
    outcomes = []

    def prompt():
        try:
            outcomes.append(conversation.send("slow 10").result(60).state)
        except fountain.FountainError as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=prompt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conversation_busy", "done"], outcomes


CASES = [
    run_with_text_and_tool_events,
    follow_up_prompts_on_the_same_conversation,
    resume_by_channel,
    permission_is_answered,
    interrupt_stops_the_turn,
    failed_turn_is_reported,
    a_failing_command_is_not_a_failed_turn,
    history_is_whole,
    names_are_resolved,
    timeout_keeps_partial_text,
    errors_are_the_documented_ones,
    terminate_ends_it,
    two_prompts_at_once,
    the_stream_survives_a_killed_server,
]


def main():
    binary = os.path.abspath(sys.argv[1])
    wanted = sys.argv[2:]
    postgres = os.environ.get("FOUNTAIN_TEST_POSTGRES_URL")
    passed = failed = 0
    for label, server in (("sqlite", None), ("postgres", postgres)):
        if label == "postgres" and not postgres:
            print("postgres: FOUNTAIN_TEST_POSTGRES_URL is not set, so this half cannot pass")
            failed += 1
            continue
        stack = Stack(binary, server)
        for case in CASES:
            if wanted and case.__name__ not in wanted:
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
            print(f"{label}: {case.__name__} ... {verdict} ({time.monotonic() - started:.1f} s)")
        code = stack.close()
        problems = stack.errors()
        if code != 0 or problems:
            failed += 1
            print(f"{label}: the server ended with {code}; errors in its log: {problems[:5]}")
            print(f"{label}: its folder: {stack.folder}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
