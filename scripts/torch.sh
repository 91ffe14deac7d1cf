#!/usr/bin/env bash
# Modules of PyTorch, by torchax, each against jax.jit and PyTorch itself, in an
# environment of their own; five minutes. Arguments choose: scripts/torch.sh attention
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=.venv-torch list=tests/strangers/requirements-torch.txt
if [ ! -e "$folder/.installed" ] || [ "$list" -nt "$folder/.installed" ] ||
    [ pyproject.toml -nt "$folder/.installed" ]; then
    "${PYTHON:-python3}" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --requirement "$list" --editable .
    touch "$folder/.installed"
fi
"$folder/bin/python" -m tests.strangers "${@:-torch:}"
