"""Values of a run in which a reference with wider floats executes some ops.

Writing a value would round it to its declared format, so the run keeps it twice: in the
declared format, which the actual instructions read, and in the reference's format. An
op that is not replaced keeps its own error and passes on the change of its operands:
its result is the actual result, plus the reference's result on wide operands, minus the
reference's result on rounded operands.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.differences import alike
from neuronjax.diagnostics.parallel_runs import Executor


class Substituted(NamedTuple):
    """A value rounded to its declared format, and the value before this rounding."""

    declared: Any
    wide: np.ndarray


def declared(array: Any) -> Any:
    """Return `array` in its declared format."""
    return array.declared if isinstance(array, Substituted) else array


def substituted(wide: np.ndarray, dtype: Any, executor: Executor) -> Any:
    """Return `wide` and its form rounded to `dtype`; if equal, only the latter."""
    rounded = executor.leave(wide, dtype)
    same = np.array_equal(np.asarray(executor.enter(rounded)), wide, equal_nan=True)
    return rounded if same else Substituted(rounded, wide)


def handed_on(own: np.ndarray, wide: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """Return the result that an op would have on wide operands: own + (wide - rounded).

    `own` is its result on operands in their declared formats; `wide` and `rounded` are
    the reference's results on wide operands and on operands in their declared formats.
    """
    same = alike(wide, rounded)
    if own.dtype.kind in "iub":
        return np.where(same, own, wide)
    with np.errstate(all="ignore"):
        change = np.where(same, 0.0, wide - rounded)
        return np.where(np.isfinite(change), own + change, wide)
