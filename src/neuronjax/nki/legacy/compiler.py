"""`neuronxcc.nki.compiler`: explicit allocation, and hints for the compiler.

An explicitly allocated tile lies at its address. Two such tiles that overlap in address
and lifetime are an error here; the vendor's compiler may instead compute with
overwritten data (NKI Direct Allocation Developer Guide, "Lifetime Conflicts"). The
vendor does not allow automatically allocated tiles in such kernels; here they are
allowed.
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

# Bytes of a bank in a partition (NKI Direct Allocation Guide, "Known Limitations").
BANK_BYTES = 2048

# A function of (idx=, pdim_size=, fdim_size=) that returns an address.
Place = Callable[..., tuple[int, ...]]

_automatic: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "automatic", default=False
)


class Allocated:
    """A `buffer=` value with a function from a block's index to its tile's address.

    Args:
        region: SBUF or PSUM.
        place: a function of a block index `idx`, `pdim_size` partitions and `fdim_size`
            bytes of each, passed by these names, that returns (partition, byte), or in
            PSUM (bank, partition, byte).
    """

    def __init__(self, region: MemoryRegion, place: Place) -> None:
        self.region, self._place = region, place

    def __str__(self) -> str:
        return str(self.region)

    def address(
        self, index: tuple[int, ...], partitions: int, nbytes: int
    ) -> tuple[int, int] | None:
        """Return (partition, byte within it), or None within `force_auto_alloc`."""
        if _automatic.get():
            return None
        address = self._place(idx=index, pdim_size=partitions, fdim_size=nbytes)
        parts = ["bank"] * (self.region.value == "psum") + ["partition", "byte"]
        if not isinstance(address, tuple) or len(address) != len(parts):
            refuse(
                f"{self.region}.alloc",
                f"the allocation function returns {address!r} for block {index}",
                f"return ({', '.join(parts)})",
            )
        *bank, partition, byte = (int(n) for n in address)
        return partition, byte + (bank[0] * BANK_BYTES if bank else 0)


def address_of(
    buffer: Any, index: tuple[int, ...], partitions: int, nbytes: int
) -> tuple[int, int] | None:
    """Return the address of a tile if its `buffer=` fixes one, else None.

    The older compiler traces a loop's body once; here the body runs in every iteration.
    If the body increases an address, a later address may be outside the memory. Then
    return None, if an earlier address of the same line was inside."""
    if not isinstance(buffer, Allocated):
        return None
    address = buffer.address(index, partitions, nbytes)
    if address is None:
        return None
    trace = tracing.current()
    lines = trace.notes.setdefault("lines with an address inside the memory", set())
    line = (str(user_line()), index)
    if address[1] + nbytes <= capacity(trace.core, str(buffer)):
        lines.add(line)
    elif line in lines:
        return None
    return address


class _MemoryAllocator:
    def __init__(self, region: MemoryRegion) -> None:
        self._region = region

    def alloc(self, func: Place) -> Allocated:
        """Return an allocation at the addresses that a function returns."""
        return Allocated(self._region, func)

    def auto_alloc(self) -> MemoryRegion:
        """Return the memory, in which addresses are chosen automatically."""
        return self._region

    def _modulo(
        self, bases: tuple[int, ...], counts: tuple[Sequence[int], ...]
    ) -> Allocated:
        """Return an allocation from `bases` that repeats after `counts` tiles."""

        def place(
            idx: tuple[int, ...], pdim_size: int, fdim_size: int
        ) -> tuple[int, ...]:
            sizes = (1, pdim_size, fdim_size)[-len(bases) :]
            each = zip(bases, counts, sizes, strict=True)
            return tuple(base + _physical(idx, n) * size for base, n, size in each)

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
        """Return an allocation of block i at tile i modulo the number of tiles."""
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
        """Return an allocation whose banks, partitions and addresses each repeat after
        as many blocks as their count of tiles says."""
        counts = num_bank_tiles, num_par_tiles, num_free_tiles
        return self._modulo((base_bank, base_partition, base_addr), counts)


def _physical(index: tuple[int, ...], counts: Sequence[int]) -> int:
    """Return the number of a block's physical tile; without counts there is one tile. A
    tensor without blocks may have counts: public kernels reserve memory that way."""
    sizes = (tuple(counts) if index else ()) or (1,) * len(index)
    if len(sizes) != len(index):
        refuse(
            "mod_alloc",
            f"{len(sizes)} counts of tiles for {len(index)} block dimensions",
            "give one count per block dimension",
        )
    each = [n % size for n, size in zip(index, sizes, strict=True)]
    return sum(n * prod(sizes[d + 1 :]) for d, n in enumerate(each))


sbuf = _SbufAllocator(MemoryRegion.sbuf)
psum = _PsumAllocator(MemoryRegion.psum)


def force_auto_alloc(func: Callable[..., Any] | None = None) -> Any:
    """Decorate a kernel so that its explicit addresses are ignored."""
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


# ---- Options about automatic addresses and the order of instructions, which change no
# value: instructions are always in the order of the text.


def enable_stack_allocator(
    func: Callable[..., Any] | None = None, log_level: int = 50
) -> Any:
    """Return `func` unchanged, or without `func` a decorator that does."""
    return (lambda f: f) if func is None else func


def skip_middle_end_transformations(func: Callable[..., Any] | None = None) -> Any:
    """Return `func` unchanged, or without `func` a decorator that does."""
    return (lambda f: f) if func is None else func


@contextlib.contextmanager
def allocation_scope() -> Iterator[None]:
    """Do nothing: only the vendor keeps tiles until the block ends."""
    yield


def multi_buffer(factor: int = 2) -> int:
    """Return how many buffers a tile has; values do not depend on it."""
    return factor
