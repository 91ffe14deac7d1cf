#!/usr/bin/env bash
# The whole of `make test` on each of these Pythons, with the newest JAX that pip offers it:
#     scripts/versions.sh [python3.11 python3.12 python3.13]
# In environments of their own, .venv-3.11 and so on; a line for each, at the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
status=0 verdicts=()
[ $# -gt 0 ] || set -- python3.11 python3.12 python3.13
for python in "$@"; do
    folder=".venv-${python#python}" bin=".venv-${python#python}/bin/python"
    log="$folder/versions.log"
    if ! { "$python" -m venv "$folder" && "$bin" -m pip install --quiet --upgrade pip &&
        "$bin" -m pip install --quiet --editable '.[test,dev]' &&
        "$bin" -m pip install --quiet --upgrade jax jaxlib; }; then
        verdicts+=("$python: cannot be set up") status=1
        continue
    fi
    "$bin" -m pytest --timeout=600 -n 2 --dist worksteal \
        -m "not slow and not matrix and not exhaustive and not fuzz" tests 2>&1 | tee "$log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    told=$("$bin" -c '
import platform
from importlib.metadata import version
names = ("jax", "jaxlib", "numpy", "flax")
print("Python", platform.python_version(), *(f"{n} {version(n)}" for n in names))')
    verdicts+=("$told: $(tail -n 1 "$log" | tr -d =)")
done
printf '%s\n' "${verdicts[@]}"
exit "$status"
