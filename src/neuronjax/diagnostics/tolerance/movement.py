"""Rules of functions that only move elements: errors move with the values."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.tolerance.runs import of_one_type
from neuronjax.diagnostics.tolerance.tracked import (
    FUNCTIONS,
    Tracked,
    as_tracked,
    declared,
    model_of,
    moved,
    run_by_run,
)

_OF_ONE = [
    getattr(np, name)
    for name in "reshape transpose swapaxes moveaxis rollaxis squeeze expand_dims "
    "ravel flip fliplr flipud roll rot90 repeat tile broadcast_to tril triu diag "
    "diagonal take copy".split()
]
# In NumPy these may return views, so assignments to their results are refused.
_REARRANGED = (np.reshape, np.transpose, np.swapaxes, np.moveaxis, np.ravel)
_OF_MANY = (np.concatenate, np.stack, np.vstack, np.hstack, np.dstack, np.column_stack)
_TO_MANY = (np.split, np.array_split, np.hsplit, np.vsplit)


def _of_one(function: Any, x: Tracked, *args: Any, **named: Any) -> Tracked:
    result = moved(lambda v: function(v, *args, **named), x)
    result.is_rearranged = function in _REARRANGED
    return result


def joined(function: Any, arrays: Any, **named: Any) -> Tracked:
    """Join arrays by `function`; their shared errors become correlated errors."""
    arrays = list(arrays)
    model = model_of(arrays)
    parts = [as_tracked(x, model) for x in arrays]
    move = functools.partial(function, **named)
    value = move(of_one_type([p.value for p in parts]))
    return Tracked(value, model, declared(*arrays), *moved_errors(move, parts))


def moved_errors(move: Any, parts: Sequence[Tracked]) -> Iterator[Any]:
    """Yield the independent errors of `parts`, combined by `move`, then the correlated
    errors. Yield None in place of errors that no array has."""
    for errors in ([p.own for p in parts], [p.correlated() for p in parts]):
        whole = [
            np.broadcast_to(np.float32(0.0) if e is None else e, p.shape)
            for p, e in zip(parts, errors, strict=True)
        ]
        yield None if all(e is None for e in errors) else move(whole)


def _pieces(function: Any, x: Tracked, *args: Any, **named: Any) -> list[Tracked]:
    each = range(len(function(x.value, *args, **named)))
    return [moved(lambda v, i=i: function(v, *args, **named)[i], x) for i in each]


@run_by_run
def _padded(x: Tracked, width: Any, mode: Any = "constant", **named: Any) -> Tracked:
    """Return `numpy.pad`; constants that it adds are exact."""
    value = np.pad(x.value, width, mode, **named)
    extra = {} if mode == "constant" else named
    own, joint = (
        None if e is None else np.pad(e, width, mode, **extra)
        for e in (x.own, x.correlated())
    )
    return Tracked(value, x.model, x.dtype, own, joint)


@run_by_run
def _along(x: Tracked, indices: Any, axis: int) -> Tracked:
    """Return `numpy.take_along_axis`, without a bound where an index may be wrong."""
    plain = indices.value if isinstance(indices, Tracked) else indices
    result = moved(lambda v: np.take_along_axis(v, plain, axis), x)
    if isinstance(indices, Tracked):
        doubt = np.where(np.asarray(indices.scale()) > 0, np.inf, 0.0)
        result.joint = doubt if result.joint is None else result.joint + doubt
    return result


for _function in _OF_ONE:
    FUNCTIONS[_function] = functools.partial(_of_one, _function)
for _function in _OF_MANY:
    FUNCTIONS[_function] = lambda arrays, *args, _function=_function, **named: joined(
        _function, arrays, **(named | (dict(axis=args[0]) if args else {}))
    )
for _function in _TO_MANY:
    FUNCTIONS[_function] = functools.partial(_pieces, _function)
FUNCTIONS[np.pad] = _padded
FUNCTIONS[np.take_along_axis] = _along
FUNCTIONS[np.shape] = lambda x: x.shape
FUNCTIONS[np.ndim] = lambda x: x.ndim
FUNCTIONS[np.size] = lambda x, axis=None: x.size if axis is None else x.shape[axis]


def _filled(function: Any, x: Tracked, *args: Any, **named: Any) -> Tracked:
    named.pop("dtype", None)
    like = np.broadcast_to(np.zeros((), x.dtype), x.shape)
    return as_tracked(function(like, *args, **named), x.model)


for _function in (np.zeros_like, np.ones_like, np.full_like, np.empty_like):
    FUNCTIONS[_function] = functools.partial(_filled, _function)
