"""Arguments that no result of a kernel depends on, and whether they should matter."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from neuronjax.diagnostics.judging.case import ReferenceCase, ReferenceFailed
from neuronjax.ir.kernel import (
    Access,
    KernelBlock,
    KernelInstruction,
    KernelProgram,
    KernelWhile,
    Register,
    Storage,
)

Place = Storage | Register


def arguments(program: KernelProgram) -> tuple[int, ...]:
    """Positions of the arguments that reach no result.

    A storage depends on all that anything written to it depends on, in whatever order:
    what is found so is certain, what is not may still be without effect.
    """
    sources: dict[Place, set[Place]] = defaultdict(set)
    _collect(program.body, sources, frozenset())
    reached = _reached(sources, {a.storage for a in program.results})
    outputs = {a.storage for i in program.body.walk() for a in i.outputs}
    return tuple(
        n
        for n, storage in enumerate(program.arguments)
        if storage not in reached and storage not in outputs
    )


def _collect(
    block: KernelBlock, sources: dict[Place, set[Place]], around: frozenset[Place]
) -> None:
    """What every place is written from; `around` decides whether a loop turns."""
    for item in block.items:
        if isinstance(item, KernelInstruction):
            read = {p for o in (*item.inputs, *item.outputs) for p in _read(o)} | around
            for access in item.outputs:
                sources[access.storage] |= read
            if item.writes_register is not None:
                sources[item.writes_register] |= read
        elif isinstance(item, KernelWhile):
            _collect(item.body, sources, around | {item.condition})
        else:
            bounds = {b for b in (item.start, item.stop) if isinstance(b, Register)}
            _collect(item.body, sources, around | bounds)


def _read(operand: Access | Register) -> list[Place]:
    if isinstance(operand, Register):
        return [operand]
    index = operand.dynamic.index if operand.dynamic is not None else None
    return [operand.storage, *(() if index is None else _read(index))]


def _reached(sources: dict[Place, set[Place]], ends: set[Place]) -> set[Place]:
    found, front = set(ends), list(ends)
    while front:
        new = sources[front.pop()] - found
        found |= new
        front += new
    return found


def matters(case: ReferenceCase, seed: int, number: int) -> bool:
    """Whether the reference's results change with its input of this number.

    Inputs are counted as the reference takes them; where the kernel takes others in
    their place nothing is said."""
    other = list(case.inputs(seed))
    if len(other) != len(case.kernel_arguments(seed)):
        return True
    before = case.expected(seed)
    other[number] = case.inputs(seed + 1)[number]
    try:
        after = case.answer(other)
    except ReferenceFailed:  # its inputs go together
        return True
    return any(
        not np.array_equal(b, a, equal_nan=True)
        for b, a in zip(before, after, strict=True)
    )
