#!/usr/bin/env bash
# Accidents and bad manners against the real binary: full disks, kills, agents that misbehave, requests that make no
# sense. The disk is a small tmpfs in a mount namespace of this run, so nothing stays mounted; that needs root, or user
# namespaces.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
binary=${FOUNTAIN_BINARY:-}
if [ -z "$binary" ]; then
    cargo build -q --locked --bin fountain
    binary=${CARGO_TARGET_DIR:-$root/target}/debug/fountain
fi
namespace=(unshare --mount)
[ "$(id -u)" = 0 ] || namespace=(unshare --map-root-user --mount)
exec "${namespace[@]}" python3 -u tests/abuse/abuse.py "$binary" "$@"
