"""Rules that propagate values and errors through instructions that sort or rank.

If two numbers differ by less than their error bounds, either may come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.legal.arithmetic import legal
from neuronjax.diagnostics.legal.held import Executors, Held, in_float64, of_exact
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.tolerance.reductions import (
    largest,
    neighbours,
    place_of,
    smallest,
    worst_along,
)
from neuronjax.diagnostics.tolerance.tracked import Tracked, doubtful, moved
from neuronjax.ir.block_set import MapBlock, ReduceBlock
from neuronjax.ir.instruction_set import Sort, TopK


@legal.register
def _(i: Sort, x: Sequence[Held], at: Executors) -> list[Held]:
    """Sort; every key gets the largest error along the axis of sorting."""
    keys, axis = x[: len(i.descending)], i.dimension
    if all(h.is_exact for h in x):
        return of_exact(i, x, at)
    sorted_ = in_float64(i, [h.values for h in x], at)
    places: Any = np.zeros(x[0].shape, bool)
    if any(not key.is_exact for key in keys):
        first = keys[0]
        reach = at.model.spread * worst_along(first.tracked(at.model), axis)
        by_key = np.sort(first.values.astype(np.float64), axis=axis)
        if i.descending[0]:
            by_key = np.flip(by_key, axis)
        places = neighbours(by_key, reach, axis)
        if len(keys) > 1:  # where first keys are equal, other keys decide
            places = np.broadcast_to(places.any(axis=axis, keepdims=True), places.shape)
    results = []
    for number, (values, view) in enumerate(zip(sorted_, i.results, strict=True)):
        source = x[len(keys) + number]
        is_key = len(keys) == 1 and np.array_equal(source.values, keys[0].values)
        if is_float(view.type.dtype) and is_key:
            worst = worst_along(keys[0].tracked(at.model), axis)
            kept = Tracked(values, at.model, np.float32, None, worst)
            results.append(Held(kept, source.shape))
            continue
        lost = places if source.is_exact else True
        results.append(Held(doubtful(values, lost, at.model), source.shape))
    return results


@legal.register
def _(i: TopK, x: Sequence[Held], at: Executors) -> list[Held]:
    if x[0].is_exact:
        return of_exact(i, x, at)
    values, indices = in_float64(i, [x[0].values], at)
    worst = worst_along(x[0].tracked(at.model), -1)
    kept = Tracked(values, at.model, np.float32, None, worst[..., : i.k])
    # Sort all numbers, since number k + 1 may be as large as number k.
    whole = -np.sort(-x[0].values, axis=-1)
    places = neighbours(whole, at.model.spread * worst, -1)[..., : i.k]
    lost = doubtful(indices.astype(i.results[1].type.dtype), places, at.model)
    return [Held(kept, kept.shape), Held(lost, kept.shape)]


@legal.register
def _(i: ReduceBlock, x: Sequence[Held], at: Executors) -> list[Held]:
    """Reduce with a block of scalar instructions. Results of inexact operands have no
    bound, unless the block acts as `argmax` or `argmin`."""
    if all(h.is_exact for h in x):
        return of_exact(i, x, at)
    results = in_float64(i, [h.values for h in x], at)
    if len(results) == 2 and len(i.axes) == 1 and not x[0].is_exact:
        placed = _place(i, x[0], results, at)
        if placed is not None:
            return placed
    return [Held(doubtful(np.asarray(r), True, at.model), np.shape(r)) for r in results]


def _place(
    i: ReduceBlock, key: Held, results: Sequence[np.ndarray], at: Executors
) -> list[Held] | None:
    """Return `results` with errors if `i` acts as `argmax` or `argmin`; else None."""
    whole, [axis] = key.tracked(at.model), i.axes
    ways = ((largest, np.argmax, 1), (smallest, np.argmin, -1))
    for extreme, *way in ways:
        first = extreme(whole, axis)
        index = place_of(*way, whole, axis)
        plain = index.value if isinstance(index, Tracked) else index
        is_extreme = np.array_equal(first.value, results[0], equal_nan=True)
        if is_extreme and np.array_equal(plain, results[1]):
            shape = results[1].shape
            doubt = plain is not index and np.isposinf(np.asarray(index.scale()))
            held = doubtful(np.asarray(results[1]), doubt, at.model)
            return [Held(first, shape), Held(held, shape)]
    return None


@legal.register
def _(i: MapBlock, x: Sequence[Held], at: Executors) -> list[Held]:
    shapes = [b.type.shape for b in i.results]
    results = at.run(i.body, x)

    def ranked(v: np.ndarray) -> np.ndarray:
        return v if v.ndim else v.reshape((1,) * len(shapes[0]))

    pairs = zip(results, shapes, strict=True)
    return [Held(moved(ranked, h.x), shape, h.hard) for h, shape in pairs]
