"""Tolerances derived from a reference, in place of numbers chosen by hand.

`error_bounds(forward, inputs)` runs the NumPy reference `forward` on arrays that carry
the size of every element's error beside its value (`tracked.py`). Rules propagate these
errors through functions (`elementwise.py`, `contraction.py`, `reductions.py`, ...).
`model.py` describes a correct kernel's roundings, `judged.py` checks results.
"""

from neuronjax.diagnostics.tolerance.bounds import error_bounds as error_bounds
from neuronjax.diagnostics.tolerance.judged import (
    Judged as Judged,
    Tolerance as Tolerance,
)
