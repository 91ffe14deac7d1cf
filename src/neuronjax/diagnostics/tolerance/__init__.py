"""Tolerances that follow from a reference, in place of numbers chosen by hand.

error_bounds(forward, inputs) runs a NumPy reference on arrays that carry, beside their
values, the scale of every element's error (`tracked.py`); rules say how errors go
through functions (`elementwise.py`, `contraction.py`, `reductions.py`, `movement.py`),
`model.py` how a right kernel rounds, `judged.py` what a candidate's result is worth.
"""

from neuronjax.diagnostics.tolerance.bounds import error_bounds as error_bounds
from neuronjax.diagnostics.tolerance.judged import (
    Judged as Judged,
    Tolerance as Tolerance,
)
