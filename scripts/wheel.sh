#!/usr/bin/env bash
# Build the sdist and the wheel into dist/, check them as an index would, install the wheel
# into an empty environment and use it from a folder that knows nothing of this checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet --upgrade pip
"$work/tools/bin/python" -m pip install --quiet build twine check-wheel-contents 'readme_renderer[md]'
rm -rf dist
"$work/tools/bin/python" -m build --outdir dist . > "$work/build.log" || { cat "$work/build.log"; exit 1; }
"$work/tools/bin/twine" check --strict dist/*
"$work/tools/bin/check-wheel-contents" dist/*.whl
wheel=$(ls "$PWD"/dist/*.whl) readme="$PWD/README.md"

"$python" -m venv "$work/empty"
"$work/empty/bin/python" -m pip install --quiet --upgrade pip
"$work/empty/bin/python" -m pip install --quiet "$wheel"
cd "$work"
export JAX_PLATFORMS=cpu NEURONJAX_PROGRESS=0
# The first Python block of README, and what it says that the block prints.
awk '/^```python/ {inside=1; next} /^```/ {if (inside) exit} inside' "$readme" > first.py
awk '/^```text/ {inside=1; next} /^```/ {if (inside) exit} inside' "$readme" | sed 's/^    //' > expected.txt
empty/bin/python -I first.py > printed.txt
diff expected.txt printed.txt
empty/bin/neuronjax version
empty/bin/neuronjax ls > /dev/null
empty/bin/python -I -c 'import neuronjax as nj; assert set(nj.__all__) <= set(dir(nj)); [getattr(nj, n) for n in nj.__all__]'
echo "wheel: $(basename "$wheel") prints what README says, outside of the checkout"
