#!/usr/bin/env bash
# The whole of `make test` on each of these Pythons, with the newest JAX that pip offers it:
#     scripts/versions.sh [python3.11 python3.12 python3.13 oldest]
# "oldest" is python3.11 with the lowest versions that pyproject.toml allows. In environments
# of their own, .venv-3.11 and so on; a line for each, at the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"

newest() {
    "$bin" -m pip install --quiet --editable '.[test,dev]' &&
        "$bin" -m pip install --quiet --upgrade jax jaxlib
}

# Each lower bound of the dependencies as a version: "jax>=0.10,<0.13" is jax==0.10.0.
oldest() {
    sed -n '/^dependencies = \[/,/^\]/s/^ *"\([a-zA-Z_-]*\)>=\([0-9.]*\).*/\1==\2/p' pyproject.toml |
        sed 's/==\([0-9]*\.[0-9]*\)$/==\1.0/' > "$folder/lowest.txt"
    "$bin" -m pip install --quiet --constraint "$folder/lowest.txt" --editable '.[test,dev]'
}

status=0 verdicts=()
[ $# -gt 0 ] || set -- python3.11 python3.12 python3.13
for name in "$@"; do
    folder=".venv-${name#python}" bin=".venv-${name#python}/bin/python" python=$name set_up=newest
    [ "$name" != oldest ] || python=python3.11 set_up=oldest
    if ! { "$python" -m venv "$folder" && "$bin" -m pip install --quiet --upgrade pip && "$set_up"; }; then
        verdicts+=("$name: cannot be set up") status=1
        continue
    fi
    "$bin" -m pytest --timeout=600 -n 2 --dist worksteal \
        -m "not slow and not matrix and not exhaustive and not fuzz" tests 2>&1 | tee "$folder/versions.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    told=$("$bin" -c '
import platform
from importlib.metadata import version
names = ("jax", "jaxlib", "numpy", "flax")
print("Python", platform.python_version(), *(f"{n} {version(n)}" for n in names))')
    verdicts+=("$told: $(tail -n 1 "$folder/versions.log" | tr -d =)")
done
printf '%s\n' "${verdicts[@]}"
exit "$status"
