"""Comparisons of neuronjax with its alternatives, measured in turn in one run.

`python -m benchmarks.peers`. Peers come from PyPI (`pip install '.[peers]'`); one that
is not installed is skipped, and the report says so. `contest` measures a comparison,
and one module for each task holds the contenders: casts, stochastic rounding, MX
blocks, matmuls, sums, pruning and train steps. Each time is reported with a comparison
of the results with ours.
"""
