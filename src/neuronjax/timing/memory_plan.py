"""The memory plan of a program: transfers of regions, and the memory of values.

Bytes are those of a logical core.
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
    """A transfer, and its relation to the tiles of its region.

    Attributes:
        value: the number, in the block, of the value that is moved.
        is_whole: whether the first tile needs the whole transfer; if not, each tile
            needs a part.
    """

    transfer: Transfer
    value: int
    is_whole: bool


@dataclass(slots=True, eq=False)
class Unit:
    """A region and its transfers.

    Attributes:
        region: the steps.
        movements: reads and writes of HBM.
        sbuf_bytes: bytes of SBUF in use while the region runs.
        passes: how often `region.whole` is loaded; 1 if it fits in SBUF.
        blocks: the number of row blocks, each loaded after the previous one is computed
            (see `divide`); 1 if tiles are loaded while other tiles are computed.
        copies: copies of `region.whole`: one per physical core if cores divide rows.
        inner: plans of the blocks of a loop, branch, call or Spmd.
        resident: positions of the carries of a loop that stay in SBUF.
        by_dma: whether the region consists only of its movements.
        turned: matmul operands that the array transposes first, as (index of the step,
            position).
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
        in_hbm: by value, the first and the last unit during which HBM has the value.
        from_psum: matmul results that steps read in PSUM, without a copy to SBUF.
        updated: by updated value, the argument in HBM whose slices the update replaces.
        last_use: by value in memory, the last unit that reads it.
    """

    fused: Fused
    units: list[Unit]
    in_hbm: dict[int, tuple[int, int]] = field(default_factory=dict)
    from_psum: set[int] = field(default_factory=set)
    updated: Mapping[int, int] = field(default_factory=dict)
    last_use: Mapping[int, int] = field(default_factory=dict)

    def transfers(self) -> Iterator[Transfer]:
        """Yield all transfers, also of nested blocks, each once."""
        for unit in self.units:
            for movement in unit.movements:
                yield movement.transfer
            for plan in unit.inner:
                yield from plan.transfers()


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in HBM.

    Attributes:
        name: an argument's pytree path, else the user's line that computes the tensor.
        bytes: its size on one device.
        category: its purpose, such as "parameters" or "activations".
    """

    name: str
    bytes: int
    category: Category
    type: str


@dataclass(frozen=True, slots=True)
class HbmPeak:
    """The peak use of HBM.

    Attributes:
        categories: bytes by category at the peak.
        biggest: the biggest tensors at the peak, the biggest first.
        usage: bytes in use after every unit of main.
        temporaries: by category, the bytes of `usage` that are not arguments.
    """

    bytes: int
    categories: Mapping[Category, int]
    biggest: tuple[Tensor, ...]
    usage: tuple[int, ...]
    temporaries: Mapping[Category, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPlan:
    """The plan of a program's memory.

    Attributes:
        main: the plan of the entry block, which contains the plans of nested blocks.
        hbm: the peak use of HBM.
        arguments: tensors of main's arguments, with their names.
        notes: differences between the planned program and the given one.
    """

    main: BlockPlan
    hbm: HbmPeak
    arguments: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()

    def _bytes(self, *reasons: Reason) -> int:
        return sum(t.bytes for t in self.main.transfers() if t.reason in reasons)

    @property
    def spill_save_bytes(self) -> int:
        """Return the bytes of spilled values; each loop counts as one iteration."""
        return self._bytes("spill_save")

    @property
    def spill_reload_bytes(self) -> int:
        """Return the bytes of reloaded values; each loop counts as one iteration."""
        return self._bytes("spill_reload")

    @property
    def hbm_read_bytes(self) -> int:
        """Return the bytes of all reads; each loop counts as one iteration."""
        return sum(t.bytes for t in self.main.transfers() if t.is_read)

    @property
    def hbm_write_bytes(self) -> int:
        """Return the bytes of all writes; each loop counts as one iteration."""
        return sum(t.bytes for t in self.main.transfers() if not t.is_read)

    @property
    def sbuf_peak_bytes(self) -> int:
        """Return the most bytes that are in SBUF at a time."""
        return _sbuf_peak(self.main)


def _sbuf_peak(plan: BlockPlan) -> int:
    own = max((u.sbuf_bytes for u in plan.units), default=0)
    return max([own, *(_sbuf_peak(p) for u in plan.units for p in u.inner)])


def bytes_over(spans: Iterable[tuple[int, int, int]], count: int) -> list[int]:
    """Return the bytes in use at each of `count` positions.

    A span is (first position, last position, bytes)."""
    change = [0] * (count + 1)
    for first, last, size in spans:
        change[first] += size
        change[min(last + 1, count)] -= size
    return list(accumulate(change))[:count]


class SbufContents(dict[int, int]):
    """The bytes in SBUF, by value and in total. Values expire after their last use."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._leaving: dict[int, list[int]] = {}

    def add(self, value: int, size: int, last: int) -> None:
        """Add a value, to be removed after unit `last`."""
        if value not in self:
            self[value] = size
            self.total += size
            self._leaving.setdefault(last, []).append(value)

    def remove(self, value: int) -> int:
        size = self.pop(value)
        self.total -= size
        return size

    def expire(self, n: int) -> None:
        for value in self._leaving.pop(n, ()):
            if value in self:
                self.remove(value)

    def besides(self, values: Iterable[int]) -> int:
        """Return the bytes of all values in SBUF except `values`."""
        return self.total - sum(self.get(v, 0) for v in values)
