"""`fountain sprites` as a process of its own, and what the published clients do not offer: raw HTTP and raw sockets."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse

import httpx
from sprites import SpritesClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

DEADLINE = 60.0
# What sprites may reach under any policy, see --host.
OPEN_NAME = "open.internal"
TOKENS = ("first-token-of-the-tests", "second-token-of-the-tests")


def until(what, check, limit=DEADLINE):
    """Waits for a level; `check` answers something true, or the wait fails with what it last answered."""
    end = time.monotonic() + limit
    while True:
        last = check()
        if last:
            return last
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:.0f} s: {what}; last: {last!r}")
        time.sleep(0.05)


def processes_with(word):
    """The processes of this host that carry a word in their command line."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class Server:
    """One server over one root. The root outlives `kill` and `start`, and goes with `end`."""

    def __init__(self, binary, *more):
        self.binary = binary
        self.more = more
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fountain-sprites-"))
        self.root = self.folder / "root"
        self.log = self.folder / "server.log"
        self.handle = None
        self.listener = socket.create_server(("0.0.0.0", 0))
        self.open_port = self.listener.getsockname()[1]
        self.start()

    def start(self):
        arguments = [self.binary, "sprites", "--listen", "127.0.0.1:0", "--root", str(self.root), "--json"]
        arguments += ["--host", f"{OPEN_NAME}=127.0.0.1:{self.open_port}"]
        for token in TOKENS:
            arguments += ["--token", token]
        arguments += self.more
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"}
        with open(self.log, "ab") as log:
            self.handle = subprocess.Popen(
                arguments, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        line = self.handle.stdout.readline()
        if not line:
            raise AssertionError(f"it ended before it was ready:\n{self.log.read_text(errors='replace')[-3000:]}")
        greeting = json.loads(line)
        self.url, self.isolation = greeting["url"], greeting["isolation"]

    def kill(self):
        """As a crash: nothing is told and nothing is put away."""
        self.handle.send_signal(signal.SIGKILL)
        self.handle.wait(DEADLINE)
        self.handle.stdout.close()

    def end(self):
        if self.handle.poll() is None:
            self.handle.send_signal(signal.SIGTERM)
        try:
            self.handle.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("it did not end when asked")
        finally:
            self.listener.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def client(self, token=TOKENS[0]):
        return SpritesClient(token, base_url=self.url)

    def call(self, method, path, token=TOKENS[0], **more):
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.request(method, self.url + path, headers=headers, timeout=DEADLINE, **more)

    def lines(self, path, token=TOKENS[0], **more):
        """The lines of a streamed answer."""
        answer = self.call("POST", path, token, **more)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return [json.loads(line) for line in answer.text.splitlines() if line]

    def _open(self, path, token):
        url = "ws" + self.url.removeprefix("http") + path
        headers = {"Authorization": f"Bearer {token}"}
        return connect(url, additional_headers=headers, max_size=None, open_timeout=DEADLINE, close_timeout=5)

    def exec(self, sprite, *cmd, token=TOKENS[0], **query):
        """Starts a command and answers with its socket and its session's id."""
        pairs = [("cmd", word) for word in cmd] + list(query.items())
        socket = self._open(f"/v1/sprites/{sprite}/exec?{urllib.parse.urlencode(pairs)}", token)
        info = json.loads(socket.recv(timeout=DEADLINE))
        assert info["type"] == "session_info" and info["is_owner"], info
        return socket, info["session_id"]

    def attach(self, sprite, session, token=TOKENS[0]):
        socket = self._open(f"/v1/sprites/{sprite}/exec/{session}", token)
        info = json.loads(socket.recv(timeout=DEADLINE))
        assert info["type"] == "session_info" and info["session_id"] == session and not info["is_owner"], info
        return socket

    def attach_refused(self, sprite, session, token=TOKENS[0]):
        try:
            self._open(f"/v1/sprites/{sprite}/exec/{session}", token).close()
        except InvalidStatus as refused:
            return refused.response.status_code
        raise AssertionError("it was let in")


class Watched:
    """What a socket without a terminal said, until its exit, or with `hold` until the server closed it."""

    def __init__(self, socket, hold=False):
        self.out, self.err, self.code, self.closed = bytearray(), bytearray(), None, None
        try:
            while True:
                message = socket.recv(timeout=DEADLINE)
                if isinstance(message, str):
                    continue
                assert self.code is None, "nothing follows the exit"
                mark, data = message[0], message[1:]
                if mark == 1:
                    self.out += data
                elif mark == 2:
                    self.err += data
                elif mark == 3:
                    assert len(data) == 1, data
                    self.code = data[0]
                    if not hold:
                        socket.close()
                        return
                else:
                    raise AssertionError(f"unknown mark {mark}")
        except ConnectionClosed as closed:
            self.closed = closed.rcvd.code if closed.rcvd else None
