#!/bin/sh
# Finds a Python that this project runs on and starts setup_environment.py with it.
#
#   VENV=path      where the virtual environment goes; default .venv
#   PYTHON=python  the interpreter to make it with; default the one it has, else the first that fits
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

fail() {
    echo "setup: $1" >&2
    exit 1
}

case $(uname -s) in
    Linux | Darwin) ;;
    MINGW* | MSYS* | CYGWIN* | Windows*)
        fail "this is Windows, TFX runs on Linux and macOS. Install WSL 2 (wsl --install), open Ubuntu and run make there." ;;
    *) fail "this is $(uname -s), TFX runs on Linux and macOS. Work in a Linux x86-64 container." ;;
esac

if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.13 python3.12 python3.11 "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[1-3].*/bin/python
    # The stamp is written last: an environment without one may be half made.
    if [ -f "$venv/.setup-stamp" ]; then set -- "$venv/bin/python" "$@"; fi
fi

found=
for candidate in "$@"; do
    # A pyenv shim exists for every version and fails for those that are not switched on.
    version=$("$candidate" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue
    case $version in
        3.11.* | 3.12.* | 3.13.*) exec "$candidate" -I tools/setup_environment.py "$venv" ;;
    esac
    found="${found:+$found, }$candidate is $version"
done
fail "${PYTHON:+PYTHON=$PYTHON: }found no Python 3.11 to 3.13 (${found:-no Python at all}).\
 Install one (apt install python3 python3-venv, brew install python@3.12 or pyenv install 3.12)\
 or name one: make setup PYTHON=/path/to/python3.12"
