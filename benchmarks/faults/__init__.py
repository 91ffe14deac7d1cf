"""Numerical faults as people write them, each on one known line, with healthy twins.

They were written from the literature on floating-point debugging and from public bug
reports, without knowledge of the diagnostics. The set `held_out` is not looked at while
the diagnostics are built. `python -m benchmarks.faults` counts the faults that are
found.
"""
