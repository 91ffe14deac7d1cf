"""`docs/benchmarks.md` and its pictures, made of `benchmarks/results/*.json` alone.

`python -m benchmarks.page`. Nothing is measured here, and a results file that is not
there leaves a section that says so. `summary` decides what wins and what loses.
"""
