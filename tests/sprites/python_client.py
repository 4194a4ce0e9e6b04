"""What a user of the published Python client does (providers 1.13)."""

import asyncio
import io
import os
import socket
import threading
import uuid
from hashlib import sha256

from sprites import SpritesClient
from sprites.exceptions import APIError, ExecError, NotFoundError, SpriteError
from sprites.types import ListOptions, NetworkPolicy, PolicyRule, URLSettings
from sprites.websocket import WSCommand

from server import DEADLINE, OPEN_NAME, TOKENS, until

# More than the 16 KiB and the 64 KiB that servers of this protocol are known to keep of a session.
NUMBERS = "".join(f"{n}\n" for n in range(1, 40001)).encode()


def new(server):
    return server.client().create_sprite("t-" + uuid.uuid4().hex[:12])


def shell(sprite, script, **more):
    return sprite.run("bash", "-c", script, capture_output=True, timeout=DEADLINE, **more)


def create_get_update_destroy(server):
    client = server.client()
    name = "t-" + uuid.uuid4().hex[:12]
    made = client.create_sprite(name, url_settings=URLSettings(auth="public"), labels=["one", "two"])
    assert made.name == name and made.id.startswith("sprite-") and made.status == "running", vars(made)
    assert made.created_at and made.url and made.url_settings.auth == "public" and made.labels == ["one", "two"]
    seen = client.get_sprite(name)
    assert (seen.id, seen.labels) == (made.id, made.labels), vars(seen)
    changed = seen.update(url_settings=URLSettings(auth="sprite"), labels=["three"])
    assert (changed.url_settings.auth, changed.labels) == ("sprite", ["three"]), vars(changed)
    try:
        client.create_sprite(name)
        raise AssertionError("a second sprite of that name")
    except SpriteError as error:
        assert "409" in str(error) or getattr(error, "status_code", None) == 409, error
    client.destroy_sprite(name)
    try:
        client.get_sprite(name)
        raise AssertionError("it is still there")
    except NotFoundError:
        pass


def a_wrong_token_is_refused(server):
    try:
        SpritesClient("nobody's", base_url=server.url).list_sprites()
        raise AssertionError("it was let in")
    except SpriteError as error:
        assert "uth" in str(error), error


def exec_with_exit_codes(server):
    sprite = new(server)
    done = sprite.run("sh", "-c", "echo out; echo err >&2; exit 0", capture_output=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n", b"err\n"), done
    for code in (1, 3, 42, 126, 255):
        assert shell(sprite, f"exit {code}").returncode == code
    assert shell(sprite, "kill -TERM $$").returncode == 143
    missing = sprite.run("no-such-program", capture_output=True, timeout=DEADLINE)
    assert missing.returncode == 127 and b"no-such-program" in missing.stderr, missing
    try:
        sprite.command("sh", "-c", "echo gone; exit 9", timeout=DEADLINE).output()
        raise AssertionError("a failure was not told")
    except ExecError as error:
        assert "9" in str(error), error


def environment_and_directory(server):
    sprite = new(server)
    done = shell(sprite, 'echo "$WORD:$PWD:$HOME"', env={"WORD": "a=b c"}, cwd="/tmp")
    assert done.stdout == b"a=b c:/tmp:/home/sprite\n", done


def every_byte_both_ways(server):
    data = bytes(range(256)) * 4096
    command = new(server).command("cat", stdin=io.BytesIO(data), timeout=DEADLINE)
    assert command.output() == data


def stdin_and_its_end(server):
    command = new(server).command("sh", "-c", "wc -c; exit 5", stdin=io.BytesIO(b"x" * 300_000), timeout=DEADLINE)
    try:
        command.output()
        raise AssertionError("the code was lost")
    except ExecError as error:
        assert error.exit_code() == 5, error
    assert command._stdout_data.strip() == b"300000", command._stdout_data


def terminal_has_its_size(server):
    sprite = new(server)
    done = sprite.run(
        "bash", "-c", "stty size; tty; exit 3", capture_output=True, timeout=DEADLINE, tty=True, tty_rows=33, tty_cols=101
    )
    assert done.returncode == 3, done
    assert done.stdout.startswith(b"33 101\r\n/dev/"), done


def terminal_is_resized(server):
    sprite = new(server)

    async def play():
        command = sprite.command(
            "bash", "-c", "trap 'stty size' WINCH; echo ready; while read -r line; do [ $line = end ] && exit 4; done",
            tty=True, tty_rows=24, tty_cols=80,
        )
        command._capture_stdout = True
        inside = WSCommand(command)
        await inside.start()
        await shown(inside, b"ready")
        await inside.resize(cols=132, rows=50)
        await inside._write_stdin(b"nudge\n")
        await shown(inside, b"50 132")
        await inside._write_stdin(b"end\n")
        return await inside.wait()

    assert asyncio.run(asyncio.wait_for(play(), DEADLINE)) == 4


async def shown(inside, what):
    while what not in inside.get_stdout():
        assert not inside.done, inside.get_stdout()
        await asyncio.sleep(0.02)


def detach_and_attach_replays_everything(server):
    sprite = new(server)

    async def leave():
        script = "seq 1 40000; echo waiting >&2; while [ ! -e go ]; do sleep 0.05; done; echo end; exit 7"
        command = sprite.command("bash", "-c", script)
        command._capture_stdout = True
        inside = WSCommand(command)
        await inside.start()
        await shown(inside, b"\n20000\n")
        await inside.close()

    asyncio.run(asyncio.wait_for(leave(), DEADLINE))
    (session,) = sprite.list_sessions()
    assert session.command.startswith("bash -c seq 1 40000") and not session.tty, session
    until("it is watched by nobody", lambda: not sprite.list_sessions()[0].is_active)
    again = sprite.attach_session(session.id, timeout=DEADLINE)
    again._capture_stdout = again._capture_stderr = True
    codes = []
    watcher = threading.Thread(target=lambda: codes.append(again._run_sync()))
    watcher.start()
    until("it is watched again", lambda: sprite.list_sessions()[0].is_active)
    (sprite.filesystem("/home/sprite") / "go").write_text("")
    watcher.join(DEADLINE)
    assert codes == [7], codes
    assert again._stdout_data == NUMBERS + b"end\n", (len(again._stdout_data), again._stdout_data[:50])
    assert again._stderr_data == b"waiting\n", again._stderr_data
    late = sprite.attach_session(session.id, timeout=DEADLINE)
    late._capture_stdout = True
    assert late._run_sync() == 7 and late._stdout_data == NUMBERS + b"end\n", "a finished session replays as well"
    assert sprite.list_sessions() == []


def files(server):
    sprite = new(server)
    home = sprite.filesystem("/home/sprite")
    data = os.urandom(300_000)
    (home / "deep/er/blob.bin").write_bytes(data)
    assert (home / "deep/er/blob.bin").read_bytes() == data
    assert shell(sprite, "sha256sum <deep/er/blob.bin").stdout.split()[0].decode() == sha256(data).hexdigest()
    (home / "script").write_text("#!/bin/sh\necho run\n")
    (home / "script").chmod(0o755)
    assert shell(sprite, "./script").stdout == b"run\n"
    assert (home / "script").stat().size == 19 and (home / "script").is_file()
    assert sorted(home.path("deep").listdir()) == ["er"]
    (home / "script").rename("/home/sprite/moved")
    (home / "moved").copy_to("/home/sprite/copied")
    assert (home / "copied").read_text() == "#!/bin/sh\necho run\n" and not (home / "script").exists()
    (home / "moved").unlink()
    assert not (home / "moved").exists()
    (home / "deep").rmtree()
    assert shell(sprite, "ls").stdout == b"copied\n"
    for wrong in (lambda: (home / "missing").read_bytes(), lambda: (home / "missing").unlink()):
        try:
            wrong()
            raise AssertionError("a missing file was found")
        except FileNotFoundError:
            pass
        except SpriteError as error:
            assert "not found" in str(error).lower() or "no such" in str(error).lower(), error


def tree(sprite):
    """Every file of the home folder with its mode and content."""
    done = shell(sprite, "cd && find . -type f -printf '%p %m ' -exec sha256sum {} ';' | sort; find . -type l -printf '%p %l\\n'")
    assert done.returncode == 0, done
    return done.stdout


def said(stream):
    messages = list(stream)
    assert all(message.error is None for message in messages), messages
    kinds = [message.type for message in messages]
    assert kinds[-1] == "complete" and set(kinds[:-1]) == {"info"}, messages
    return messages


def checkpoint(sprite, comment=""):
    ids = [m.data.split("ID:")[1].strip() for m in said(sprite.create_checkpoint(comment)) if "ID:" in (m.data or "")]
    assert len(ids) == 1, ids
    return ids[0]


FILL = """
cd; mkdir -p d/e; echo one >changed; echo two >deleted; echo three >d/e/kept; head -c 1500000 /dev/urandom >big
chmod 640 d/e/kept; ln -s changed link
"""
SPOIL = """
cd; echo other >changed; rm deleted; echo new >added; rm -rf d; mkdir d; echo new >d/f; truncate -s 10 big; ln -sfn added link
"""


def checkpoint_and_restore(server):
    sprite = new(server)
    assert shell(sprite, FILL).returncode == 0
    before = tree(sprite)
    first = checkpoint(sprite, "before it is spoilt")
    assert first == "v0" or first == "v1", first
    listed = sprite.list_checkpoints()
    assert [c.id for c in listed] == ["Current", first] and listed[1].comment == "before it is spoilt", listed
    assert sprite.get_checkpoint(first).id == first
    assert tree(sprite) == before, "a checkpoint changes nothing"
    assert shell(sprite, SPOIL).returncode == 0
    spoilt = tree(sprite)
    assert spoilt != before
    second = checkpoint(sprite)
    said(sprite.restore_checkpoint(first))
    assert tree(sprite) == before
    assert shell(sprite, "cat changed deleted d/e/kept; ls -A").stdout.startswith(b"one\ntwo\nthree\n")
    said(sprite.restore_checkpoint(second))
    assert tree(sprite) == spoilt, "and forward again"
    said(sprite.restore_checkpoint(first))
    said(sprite.restore_checkpoint(first))
    assert tree(sprite) == before, "a checkpoint is used more than once"
    try:
        failed = list(sprite.restore_checkpoint("v999"))
        assert failed[-1].type == "error" and not any(m.type == "complete" for m in failed), failed
    except SpriteError:
        pass
    assert tree(sprite) == before


def checkpoint_while_something_runs(server):
    sprite = new(server)
    assert shell(sprite, FILL).returncode == 0
    before = tree(sprite)
    running, session = server.exec(sprite.name, "sh", "-c", "echo here; sleep 600", detachable="true")
    assert running.recv(timeout=DEADLINE) == b"\x01here\n"
    kept = checkpoint(sprite)
    assert [s.id for s in sprite.list_sessions()] == [session], "a checkpoint ends nothing"
    assert shell(sprite, SPOIL).returncode == 0
    assert tree(sprite) != before
    said(sprite.restore_checkpoint(kept))
    assert sprite.list_sessions() == [], "a restore ends all sessions"
    running.close()
    assert tree(sprite) == before


CONNECT = "timeout 5 bash -c 'exec 3<>/dev/tcp/{}/{}' 2>/dev/null && echo connected || echo refused"
# Asks the sprite's resolver and prints the code of its answer.
ASK = """
import socket, sys
resolver = next(line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver"))
name = b"".join(bytes([len(part)]) + part.encode() for part in sys.argv[1].split("."))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
    way.settimeout(30)
    way.sendto(b"\\x12\\x34\\x01\\x00\\x00\\x01" + bytes(6) + name + b"\\x00\\x00\\x01\\x00\\x01", (resolver, 53))
    print(way.recv(512)[3] & 15)
"""
REFUSED = 5


def answer_code(sprite, name):
    done = sprite.run("python3", "-c", ASK, name, capture_output=True, timeout=DEADLINE)
    assert done.returncode == 0, done
    return int(done.stdout)


def network_policy(server):
    sprite = new(server)
    assert sprite.get_network_policy().rules == []
    rules = [PolicyRule(domain="example.org", action="allow"), PolicyRule(domain="*", action="deny")]
    sprite.update_network_policy(NetworkPolicy(rules=rules))
    assert sprite.get_network_policy().rules == rules
    sprite.update_network_policy(NetworkPolicy(rules=[PolicyRule(domain="*", action="deny")]))
    assert sprite.get_network_policy().rules == [PolicyRule(domain="*", action="deny")]
    assert shell(sprite, "echo alive").stdout == b"alive\n"
    try:
        sprite.update_network_policy(NetworkPolicy(rules=[PolicyRule(domain="*", action="perhaps")]))
        raise AssertionError("a wrong rule was taken")
    except SpriteError as error:
        assert "400" in str(error), error
    assert sprite.get_network_policy().rules == [PolicyRule(domain="*", action="deny")]
    sprite.update_network_policy(NetworkPolicy(rules=[]))
    assert sprite.get_network_policy().rules == []


def deny_all_is_enforced(server):
    sprite = new(server)
    sprite.update_network_policy(NetworkPolicy(rules=[PolicyRule(domain="*", action="deny")]))
    for address in host_addresses():
        with socket.create_connection((address, server.open_port), 5):
            pass
        assert shell(sprite, CONNECT.format(address, server.open_port)).stdout == b"refused\n", address
    assert answer_code(sprite, "example.org") == REFUSED
    assert shell(sprite, "getent hosts example.org").returncode != 0
    # The probes can succeed: what the operator opened is reached under any policy, by its name only.
    assert answer_code(sprite, OPEN_NAME) == 0
    assert shell(sprite, CONNECT.format(OPEN_NAME, server.open_port)).stdout == b"connected\n"
    assert shell(sprite, CONNECT.format(OPEN_NAME, server.open_port + 1)).stdout == b"refused\n"


def only_allowed_names_are_answered(server):
    sprite = new(server)
    rules = [PolicyRule(domain="*.example.org", action="allow"), PolicyRule(domain="*", action="deny")]
    sprite.update_network_policy(NetworkPolicy(rules=rules))
    assert answer_code(sprite, "other.example.com") == REFUSED
    assert answer_code(sprite, "www.example.org") != REFUSED, "whatever the host's resolver then says"
    sprite.update_network_policy(NetworkPolicy(rules=[PolicyRule(domain="*", action="deny")]))
    assert answer_code(sprite, "www.example.org") == REFUSED, "a new policy is in force at once"


def host_addresses():
    """Loopback and, where there is one, the address of the way out."""
    found = ["127.0.0.1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("192.0.2.1", 9))
            found.append(way.getsockname()[0])
        except OSError:
            pass
    return sorted(set(found))


def three_pages_of_sprites(server):
    client = server.client()
    prefix = "p-" + uuid.uuid4().hex[:8]
    names = [f"{prefix}-{n:03}" for n in range(120)]
    for name in names:
        client.create_sprite(name)
    pages, seen, token = 0, [], None
    while True:
        page = client.list_sprites(ListOptions(prefix=prefix, continuation_token=token))
        pages += 1
        seen += [sprite.name for sprite in page.sprites]
        assert page.has_more == (page.next_continuation_token is not None), page.next_continuation_token
        token = page.next_continuation_token
        if not page.has_more:
            break
        assert len(page.sprites) == 50 and page.running >= 120, (len(page.sprites), page.running)
    assert pages == 3 and seen == names, (pages, len(seen))
    assert [sprite.name for sprite in client.list_all_sprites(prefix)] == names
    for name in names:
        client.destroy_sprite(name)
    assert client.list_all_sprites(prefix) == []


def kill(server):
    from sprites.session import kill_session

    sprite = new(server)
    running, session = server.exec(sprite.name, "sh", "-c", "echo up; sleep 600", detachable="true")
    assert running.recv(timeout=DEADLINE) == b"\x01up\n"
    messages = list(kill_session(sprite, session))
    kinds = [message.type for message in messages]
    assert kinds[0] == "signal" and kinds[-1] == "complete" and "exited" in kinds, kinds
    until("it is gone from the list", lambda: sprite.list_sessions() == [])
    running.close()
    stubborn, session = server.exec(sprite.name, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done", detachable="true")
    assert stubborn.recv(timeout=DEADLINE) == b"\x01up\n"
    kinds = [message.type for message in kill_session(sprite, session, timeout=1)]
    assert kinds.count("signal") == 2 and "timeout" in kinds and kinds[-1] == "complete", kinds
    stubborn.close()
    again = sprite.attach_session(session, timeout=DEADLINE)
    assert again._run_sync() == 137
    try:
        kill_session(sprite, "nothing")
        raise AssertionError("a session that never was")
    except APIError as error:
        assert error.status_code == 404, error


def nothing_of_the_server_is_seen_inside(server):
    done = shell(new(server), "ps -ef 2>/dev/null; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n'")
    assert b"sprite" in done.stdout and not any(token.encode() in done.stdout for token in TOKENS), done.stdout
    assert str(server.folder).encode() not in done.stdout, done.stdout


CASES = [
    create_get_update_destroy, a_wrong_token_is_refused, exec_with_exit_codes, environment_and_directory,
    every_byte_both_ways, stdin_and_its_end, terminal_has_its_size, terminal_is_resized,
    detach_and_attach_replays_everything, files, checkpoint_and_restore, checkpoint_while_something_runs,
    network_policy, deny_all_is_enforced, only_allowed_names_are_answered, three_pages_of_sprites, kill, nothing_of_the_server_is_seen_inside,
]
