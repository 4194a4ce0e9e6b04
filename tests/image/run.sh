#!/usr/bin/env bash
# Proves what can be proved of the image without a container engine: the Dockerfile's packages on a bare Debian tree, its
# user, and the binary with the feature postgres-tls, started as the image starts it on a read-only root, against a
# PostgreSQL that refuses everything but TLS. What it cannot prove is that `docker build` itself works.
#
# Needs mmdebstrap, bubblewrap and openssl; as root it installs them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/postgres.sh
. "$root/tests/postgres.sh"

missing=()
for pair in mmdebstrap:mmdebstrap bwrap:bubblewrap openssl:openssl pkg-config:pkg-config; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
pkg-config --exists openssl 2>/dev/null || missing+=(libssl-dev)
[ ${#missing[@]} = 0 ] || bash "$root/tests/tools/apt.sh" "${missing[@]}"

home=$(mktemp -d "${TMPDIR:-/tmp}/fountain-image.XXXXXX")
cleanup() { stop_postgres; rm -rf "$home"; }
trap cleanup EXIT
trap 'exit 143' INT TERM

argument() { sed -nE "s/^ARG $1=\"?([^\"]*)\"?$/\1/p" "$root/Dockerfile"; }
packages=$(argument RUNTIME_PACKAGES)
release=$(argument DEBIAN_RELEASE)
[ -n "$packages" ] && [ -n "$release" ] || { echo "image: the Dockerfile lacks RUNTIME_PACKAGES or DEBIAN_RELEASE" >&2; exit 1; }
# The commands that make the user, as they stand in the Dockerfile.
users=$(sed -nE 's/^ +&& ((groupadd|useradd) [^\\]*[^\\ ]).*$/\1/p' "$root/Dockerfile" | paste -sd ';')
[ -n "$users" ] || { echo "image: the Dockerfile makes no user" >&2; exit 1; }

echo "image: a tree of $release with $packages"
# debian:*-slim is this variant without manual pages.
mmdebstrap --variant=minbase --include="${packages// /,}" --customize-hook="chroot \"\$1\" sh -c '$users'" \
    "$release" "$home/tree" >"$home/tree.log" 2>&1 || { cat "$home/tree.log" >&2; exit 1; }

echo "image: the binary with postgres-tls"
cargo build --locked --features postgres-tls --bin fountain --manifest-path "$root/Cargo.toml" --quiet
target=${CARGO_TARGET_DIR:-$root/target}
install -D "$target/debug/fountain" "$home/tree/usr/local/bin/fountain"

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$home/server.key" -out "$home/server.crt" 2>/dev/null
start_postgres
openssl_to_server() { # the server reads its key as its own user
    install -m 600 "$home/server.key" "$postgres_home/data/server.key"
    install -m 644 "$home/server.crt" "$postgres_home/data/server.crt"
    printf 'ssl = on\n' >>"$postgres_home/data/postgresql.conf"
    printf 'hostssl all all 127.0.0.1/32 trust\nhostnossl all all 127.0.0.1/32 reject\n' >"$postgres_home/data/pg_hba.conf"
    if [ "$(id -u)" = 0 ]; then chown "$postgres_user": "$postgres_home"/data/{server.key,server.crt,postgresql.conf,pg_hba.conf}; fi
    (cd "$postgres_home" && as_postgres "$postgres_bin/pg_ctl" -D "$postgres_home/data" -s reload)
}
openssl_to_server

install -D -m 644 "$home/server.crt" "$home/tree/etc/fountain/database-ca/ca.crt"
chmod 755 "$home" "$home/tree"
PYTHONDONTWRITEBYTECODE=1 python3 "$here/test_image.py" "$home/tree" "$FOUNTAIN_TEST_POSTGRES_URL" "$postgres_bin/psql"
