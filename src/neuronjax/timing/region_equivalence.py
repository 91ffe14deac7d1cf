"""Which regions are equivalent: the same steps on the same kinds of tensors.

The layers of a model differ in the numbers of their values alone. What depends on
nothing but the steps of a region is found out for the first of those that are
equivalent: they get one number, and each its values in the order of their first
mention, so that what was found of one can be said of another: `KnownRegions` has it.
Bytes are those of a logical core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from neuronjax.ir.instruction import Instruction
from neuronjax.timing.division import copies, row_copies, working_bytes
from neuronjax.timing.fused import Fused, FusedStep, TiledRegion
from neuronjax.timing.layout import contracts_late, parts_read, psum_results
from neuronjax.timing.tiling import accumulated_bytes, needed_bytes
from neuronjax.timing.work import Core

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
        """Sets `key` and `values` of regions, control flow and collectives left out."""
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
            step.masked,
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


# -- facts -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """What follows from a region's steps.

    Attributes:
        late: by step, positions of operands whose contracted axis is not the leading
            one.
        in_psum: matmul results that are read out of PSUM.
        parts: of values from outside: which part is read, and whether transposed.
        copies: of whole operands, one for every physical core with rows of its own.
        row_copies: how many physical cores read all that comes with the rows.
        sums: bytes of sums over its rows.
        whole: bytes of whole operands, once.
    """

    matmuls: tuple[int, ...]
    late: Mapping[int, tuple[int, ...]]
    in_psum: tuple[int, ...]
    parts: Mapping[int, tuple[float, bool]]
    copies: int
    row_copies: int
    sums: int
    whole: int

    def part(self, region: TiledRegion, value: int) -> tuple[float, bool] | None:
        """Which part of a value a region reads, and whether it does so transposed."""
        return self.parts.get(region.values.index(value))


class KnownRegions:
    """Facts on regions of one program, for one core."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._facts: dict[int, RegionFacts] = {}
        self._working: dict[tuple, int] = {}

    def facts(self, fused: Fused, region: TiledRegion) -> RegionFacts:
        """What follows from a region's steps."""
        found = self._facts.get(region.key)
        if found is None:
            found = self._facts[region.key] = _facts(fused, region, self.core)
        return found

    def working_bytes(
        self, fused: Fused, region: TiledRegion, turned: tuple[tuple[int, int], ...]
    ) -> int:
        """SBUF for a region's tiles in flight."""
        found = self._working.get((region.key, turned))
        if found is None:
            steps = {region.steps[n] for n, position in turned if position == 0}
            found = working_bytes(fused, region, self.core, steps)
            self._working[region.key, turned] = found
        return found


def _facts(fused: Fused, region: TiledRegion, core: Core) -> RegionFacts:
    place = {value: n for n, value in enumerate(region.values)}
    matmuls = [n for n, step in enumerate(region.steps) if step.form == "matmul"]
    late: dict[int, tuple[int, ...]] = {}
    for n in matmuls:
        step = region.steps[n]
        positions = range(min(2, len(step.operands)))
        late[n] = tuple([p for p in positions if contracts_late(fused, step, p)])
    return RegionFacts(
        matmuls=tuple(matmuls),
        late=late,
        in_psum=tuple(sorted(place[v] for v in psum_results(fused, region))),
        parts={place[v]: part for v, part in parts_read(fused, region).items()},
        copies=copies(fused, region, core),
        row_copies=row_copies(fused, region, core),
        sums=accumulated_bytes(fused, region),
        whole=sum(needed_bytes(fused, region, v) for v in region.whole),
    )
