#!/usr/bin/env python3
"""Keeps documents, code and packaging together.

- A setting that `src/config.rs` reads has a row in docs/operations.md, and each row there is read somewhere in `src`.
- Relative links and the paths that documents name exist.
- Values that stand in more than one file are the same: ports, user, Rust version, packages, waived advisories.
- Nothing in the repository names a machine's folders.

Prints one line per failure and `N passed, N failed, N skipped`.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VALUES = (ROOT / "charts/fountain/values.yaml").read_text()
SETTING = re.compile(r"^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$|^PORT$")
# What tests or build tools set.
NOT_SETTINGS = re.compile(r"^(FOUNTAIN_TEST_\w+|XDG_\w+|CARGO_\w+)$")
TESTS = []


class Skip(Exception):
    """The thing to check does not exist yet; said in the output."""


def test(function):
    TESTS.append(function)
    return function


def words_in(path: Path) -> set[str]:
    """String literals of Rust files that look like a setting's name."""
    files = [path] if path.is_file() else sorted(path.rglob("*.rs"))
    return {word for file in files for word in re.findall(r'"([A-Z0-9_]+)"', file.read_text()) if SETTING.match(word)}


def documented() -> set[str]:
    rows = re.findall(r"(?m)^\| (`[^|]+) \|", OPERATIONS)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row) if SETTING.match(word)}


def markdown() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in tracked.stdout.splitlines() if name.endswith(".md") and (ROOT / name).is_file()]


@test
def every_setting_that_is_read_is_documented():
    config = ROOT / "src/config.rs" if (ROOT / "src/config.rs").exists() else ROOT / "src/config"
    read = {word for word in words_in(config) if not NOT_SETTINGS.match(word)}
    if (ROOT / "src/config").is_dir():
        read |= {word for word in words_in(ROOT / "src/config") if not NOT_SETTINGS.match(word)}
    if not read:
        raise Skip("src/config.rs reads nothing yet")
    missing = read - documented()
    assert not missing, f"docs/operations.md has no row for {sorted(missing)}"


@test
def every_documented_setting_is_read():
    code = words_in(ROOT / "src")
    if "DATABASE_URL" not in code:
        raise Skip("src/config.rs reads nothing yet")
    missing = documented() - code
    assert not missing, f"docs/operations.md describes what nothing in src reads: {sorted(missing)}"


@test
def links_lead_somewhere():
    for document in markdown():
        text = document.read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (document.parent / path).resolve() if path else document
            assert file.exists(), f"{document.relative_to(ROOT)}: {target} does not exist"
            if anchor and file.suffix == ".md":
                slugs = {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in re.findall(r"(?m)^#+ (.*)$", file.read_text())}
                assert anchor in slugs, f"{document.relative_to(ROOT)}: {target} has no such heading"


@test
def paths_that_guides_name_exist():
    """`src/x`, `tests/x` and the like in backquotes. Rooms that a later change brings are not named before it does."""
    missing = []
    for name in ("CONTRIBUTING.md", "docs/operations.md"):
        for path in re.findall(r"`((?:src|actors|charts|docs|migrations|tests)/[\w./-]+)`", (ROOT / name).read_text()):
            if not (ROOT / path).exists():
                missing.append(f"{name}: {path}")
    assert not missing, "named, but not there: " + ", ".join(missing)


@test
def image_and_chart_agree():
    user = re.search(r"(?m)^USER (\d+):(\d+)$", DOCKERFILE).groups()
    assert f"runAsUser: {user[0]}" in VALUES and f"runAsGroup: {user[1]}" in VALUES and f"fsGroup: {user[1]}" in VALUES, user
    port, metrics = re.search(r"(?m)^EXPOSE (\d+) (\d+)$", DOCKERFILE).groups()
    assert f"  port: {port}\n" in VALUES and f"  port: {metrics}\n" in VALUES, (port, metrics)
    assert f"ENV PORT={port} METRICS_PORT={metrics}\n" in DOCKERFILE
    assert 'CMD ["serve"]' in DOCKERFILE
    assert re.search(r"(?m)^ENTRYPOINT \[.*tini.*, \"--\", \"/usr/local/bin/fountain\"\]$", DOCKERFILE)


@test
def image_builds_with_the_workspace_s_rust_and_the_published_features():
    rust = re.search(r'(?m)^rust-version = "([\d.]+)"', (ROOT / "Cargo.toml").read_text()).group(1)
    assert f"ARG RUST_VERSION={rust}\n" in DOCKERFILE, rust
    assert "--locked --profile dist --features postgres-tls" in DOCKERFILE
    assert "[profile.dist]" in (ROOT / "Cargo.toml").read_text()


@test
def every_waived_advisory_is_documented():
    waived = set(re.findall(r'id = "(RUSTSEC-\d+-\d+)"', (ROOT / "deny.toml").read_text()))
    named = set(re.findall(r"RUSTSEC-\d+-\d+", OPERATIONS))
    assert waived == named, f"deny.toml and docs/operations.md differ in {sorted(waived ^ named)}"


@test
def no_file_names_a_machine_s_folder():
    found = subprocess.run(["git", "grep", "-nIE", r"(^|[^A-Za-z0-9_.$-])/(root|work)/[a-z.]", "--", "."], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 1, found.stdout + found.stderr


def main():
    passed = failed = skipped = 0
    for run in TESTS:
        name = run.__name__.replace("_", " ")
        try:
            run()
            passed += 1
        except Skip as reason:
            skipped += 1
            print(f"SKIPPED {name}: {reason}")
        except Exception as error:
            failed += 1
            print(f"FAILED {name}\n  {error}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
