#!/usr/bin/env bash
# Adds Debian packages where we are root; says what is missing where we are not. Prints apt's output only when it fails.
#
#   bash tests/tools/apt.sh PACKAGE...
set -euo pipefail
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tools: these Debian packages are needed and we may not install them: $*" >&2
    exit 1
fi
echo "tools: apt-get install $*"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# A lock held by another run is waited for.
if ! { apt-get -o DPkg::Lock::Timeout=300 update && apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    exit 1
fi
