"""Several runs of a reference in one array: every element has a number for each run.

For NumPy such an element is one structured value, so functions that move elements move
the numbers of all runs, with the shapes, axes and indices of the reference. Functions
that compute get the runs as a last axis.
"""

from __future__ import annotations

import numpy as np

_FIELD = "runs"


class RunsApartError(Exception):
    """A signal to execute fewer runs together; the argument is their number."""


def packed(values: np.ndarray) -> np.ndarray:
    """Return an array of structures; each has the numbers of one line of `values`
    along the last axis."""
    values = np.ascontiguousarray(values)
    structure = np.dtype([(_FIELD, values.dtype, values.shape[-1:])])
    return values.view(structure).reshape(values.shape[:-1])


def unpacked(value: np.ndarray) -> np.ndarray:
    """Return the numbers of runs along a last axis; return a plain array unchanged."""
    return value[_FIELD] if value.dtype.names else value


def of_run(value: np.ndarray, number: int) -> np.ndarray:
    return value[_FIELD][..., number] if value.dtype.names else value


def of_one_type(values: list[np.ndarray]) -> list[np.ndarray]:
    """Return `values`, with the numbers in structures cast to one dtype: NumPy's cast
    of structures would write out of bounds."""
    common = np.result_type(*(unpacked(v).dtype for v in values))
    return [packed(v[_FIELD].astype(common)) if v.dtype.names else v for v in values]
