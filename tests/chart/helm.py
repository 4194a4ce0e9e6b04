"""Runs Helm for the chart tests and finds things in what it rendered.

Both majors are called through the same class, each with cache, configuration and data folders of its own, so that a
run reads nothing of the person who started it. No cluster is asked, except the double that a test hands in.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "fountain"
MINIMAL = CHART / "ci" / "minimal-values.yaml"


class Refused(Exception):
    """Helm exited with an error; the text is what it said."""


class Helm:
    def __init__(self, program: Path):
        self.program = program
        self.name = program.name
        self.home = tempfile.TemporaryDirectory(prefix="helm-")
        base = self.home.name
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("HELM_", "KUBE"))}
        self.env |= {
            "HELM_CACHE_HOME": f"{base}/cache",
            "HELM_CONFIG_HOME": f"{base}/config",
            "HELM_DATA_HOME": f"{base}/data",
            "KUBECONFIG": f"{base}/none",
        }

    def run(self, *arguments: str, values: str | None = None) -> str:
        done = subprocess.run(
            [str(self.program), *arguments], env=self.env, input=values, capture_output=True, text=True, timeout=60
        )
        if done.returncode != 0:
            raise Refused(done.stdout + done.stderr)
        return done.stdout

    def render(self, *files: Path, values: dict | None = None, release="r", kube="1.37.0", options=()) -> list[dict]:
        """The objects of one rendering, in the chart's order. `values` come after the files and win."""
        arguments = ["template", release, str(CHART), "--kube-version", kube, *options]
        for file in files:
            arguments += ["-f", str(file)]
        text = None
        if values is not None:
            arguments += ["-f", "-"]
            text = yaml.safe_dump(values)
        return [document for document in yaml.safe_load_all(self.run(*arguments, values=text)) if document]


def address(document: dict) -> str:
    """`Kind/name`, how the tests call an object."""
    return f"{document['kind']}/{document['metadata']['name']}"


ABSENT = object()
STEP = re.compile(r"""([^.\[\]]+)|\[([^\]=]+)=([^\]]+)\]|\[(\d+)\]|\["([^"]+)"\]""")


def find(documents: list[dict], where: str):
    """What stands at `Kind/name:path`, or ABSENT. A path has keys, `[0]`, `[name=http]` and `["dotted/key"]`."""
    wanted, _, path = where.partition(":")
    found = [document for document in documents if address(document) == wanted]
    if len(found) > 1:
        raise AssertionError(f"{wanted} was rendered {len(found)} times")
    if not found:
        return ABSENT
    at = found[0]
    for key, field, value, index, quoted in STEP.findall(path):
        if field:
            at = next((item for item in at if isinstance(item, dict) and str(item.get(field)) == value), ABSENT)
        elif index:
            at = at[int(index)] if int(index) < len(at) else ABSENT
        else:
            at = at.get(key or quoted, ABSENT) if isinstance(at, dict) else ABSENT
        if at is ABSENT:
            return ABSENT
    return at


def pod_specs(documents: list[dict]):
    """Each pod template of a rendering with the object that it belongs to."""
    for document in documents:
        template = document.get("spec", {}).get("template") if isinstance(document.get("spec"), dict) else None
        if template:
            yield address(document), template["metadata"], template["spec"]
