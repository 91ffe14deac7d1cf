"""What instructions that join devices make of values and errors.

A reduction over devices is a sum of as many terms, in any order, whose partial sums are
rounded to the dtype that they travel in. All other collectives move numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.executors import Position
from neuronjax.diagnostics.legal.arithmetic import legal, no_rule
from neuronjax.diagnostics.legal.held import Executors, Held, rounded
from neuronjax.diagnostics.legal.movement import moved_together, rearranged
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.tolerance.model import roundoff
from neuronjax.diagnostics.tolerance.tracked import Tracked
from neuronjax.execution.exchange import is_same_for_all
from neuronjax.ir.collective_set import (
    Collective,
    RaggedAllToAll,
    ReduceScatter,
    Reduction,
)
from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import TensorReduce
from neuronjax.ir.program import TensorType

Devices = Sequence[Sequence[Held]]
_STARTS = {"add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}


def exchanged(i: Instruction, x: Devices, at: Executors) -> list[list[Held]]:
    """Return what every device gets.

    Args:
        i: a collective.
        x: the operands of every device.
        at: what rules work with.

    Raises:
        UnimplementedError: a kernel that joins devices.
    """
    if not isinstance(i, Collective):
        raise no_rule(i, "a kernel that joins devices")
    if isinstance(i, Reduction) and is_float(i.results[0].type.dtype):
        columns = [_reduced(i, k, x, at) for k in range(len(i.operands))]
    else:
        columns = [_moved(i, k, x, at) for k in range(len(i.results))]
    if is_same_for_all(i, len(x)):
        columns = [[column[0]] * len(x) for column in columns]
    return [[*own] for own in zip(*columns, strict=True)]


def _moved(i: Collective, k: int, x: Devices, at: Executors) -> list[Held]:
    """Return the k-th result of every device; integers may be reduced as well."""
    data = (0, 1) if isinstance(i, RaggedAllToAll) else (k,)[: len(i.operands)]

    def mover(arrays: Sequence[np.ndarray]) -> np.ndarray:
        given = [[h.values for h in own] for own in x]
        for n, array in enumerate(arrays):
            given[n // len(data)][data[n % len(data)]] = array
        key = at.reference.first_key
        made = at.reference.exchange(i, given, key, Position())
        return np.stack([np.asarray(own[k]) for own in made])

    found = moved_together([own[n] for own in x for n in data], mover, at.model)
    return [rearranged(found, lambda v, d=d: v[d]) for d in range(len(x))]


def _reduced(i: Reduction, k: int, x: Devices, at: Executors) -> list[Held]:
    """Return the k-th result of every device."""
    found: dict[int, Held] = {}
    for group in i.groups:
        total = _total(i, k, [x[device][k] for device in group], at)
        for rank, device in enumerate(group):
            found[device] = total
            if isinstance(i, ReduceScatter):
                length = i.results[k].type.shape[i.dimension]
                part = slice(rank * length, (rank + 1) * length)
                index = (*[slice(None)] * i.dimension, part)
                found[device] = rearranged(total, lambda v, index=index: v[index])
    return [found[device] for device in range(len(x))]


def _total(i: Reduction, k: int, x: Sequence[Held], at: Executors) -> Held:
    """Return the reduction of a group, as that of an axis of its members."""
    dtype, model = i.operands[k].type.dtype, at.model
    travels = roundoff(i.reduce_dtype or i.write_format or dtype)
    terms = [rounded(term, travels)[0] for term in _tracked(x, at)]
    local = x[0].shape
    types = ((len(x), *local), (), local)
    stacked, start, result = (
        Buffer(-n, TensorType(t, dtype)) for n, t in enumerate(types)
    )
    reduce = TensorReduce(
        operands=(View(stacked), View(start)),
        results=(result,),
        engine="vector",
        op=i.op,
        axes=(0,),
        rounding=i.rounding,
        location=i.location,
    )
    whole: Any = np.stack(terms)  # type: ignore[call-overload]
    if travels.unit > model.sums.unit and i.op == "add":
        whole = _rounded_sums(whole, travels.unit)
    begins = Tracked(np.asarray(_STARTS[i.op]), model)
    [total] = legal(reduce, [Held(whole, whole.shape), Held(begins, ())], at)
    return total


def _tracked(x: Sequence[Held], at: Executors) -> list[Tracked]:
    """Return the terms of a reduction; the errors of equal ones are the same error."""
    terms = [held.tracked(at.model) for held in x]
    if len({id(held) for held in x}) == len(x) or terms[0].is_exact:
        return terms
    scales = [np.asarray(t.scale(), np.float32) for t in terms]
    return [
        Tracked(t.value, t.model, t.dtype, None, np.broadcast_to(scale, t.shape))
        for t, scale in zip(terms, scales, strict=True)
    ]


def _rounded_sums(x: Tracked, unit: float) -> Tracked:
    """Return terms whose errors are also those of the partial sums.

    Every term but the first is followed by a rounding of a partial sum, which is as
    large as the terms so far, in any order, may be together.
    """
    sizes = np.sqrt(np.square(x.value).sum(0) + np.square(x.value.sum(0)))
    more = np.broadcast_to(unit / math.sqrt(3) * sizes, x.shape).astype(np.float32)
    own = more if x.own is None else x.own + more
    return Tracked(x.value, x.model, x.dtype, own, x.joint, x.shared)
