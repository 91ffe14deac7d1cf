"""The plan of a block: its regions, what moves for each, and what is where.

Made by `timing.residence`, read by `timing.hbm`, `timing.pricing` and
`timing.schedule`. Bytes are those of a logical core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from neuronjax.timing.fusion import Fused
from neuronjax.timing.tiling import Region
from neuronjax.timing.work import Transfer


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """A transfer, and how it goes with the tiles of its region.

    Attributes:
        transfer: what moves.
        value: number of the value in the block.
        is_whole: the first tile needs all of it; else it comes tile by tile.
    """

    transfer: Transfer
    value: int
    is_whole: bool


@dataclass(slots=True, eq=False)
class Unit:
    """A region and what moves for it.

    Attributes:
        region: its steps.
        movements: reads and writes of HBM.
        sbuf_bytes: of SBUF, while it runs: tiles, whole operands, other residents.
        passes: how often whole operands that do not fit stream by.
        blocks: of rows that follow each other, the next one's loads waiting for the
            room of the last; 1 where there is room for tiles that overlap.
        halves: parts of the columns that the rows pass by for, where sums over the rows
            do not fit in half of SBUF.
        copies: of whole operands, one for every physical core that has rows of its own.
        inner: plans of the blocks of a loop, branch, call or Spmd.
        resident: positions of a loop's carry that stay in SBUF.
        by_dma: whether the movements are all there is to do.
        turned: operands of matmuls that the array transposes first, by the index of
            the step and their position.
    """

    region: Region
    movements: list[Movement] = field(default_factory=list)
    sbuf_bytes: int = 0
    passes: int = 1
    blocks: int = 1
    copies: int = 1
    halves: int = 1
    inner: tuple[BlockPlan, ...] = ()
    resident: frozenset[int] = frozenset()
    by_dma: bool = False
    turned: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, eq=False)
class BlockPlan:
    """The plan of a block.

    Attributes:
        fused: its steps.
        units: in order.
        in_hbm: values in HBM: from which unit to which.
        from_psum: matmul results that are read out of PSUM, never copied.
    """

    fused: Fused
    units: list[Unit]
    in_hbm: dict[int, tuple[int, int]]
    from_psum: set[int]

    def transfers(self) -> Iterator[Transfer]:
        """All transfers, nested blocks included, each as often as it is planned."""
        for unit in self.units:
            for movement in unit.movements:
                yield movement.transfer
            for plan in unit.inner:
                yield from plan.transfers()
