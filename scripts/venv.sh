#!/bin/sh
# Make .venv, and install into it; by uv where there is one that knows dependency groups, else by venv and pip.
#
#   sh scripts/venv.sh create
#   sh scripts/venv.sh install -e '.[cli]' --group test
set -eu
cd "$(dirname "$0")/.."
. scripts/apt.sh

say() { printf '%s\n' "$*" >&2; }

has_uv() { command -v uv >/dev/null 2>&1 && uv pip install --help 2>/dev/null | grep -q -e '--group'; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if is_new_enough "$python"; then
            printf '%s\n' "$python"
            return 0
        fi
    done
    say "queuehint needs Python 3.11 or later, and found none${PYTHON:+: PYTHON=$PYTHON}."
    say "Name one: make PYTHON=/path/to/python3.12 ..."
    return 1
}

has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Debian and Ubuntu keep ensurepip, which venv needs, in a package of its own.
install_venv_module() {
    package="$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if may_install; then
        install_packages "$package" || say "apt-get could not install it."
    fi
    has_venv "$1" && return 0
    say "$1 cannot make a virtual environment: its module ensurepip is missing."
    say "On Debian or Ubuntu: sudo apt-get install $package    (or name another one: make PYTHON=... )"
    return 1
}

create() {
    if .venv/bin/python -c '' >/dev/null 2>&1; then
        return 0
    fi
    rm -rf .venv
    if has_uv; then
        say "Making .venv with uv ..."
        uv venv --quiet --python "${PYTHON:->=3.11}" .venv
    else
        python="$(find_python)"
        has_venv "$python" || install_venv_module "$python"
        say "Making .venv with $python ..."
        "$python" -m venv .venv
    fi
}

install() {
    say "Installing into .venv: $*"
    if has_uv; then
        uv pip install --quiet --python .venv/bin/python "$@"
    else
        # A .venv that uv made has no pip; --group came with pip 25.1.
        .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
        .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
    fi
}

command="$1"
shift
case "$command" in
create) create ;;
install) install "$@" ;;
*)
    say "usage: sh scripts/venv.sh create | install ARGUMENTS"
    exit 2
    ;;
esac
