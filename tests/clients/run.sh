#!/usr/bin/env bash
# The published Python client against this server: on SQLite through `fountain dev`, on PostgreSQL through `serve`, a
# runner and `account create`. Needs FOUNTAIN_TEST_POSTGRES_URL for the second half (tests/run.sh sets it).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
tools=${FOUNTAIN_TOOLS:-$root/.tools}
venv=$tools/python-sdk
sdk=fountain-agent-sdk==0.8.0
if ! "$venv/bin/pip" freeze 2>/dev/null | grep -qx "$sdk"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check "$sdk"
fi
cargo build -q --locked --bin fountain
target=${CARGO_TARGET_DIR:-$root/target}
exec "$venv/bin/python" -u tests/clients/sdk.py "$target/debug/fountain" "$@"
