"""`neuronxcc.nki.compiler`: explicit allocation, and hints of the compiler.

A tile of an explicit allocation lies at its address: two that are alive at once and
overlap are an error, where the vendor's compiler may compute with what was overwritten
(NKI Direct Allocation Developer Guide, "Lifetime Conflicts"). That such kernels may
hold no automatically allocated tile is not required here.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from neuronjax.errors import user_line
from neuronjax.nki import trace as tracing
from neuronjax.nki.kernel import Kernel
from neuronjax.nki.language.movement import no_reorder as no_reorder
from neuronjax.nki.limits.addresses import capacity
from neuronjax.nki.memory import MemoryRegion
from neuronjax.nki.refusing import refuse

BANK_BYTES = 2048  # of a partition (NKI Direct Allocation Guide, "Known Limitations")

# Of (idx=, pdim_size=, fdim_size=).
Place = Callable[..., tuple[int, ...]]

_automatic: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "automatic", default=False
)


class Allocated:
    """A `buffer=`: a memory, and where in it the tile of a block index lies.

    Args:
        region: SBUF or PSUM.
        place: of a block index `idx`, `pdim_size` partitions and `fdim_size` bytes of
            each, given by these names: (partition, byte), in PSUM (bank, partition,
            byte).
    """

    def __init__(self, region: MemoryRegion, place: Place) -> None:
        self.region, self._place = region, place

    def __str__(self) -> str:
        return str(self.region)

    def address(
        self, index: tuple[int, ...], partitions: int, nbytes: int
    ) -> tuple[int, int] | None:
        """(partition, byte in it); None within `force_auto_alloc`.

        Raises:
            InvalidProgramError: the allocation function returns no address.
        """
        if _automatic.get():
            return None
        found = self._place(idx=index, pdim_size=partitions, fdim_size=nbytes)
        parts = ("bank", "partition", "byte")[
            -2 if self.region.value == "sbuf" else 0 :
        ]
        if not isinstance(found, tuple) or len(found) != len(parts):
            refuse(
                f"{self.region}.alloc",
                f"the allocation function returns {found!r} for block {index}",
                f"it must return ({', '.join(parts)})",
            )
        *bank, partition, byte = (int(n) for n in found)
        return partition, byte + (bank[0] * BANK_BYTES if bank else 0)


def address_of(
    buffer: Any, index: tuple[int, ...], partitions: int, nbytes: int
) -> tuple[int, int] | None:
    """The address of a tile, if its `buffer=` fixes it.

    The older compiler traces a loop's body once, here it runs at every turn: where a
    kernel counts addresses up inside, those of later turns leave the memory. A line
    that began within it gets an automatic address then.
    """
    if not isinstance(buffer, Allocated):
        return None
    found = buffer.address(index, partitions, nbytes)
    if found is None:
        return None
    trace = tracing.current()
    lines = trace.notes.setdefault("lines of addresses within their memory", set())
    line = (str(user_line()), index)
    if found[1] + nbytes <= capacity(trace.core, str(buffer)):
        lines.add(line)
    elif line in lines:
        return None
    return found


class _MemoryAllocator:
    def __init__(self, region: MemoryRegion) -> None:
        self._region = region

    def alloc(self, func: Place) -> Allocated:
        """Tiles where the function of (block index, partitions, bytes) says."""
        return Allocated(self._region, func)

    def auto_alloc(self) -> MemoryRegion:
        """The memory: an address is found."""
        return self._region

    def _modulo(
        self, bases: tuple[int, ...], counts: tuple[Sequence[int], ...]
    ) -> Allocated:
        """Tiles behind the bases of (bank, in PSUM alone), partition and byte."""

        def place(
            idx: tuple[int, ...], pdim_size: int, fdim_size: int
        ) -> tuple[int, ...]:
            sizes = (1, pdim_size, fdim_size)[-len(bases) :]
            each = zip(bases, counts, sizes, strict=True)
            return tuple(base + _turn(idx, n) * size for base, n, size in each)

        return Allocated(self._region, place)


class _SbufAllocator(_MemoryAllocator):
    def mod_alloc(
        self,
        *,
        base_addr: int,
        base_partition: int = 0,
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> Allocated:
        """Block i at tile i modulo the numbers of tiles along partitions and bytes."""
        counts = num_par_tiles, num_free_tiles
        return self._modulo((base_partition, base_addr), counts)


class _PsumAllocator(_MemoryAllocator):
    def mod_alloc(
        self,
        *,
        base_bank: int,
        base_addr: int = 0,
        base_partition: int = 0,
        num_bank_tiles: Sequence[int] = (),
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> Allocated:
        """Block i at bank i modulo the number of banks, and so within a bank."""
        counts = num_bank_tiles, num_par_tiles, num_free_tiles
        return self._modulo((base_bank, base_partition, base_addr), counts)


def _turn(index: tuple[int, ...], counts: Sequence[int]) -> int:
    """The physical tile of a block, one number; without counts there is one.

    A tensor without blocks may have counts: public kernels keep memory free that way.
    """
    sizes = (tuple(counts) if index else ()) or (1,) * len(index)
    if len(sizes) != len(index):
        refuse(
            "mod_alloc",
            f"{len(sizes)} numbers of tiles for {len(index)} block dimensions",
            "give one per block dimension",
        )
    each = [n % size for n, size in zip(index, sizes, strict=True)]
    return sum(n * prod(sizes[d + 1 :]) for d, n in enumerate(each))


sbuf = _SbufAllocator(MemoryRegion.sbuf)
psum = _PsumAllocator(MemoryRegion.psum)


def force_auto_alloc(func: Callable[..., Any] | None = None) -> Any:
    """A decorator: the kernel's explicit addresses are ignored."""
    if func is None:
        return force_auto_alloc
    inner = func.function if isinstance(func, Kernel) else func

    @functools.wraps(inner)
    def function(*args: Any, **kwargs: Any) -> Any:
        token = _automatic.set(True)
        try:
            return inner(*args, **kwargs)
        finally:
            _automatic.reset(token)

    return func.with_function(function) if isinstance(func, Kernel) else function


# ---- Without effect on values: how tiles without an address are placed, and the order
# of instructions, which here is always that of the text.


def enable_stack_allocator(
    func: Callable[..., Any] | None = None, log_level: int = 50
) -> Any:
    """A decorator that leaves the kernel as it is."""
    return (lambda f: f) if func is None else func


def skip_middle_end_transformations(func: Callable[..., Any] | None = None) -> Any:
    """A decorator that leaves the kernel as it is."""
    return (lambda f: f) if func is None else func


@contextlib.contextmanager
def allocation_scope() -> Iterator[None]:
    """Tiles made inside die here: here each dies after its last use."""
    yield


def multi_buffer(factor: int = 2) -> int:
    """How many buffers of a tile there are; values do not depend on it."""
    return factor
