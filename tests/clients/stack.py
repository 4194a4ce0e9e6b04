"""A whole Fountain on this machine, as a user would start it, with the means to hurt it."""

import json
import os
import pathlib
import secrets
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid

DEADLINE = 60.0


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


def clean_environment(home):
    """Only what a program needs: nothing of the machine that runs the tests."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "FOUNTAIN_LOG": "info"}


class Process:
    """A child that prints one JSON line when it is ready."""

    def __init__(self, arguments, env, log):
        self.log = log
        self.handle = subprocess.Popen(
            arguments, env=env, stdout=subprocess.PIPE, stderr=open(log, "ab"), stdin=subprocess.DEVNULL
        )

    def ready(self):
        line = self.handle.stdout.readline()
        if not line:
            tail = pathlib.Path(self.log).read_text(errors="replace")[-3000:]
            raise AssertionError(f"it ended before it was ready:\n{tail}")
        return json.loads(line)

    def end(self, signum=signal.SIGTERM, limit=30.0):
        if self.handle.poll() is None:
            self.handle.send_signal(signum)
        return self.handle.wait(limit)


class Stack:
    """`dev` on SQLite, or `serve` on PostgreSQL with a runner of its own. The same port after a restart."""

    def __init__(self, binary, postgres=None):
        self.binary = binary
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fountain-clients-"))
        self.home = self.folder / "home"
        self.home.mkdir()
        self.env = clean_environment(self.home)
        self.listen = "127.0.0.1:0"
        self.server = None
        self.runner = None
        self.database = None
        if postgres:
            self._postgres(postgres)
        else:
            self._dev()

    @property
    def log(self):
        return self.folder / "server.log"

    def _dev(self, *more):
        self.arguments = ["dev", "--json", "--data-dir", str(self.folder / "data"), *more]
        self.start()
        for key in ("api_key", "account_id", "agent_id", "environment_id", "runner_id"):
            setattr(self, key, self.ready[key])

    def _postgres(self, server):
        self.database = (server, "clients_" + secrets.token_hex(6))
        psql(server, f"CREATE DATABASE {self.database[1]}")
        key = subprocess.check_output(
            ["python3", "-c", "import base64,os;print(base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip('='))"]
        )
        self.env |= {
            "DATABASE_URL": f"{server}/{self.database[1]}",
            "MASTER_SECRETS_KEY": key.decode().strip(),
            "PUBLIC_URL": "http://127.0.0.1",
            "SANDBOX_PROVIDER": "runner",
            "SANDBOX_CAP_CEILING": "100",
            "SANDBOX_FLEET_CEILING": "100",
        }
        account = self.cli("account", "create", "--email", "clients@example.com", "--json", signed_in=False)
        self.api_key, self.account_id = account["api_key"], account["account_id"]
        self.arguments = ["serve", "--json"]
        self.start()
        self.environment_id = self.api("POST", "/api/environments", {"name": "demo"})["data"]["id"]
        agent = {
            "name": "demo",
            "runtime": "acp",
            "runtime_command": f"exec '{self.binary}' demo-agent",
            "sandbox_provider": "runner",
            "environment_id": self.environment_id,
            "permission_policy": {"default": "ask"},
        }
        self.agent_id = self.api("POST", "/api/agents", agent)["data"]["id"]
        key = self.api("POST", "/api/runners/keys", {"name": "clients"})["key"]
        env = clean_environment(self.home) | {"FOUNTAIN_API_KEY": key, "FOUNTAIN_BASE_URL": self.url}
        root = str(self.folder / "sandboxes")
        self.runner = Process([self.binary, "runner", "--name", "clients", "--root", root], env, self.folder / "runner.log")
        self.runner_online()

    def runner_online(self):
        def online():
            runners = self.api("GET", "/api/runners")["data"]
            return [runner for runner in runners if runner["online"]]

        return until("the runner is online", online)

    def start(self):
        self.server = Process([self.binary, *self.arguments, "--listen", self.listen], self.env, self.log)
        self.ready = self.server.ready()
        if self.database:
            # PUBLIC_URL is what machines are told; the port was the kernel's choice.
            self.listen = until("the port is in the log", self._bound)
            self.url = f"http://{self.listen}"
        else:
            self.url = self.ready["url"]
            self.listen = self.url.removeprefix("http://")

    def _bound(self):
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if "serving on " in line]
        return lines and lines[-1].split("serving on ")[1].split()[0]

    def kill(self):
        """kill -9 of the server alone; its runner lives."""
        self.server.end(signal.SIGKILL)

    def restart(self):
        self.kill()
        self.start()

    def api(self, method, path, body=None, key=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key or self.api_key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
        return json.loads(text) if text else None

    def cli(self, *arguments, signed_in=True):
        env = dict(self.env)
        if signed_in:
            env |= {"FOUNTAIN_API_KEY": self.api_key, "FOUNTAIN_BASE_URL": self.url}
        done = subprocess.run([self.binary, *arguments], env=env, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise AssertionError(f"{arguments} exited {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def vault(self):
        """A vault of a fresh name, with one secret."""
        name = "vault-" + uuid.uuid4().hex[:8]
        made = self.api("POST", "/api/vaults", {"name": name})["data"]
        self.api("POST", f"/api/vaults/{made['id']}/secrets", {"key": "TEST_SECRET", "value": "open-sesame-" + "x" * 20})
        return made

    def close(self):
        code = self.server.end()
        if self.runner:
            self.runner.end()
        self.violations = self.audit()
        if self.database:
            psql(self.database[0], f"DROP DATABASE {self.database[1]} WITH (FORCE)")
        return code

    def audit(self):
        """The rows that the run leaves and that break a promise (`fountain audit`), as text."""
        where = [] if self.database else ["--data-dir", str(self.folder / "data")]
        done = subprocess.run([self.binary, "audit", "--json", *where], env=self.env, capture_output=True, text=True, timeout=120)
        if not done.stdout:
            return [f"the audit did not run: {done.stderr}"]
        found = json.loads(done.stdout)["violations"]
        return [f"{one['law']}: {one['rule']} ({one['row']}: {one['detail']})" for one in found]

    def errors(self):
        """Lines that the server wrote at level ERROR, a panic, or what the audit found: a healthy run has none."""
        text = self.log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if " ERROR " in line or "panicked at" in line]
        return lines + getattr(self, "violations", [])


def psql(server, statement):
    subprocess.run(
        ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", f"{server}/postgres", "-c", statement], check=True, capture_output=True
    )
