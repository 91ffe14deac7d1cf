"""Values of a run in which a reference with wider floats executes some ops.

Writing a value would round it to its declared format, so the run holds it twice: in
this format, which the actual instructions read, and in the reference's. An op that is
not replaced keeps its own error and propagates changes: its actual result on declared
operands, plus the change of the reference's from declared to wide ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.differences import alike


class Substituted(NamedTuple):
    """A value in its declared format, and before it was rounded to that."""

    declared: Any
    wide: np.ndarray


def declared(array: Any) -> Any:
    """Return the value in its declared format."""
    return array.declared if isinstance(array, Substituted) else array


def substituted(wide: np.ndarray, enter: Callable, leave: Callable) -> Any:
    """Return a wide value with its rounded form; only that if it loses nothing."""
    rounded = leave(wide)
    same = np.array_equal(np.asarray(enter(rounded)), wide, equal_nan=True)
    return rounded if same else Substituted(rounded, wide)


def handed_on(own: np.ndarray, wide: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """Return the result of an op that keeps its own error.

    `own` is the actual result on declared operands; `wide` and `rounded` are the
    reference's on wide and on declared ones.
    """
    same = alike(wide, rounded)
    if own.dtype.kind in "iub":
        return np.where(same, own, wide)
    with np.errstate(all="ignore"):
        change = np.where(same, 0.0, wide - rounded)
        return np.where(np.isfinite(change), own + change, wide)
