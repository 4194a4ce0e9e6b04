#!/usr/bin/env bash
# What the documents and the packaging say against what is in the repository. Needs python3 alone.
set -euo pipefail
PYTHONDONTWRITEBYTECODE=1 exec python3 "$(dirname "${BASH_SOURCE[0]}")/check_docs.py"
