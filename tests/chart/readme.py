#!/usr/bin/env python3
"""Writes the table of values in charts/fountain/README.md from the comments of values.yaml.

A comment that begins with `# --` describes the key under it, further comment lines included. Keys without one are
listed with their default alone. Usage: readme.py [--check]; with --check it only says whether the file is up to date.
"""

import re
import sys
from pathlib import Path

CHART = Path(__file__).resolve().parents[2] / "charts" / "fountain"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(?: (.*))?$")


def rows(text: str):
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    described = False
    lines = text.splitlines()
    for number, line in enumerate(lines):
        stripped = line.strip()
        if stripped.startswith("#"):
            body = stripped[1:].strip()
            if body.startswith("-- "):
                comment, described = [body[3:]], True
            elif described:
                comment.append(body)
            continue
        found = KEY.match(line)
        if not found:
            if not stripped:
                comment, described = [], False
            continue
        depth, key, value = len(found[1]), found[2], found[3]
        path = [(d, k) for d, k in path if d < depth] + [(depth, key)]
        following = next((later for later in lines[number + 1 :] if later.strip() and not later.strip().startswith("#")), "")
        is_block = value is None and len(following) - len(following.lstrip()) > depth
        name = ".".join(k for _, k in path)
        if not is_block or comment:
            yield name, "" if is_block else (value or ""), " ".join(comment)
        comment, described = [], False


def table() -> str:
    out = ["| Value | Default | Meaning |", "|---|---|---|"]
    for name, default, meaning in rows((CHART / "values.yaml").read_text()):
        shown = f"`{default}`" if default else ""
        out.append(f"| `{name}` | {shown} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(out)


def main() -> int:
    readme = CHART / "README.md"
    text = readme.read_text()
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    wanted = f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"
    if sys.argv[1:] == ["--check"]:
        return 0 if wanted == text else 1
    readme.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
