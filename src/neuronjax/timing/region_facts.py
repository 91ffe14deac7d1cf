"""What follows from the steps of a region alone, found once for equivalent regions.

Values are named by their places in `TiledRegion.values`, which equivalent regions
share. Bytes are those of a logical core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.timing.division import copies, row_copies, working_bytes
from neuronjax.timing.fused import Fused, TiledRegion
from neuronjax.timing.layout import contracts_late, parts_read, psum_results
from neuronjax.timing.tiling import accumulated_bytes, needed_bytes
from neuronjax.timing.work import Core


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """Of a region.

    Attributes:
        matmuls: indices of steps.
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
        """SBUF for a region's tiles in flight.

        Args:
            fused: its block.
            region: any.
            turned: operands that the array transposes, by step and position.
        """
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
