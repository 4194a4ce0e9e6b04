"""One Fountain on a small disk, and what a case wants to know about it."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "clients"))
from stack import Stack, until  # noqa: E402

DISK = "192m"
OPEN = ("pending", "running")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def numbers(count):
    return [str(n) for n in range(1, count + 1)]


class World(Stack):
    """`fountain dev`, its data directory on a tmpfs of its own, its metrics on."""

    provider = "runner"

    @property
    def demo(self):
        """The command line of the demo agent on a machine."""
        return f"'{self.binary}' demo-agent"

    def _dev(self):
        self.data = self.folder / "data"
        self.data.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "none", str(self.data)], check=True)
        self.metrics_port = free_port()
        self.env["METRICS_PORT"] = str(self.metrics_port)
        self.second_runners = []
        super()._dev(*self.dev_arguments())

    def dev_arguments(self):
        return []

    def raw(self, method, path, body=None, key=True, content_type="application/json", headers=None, port=None):
        """A request of any shape: (status, JSON or bytes, headers)."""
        sent = dict(headers or {})
        if key:
            sent["Authorization"] = f"Bearer {self.api_key if key is True else key}"
        if content_type:
            sent["Content-Type"] = content_type
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        connection = http.client.HTTPConnection("127.0.0.1", port or int(self.listen.rsplit(":", 1)[1]), timeout=60)
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            text = answer.read()
            try:
                return answer.status, json.loads(text), answer.headers
            except ValueError:
                return answer.status, text, answer.headers
        finally:
            connection.close()

    def agent(self, name, command):
        config = {
            "name": name,
            "runtime": "acp",
            "runtime_command": command,
            "sandbox_provider": self.provider,
            "environment_id": self.environment_id,
        }
        return self.api("POST", "/api/agents", config)["data"]["id"]

    def launch(self, prompt, agent=None):
        body = {"agent_id": agent or self.agent_id, "prompt": prompt}
        return self.api("POST", "/api/conversations", body)["data"]["id"]

    def conversation(self, conversation):
        return self.api("GET", f"/api/conversations/{conversation}")["data"]

    def turns(self, conversation):
        return self.api("GET", f"/api/conversations/{conversation}/turns")["data"]

    def prompt(self, conversation, text):
        return self.raw("POST", f"/api/conversations/{conversation}/prompts", {"prompt": text})

    def ended(self, conversation, number=1, limit=90.0):
        """The turn, once it is over."""

        def over():
            turns = self.turns(conversation)
            return len(turns) >= number and turns[number - 1]["status"] not in OPEN and turns[number - 1]

        return until(f"turn {number} is over", over, limit)

    def events(self, conversation):
        found, after = [], 0
        while True:
            page = self.api("GET", f"/api/conversations/{conversation}/events?limit=1000&after={after}")
            found += page["data"]
            if not page["meta"]["has_more"]:
                return found
            after = page["meta"]["next_cursor"]

    def text(self, conversation):
        """What the agent said, whole."""
        said = ""
        for event in self.events(conversation):
            if event["kind"] != "output" or event["stream"] != "acp":
                continue
            update = json.loads(event["data"]).get("params", {}).get("update", {})
            if update.get("sessionUpdate") == "agent_message_chunk":
                said += update["content"]["text"]
        return said

    def counted(self, conversation):
        return [line for line in self.text(conversation).split() if line.isdigit()]

    def reason(self, conversation):
        """Why the newest turn ended as it did."""
        ends = [e for e in self.events(conversation) if e["kind"] == "stage" and e["stage"] == "turn"]
        return json.loads(ends[-1]["data"]).get("reason")

    def stages(self, conversation):
        return [f"{e['stage']}/{e['state']}" for e in self.events(conversation) if e["kind"] == "stage"]

    def runner_process(self):
        return int((self.data / "runner.lock").read_text())

    def start_runner(self):
        """Another daemon for the runner of `dev`, as a supervisor would start it."""
        root = str(self.data / "runner" / "sandboxes")
        arguments = ["runner", "--name", "local", "--root", root, "--connection-file", str(self.data / "runner.json")]
        with open(self.folder / "second-runner.log", "ab") as log:
            process = subprocess.Popen([self.binary, *arguments], env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.second_runners.append(process)

    def foreign_runner(self, *arguments, key):
        env = self.env | {"FOUNTAIN_API_KEY": key, "FOUNTAIN_BASE_URL": self.url}
        return subprocess.Popen(
            [self.binary, "runner", *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def fill_disk(self):
        with open(self.data / "filler", "ab", buffering=0) as filler:
            for size in (65536, 512):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError:
                    pass

    def free_disk(self):
        os.remove(self.data / "filler")

    def close(self):
        code = super().close()
        for process in self.second_runners:
            process.wait(30)
        subprocess.run(["umount", str(self.data)], check=False)
        return code


class SpritesWorld(World):
    """The same with `--provider sprites`: its machines are kept apart by `fountain sprites`."""

    provider = "sprites"
    demo = "/.fountain/fountain demo-agent"

    def dev_arguments(self):
        return ["--provider", "sprites"]

    def sprites_process(self):
        return int((self.data / "sprites.lock").read_text())

    def sprites_url(self):
        return json.loads((self.data / "sprites.json").read_text())["url"]

    def kill_sprites(self):
        os.kill(self.sprites_process(), signal.SIGKILL)
        until("the sprites server is gone", lambda: not self.sprites_answers())

    def sprites_answers(self):
        try:
            with socket.create_connection(("127.0.0.1", int(self.sprites_url().rsplit(":", 1)[1])), 5):
                return True
        except OSError:
            return False

    def start_sprites(self):
        """The server again where it was, as a supervisor would start it."""
        listen = self.sprites_url().removeprefix("http://")
        arguments = ["sprites", "--listen", listen, "--root", str(self.data / "sprites")]
        arguments += ["--token-file", str(self.data / "sprites.token"), "--connection-file", str(self.data / "sprites.json")]
        with open(self.folder / "sprites-again.log", "ab") as log:
            process = subprocess.Popen([self.binary, *arguments], env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.second_runners.append(process)
        until("the sprites server answers", self.sprites_answers)


def processes_with(mark):
    """Ids of live processes whose command line holds `mark`."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found
