"""Runs the cases against servers of its own and ends with `N passed, N failed`.

    main.py BINARY NODE_HOME [WORD ...]    with words: only the cases whose name has one of them
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

import bad_input
import more_doors
import plain_http
import python_client
from server import TOKENS, Server

WEBSOCKET = "--experimental-websocket"


class Tally:
    def __init__(self, words):
        self.words, self.passed, self.failed = words, 0, 0

    def wants(self, name):
        return not self.words or any(word in name for word in self.words)

    def note(self, name, why=None, took=0.0):
        if why is None:
            self.passed += 1
            print(f"ok    {name} ({took:.1f} s)")
        else:
            self.failed += 1
            print(f"FAIL  {name} ({took:.1f} s)\n{why}")

    def run(self, name, case):
        started = time.monotonic()
        try:
            case()
        except Exception:
            self.note(name, traceback.format_exc(), time.monotonic() - started)
        else:
            self.note(name, took=time.monotonic() - started)


def isolation_is_whole(server):
    """The cases below mean little in a sprite that is an ordinary process."""
    apart = ("user_namespace", "mount_namespace", "pid_namespace")
    assert all(server.isolation[name] is True for name in apart), server.isolation
    assert (server.isolation["network"], server.isolation["disk"]) == ("gateway", "overlay"), server.isolation


def javascript(server, node_home, tally):
    """The cases of the npm client are counted by their own lines."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(server.folder), "NODE_NO_WARNINGS": "1"}
    # Node 20 has the global WebSocket behind this flag; a Node that does not know the flag does not start with it.
    known = ["node", "-p", f"process.allowedNodeEnvironmentFlags.has('{WEBSOCKET}')"]
    known = subprocess.run(known, env=environment, capture_output=True, text=True, check=True).stdout.strip() == "true"
    command = ["node", *([WEBSOCKET] if known else []), "tests/sprites/js_client.mjs", str(node_home), server.url, TOKENS[0]]
    command += tally.words
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line]
    finished = False
    for line in lines:
        said = json.loads(line)
        if "not_run" in said:
            print(f"!!!!  NOT RUN, NOT COUNTED: {said['not_run']}")
        elif "end" in said:
            finished = True
        else:
            tally.note(f"js: {said['name']}", said.get("error"), said["took"])
    if done.returncode != 0 or not finished:
        tally.note("js: the script itself", f"exit code {done.returncode}\n{done.stderr[-3000:]}")


def main(binary, node_home, *words):
    os.chdir(pathlib.Path(__file__).resolve().parents[2])
    tally = Tally(words)
    server = Server(binary)
    try:
        print(f"isolation: {json.dumps(server.isolation)}")
        if tally.wants("isolation_is_whole"):
            tally.run("isolation_is_whole", lambda: isolation_is_whole(server))
        for case in python_client.CASES:
            name = f"python: {case.__name__}"
            if tally.wants(name):
                tally.run(name, lambda case=case: case(server))
        javascript(server, node_home, tally)
    finally:
        server.end()
    for case in plain_http.CASES + more_doors.CASES + bad_input.CASES:
        name = f"http: {case.__name__}"
        if not tally.wants(name):
            continue
        server = Server(binary, *getattr(case, "arguments", []))
        try:
            tally.run(name, lambda case=case: case(server))
        finally:
            server.end()
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
