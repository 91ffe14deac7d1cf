"""neuronjax beside what a user would pick instead, each alternating with it in one run.

`python -m benchmarks.peers`. A peer is what PyPI has under its name (`pip install
'.[peers]'`); one that is not installed is skipped with a word. `contest` measures a
pair, and one file a task holds the contenders: casts, stochastic rounding, MX blocks,
matmuls, sums, pruning and train steps. Beside each time stands what numbers came out,
compared with ours.
"""
