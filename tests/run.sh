#!/usr/bin/env bash
# Every test of the project, in one command:
#
#   bash tests/run.sh                 everything
#   bash tests/run.sh test chart      only these sections, in this order
#   bash tests/run.sh --list          their names
#
# Needed: Rust (rust-toolchain of Cargo.toml, with rustfmt and clippy), a C compiler, python3, node with npm, and the
# package registries of those. Everything else is installed by the run itself, into $FOUNTAIN_TOOLS (.tools here by
# default); as root it also adds the Debian packages that it misses (a PostgreSQL server, OpenSSL's headers).
#
# Build results go to $CARGO_TARGET_DIR, by default <cache>/fountain/target: outside the checkout, so that a fresh clone
# on the same machine builds two crates and not four hundred. <cache> is $XDG_CACHE_HOME or ~/.cache.
#
# The run starts a PostgreSQL server of its own (tests/postgres.sh) and hands its address to the tests as
# FOUNTAIN_TEST_POSTGRES_URL=postgres://postgres@127.0.0.1:PORT, without a database: each test creates one. It is
# stopped at the end, as is whatever a section left running; nothing else on the machine is touched.
#
# A section that cannot run, for want of a tool or a server, has failed. Each folder of tests/ that has a run.sh is a
# section of that name: it should end with a line `N passed, N failed`, and exit with 0 only if all was well.
# Long or rarely wanted sections run only when named. A section may take $FOUNTAIN_TEST_LIMIT seconds (1500).
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/fountain
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
export FOUNTAIN_TOOLS=${FOUNTAIN_TOOLS:-$root/.tools}
export LC_ALL=C.UTF-8
limit=${FOUNTAIN_TEST_LIMIT:-1500}

# The second PostgreSQL major on which the store must be honest (the first is the machine's, 15 on Debian 12).
second_major=18

own_sections=(fmt clippy test postgres18 deny lint)
# Only when asked for: `tls` is the quick half of what `image` proves, `shear` looks for unused dependencies.
optional_sections=(tls shear)
mapfile -t found_sections < <(for script in tests/*/run.sh; do [ -f "$script" ] && basename "$(dirname "$script")"; done)

say() { printf 'tests: %s\n' "$*" >&2; }

# --- what a section does ------------------------------------------------------------------------------------------

need() { command -v "$1" >/dev/null || { say "$1 is missing: $2"; exit 1; }; }

tools() {
    local bin
    bin=$(bash tests/tools/install.sh "$@") || exit 1
    PATH=$bin:$PATH
}

# The C side of the feature postgres-tls.
openssl_headers() {
    pkg-config --exists openssl 2>/dev/null && return 0
    bash tests/tools/apt.sh libssl-dev pkg-config
}

section() {
    set -e
    case $1 in
        fmt)
            cargo fmt --all --check
            cargo fmt --manifest-path tests/fuzz/Cargo.toml --check
            ;;
        clippy)
            cargo clippy --workspace --all-targets --locked -- -D warnings
            ;;
        tls)
            # Type-checked only. The section `image` links it and talks to a server over it.
            openssl_headers
            cargo check --locked --features postgres-tls --bin fountain
            ;;
        test)
            cargo test --workspace --locked --no-fail-fast
            ;;
        postgres18)
            # The verbs' suite runs each case on both databases.
            cargo test --locked --no-fail-fast --test store
            ;;
        deny)
            # Advisories need a database from the network; who releases runs `cargo audit` (docs/operations.md).
            tools python
            cargo fetch --locked
            cargo deny --offline check licenses bans sources
            ;;
        shear)
            tools python
            cargo shear
            ;;
        lint)
            tools python
            hadolint Dockerfile
            yamllint --strict .
            shellcheck --external-sources .ci/run tests/*.sh tests/*/*.sh
            ! git grep -nIE '^(<<<<<<<|>>>>>>>) ' -- . || { say "conflict markers"; exit 1; }
            ;;
        *)
            [ -f "tests/$1/run.sh" ] || { say "there is no section $1"; exit 1; }
            bash "tests/$1/run.sh"
            ;;
    esac
}

if [ "${1:-}" = --inside ]; then
    section "$2"
    exit
fi

# --- the run ------------------------------------------------------------------------------------------------------

if [ "${1:-}" = --list ]; then
    printf '%s\n' "${own_sections[@]}" "${found_sections[@]}"
    printf '%s (only when named)\n' "${optional_sections[@]}"
    exit 0
fi
chosen=("$@")
[ $# -gt 0 ] || chosen=("${own_sections[@]}" "${found_sections[@]}")
for name in "${chosen[@]}"; do
    printf '%s\n' "${own_sections[@]}" "${optional_sections[@]}" "${found_sections[@]}" | grep -qxF -- "$name" || { say "no section $name; see --list"; exit 2; }
done
need cargo "install Rust"
need cc "install a C compiler, for SQLite"
need python3 "install Python 3.9 or newer"

# shellcheck source=tests/postgres.sh
. tests/postgres.sh
logs=$(mktemp -d "${TMPDIR:-/tmp}/fountain-tests.XXXXXX")
child=""
tailer=""
cleanup() {
    trap '' INT TERM
    [ -z "$child" ] || end_group "$child"
    [ -z "$tailer" ] || kill "$tailer" 2>/dev/null
    stop_postgres
    rm -rf "$logs"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Ends what is left of a section's process group, politely first. Says whether there was anything.
end_group() {
    kill -TERM -- "-$1" 2>/dev/null || return 1
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        kill -0 -- "-$1" 2>/dev/null || return 0
        sleep 0.5
    done
    kill -KILL -- "-$1" 2>/dev/null
    return 0
}

# Reads a log and prints "passed failed skipped", or nothing when it has no count. Knows cargo, the plain line, pytest
# and node's runner.
count() {
    python3 - "$1" <<'PYTHON'
import re, sys
text = re.sub(r"\x1b\[[0-9;]*m", "", open(sys.argv[1], errors="replace").read())
cargo = re.findall(r"(?m)^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", text)
plain = re.findall(r"(?m)^(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", text)
node = [re.findall(rf"(?m)^[#ℹ] {word} (\d+)$", text) for word in ("pass", "fail", "skipped")]
pytest = re.findall(r"(?m)^=+ (.*(?:passed|failed|error).*) in [\d.]+s.*=+$", text)
if plain:
    rows = [plain[-1]]
elif cargo:
    rows = cargo
elif node[0]:
    rows = [(node[0][-1], node[1][-1], node[2][-1] if node[2] else 0)]
elif pytest:
    words = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", pytest[-1])}
    rows = [(words.get("passed", 0), words.get("failed", 0) + words.get("error", 0) + words.get("errors", 0), words.get("skipped", 0))]
else:
    rows = []
if rows:
    print(*(sum(int(row[i] or 0) for row in rows) for i in range(3)))
PYTHON
}

total_passed=0
total_failed=0
table=()
run_section() {
    local name=$1 log=$logs/$1 started=$SECONDS rc counts passed failed skipped note=""
    printf '\n=== %s %s\n' "$name" "$(printf '=%.0s' $(seq 1 $((70 - ${#name}))))"
    : >"$log"
    timeout --kill-after=20 "$limit" bash "$root/tests/run.sh" --inside "$name" </dev/null >"$log" 2>&1 &
    child=$!
    tail -n +1 -s 0.3 -f --pid="$child" "$log" 2>/dev/null &
    tailer=$!
    wait "$child"
    rc=$?
    wait "$tailer"
    tailer=""
    # `timeout` made a process group of its own: what still lives in it was left behind.
    if end_group "$child"; then note=" (left processes running)"; fi
    child=""
    [ "$rc" != 124 ] || note=" (over its $limit s)"
    counts=$(count "$log")
    if [ -n "$counts" ]; then
        read -r passed failed skipped <<<"$counts"
        if [ "$passed" = 0 ] && [ "$failed" = 0 ]; then
            note="$note (ran no test)"
            failed=1
        fi
    else
        passed=1 failed=0 skipped=0
        [ "$rc" = 0 ] || passed=0
    fi
    if [ "$rc" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
    if [ "$rc" = 0 ] && [ "$failed" != 0 ] && [ -z "$note" ]; then note=" (failures, but exit code 0)"; fi
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
    local verdict=ok took=$((SECONDS - started))
    [ "$failed" = 0 ] || verdict=FAILED
    table+=("$(printf '%-14s %-7s %6d passed %5d failed %5d skipped %6d s%s' "$name" "$verdict" "$passed" "$failed" "$skipped" "$took" "$note")")
    printf -- '--- %s: %s after %s s%s\n' "$name" "$verdict" "$took" "$note"
}

# A server that does not start fails every section that needs one, once and by name.
without_postgres() {
    total_failed=$((total_failed + 1))
    table+=("$(printf '%-14s %-7s no PostgreSQL server; see above' "$1" FAILED)")
}

for name in "${chosen[@]}"; do
    wanted=""
    case $name in
        fmt | clippy | tls | shear | deny | lint | chart | docs | image) run_section "$name"; continue ;;
        postgres18) wanted=$second_major ;;
    esac
    if [ "${running_major-none}" != "$wanted" ]; then
        stop_postgres
        if ! start_postgres "$wanted"; then
            stop_postgres
            unset running_major
            without_postgres "$name"
            continue
        fi
        running_major=$wanted
    fi
    run_section "$name"
done

printf '\n=== summary %s\n' "$(printf '=%.0s' $(seq 1 63))"
printf '%s\n' "${table[@]}"
printf '%s passed, %s failed\n' "$total_passed" "$total_failed"
[ "$total_failed" = 0 ] && [ "$total_passed" -gt 0 ]
