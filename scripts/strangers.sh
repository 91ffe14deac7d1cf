#!/usr/bin/env bash
# Small programs over forty public JAX libraries, each against jax.jit, in an environment
# of their own; half an hour. Arguments choose: scripts/strangers.sh optax haiku
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=.venv-strangers list=tests/strangers/requirements.txt
if [ ! -e "$folder/.installed" ] || [ "$list" -nt "$folder/.installed" ] ||
    [ pyproject.toml -nt "$folder/.installed" ]; then
    "${PYTHON:-python3}" -m venv "$folder"
    pip=("$folder/bin/python" -m pip install --quiet)
    "${pip[@]}" --requirement "$list" --editable .
    # The stable release, which others ask for, does not import with this JAX.
    "${pip[@]}" --no-deps --force-reinstall "$(grep ^tfp-nightly "$list")"
    touch "$folder/.installed"
fi
"$folder/bin/python" -m tests.strangers "$@"
