"""HBM of a program whose results may take the place of its arguments.

A captured program does not know donation: its results are tensors of their own.
Donated, an argument's memory becomes that of the first result of its shape and dtype
which has none yet, as JAX pairs them, once nothing reads the argument any more. Until
then the result is elsewhere. Times do not change. Bytes of a logical core.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping

from neuronjax.ir.program import TensorType
from neuronjax.timing.hbm import peak_of
from neuronjax.timing.memory_plan import BlockPlan, MemoryPlan


def with_donation(plan: MemoryPlan, donated: Collection[int]) -> MemoryPlan:
    """The plan where arguments are given away.

    Args:
        plan: of a program; one that has been here before may come again.
        donated: positions of main's arguments.
    """
    main = plan.main
    pairs = _pairs(main, donated)
    if not pairs:
        return plan
    last = _last_reads(main, set(pairs.values()))
    in_hbm = dict(main.in_hbm)
    for result, argument in pairs.items():
        first, end = in_hbm.pop(result)
        if last.get(argument, 0) > first:
            in_hbm[result] = (first, min(end, last[argument]))
    main = dataclasses.replace(main, in_hbm=in_hbm)
    return dataclasses.replace(plan, main=main, hbm=peak_of(main, plan.arguments))


def _pairs(main: BlockPlan, donated: Collection[int]) -> Mapping[int, int]:
    """For every tensor that can be in an argument's place, the argument."""
    fused = main.fused
    free: dict[TensorType, list[int]] = {}
    for position, argument in enumerate(fused.arguments):
        if position in donated:
            free.setdefault(fused.types[argument], []).append(argument)
    roots = [fused.access[value].roots for value in fused.results]
    shared = Counter(root for own in roots for root in own)
    found = {}
    for value, own in zip(fused.results, roots, strict=True):
        places = free.get(fused.types[value])
        if not places:
            continue
        argument = places.pop(0)
        if len(own) == 1 and shared[own[0]] == 1 and own[0] in main.in_hbm:
            if own[0] not in fused.arguments:
                found[own[0]] = argument
    return found


def _last_reads(main: BlockPlan, values: Collection[int]) -> Mapping[int, int]:
    """The last unit that reads each value."""
    last: dict[int, int] = {}
    for n, unit in enumerate(main.units):
        for step in unit.region.steps:
            for value in main.fused.reads(step):
                if value in values:
                    last[value] = n
    return last
