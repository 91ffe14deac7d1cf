"""Ops of a loop that read the same arrays in every turn.

Such an op makes the same result in every turn, so it is executed and measured once. It
reads constants, values that are made of constants, or values that no turn changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neuronjax.diagnostics.distances import Figures
from neuronjax.diagnostics.lane_errors import Compared
from neuronjax.diagnostics.parallel_runs import Lane, OpPath, Side, Span
from neuronjax.ir.algebra_set import HostCall
from neuronjax.ir.program import Value

Spans = Mapping[Side, Span]
Views = Mapping[Side, Mapping[Value, Any]]
#: Arrays of more elements are not kept from one turn to the next.
KEPT = 1 << 14


class Turn(NamedTuple):
    """An op in a turn of a loop.

    Attributes:
        read: the lanes, and the arrays that they read.
        made: what each lane holds of it, by number of the buffer.
        found: its errors.
        asked: the figures of its results.
        repeats: whether it shows the numbers of its operand again.
    """

    read: Sequence[Any]
    made: Sequence[Mapping[int, Any]]
    found: Compared
    asked: Mapping[Value, Figures]
    repeats: bool


@dataclass
class Turns:
    """The turn before of every op in a loop; None once a turn read other arrays."""

    _known: dict[OpPath, Turn | None] = field(default_factory=dict)

    def again(
        self, path: OpPath, spans: Spans, views: Views, lanes: Sequence[Lane]
    ) -> Turn | None:
        """Return the turn before, if an op reads the same arrays, for lanes to hold."""
        known = self._known.get(path)
        if known is None:
            return None
        read = _read(path, spans, views, lanes)
        pairs = zip(read, known.read, strict=False)
        if len(read) != len(known.read) or not all(a is b for a, b in pairs):
            self._known[path] = None
            return None
        for lane, arrays in zip(lanes, known.made, strict=True):
            lane.arrays.update(arrays)
        return known

    def keep(
        self,
        path: OpPath,
        spans: Spans,
        views: Views,
        lanes: Sequence[Lane],
        *found: Any,
    ) -> None:
        """Keep what lanes hold of an op, with what was `found`: the rest of a `Turn`.

        An op is executed in every turn that draws random bits, calls the host or makes
        a large array.
        """
        if path in self._known:
            return
        values = (*path.op.operands, *path.op.results)
        is_large = any(math.prod(v.type.shape) > KEPT for v in values)
        if is_large or any(side.executor.stochastic for side in spans):
            return
        if any(isinstance(i, HostCall) for s in spans.values() for i in s.instructions):
            return
        made = []
        for lane in lanes:
            known = views[lane.side]
            numbers = {known[value].buffer.number for value in path.op.results}
            numbers |= {
                b.number for i in spans[lane.side].instructions for b in i.results
            }
            made.append({n: lane.arrays[n] for n in numbers if n in lane.arrays})
        read = _read(path, spans, views, lanes)
        self._known[path] = Turn(read, made, *found)


def _read(
    path: OpPath, spans: Spans, views: Views, lanes: Sequence[Lane]
) -> Sequence[Any]:
    """Return the lanes of an op, and the arrays that are there before it.

    An operand counts whether or not an instruction reads it: a result may stand for it.
    """
    read: list[Any] = [*lanes]
    for lane in lanes:
        side, known = lane.side, views[lane.side]
        numbers = {known[v].buffer.number for v in path.op.operands if v in known}
        written: set[int] = set()
        for i in spans[side].instructions:
            numbers |= side.reads(i) - written
            written.update(b.number for b in i.results)
        read += [lane.arrays[n] for n in sorted(numbers) if n in lane.arrays]
    return read
