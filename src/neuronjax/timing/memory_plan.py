"""The memory plan of a program: what moves for each region, and what is where.

Made by `memory`, `sbuf_allocation` and `hbm`; read by pricing, by the schedule and by
reports. Bytes are those of a logical core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, get_args

from neuronjax.timing.fused import Fused, TiledRegion
from neuronjax.timing.work import Reason, Transfer

Category = Literal[
    "parameters", "optimizer state", "inputs", "activations", "workspace", "outputs"
]
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """A transfer, and how it goes with the tiles of its region.

    Attributes:
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
        copies: of whole operands, one for every physical core that has rows of its own.
        inner: plans of the blocks of a loop, branch, call or Spmd.
        resident: positions of a loop's carry that stay in SBUF.
        by_dma: whether the movements are all there is to do.
        turned: operands of matmuls that the array transposes first, by the index of
            the step and their position.
    """

    region: TiledRegion
    movements: list[Movement] = field(default_factory=list)
    sbuf_bytes: int = 0
    passes: int = 1
    blocks: int = 1
    copies: int = 1
    inner: tuple[BlockPlan, ...] = ()
    resident: frozenset[int] = frozenset()
    by_dma: bool = False
    turned: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, eq=False)
class BlockPlan:
    """The plan of a block.

    Attributes:
        in_hbm: values in HBM: from which unit to which.
        from_psum: matmul results that are read out of PSUM, never copied.
        updated: arguments in HBM with some slices replaced, and which arguments.
        last_use: of every value from outside a unit, the last unit that reads it.
    """

    fused: Fused
    units: list[Unit]
    in_hbm: dict[int, tuple[int, int]] = field(default_factory=dict)
    from_psum: set[int] = field(default_factory=set)
    updated: Mapping[int, int] = field(default_factory=dict)
    last_use: Mapping[int, int] = field(default_factory=dict)

    def transfers(self) -> Iterator[Transfer]:
        """All transfers, nested blocks included, each as often as it is planned."""
        for unit in self.units:
            for movement in unit.movements:
                yield movement.transfer
            for plan in unit.inner:
                yield from plan.transfers()


@dataclass(frozen=True, slots=True)
class Tensor:
    """Something in HBM.

    Attributes:
        name: pytree path of an argument, or the user's line that made it.
        bytes: its size on one device.
        category: what it is for.
    """

    name: str
    bytes: int
    category: Category
    type: str


@dataclass(frozen=True, slots=True)
class HbmPeak:
    """HBM when it is fullest.

    Attributes:
        categories: bytes by what they are for.
        biggest: the biggest tensors then, the biggest first.
        usage: bytes after every unit of main, for a picture over time.
        temporaries: of them, what is not there all the time, by what it is for.
    """

    bytes: int
    categories: Mapping[Category, int]
    biggest: tuple[Tensor, ...]
    usage: tuple[int, ...]
    temporaries: Mapping[Category, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPlan:
    """Where the tensors of a program are.

    Attributes:
        main: the plan of the entry block; others are nested in it.
        hbm: peak of HBM.
        arguments: tensors of main's arguments, by their names.
        notes: what is planned in another form than the program has.
    """

    main: BlockPlan
    hbm: HbmPeak
    arguments: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()

    def _bytes(self, *reasons: Reason) -> int:
        return sum(t.bytes for t in self.main.transfers() if t.reason in reasons)

    @property
    def spill_save_bytes(self) -> int:
        """Written to HBM for want of SBUF, every loop counted once."""
        return self._bytes("spill_save")

    @property
    def spill_reload_bytes(self) -> int:
        """What was saved and is read again, every loop counted once."""
        return self._bytes("spill_reload")

    @property
    def hbm_read_bytes(self) -> int:
        """All reads, every loop counted once."""
        return sum(t.bytes for t in self.main.transfers() if t.is_read)

    @property
    def hbm_write_bytes(self) -> int:
        """All writes, every loop counted once."""
        return sum(t.bytes for t in self.main.transfers() if not t.is_read)

    @property
    def sbuf_peak_bytes(self) -> int:
        """The most that is in SBUF at a time."""
        return _sbuf_peak(self.main)


def _sbuf_peak(plan: BlockPlan) -> int:
    own = max((u.sbuf_bytes for u in plan.units), default=0)
    return max([own, *(_sbuf_peak(p) for u in plan.units for p in u.inner)])


def bytes_over(spans: Iterable[tuple[int, int, int]], places: int) -> list[int]:
    """Return the bytes that are held at each of so many places in order.

    A span is the first place, the last place and the bytes of what is there."""
    change = [0] * (places + 1)
    for first, last, size in spans:
        change[first] += size
        change[min(last + 1, places)] -= size
    return list(accumulate(change))[:places]


class SbufContents(dict[int, int]):
    """Bytes of the values in SBUF, and of all together; it knows when they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._leaving: dict[int, list[int]] = {}

    def hold(self, value: int, size: int, last: int) -> None:
        """Takes a value in, until after unit `last`."""
        if value not in self:
            self[value] = size
            self.total += size
            self._leaving.setdefault(last, []).append(value)

    def let_go(self, value: int) -> int:
        """Takes a value out; its bytes."""
        size = self.pop(value)
        self.total -= size
        return size

    def expire(self, n: int) -> None:
        """Takes out what was there until after unit n."""
        for value in self._leaving.pop(n, ()):
            if value in self:
                self.let_go(value)

    def besides(self, values: Iterable[int]) -> int:
        """Bytes of all values in SBUF but these."""
        return self.total - sum(self.get(v, 0) for v in values)
