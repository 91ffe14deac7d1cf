"""`docs/benchmarks.md` and its pictures, made from `benchmarks/results/*.json` alone.

`python -m benchmarks.page`. Nothing is measured here. If a results file is missing, its
section says so. `summary` decides about wins and losses.
"""
