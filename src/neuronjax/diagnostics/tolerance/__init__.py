"""Tolerances derived from a reference, in place of numbers chosen by hand.

`error_bounds(forward, inputs)` runs a NumPy reference on arrays that carry the scale of
every element's error beside its value (`tracked.py`). Rules propagate errors through
functions (`elementwise.py`, `contraction.py`, `reductions.py`, `movement.py`).
`model.py` has the rounding of a correct kernel, `judged.py` the verdict on a result.
"""

from neuronjax.diagnostics.tolerance.bounds import error_bounds as error_bounds
from neuronjax.diagnostics.tolerance.judged import (
    Judged as Judged,
    Tolerance as Tolerance,
)
