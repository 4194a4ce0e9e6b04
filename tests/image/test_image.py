#!/usr/bin/env python3
"""Starts the image's tree the way a container engine would, and asks it what the chart relies on.

Usage: test_image.py TREE POSTGRES_URL PSQL. The tree is mounted read-only, with a fresh /tmp, as user 1001, without the
environment of whoever runs this. Prints one line per failure and `N passed, N failed`.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

TREE, SERVER, PSQL = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
DOCKERFILE = (Path(__file__).resolve().parents[2] / "Dockerfile").read_text()
ENTRYPOINT = json.loads(re.search(r"(?m)^ENTRYPOINT (\[.*\])$", DOCKERFILE).group(1))
CMD = json.loads(re.search(r"(?m)^CMD (\[.*\])$", DOCKERFILE).group(1))
CA = "/etc/fountain/database-ca/ca.crt"
LIMIT = 30
DATABASE = f"{SERVER}/image"
SETTINGS = {
    "DATABASE_URL": DATABASE,
    "DATABASE_SSL": "true",
    "DATABASE_SSL_VERIFY": "true",
    "DATABASE_SSL_CA_FILE": CA,
    "MASTER_SECRETS_KEY": "A" * 43,
    "PUBLIC_URL": "https://fountain.example.com",
}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def inside(command, settings=None):
    """The command line that runs `command` in the tree."""
    line = ["bwrap", "--ro-bind", str(TREE), "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]
    line += ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--as-pid-1", "--uid", "1001", "--gid", "1001", "--chdir", "/tmp", "--die-with-parent", "--clearenv"]
    for name, value in ({"PATH": "/usr/local/bin:/usr/bin:/bin"} | (settings or {})).items():
        line += ["--setenv", name, value]
    return line + list(command)


def run(*command, settings=None, code=0):
    done = subprocess.run(inside(command, settings), capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
    assert done.returncode == code, f"{' '.join(command)} exited with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path, key=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()


class Running:
    """The image's entry point with its default command on free ports, up until the block ends."""

    def __init__(self, **settings):
        self.port, self.metrics = free_port(), free_port()
        command = [*ENTRYPOINT, *CMD, "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            inside(command, SETTINGS | {"METRICS_PORT": str(self.metrics)} | settings),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )

    def __enter__(self):
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if get(self.port, "/health/ready")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        self.__exit__()
        raise AssertionError(f"not ready after {LIMIT} s: {self.output[-2000:]}")

    def stop(self):
        """SIGTERM to tini, as the engine sends it: the exit code is the server's."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        self.output, _ = self.process.communicate(timeout=LIMIT)
        return self.process.returncode

    def __exit__(self, *_):
        if self.process.poll() is None:
            # bwrap dies and takes the tree with it.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.output = getattr(self, "output", None) or self.process.communicate()[0]


@test
def the_user_is_the_one_of_the_chart():
    assert run("id", "-u").strip() == "1001"
    assert run("id", "-un").strip() == "fountain"


@test
def the_binary_finds_every_library():
    libraries = run("ldd", "/usr/local/bin/fountain")
    assert "not found" not in libraries, libraries
    assert "libssl.so.3" in libraries, "built without TLS to PostgreSQL: " + libraries


@test
def the_entry_point_and_the_pause_of_the_chart_exist():
    for program in (ENTRYPOINT[0], "/bin/sleep"):
        assert os.access(str(TREE) + program, os.X_OK), program


@test
def the_root_certificates_are_there():
    bundle = (TREE / "etc/ssl/certs/ca-certificates.crt").read_text()
    assert bundle.count("BEGIN CERTIFICATE") > 50
    # Where the image's OpenSSL looks when no bundle is named; without it, DATABASE_SSL_VERIFY alone could never succeed.
    assert "/etc/ssl/certs" in run("readlink", "-f", "/usr/lib/ssl/certs")


@test
def nothing_of_ours_is_setuid_or_writable_by_all():
    mode = (TREE / "usr/local/bin/fountain").stat().st_mode
    assert mode & 0o7022 == 0 and mode & 0o111 == 0o111, oct(mode)


@test
def the_program_runs_on_a_read_only_root():
    assert "0." in run(*ENTRYPOINT, "--version")


@test
def rul_32_the_database_is_migrated_over_verified_tls():
    psql("postgres", "create database image")
    run(*ENTRYPOINT, "migrate", settings=SETTINGS)
    run(*ENTRYPOINT, "migrate", settings=SETTINGS)
    tables = psql("image", "select count(*) from information_schema.tables where table_schema = 'public'")
    assert int(tables) > 5, tables


@test
def rul_32_plain_text_is_refused_by_this_server():
    # The counter-check: had the test above gone over plain text, this would pass too.
    done = subprocess.run(inside([*ENTRYPOINT, "migrate"], SETTINGS | {"DATABASE_SSL": "false", "DATABASE_SSL_VERIFY": "false", "DATABASE_SSL_CA_FILE": ""}), capture_output=True, timeout=LIMIT)
    assert done.returncode not in (0, 101), done.returncode


@test
def rul_32_a_wrong_authority_is_refused():
    for bundle in ("", "/etc/ssl/certs/ca-certificates.crt"):
        done = subprocess.run(inside([*ENTRYPOINT, "migrate"], SETTINGS | {"DATABASE_SSL_CA_FILE": bundle}), capture_output=True, timeout=LIMIT)
        assert done.returncode not in (0, 101), (bundle, done.returncode)


@test
def rul_61_the_first_account_is_made_and_its_key_works():
    account = json.loads(run("fountain", "account", "create", "--email", "first@example.com", "--json", settings=SETTINGS))
    key = next((value for value in flat(account) if isinstance(value, str) and value.startswith("ftn_")), None)
    assert key, f"no key in {sorted(account)}"
    with Running() as server:
        assert get(server.port, "/api/conversations")[0] == 401
        status, body = get(server.port, "/api/conversations", key)
        assert status == 200, (status, body)


@test
def rul_17_the_chart_s_probes_and_the_metrics_are_where_they_should_be():
    with Running() as server:
        assert get(server.port, "/health")[0] == 200
        status, body = get(server.port, "/health/ready")
        assert status == 200 and json.loads(body) == {"status": "ok", "checks": {"database": "ok"}}, (status, body)
        assert get(server.port, "/metrics")[0] == 404
        assert get(server.metrics, "/health")[0] == 200
        status, body = get(server.metrics, "/metrics")
        assert status == 200 and "# TYPE " in body, (status, body[:200])
        # A process that exits by itself on SIGTERM, with 0, is what a rolling update needs.
        assert server.stop() == 0, server.output[-2000:]
        assert "panicked" not in server.output


def flat(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from flat(item)
    else:
        yield value


def psql(database, statement):
    url = f"{SERVER}/{database}?sslmode=require"
    done = subprocess.run([PSQL, url, "-XAtqc", statement], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def main():
    passed = failed = 0
    for run_test in TESTS:
        try:
            run_test()
            passed += 1
        except Exception as error:
            failed += 1
            print(f"FAILED {run_test.__name__.replace('_', ' ')}\n  {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
