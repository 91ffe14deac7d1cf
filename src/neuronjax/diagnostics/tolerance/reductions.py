"""Rules of sums, means, variances, extremes, sorting and counting.

A sum of n terms has the error of a sum of n products (`contraction.py`), with the
`CHUNK` of this file.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from neuronjax.diagnostics.tolerance.contraction import grouped
from neuronjax.diagnostics.tolerance.model import ErrorModel, are_one_value
from neuronjax.diagnostics.tolerance.runs import of_run, unpacked
from neuronjax.diagnostics.tolerance.tracked import (
    BLOCK_ELEMENTS,
    FUNCTIONS,
    UFUNCS,
    Shared,
    Tracked,
    carrier_of,
    doubtful,
    moved,
    over_blocks,
    run_by_run,
)

CHUNK = 64

Axis = int | tuple[int, ...] | None


def _last(x: Any, axis: Axis) -> Any:
    """Return `x` with the axes in `axis` merged into one last axis."""
    axes = _axes(x.ndim, axis)
    return grouped(x, [*([i] for i in range(x.ndim) if i not in axes), axes])


def _lines(x: Tracked, axis: Axis) -> Tracked:
    return x if _axes(x.ndim, axis) == (x.ndim - 1,) else _last(x, axis)


def _axes(ndim: int, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int) else axis
    return tuple(sorted(i % ndim for i in axes))


def _kept(x: Any, ndim: int, axis: Axis, keepdims: bool) -> Any:
    return np.expand_dims(x, _axes(ndim, axis)) if keepdims else x


def total(
    x: Tracked, axis: Axis = None, dtype: Any = None, keepdims: bool = False
) -> Tracked:
    """Return `numpy.sum(x)`; additions round to `model.sums`, whatever `dtype` is."""
    if x.is_batch:
        one = total(x.of_run(0), axis, dtype, keepdims)
        runs = unpacked(x.value).astype(np.float64, copy=False)
        runs = runs.sum(_axes(x.ndim, axis), keepdims=keepdims)
        return one.in_runs(runs, x.model)
    if x.dtype.kind in "iub":
        x = Tracked(x.value * 1.0, x.model, np.float32, x.own, x.joint)
    lines = _lines(x.passed(), axis)
    n = count(x, axis)
    shape = lines.shape[:-1]
    result = np.empty(shape, carrier_of(shape))
    own = np.empty(shape, np.float32)
    joint = np.empty(shape, np.float32) if x.has_joint else None
    biased = np.zeros(shape, np.float32)

    def add(block: Any) -> bool:
        part = lines.part(block)
        v = part.value.astype(np.float64)
        result[block], fresh, largest = _added(v, x.model)
        alike = are_one_value(v, -1)
        if is_biased := n > 1 and bool(alike.any()):
            biased[block] = np.where(alike, x.model.of_alike(n) * largest, 0.0)
        if part.own is not None:
            fresh = fresh + np.sqrt(np.sum(np.square(part.own), axis=-1))
        own[block] = fresh
        if joint is not None and part.joint is not None:
            joint[block] = part.joint.sum(-1)
        return is_biased

    is_biased = any(over_blocks(add, shape, max(1, BLOCK_ELEMENTS // max(1, n))))
    own += x.model.of_result(x.dtype).unit * np.abs(result)
    if is_biased:
        joint = biased if joint is None else joint + biased
    terms = {s: _summed(x, t, axis) for s, t in x.shared.items()}
    added = Tracked(result, x.model, x.dtype, own, joint, terms)
    return _kept(added, x.ndim, axis, keepdims)


def _added(v: np.ndarray, model: ErrorModel) -> tuple[np.ndarray, ...]:
    """Return (sums of `v` over its last axis, their errors, largest partial sums)."""
    n = v.shape[-1]
    value = v.sum(-1)
    if n <= 1:
        return value, np.zeros_like(value), np.abs(value)
    whole = n // CHUNK * CHUNK
    parts = v[..., :whole].reshape(*v.shape[:-1], -1, CHUNK).sum(-1)
    walk = np.abs(np.cumsum(parts, axis=-1)).max(-1, initial=0.0)
    largest = np.maximum(walk, np.abs(value))
    squares = np.square(v).sum(-1)
    fresh = np.sqrt(model.of_sums(n) * (np.square(largest) + squares))
    return value, fresh, largest


def _summed(x: Tracked, term: Shared, axis: Axis) -> Shared:
    """Return the error of a sum whose terms have the shared error `term`: the same
    relative error if all terms along `axis` share it, else the sum of signed errors."""
    axes = _axes(x.ndim, axis)
    view = term.scale
    if term.is_relative and all(view.strides[i] == 0 for i in axes):
        first = tuple(0 if i in axes else slice(None) for i in range(x.ndim))
        return Shared(True, view[first])
    signed = x.value * view if term.is_relative else view
    return Shared(False, np.asarray(np.sum(signed, axis=axes)))


def count(x: Tracked, axis: Axis) -> int:
    """Return how many elements of `x` a reduction over `axis` combines into one."""
    return math.prod(x.shape[i] for i in _axes(x.ndim, axis))


def mean(
    x: Tracked, axis: Axis = None, dtype: Any = None, keepdims: bool = False
) -> Any:
    return np.sum(x, axis, keepdims=keepdims) / float(count(x, axis))


def variance(
    x: Tracked,
    axis: Axis = None,
    dtype: Any = None,
    *,
    ddof: int = 0,
    keepdims: bool = False,
) -> Any:
    """Return `numpy.var`; the bounds also cover the formula E[x^2] - E[x]^2."""
    centred = x - np.mean(x, axis, keepdims=True)
    n = count(x, axis)
    result = np.sum(centred * centred, axis, keepdims=keepdims) / float(n - ddof)
    squares = np.mean(np.square(of_run(x.value, 0)), axis=axis, keepdims=keepdims)
    loss = (x.model.sums.unit * math.sqrt(n) * squares).astype(np.float32)
    result.joint = loss if result.joint is None else result.joint + loss
    return result


@run_by_run
def extreme(
    function: Any, sign: int, x: Tracked, axis: Axis = None, keepdims: bool = False
) -> Any:
    """Return `numpy.max` (`sign` 1) or `numpy.min` (-1): the error is the largest error
    of the elements that may be the extreme."""
    lines = _lines(x.passed(), axis)
    if x.is_exact:
        value, joint = function(lines.value, axis=-1), None
    else:
        shape = lines.shape[:-1]
        value, joint = np.empty(shape, carrier_of(shape)), np.empty(shape, np.float32)

        def look(block: Any) -> None:
            part = lines.part(block)
            value[block] = function(part.value, axis=-1)
            scale = part.scale(lines.shared, block)
            joint[block] = _candidates(sign * part.value, scale, x.model.spread)

        over_blocks(look, shape, max(1, BLOCK_ELEMENTS // count(x, axis)))
    result = Tracked(np.asarray(value), x.model, x.dtype, None, joint)
    return _kept(result, x.ndim, axis, keepdims)


def _candidates(v: np.ndarray, scale: np.ndarray, spread: float) -> np.ndarray:
    """Return the largest error scale among elements that may be the maximum."""
    reach = spread * scale
    least = np.max(v - reach, axis=-1, keepdims=True)
    return np.max(np.where(v + reach >= least, scale, 0.0), axis=-1)


@run_by_run
def place_of(function: Any, sign: int, x: Tracked, axis: int | None = None) -> Any:
    """Return `numpy.argmax` (`sign` 1) or `numpy.argmin` (-1): the result may be wrong
    if several elements may be the extreme."""
    value = function(x.value, axis=axis)
    scale = np.broadcast_to(np.asarray(x.scale()), x.shape)
    v, reach = sign * _last(x.value, axis), x.model.spread * _last(scale, axis)
    least = np.max(v - reach, axis=-1, keepdims=True)
    doubt = np.sum(v + reach >= least, axis=-1) > 1
    doubt &= np.max(reach, axis=-1) > 0
    return doubtful(np.asarray(value), doubt, x.model)


def worst_along(x: Tracked, axis: int) -> np.ndarray:
    """Return the largest error scale along `axis`, for every element of `x`."""
    scale = np.broadcast_to(np.asarray(x.scale(), np.float32), x.shape)
    return np.broadcast_to(np.max(scale, axis=axis, keepdims=True), x.shape)


@run_by_run
def ordered(x: Tracked, axis: int = -1) -> Tracked:
    """Return `numpy.sort`; the k-th number is off by at most the largest error."""
    joint = None if x.is_exact else worst_along(x, axis).copy()
    return Tracked(np.sort(x.value, axis=axis), x.model, x.dtype, None, joint)


def neighbours(key: np.ndarray, reach: np.ndarray, axis: int) -> np.ndarray:
    """Return a mask of numbers in the sorted `key` that may change places with a
    neighbour, if every number is off by at most `reach`."""
    v, r = np.moveaxis(key, axis, -1), np.moveaxis(reach, axis, -1)
    gap, both = np.abs(v[..., 1:] - v[..., :-1]), r[..., 1:] + r[..., :-1]
    close = (gap <= both) & (both > 0)
    is_close = np.zeros(v.shape, bool)
    is_close[..., 1:] |= close
    is_close[..., :-1] |= close
    return np.moveaxis(is_close, -1, axis)


@run_by_run
def places_in_order(x: Tracked, axis: int = -1) -> Any:
    """Return `numpy.argsort`; elements closer than their errors may change places."""
    value = np.argsort(x.value, axis=axis, kind="stable")
    reach = x.model.spread * np.broadcast_to(np.asarray(x.scale()), x.shape)
    key, reach = (np.take_along_axis(v, value, axis) for v in (x.value, reach))
    return doubtful(value, neighbours(key, reach, axis), x.model)


@run_by_run
def running(x: Tracked, axis: int | None = None, dtype: Any = None) -> Tracked:
    if axis is None:
        x, axis = moved(np.ravel, x), 0
    value = np.cumsum(x.value, axis=axis, dtype=np.float64)
    squares = np.cumsum(np.square(value), axis=axis)
    joint = x.model.sums.unit * np.sqrt(squares)
    scale = x.scale()
    if np.any(scale):
        joint = joint + np.cumsum(scale, axis=axis)
    return Tracked(value, x.model, x.dtype, None, joint.astype(np.float32))


def _reduced(rule: Any) -> Any:
    return lambda x, axis=0, keepdims=False: rule(x, axis, keepdims=keepdims)


largest = functools.partial(extreme, np.max, 1)
smallest = functools.partial(extreme, np.min, -1)
FUNCTIONS[np.sum] = total
FUNCTIONS[np.mean] = mean
FUNCTIONS[np.var] = variance
FUNCTIONS[np.std] = lambda x, *args, **named: np.sqrt(np.var(x, *args, **named))
FUNCTIONS[np.max] = FUNCTIONS[np.amax] = largest
FUNCTIONS[np.min] = FUNCTIONS[np.amin] = smallest
FUNCTIONS[np.argmax] = functools.partial(place_of, np.argmax, 1)
FUNCTIONS[np.argmin] = functools.partial(place_of, np.argmin, -1)
FUNCTIONS[np.sort] = ordered
FUNCTIONS[np.argsort] = places_in_order
FUNCTIONS[np.cumsum] = running
FUNCTIONS[np.linalg.norm] = lambda x, axis=None, keepdims=False: np.sqrt(
    np.sum(x * x, axis, keepdims=keepdims)
)
UFUNCS[np.add, "reduce"] = _reduced(total)
UFUNCS[np.maximum, "reduce"] = _reduced(largest)
UFUNCS[np.minimum, "reduce"] = _reduced(smallest)
UFUNCS[np.add, "accumulate"] = lambda x, axis=0: running(x, axis)
