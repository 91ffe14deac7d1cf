"""Faults that were written after the diagnostics, and then looked at.

They are of the kinds of which fewest were found among the faults held out: integers,
coarse formats, stale scales, lost addends.
"""

from __future__ import annotations

from benchmarks.faults.case import Fault
from benchmarks.faults.fresh import choices, digits, scales, solvers, whole

FAULTS: tuple[Fault, ...] = (
    *whole.FAULTS,
    *digits.FAULTS,
    *scales.FAULTS,
    *choices.FAULTS,
    *solvers.FAULTS,
)
