#!/usr/bin/env bash
# Our Sprites server with the published clients of the hosted service (sprites-py and @fly/sprites), and its restarts and
# its tenants over plain HTTP. Needs what full isolation needs: Linux, and root or user namespaces.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
tools=${FOUNTAIN_TOOLS:-$root/.tools}
bash tests/tools/install.sh sprites >/dev/null
cargo build -q --locked --bin fountain
target=${CARGO_TARGET_DIR:-$root/target}
# The clients may report whose machine they run on; not from here.
export SPRITES_CLIENT_SIGNALS=0
exec "$tools/sprites-py/bin/python" -u tests/sprites/main.py "$target/debug/fountain" "$tools/sprites-js" "$@"
