#!/usr/bin/env bash
# Installs the programs that the demo and the tests run privately, where they are missing. Does nothing when all is there.
#
#   scripts/install-services.sh [postgres] [redis] [prometheus] [python] [pgbouncer] [faketime] [c++]      (all but c++ when none is named)
#
# Only the programs matter: whatever services the packages start, and whichever ports those take, nobody uses them.
set -euo pipefail

has() { command -v "$1" >/dev/null 2>&1; }

# Debian keeps a server's programs out of PATH, one directory for each version.
has_postgres() {
    has initdb && has postgres && return 0
    local bin
    for bin in /usr/lib/postgresql/*/bin; do
        [[ -x $bin/initdb && -x $bin/postgres ]] && return 0
    done
    return 1
}
has_redis() { has redis-server; }
has_python() { has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_pgbouncer() { PATH=$PATH:/usr/sbin has pgbouncer; }
# A library: Debian keeps it in a directory of its own.
has_faketime() { compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || [[ -f /usr/lib/faketime/libfaketime.so.1 ]]; }
has_c++() { has c++; }
has_prometheus() { has prometheus && has promtool; }

# What a Debian or Ubuntu package is called, and what is looked for elsewhere.
package_of() {
    case $1 in
        postgres) echo postgresql ;;
        redis) echo redis-server ;;
        prometheus) echo prometheus ;;
        python) echo python3-venv ;;
        pgbouncer) echo pgbouncer ;;
        faketime) echo libfaketime ;;
        c++) echo g++ ;;
    esac
}
needs_of() {
    case $1 in
        postgres) echo "PostgreSQL 15 or newer, server (programs initdb and postgres; Debian package postgresql)" ;;
        redis) echo "Redis 7 or newer, server (program redis-server; Debian package redis-server)" ;;
        prometheus) echo "Prometheus (programs prometheus and promtool; Debian package prometheus)" ;;
        python) echo "Python 3 with its module venv (Debian package python3-venv)" ;;
        pgbouncer) echo "PgBouncer (program pgbouncer; Debian package pgbouncer)" ;;
        faketime) echo "libfaketime, which moves a program's clock (Debian package libfaketime)" ;;
        c++) echo "a C++ compiler (program c++; Debian package g++)" ;;
    esac
}

wanted=("$@")
((${#wanted[@]})) || wanted=(postgres redis prometheus python pgbouncer faketime)
for name in "${wanted[@]}"; do
    [[ -n $(package_of "$name") ]] || { echo "unknown program: $name (known: postgres redis prometheus python pgbouncer faketime c++)" >&2; exit 2; }
done

missing=()
find_missing() {
    missing=()
    local name
    for name in "${wanted[@]}"; do
        "has_$name" || missing+=("$name")
    done
}

give_up() {
    {
        echo "$1"
        echo "Please install, and have on PATH:"
        local name
        for name in "${missing[@]}"; do
            echo "  - $(needs_of "$name")"
        done
        if has apt-get; then
            echo "that is, as root:"
            local packages=()
            for name in "${missing[@]}"; do packages+=("$(package_of "$name")"); done
            echo "  apt-get update && apt-get install --no-install-recommends ${packages[*]}"
        fi
    } >&2
    exit 1
}

find_missing
((${#missing[@]})) || exit 0

has apt-get || give_up "Some servers are missing, and this isn't a system whose package manager is known here (apt-get)."
as_root=()
if ((EUID != 0)); then
    has sudo || give_up "Some servers are missing, and installing them takes root or sudo."
    as_root=(sudo)
    # Nobody is there to type a password.
    [[ -t 0 ]] || as_root=(sudo -n)
    "${as_root[@]}" true || give_up "Some servers are missing, and sudo was refused."
fi

# Two runs at once: the second waits here, and then finds that nothing is missing.
exec 9</var/lib/dpkg
if has flock; then flock 9; fi
find_missing
((${#missing[@]})) || exit 0

packages=()
for name in "${missing[@]}"; do packages+=("$(package_of "$name")"); done
echo "installing ${packages[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
# A list that can't be refreshed need not stop us: what matters is whether the packages can be had.
"${apt[@]}" update </dev/null || echo "the package lists could not be refreshed" >&2
"${apt[@]}" install --yes --no-install-recommends "${packages[@]}" </dev/null \
    || echo "apt-get ended with an error" >&2 # perhaps only because a service didn't start

find_missing
((${#missing[@]} == 0)) || give_up "Some servers are still missing."
