#!/usr/bin/env bash
# The command line as a user types it, against `fountain dev` on this machine.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
cargo build -q --locked --bin fountain
target=${CARGO_TARGET_DIR:-$root/target}
PYTHONPATH=tests/clients exec python3 -u tests/cli/cli.py "$target/debug/fountain" "$@"
