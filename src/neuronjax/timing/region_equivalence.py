"""Which regions are equivalent: the same steps on the same kinds of tensors.

The layers of a model differ in the numbers of their values alone. What depends on
nothing but the steps of a region is found out for the first of those that are
equivalent: they get one number, and each its values in the order of their first
mention, so that what was found of one can be said of another. Nothing has a unit here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import Any

from neuronjax.ir.instruction import Instruction
from neuronjax.timing.fused import Fused, FusedStep, TiledRegion

#: What instructions have whatever they do.
_COMMON = {f.name for f in dataclasses.fields(Instruction)} - {"engine"}
_END = -1


class RegionEquivalence:
    """Numbers the regions of one program's blocks, equal where they are equivalent."""

    def __init__(self) -> None:
        self._steps: dict[tuple, int] = {}
        self._values: dict[tuple, int] = {}
        self._regions: dict[tuple, int] = {}

    def mark(self, fused: Fused, regions: Iterable[TiledRegion]) -> None:
        """Sets `key` and `values` of regions, control flow and collectives left out.

        Args:
            fused: a block.
            regions: of it, complete.
        """
        kinds: dict[int, int] = {}
        for region in regions:
            if not region.is_single:
                self._mark(fused, region, kinds)

    def _mark(self, fused: Fused, region: TiledRegion, kinds: dict[int, int]) -> None:
        found: dict[int, int] = {}
        number = found.setdefault
        key = [region.rows]
        for step in region.steps:
            key.append(self._step(step))
            for value in step.operands:
                key.append(number(value, len(found)))
            key.append(_END)
            for value in step.results:
                key.append(number(value, len(found)))
            seen = step.seen
            key.append(number(seen, len(found)) if seen >= 0 else _END)
        access = fused.access
        values = list(found)
        for value in values:  # which grows by the tensors that they are part of
            kind = kinds.get(value)
            if kind is None:
                kind = kinds[value] = self._value(fused, value)
            key.append(kind)
            roots = access[value].roots
            if roots != (value,):
                for root in roots:
                    if root not in found:
                        found[root] = len(found)
                        values.append(root)
                    key.append(found[root])
                key.append(_END)
        region.key = self._regions.setdefault(tuple(key), len(self._regions))
        region.values = tuple(values)

    def _step(self, step: FusedStep) -> int:
        key = (
            kind_of(step.instruction),
            step.form,
            step.reduces,
            step.binds_rows,
            step.accumulates,
            step.causal,
        )
        try:
            return self._steps.setdefault(key, len(self._steps))
        except TypeError:  # of an instruction with what has no hash: only like itself
            return self._steps.setdefault((id(step),), len(self._steps))

    def _value(self, fused: Fused, value: int) -> int:
        roots, *seen = fused.access[value]
        type_ = fused.types[value]
        key = (type_.shape, type_.dtype, fused.uses[value], len(roots), *seen)
        return self._values.setdefault(key, len(self._values))


def kind_of(i: Instruction) -> tuple:
    """What an instruction does, its operands and results aside."""
    kind = type(i)
    return kind, _attributes(kind)(i)


@cache
def _attributes(kind: type[Instruction]) -> Callable[[Instruction], Any]:
    """Reads the fields that a class has besides those of all: a tuple, or one value."""
    fields = [f.name for f in dataclasses.fields(kind) if f.name not in _COMMON]
    return attrgetter(*fields) if fields else (lambda _: ())
