"""What is to survive, to vanish and to be kept apart, over plain HTTP. Each case has a server of its own."""

import json
import uuid

from server import TOKENS, Watched, processes_with, until

FIRST, SECOND = TOKENS
DENY = {"rules": [{"domain": "*", "action": "deny"}]}
NUMBERS = "".join(f"{n}\n" for n in range(1, 30001)).encode()


def create(server, name, token=FIRST):
    answer = server.call("POST", "/v1/sprites", token, json={"name": name})
    assert answer.status_code == 201, (answer.status_code, answer.text)
    return answer.json()


def write(server, sprite, path, data, token=FIRST):
    params = {"path": path, "workingDir": "/home/sprite", "mkdirParents": "true"}
    answer = server.call("PUT", f"/v1/sprites/{sprite}/fs/write", token, params=params, content=data)
    assert answer.status_code in (200, 201), (answer.status_code, answer.text)


def read(server, sprite, path, token=FIRST):
    params = {"path": path, "workingDir": "/home/sprite"}
    return server.call("GET", f"/v1/sprites/{sprite}/fs/read", token, params=params)


def checkpoint(server, sprite, token=FIRST):
    lines = server.lines(f"/v1/sprites/{sprite}/checkpoint", token, json={"comment": "kept"})
    assert lines[-1]["type"] == "complete", lines
    made = [line for line in lines if "global_id" in line]
    assert len(made) == 1, lines
    return made[0]["data"].split("ID:")[1].strip(), made[0]["global_id"]


def run(server, sprite, script, token=FIRST):
    socket, _ = server.exec(sprite, "bash", "-c", script, token=token)
    return Watched(socket)


def survives_a_kill(server):
    made = create(server, "lasting")
    data = bytes(range(256)) * 2000
    write(server, "lasting", "dir/file", data)
    own, _ = checkpoint(server, "lasting")
    write(server, "lasting", "dir/file", b"later")
    assert server.call("POST", "/v1/sprites/lasting/policy/network", json=DENY).status_code == 204
    assert server.call("PUT", "/v1/sprites/lasting", json={"url_settings": {"auth": "public"}, "labels": ["x"]}).status_code == 200
    server.kill()
    server.start()
    seen = server.call("GET", "/v1/sprites/lasting").json()
    assert (seen["id"], seen["labels"], seen["url_settings"]["auth"]) == (made["id"], ["x"], "public"), seen
    assert [s["name"] for s in server.call("GET", "/v1/sprites").json()["sprites"]] == ["lasting"]
    assert read(server, "lasting", "dir/file").content == b"later"
    assert server.call("GET", "/v1/sprites/lasting/policy/network").json()["rules"] == DENY["rules"]
    listed = server.call("GET", "/v1/sprites/lasting/checkpoints").json()
    assert [c["id"] for c in listed] == ["Current", own] and listed[1]["comment"] == "kept", listed
    assert run(server, "lasting", "cat dir/file").out == b"later"
    assert server.lines(f"/v1/sprites/lasting/checkpoints/{own}/restore")[-1]["type"] == "complete"
    assert read(server, "lasting", "dir/file").content == data
    assert server.call("GET", "/v1/sprites/lasting/policy/network").json()["rules"] == DENY["rules"], "a restore keeps it"
    again, _ = checkpoint(server, "lasting")
    assert again != own, "numbers are not given twice"


def sessions_after_a_kill(server):
    create(server, "busy")
    finished, finished_id = server.exec("busy", "bash", "-c", "seq 1 30000; echo err >&2; exit 6")
    assert Watched(finished).code == 6
    word = uuid.uuid4().hex
    script = f"seq 1 30000; sh -c 'sleep 600; : {word}' & wait"
    running, running_id = server.exec("busy", "bash", "-c", script, detachable="true")
    out = bytearray()
    while len(out) < len(NUMBERS):
        message = running.recv(timeout=60)
        if isinstance(message, bytes):
            assert message[0] == 1
            out += message[1:]
    assert out == NUMBERS and processes_with(word)
    server.kill()
    server.start()
    done = Watched(server.attach("busy", finished_id), hold=True)
    assert (done.out, done.err, done.code, done.closed) == (NUMBERS, b"err\n", 6, 1000), (len(done.out), done.code, done.closed)
    lost = Watched(server.attach("busy", running_id))
    assert lost.out == NUMBERS, (len(lost.out), bytes(lost.out[-50:]))
    assert lost.code is None and lost.closed == 1011, (lost.code, lost.closed)
    until("what ran has ended with its server", lambda: not processes_with(word))
    assert server.call("GET", "/v1/sprites/busy/exec").json()["sessions"] == []
    assert run(server, "busy", "echo alive; exit 2").code == 2


def delete_leaves_nothing(server):
    made = create(server, "doomed")
    word = uuid.uuid4().hex
    script = f"(setsid sh -c 'sleep 600; : {word}' &) ; (trap '' TERM HUP INT; sh -c 'sleep 600; : {word}') & echo up; wait"
    running, session = server.exec("doomed", "bash", "-c", script, detachable="true")
    assert running.recv(timeout=60) == b"\x01up\n"
    until("they run", lambda: len(processes_with(word)) >= 3)
    write(server, "doomed", "secret", word.encode())
    assert found_on_disk(server, word), "the search finds what is there"
    assert server.call("DELETE", "/v1/sprites/doomed").status_code == 204
    assert processes_with(word) == [], "answered when they are gone"
    assert not found_on_disk(server, word), found_on_disk(server, word)
    left = [str(path) for path in server.root.rglob("*") if made["id"] in path.name]
    assert left == [], left
    with open("/proc/self/mounts") as mounts:
        assert made["id"] not in mounts.read()
    assert server.call("GET", "/v1/sprites/doomed").status_code == 404
    assert server.attach_refused("doomed", session) == 404
    create(server, "doomed")
    assert read(server, "doomed", "secret").status_code == 404, "a name that is used again starts empty"
    assert server.attach_refused("doomed", session) == 404
    assert server.call("GET", "/v1/sprites/doomed/checkpoints").json()[1:] == []


def found_on_disk(server, word):
    found = []
    for path in server.root.rglob("*"):
        if path.is_file() and not path.is_symlink() and word.encode() in path.read_bytes():
            found.append(str(path))
    return found


def tenants_are_apart(server):
    create(server, "shared-name", FIRST)
    create(server, "shared-name", SECOND)
    create(server, "only-first", FIRST)
    write(server, "shared-name", "file", b"of the first", FIRST)
    write(server, "shared-name", "file", b"of the second", SECOND)
    own, global_id = checkpoint(server, "only-first", FIRST)
    running, session = server.exec("only-first", "sh", "-c", "echo up; sleep 600", detachable="true")
    assert running.recv(timeout=60) == b"\x01up\n"

    def names(token):
        return [s["name"] for s in server.call("GET", "/v1/sprites", token).json()["sprites"]]

    assert names(FIRST) == ["only-first", "shared-name"] and names(SECOND) == ["shared-name"]
    assert server.call("GET", "/v1/sprites", SECOND).json()["running"] == 1
    assert read(server, "shared-name", "file", FIRST).content == b"of the first"
    assert read(server, "shared-name", "file", SECOND).content == b"of the second"
    for method, path in [
        ("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/exec"), ("GET", "/checkpoints"), ("POST", "/checkpoint"),
        ("GET", f"/checkpoints/{own}"), ("DELETE", f"/checkpoints/{own}"), ("GET", "/policy/network"),
        ("POST", "/policy/network"), ("POST", f"/exec/{session}/kill"), ("GET", "/fs/list?path=/"), ("POST", "/restart"),
    ]:
        body = {"json": DENY if "policy" in path else {}} if method in ("PUT", "POST") else {}
        answer = server.call(method, "/v1/sprites/only-first" + path, SECOND, **body)
        assert answer.status_code == 404, (method, path, answer.status_code, answer.text)
    assert server.attach_refused("only-first", session, SECOND) == 404
    assert server.attach_refused("shared-name", session, SECOND) == 404, "nor under a name of one's own"
    assert server.attach_refused("shared-name", session, FIRST) == 404, "nor of another sprite"
    answer = server.call("POST", f"/v1/sprites/shared-name/exec/{session}/kill", SECOND)
    assert answer.status_code == 404, answer.text
    assert len(server.call("GET", "/v1/sprites/only-first/exec").json()["sessions"]) == 1, "it still runs"
    running.close()
    assert server.call("GET", "/v1/sprites", "nobody's").status_code == 401
    assert server.call("GET", "/v1/sprites/only-first", "nobody's").status_code == 401


def checkpoints_of_others_are_refused(server):
    create(server, "source", FIRST)
    create(server, "other", FIRST)
    create(server, "stranger", SECOND)
    write(server, "source", "file", b"of the source")
    write(server, "other", "file", b"of the other")
    write(server, "stranger", "file", b"of the stranger", SECOND)
    own, global_id = checkpoint(server, "source")

    def refused(sprite, id, token):
        lines = server.lines(f"/v1/sprites/{sprite}/checkpoints/{id}/restore", token)
        assert lines[-1]["type"] == "error" and not any(line["type"] == "complete" for line in lines), lines
        assert server.call("GET", f"/v1/sprites/{sprite}/checkpoints/{id}", token).status_code == 404
        assert server.call("DELETE", f"/v1/sprites/{sprite}/checkpoints/{id}", token).status_code == 404

    refused("other", own, FIRST)
    refused("stranger", own, SECOND)
    refused("stranger", global_id, SECOND)
    for odd in ("v01", "Current", "..%2f" + global_id, global_id.replace("sprite-", "sprite-%2e%2e%2f"), "v-1", "v99999999999999999999"):
        refused("other", odd, FIRST)
    assert read(server, "other", "file").content == b"of the other"
    assert read(server, "stranger", "file", SECOND).content == b"of the stranger"
    # The same token may take it by its global id, even when its sprite is gone and the server was restarted.
    assert server.call("DELETE", "/v1/sprites/source").status_code == 204
    server.kill()
    server.start()
    lines = server.lines(f"/v1/sprites/other/checkpoints/{global_id}/restore")
    assert lines[-1]["type"] == "complete", json.dumps(lines)
    assert read(server, "other", "file").content == b"of the source"
    refused("stranger", global_id, SECOND)


CASES = [
    survives_a_kill, sessions_after_a_kill, delete_leaves_nothing, tenants_are_apart, checkpoints_of_others_are_refused,
]
