"""Values of a run in which some ops are replaced by a reference of wider floats.

A value that is rounded where it is written would be rounded again there, so the run
holds it twice: in its declared format, which the actual instructions read, and as wide
as the reference has it. An op that is not replaced keeps its own error and hands on the
rest: its result on the declared values, and by how much the reference's differs between
the wide ones and those.
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
    """What instructions of the declared formats read."""
    return array.declared if isinstance(array, Substituted) else array


def substituted(wide: np.ndarray, enter: Callable, leave: Callable) -> Any:
    """A value that is known this well; as it is where its format holds it."""
    rounded = leave(wide)
    same = np.array_equal(np.asarray(enter(rounded)), wide, equal_nan=True)
    return rounded if same else Substituted(rounded, wide)


def handed_on(own: np.ndarray, wide: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """The result of an op that keeps its own error.

    `own` is the actual result on operands in their declared formats, `wide` the
    reference's on the wide operands, `rounded` the reference's on operands in their
    declared formats."""
    same = alike(wide, rounded)
    if own.dtype.kind in "iub":
        return np.where(same, own, wide)
    with np.errstate(all="ignore"):
        change = np.where(same, 0.0, wide - rounded)
        return np.where(np.isfinite(change), own + change, wide)
