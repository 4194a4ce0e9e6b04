#!/usr/bin/env bash
# The tests of charts/fountain. Installs Helm 3, Helm 4 and the schema validator first (tests/tools/install.sh).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$(bash "$here/../tools/install.sh" python helm)
PYTHONDONTWRITEBYTECODE=1 "$bin/../py/bin/python" "$here/test_chart.py" "$bin"
