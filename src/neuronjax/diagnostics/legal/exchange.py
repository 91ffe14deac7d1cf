"""Rules that propagate values and errors through collectives.

A reduction combines one term per device, in any order, and rounds partial results to
the dtype in which devices send them. All other collectives move numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.executors import Position
from neuronjax.diagnostics.legal.arithmetic import no_rule
from neuronjax.diagnostics.legal.held import (
    Executors,
    Held,
    is_doubtful,
    places_in_doubt,
    rounded,
)
from neuronjax.diagnostics.legal.movement import moved_together, rearranged
from neuronjax.diagnostics.legal.sums import folded
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.tolerance.model import roundoff
from neuronjax.diagnostics.tolerance.tracked import Tracked, doubtful
from neuronjax.execution.exchange import is_same_for_all
from neuronjax.ir.collective_set import (
    Collective,
    RaggedAllToAll,
    ReduceScatter,
    Reduction,
)
from neuronjax.ir.instruction import Instruction

Devices = Sequence[Sequence[Held]]


def exchanged(
    i: Instruction, x: Devices, at: Executors, *, are_joint: bool
) -> list[list[Held]]:
    """Return the results of the collective `i` by device; `x` has operands by device.

    If `are_joint`, devices may have the same error, so errors add up linearly.

    Raises:
        UnimplementedError: the instruction is a kernel that communicates.
    """
    if not isinstance(i, Collective):
        raise no_rule(i, "a kernel with collectives")
    if are_joint:
        x = [[correlated(held) for held in own] for own in x]
    rule: Callable[..., list[Held]] = _moved
    if isinstance(i, Reduction):
        rule = _reduced if is_float(i.results[0].type.dtype) else _of_discrete
    columns = [rule(i, k, x, at) for k in range(len(i.results))]
    return [[*own] for own in zip(*columns, strict=True)]


def correlated(held: Held) -> Held:
    """Return `held`, its errors marked as correlated with errors of other values."""
    x = held.x
    if not isinstance(x, Tracked) or x.is_exact:
        return held
    scale = np.broadcast_to(np.asarray(x.scale(), np.float32), x.shape)
    joint = Tracked(x.value, x.model, x.dtype, None, scale)
    return Held(joint, held.shape, held.hard, held.is_drawn)


def _moved(i: Collective, k: int, x: Devices, at: Executors) -> list[Held]:
    """Return the k-th result of a collective that moves numbers, for every device."""
    data = (0, 1) if isinstance(i, RaggedAllToAll) else (k,)[: len(i.operands)]
    is_same = is_same_for_all(i, len(x))

    def mover(arrays: Sequence[np.ndarray]) -> np.ndarray:
        given = [[h.values for h in own] for own in x]
        for n, array in enumerate(arrays):
            given[n // len(data)][data[n % len(data)]] = array
        rows = _executed(i, k, given, at)
        return rows[0] if is_same else np.stack(rows)

    result = moved_together([own[n] for own in x for n in data], mover, at.model)
    # The other operands of a `RaggedAllToAll` are offsets and sizes.
    places = range(len(data), len(i.operands)) if len(data) > 1 else ()
    if any(is_doubtful(own[n]) for own in x for n in places):
        result = Held(doubtful(result.values, True, at.model), result.shape)
    if is_same:
        return [result] * len(x)
    return [rearranged(result, lambda v, d=d: v[d]) for d in range(len(x))]


def _executed(
    i: Collective, k: int, x: list[list[np.ndarray]], at: Executors
) -> list[np.ndarray]:
    """Return the k-th result of a collective in float64, for every device."""
    made = at.reference.exchange(i, x, at.reference.first_key, Position())
    return [np.asarray(own[k]) for own in made]


def _of_discrete(i: Reduction, k: int, x: Devices, at: Executors) -> list[Held]:
    """Return the k-th result of an integer reduction, for every device; an element has
    no bound if a term may be wrong."""
    values = _executed(i, k, [[h.values for h in own] for own in x], at)
    doubts = [[places_in_doubt(h).astype(h.values.dtype) for h in own] for own in x]
    places = _executed(dataclasses.replace(i, op="or"), k, doubts, at)
    return [
        Held(doubtful(value, place != 0, at.model), value.shape)
        for value, place in zip(values, places, strict=True)
    ]


def _reduced(i: Reduction, k: int, x: Devices, at: Executors) -> list[Held]:
    results: dict[int, Held] = {}
    for group in i.groups:
        total = _total(i, k, [x[device][k] for device in group], at)
        for rank, device in enumerate(group):
            results[device] = total
            if isinstance(i, ReduceScatter):
                length = i.results[k].type.shape[i.dimension]
                part = slice(rank * length, (rank + 1) * length)
                index = (*[slice(None)] * i.dimension, part)
                results[device] = rearranged(total, lambda v, index=index: v[index])
    return [results[device] for device in range(len(x))]


def _total(i: Reduction, k: int, x: Sequence[Held], at: Executors) -> Held:
    """Return the k-th result of `i` for a group of devices with the terms `x`."""
    dtype, model = i.operands[k].type.dtype, at.model
    travels = roundoff(i.reduce_dtype or i.write_format or dtype)
    terms = [rounded(held.tracked(model), travels)[0] for held in x]
    whole: Any = np.stack(terms)  # type: ignore[call-overload]
    if travels.unit > model.sums.unit and i.op == "add":
        # In any order, each addition rounds a partial sum of at most about `sizes`.
        values = whole.value
        sizes = np.sqrt(np.square(values).sum(0) + np.square(values.sum(0)))
        error = travels.unit / math.sqrt(3) * sizes
        whole = whole.wider(np.broadcast_to(error, whole.shape))
    total = folded(i.op, whole, (0,))
    result, hard = rounded(total, roundoff(dtype), i.rounding == "stochastic")
    return Held(result, x[0].shape, hard)
