#!/usr/bin/env bash
# A real agent through the whole system: control plane, runner daemon, the claude ACP adapter from npm, and a scripted
# model on loopback (model/). No mock stands in between and nothing leaves this machine.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
tools=${FOUNTAIN_TOOLS:-$root/.tools}
adapter=@agentclientprotocol/claude-agent-acp@0.101.0
home=$tools/claude-agent-acp-0.101.0
if [ ! -f "$home/.installed" ]; then
    rm -rf "$home"
    mkdir -p "$home"
    npm install --prefix "$home" --no-progress --silent --no-audit --no-fund "$adapter"
    touch "$home/.installed"
fi
cargo build -q --locked --bin fountain
target=${CARGO_TARGET_DIR:-$root/target}
PYTHONPATH=tests/clients exec python3 -u tests/agents/claude.py "$target/debug/fountain" \
    "$home/node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"
