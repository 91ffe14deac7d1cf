"""One body that links the bodies of all programs of a grid.

Programs run one after the other between the points where they meet. A device loop in
which they meet becomes one loop of all their bodies. The loop has as many iterations as
that of program 0, because control flow is the same on all cores
(nki/get-started/about/lnc.rst, "Final Notes").
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.kernel import (
    Item,
    KernelBlock,
    KernelInstruction,
    KernelLoop,
    KernelWhile,
    Register,
)


@dataclass(frozen=True)
class Barrier:
    """A mark in a body where a program met the others; linking removes it."""

    line: str  # "file:line" of the user's call


Loop = KernelLoop | KernelWhile
# A body during tracing: items, and barriers between them.
Body = Sequence[Any]


def linked(bodies: Sequence[Body]) -> list[Item]:
    """Return the items of all programs in the order of execution."""
    if len(bodies) == 1:
        return [  # a single program meets only itself
            _of_body(i, linked([i.body.items])) if _is_point(i) else i  # type: ignore[union-attr]
            for i in bodies[0]
            if not isinstance(i, Barrier)
        ]
    split = [_split(body) for body in bodies]
    result: list[Item] = []
    for row in itertools.zip_longest(*split, fillvalue=((), None)):
        result += itertools.chain.from_iterable(items for items, _ in row)
        points = [point for _, point in row]
        if any(isinstance(point, Loop) for point in points):
            result.append(_merged(points))
    return result


def _split(body: Body) -> list[tuple[list[Item], Barrier | Loop | None]]:
    """Return runs of items, each with the meeting that ends it, None for the last."""
    runs: list[tuple[list[Item], Barrier | Loop | None]] = []
    run: list[Item] = []
    for item in body:
        if _is_point(item):
            runs.append((run, item))
            run = []
        else:
            run.append(item)
    return [*runs, (run, None)]


def _is_point(item: Any) -> bool:
    if isinstance(item, Barrier):
        return True
    return isinstance(item, Loop) and any(map(_is_point, item.body.items))


def _of_body(loop: Any, items: Sequence[Item]) -> Item:
    return replace(loop, body=KernelBlock(tuple(items)))


def _merged(points: Sequence[Any]) -> Item:
    """Return one loop that replaces the loops of all programs."""
    first = points[0]
    if any(_kind(point) != _kind(first) for point in points):
        lines = ", ".join(getattr(p, "location", None) or p.line for p in points if p)
        raise InvalidProgramError(
            f"the programs of the grid wait for each other in different loops: {lines}",
            location=getattr(first, "location", None),
            remedy="let every program run the same loop around core_barrier or "
            "sendrecv",
        )
    items = linked([point.body.items for point in points])
    if isinstance(first, KernelLoop):
        items = [_same_index(p, n, first) for n, p in enumerate(points) if n] + items
    return _of_body(first, items)


def _kind(point: Any) -> Any:
    """Return what must be equal in all programs' loops; registers are assumed equal."""
    if not isinstance(point, KernelLoop):
        return type(point)
    bounds = (point.start, point.stop)
    known = tuple("register" if isinstance(b, Register) else b for b in bounds)
    return (KernelLoop, known, point.step)


def _same_index(loop: KernelLoop, program: int, first: KernelLoop) -> KernelInstruction:
    """Return an instruction that copies program 0's loop variable to another's."""
    return KernelInstruction(
        name="register_move",
        engine="sync",
        outputs=(),
        inputs=(first.register,),
        location=loop.location,
        program=program,
        writes_register=loop.register,
        forms="r",
    )
