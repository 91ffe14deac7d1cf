"""Metrics of outputs against those of the reference: one number, 0 if equal.

Arrays of a pytree are measured one by one, and the worst error counts. An element that
is finite in only one of two arrays has an infinite error; two NaNs are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from neuronjax.diagnostics.differences import alike, ratio
from neuronjax.diagnostics.op_errors import errors_of
from neuronjax.errors import InvalidProgramError

#: Number of paths in an error message.
_SHOWN = 8

Metric = Callable[[Any, Any], float]


class OutputError(NamedTuple):
    """An error, and the path of the worst array; "" for a metric that is a function."""

    error: float
    array: str = ""


Chooser = str | Callable[[Any], Any] | None


def relative_l2(reference: np.ndarray, actual: np.ndarray) -> float:
    """Return the norm of the error over the norm of the reference."""
    return errors_of(actual, reference).relative_l2


def max_relative(reference: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest error over the largest magnitude of the reference."""
    if not _agree(reference, actual):
        return math.inf
    finite = np.isfinite(reference)
    error, size = (
        float(np.max(np.abs(x[finite]), initial=0.0))
        for x in (actual - reference, reference)
    )
    return ratio(error, size)


#: Distances of float64 arrays, by the name of the metric.
OF_ARRAYS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "relative_l2": relative_l2,
    "max_relative": max_relative,
}


def measured(metric: str | Metric, reference: Any, actual: Any) -> OutputError:
    """Return the error of `actual` against `reference`, pytrees of NumPy arrays.

    Raises:
        InvalidProgramError: the caller's metric returned no number, a negative number,
            or NaN for outputs with the same NaN and Inf as the reference.
    """
    if isinstance(metric, str):
        leaves = jax.tree.leaves_with_path(reference)
        pairs = zip(leaves, jax.tree.leaves(actual), strict=True)
        with np.errstate(invalid="ignore", over="ignore"):
            return worst(
                OutputError(OF_ARRAYS[metric](_numbers(r), _numbers(a)), _named(path))
                for (path, r), a in pairs
            )
    error = metric(reference, actual)
    if np.ndim(error) == 0 and np.asarray(error).dtype.kind in "biuf":
        if error >= 0:
            return OutputError(float(error))
        leaves = map(jax.tree.leaves, (reference, actual))
        pairs = (map(_numbers, pair) for pair in zip(*leaves, strict=True))
        if np.isnan(error) and not all(_agree(*pair) for pair in pairs):
            return OutputError(math.inf)
    name = getattr(metric, "__name__", "the metric")
    raise InvalidProgramError(
        f"{name} returned {error!r}",
        remedy="return a number from 0 (equal) upwards; leave out NaN and Inf that you "
        "expect among the outputs",
    )


def worst(found: Iterable[OutputError]) -> OutputError:
    """Return the largest error of some arrays or batches; 0 if there are none."""
    return max(found, key=lambda each: each.error, default=OutputError(0.0))


def _named(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def check_metric(metric: str | Metric) -> None:
    """Raise InvalidProgramError if the metric is an unknown name."""
    if isinstance(metric, str) and metric not in OF_ARRAYS:
        raise InvalidProgramError(
            f"metric is {metric!r}",
            remedy=f"use one of {', '.join(OF_ARRAYS)}, or a function of the "
            "reference's outputs and the outputs",
        )


def _agree(r: np.ndarray, a: np.ndarray) -> bool:
    """Return whether both arrays have the same Inf and NaN at the same positions."""
    return bool(np.all(alike(r, a) | (np.isfinite(r) & np.isfinite(a))))


def _numbers(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "c":
        array = np.stack([np.real(array), np.imag(array)])
    return array.astype(np.float64)


def on_host(outputs: Any, chosen: Chooser) -> Any:
    """Return the outputs that are measured, as NumPy arrays.

    Random keys are not measured. `chosen` is a regular expression of the paths of
    leaves ("1/loss"), a function of the outputs, or None for all.

    Raises:
        InvalidProgramError: there is nothing to measure.
    """
    if isinstance(chosen, str):
        found = chosen_by(chosen, outputs)
        return {name: np.asarray(leaf) for name, leaf in found.items()}
    if chosen is not None:
        outputs = chosen(outputs)
    if not any(map(_is_number, jax.tree.leaves(outputs))):
        raise InvalidProgramError(
            "there is no number among the outputs that are measured",
            remedy="return arrays from outputs=, from evaluate= or from the function",
        )
    return jax.tree.map(lambda x: np.asarray(x) if _is_number(x) else None, outputs)


def chosen_by(pattern: str, outputs: Any) -> dict[str, Any]:
    """Return the leaves of `outputs` whose path matches the regular expression.

    Raises:
        InvalidProgramError: no path matches.
    """
    paths = jax.tree.flatten_with_path(outputs)[0]
    by_name = {_named(path): leaf for path, leaf in paths if _is_number(leaf)}
    found = {n: leaf for n, leaf in by_name.items() if re.search(pattern, n)}
    if not found:
        raise InvalidProgramError(
            f"nothing to measure: no path of an output matches outputs={pattern!r}",
            remedy=_choices([*by_name]),
        )
    return found


def _is_number(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", float)
    return not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _choices(names: Sequence[str]) -> str:
    if [*names] == [""]:
        return "omit outputs=: the function returns one array, which has no path"
    shown = ", ".join(names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"give a regular expression that matches one of: {shown or 'nothing'}{more}"
