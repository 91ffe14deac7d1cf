"""The memory plan of a program: what each region transfers, and what memory holds.

A *value* is the number of a tensor of a block, as in `fused`. A *unit* is a region
(steps that run tile by tile) with its transfers. Bytes are those of a logical core.
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
    """A transfer of a region, and how the region's tiles depend on it.

    Attributes:
        value: the number of the block's tensor that is moved.
        is_whole: whether the first tile needs all bytes of the transfer; if not, each
            tile reads or writes a part of them.
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
        passes: how often `region.whole`, the operands that every tile needs completely,
            are loaded; 1 if they fit in SBUF.
        blocks: the number of row blocks, each loaded after the previous block is
            computed (see `divide`); 1 if each tile is loaded while the previous tile is
            computed.
        copies: the number of copies of `region.whole` in SBUF: one per physical core if
            the cores share the rows, else one.
        inner: for a loop, branch, call or Spmd, the plans of its blocks.
        resident: for a loop, the positions of the carried tensors that stay in SBUF.
        by_dma: whether the transfers in `movements` do all the work of the region.
        turned: matmul operands that TensorE transposes first, each as (index of the
            step, position of the operand).
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
    """The memory plan of a block. A *value* is the number of a tensor of the block.

    Attributes:
        units: the block's regions with their transfers, in order.
        in_hbm: by value, the indices of the first and of the last unit during which HBM
            has the value.
        from_psum: matmul results that steps read in PSUM, without a copy to SBUF.
        updated: by result of an update of slices, the argument in HBM that the update
            changes in place.
        last_use: by value in memory, the index of the last unit that reads the value.
    """

    fused: Fused
    units: list[Unit]
    in_hbm: dict[int, tuple[int, int]] = field(default_factory=dict)
    from_psum: set[int] = field(default_factory=set)
    updated: Mapping[int, int] = field(default_factory=dict)
    last_use: Mapping[int, int] = field(default_factory=dict)

    def transfers(self) -> Iterator[Transfer]:
        """Yield the transfers of the block and of nested blocks. Those of a loop's body
        are yielded once, not for each iteration."""
        for unit in self.units:
            for movement in unit.movements:
                yield movement.transfer
            for plan in unit.inner:
                yield from plan.transfers()


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in HBM.

    Attributes:
        name: an argument's pytree path; for any other tensor, the user's line that
            computes the tensor.
        bytes: the tensor's size on one device.
        category: the tensor's purpose, such as "parameters" or "activations".
        type: the shape and the dtype, as text.
    """

    name: str
    bytes: int
    category: Category
    type: str


@dataclass(frozen=True, slots=True)
class HbmPeak:
    """The peak use of HBM, and the use during each unit of a plan.

    Attributes:
        bytes: bytes in use at the peak.
        categories: bytes by category at the peak.
        biggest: the biggest tensors at the peak, the biggest first.
        usage: by unit, the bytes in use while the unit runs.
        temporaries: by category, then by unit, the bytes in use without the arguments.
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
        arguments: the arguments of the entry block.
        notes: how the program that is planned differs from the given program.
    """

    main: BlockPlan
    hbm: HbmPeak
    arguments: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()

    def _bytes(self, *reasons: Reason) -> int:
        return sum(t.bytes for t in self.main.transfers() if t.reason in reasons)

    @property
    def spill_save_bytes(self) -> int:
        """Return the bytes of spills to HBM. Each loop counts as one iteration."""
        return self._bytes("spill_save")

    @property
    def spill_reload_bytes(self) -> int:
        """Return the bytes of spilled values that are read again from HBM. Each loop
        counts as one iteration."""
        return self._bytes("spill_reload")

    @property
    def hbm_read_bytes(self) -> int:
        """Return the bytes of all reads from HBM. Each loop counts as one iteration."""
        return sum(t.bytes for t in self.main.transfers() if t.is_read)

    @property
    def hbm_write_bytes(self) -> int:
        """Return the bytes of all writes to HBM. Each loop counts as one iteration."""
        return sum(t.bytes for t in self.main.transfers() if not t.is_read)

    @property
    def sbuf_peak_bytes(self) -> int:
        """Return the most bytes that are in SBUF at a time."""
        return _sbuf_peak(self.main)


def _sbuf_peak(plan: BlockPlan) -> int:
    own = max((u.sbuf_bytes for u in plan.units), default=0)
    return max([own, *(_sbuf_peak(p) for u in plan.units for p in u.inner)])


def bytes_over(spans: Iterable[tuple[int, int, int]], count: int) -> list[int]:
    """Return the bytes in use at each of `count` successive positions, such as units.

    Each of `spans` is (first position, last position, bytes) of a tensor that is in
    memory from the first to the last position."""
    change = [0] * (count + 1)
    for first, last, size in spans:
        change[first] += size
        change[min(last + 1, count)] -= size
    return list(accumulate(change))[:count]


class SbufContents(dict[int, int]):
    """The tensors in SBUF: by value (the number of a tensor), its bytes.

    `total` is the sum of these bytes. `expire` removes tensors after their last use."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._leaving: dict[int, list[int]] = {}

    def add(self, value: int, size: int, last: int) -> None:
        """Add a value of `size` bytes, which `expire(last)` will remove; `last` is the
        index of a unit."""
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
