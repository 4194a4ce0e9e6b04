# shellcheck shell=bash
# A throwaway PostgreSQL server for one test run; sourced by tests/run.sh.
#
#   start_postgres [MAJOR]   sets FOUNTAIN_TEST_POSTGRES_URL (server-level, no database) and prints what runs
#   stop_postgres            stops exactly that server and removes its files; call it from a trap
#
# The server listens on loopback, on a port that the kernel picked, trusts everybody there and does not sync to disk:
# never use it for anything but tests. Without MAJOR it is the server that the machine has; where it has none, root gets
# Debian's and everybody else (and every MAJOR that the machine has not) gets the one of tests/tools/install.sh.

postgres_home=""
postgres_bin=""

# The folder with initdb and pg_ctl of any major, or of the one that is asked for.
find_postgres() {
    local wanted=${1:-} initdb candidate
    for candidate in "$(command -v initdb || true)" /usr/lib/postgresql/*/bin/initdb /usr/local/pgsql/bin/initdb; do
        [ -x "$candidate" ] || continue
        initdb=$(readlink -f "$candidate")
        [ -x "$(dirname "$initdb")/pg_ctl" ] && [ -x "$(dirname "$initdb")/postgres" ] || continue
        if [ -z "$wanted" ] || "$initdb" --version | grep -q " $wanted\."; then
            dirname "$initdb"
            return 0
        fi
    done
    return 1
}

# Debian's server without the cluster that its package would create and start.
install_debian_postgres() {
    local here
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    echo "postgres: installing Debian's server" >&2
    bash "$here/tools/apt.sh" postgresql-common >&2 || return 1
    sed -i -E 's/^#? *create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
    bash "$here/tools/apt.sh" postgresql >&2
}

# Runs a program of the server as somebody who is not root: initdb and postgres refuse to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        runuser -u "$postgres_user" -- "$@"
    else
        "$@"
    fi
}

start_postgres() {
    local wanted=${1:-} here port version
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    if ! postgres_bin=$(find_postgres "$wanted"); then
        if [ -z "$wanted" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            install_debian_postgres || return 1
            postgres_bin=$(find_postgres) || { echo "postgres: no server after the installation" >&2; return 1; }
        else
            local tools
            tools=$(bash "$here/tools/install.sh" postgres) || return 1
            postgres_bin=$(cd "$tools/../postgres/bin" && pwd -P)
        fi
    fi
    version=$("$postgres_bin/postgres" --version) || return 1
    if [ -n "$wanted" ] && ! grep -q " $wanted\." <<<"$version"; then
        echo "postgres: wanted major $wanted, found $version" >&2
        return 1
    fi
    postgres_user=postgres
    postgres_home=$(mktemp -d "${TMPDIR:-/tmp}/fountain-postgres.XXXXXX")
    if [ "$(id -u)" = 0 ]; then
        # A machine without the server's package may lack its user; any account without rights does.
        id -u "$postgres_user" >/dev/null 2>&1 || postgres_user=nobody
        chown "$postgres_user": "$postgres_home"
        # The tools may lie below a home folder that nobody else may enter: then run a copy.
        if ! as_postgres test -x "$postgres_bin/initdb"; then
            # The PyPI package keeps its libraries in a folder beside the package's own, and finds them by that place.
            local program package
            program=$(dirname "$postgres_bin")
            package=$(dirname "$program")
            mkdir "$postgres_home/program"
            cp -a "$package" "$postgres_home/program/"
            [ ! -d "$package.libs" ] || cp -a "$package.libs" "$postgres_home/program/"
            chmod -R a+rX "$postgres_home/program"
            postgres_bin=$postgres_home/program/$(basename "$package")/$(basename "$program")/bin
        fi
    fi
    (cd "$postgres_home" && as_postgres "$postgres_bin/initdb" -D "$postgres_home/data" -U postgres -A trust --no-sync \
        -E UTF8 --locale=C >"$postgres_home.initdb.log" 2>&1) || { cat "$postgres_home.initdb.log" >&2; return 1; }
    rm -f "$postgres_home.initdb.log"
    # Between the kernel's answer and the server's bind another program may take the port; then try another one.
    local attempt
    for attempt in 1 2 3; do
        port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])') || return 1
        if (cd "$postgres_home" && as_postgres "$postgres_bin/pg_ctl" -D "$postgres_home/data" -s -w -t 60 -l "$postgres_home/log" \
            -o "-p $port -k '' -c listen_addresses=127.0.0.1 -c fsync=off -c full_page_writes=off -c max_connections=300" \
            start </dev/null >/dev/null 2>&1); then
            export FOUNTAIN_TEST_POSTGRES_URL="postgres://postgres@127.0.0.1:$port"
            echo "postgres: $version on port $port"
            return 0
        fi
        echo "postgres: attempt $attempt on port $port failed" >&2
    done
    tail -n 20 "$postgres_home/log" >&2
    return 1
}

stop_postgres() {
    [ -n "$postgres_home" ] || return 0
    if [ -f "$postgres_home/data/postmaster.pid" ]; then
        (cd "$postgres_home" && as_postgres "$postgres_bin/pg_ctl" -D "$postgres_home/data" -s -m immediate -w stop >/dev/null 2>&1) || true
    fi
    rm -rf "$postgres_home"
    postgres_home=""
    unset FOUNTAIN_TEST_POSTGRES_URL
}
