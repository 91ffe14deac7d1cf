"""Properties of operands that rules use: memory, bytes, and text for messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import Access, KernelInstruction

# Engines that read and write SBUF and PSUM through lanes, one per partition.
LANES = frozenset({"tensor", "vector", "scalar", "gpsimd"})


class OperandAccess(NamedTuple):
    """An access of an instruction."""

    label: str  # "dst", "output 1", "input 0" and so on
    access: Access  # the view
    written: bool  # whether it is an output


def operands(i: KernelInstruction) -> Iterator[OperandAccess]:
    """Yield the outputs, then the inputs, except registers and engine states."""
    for n, access in enumerate(i.outputs):
        if access.storage.memory != "registers":
            yield OperandAccess("dst" if n == 0 else f"output {n}", access, True)
    for n, access in enumerate(i.inputs):
        if isinstance(access, Access) and access.storage.memory != "registers":
            yield OperandAccess(f"input {n}", access, False)


def tensor_inputs(i: KernelInstruction) -> list[Access | None]:
    """Return the inputs in the order of the arguments, None for each non-tensor."""
    remaining = iter(i.inputs)
    tensors: list[Access | None] = []
    for form in i.forms:
        value = next(remaining) if form in "tr" else None
        tensors.append(value if isinstance(value, Access) else None)
    return tensors


def partition_elements(a: Access) -> int:
    """Return how many elements of the access's dtype a partition of its storage has."""
    storage = a.storage
    nbytes = storage.free_size * dtypes.itemsize(storage.dtype)
    return max(nbytes // dtypes.itemsize(a.dtype), 1)


def start_partition(a: Access) -> int:
    """Return the view's first partition; a storage without an address starts at 0."""
    base = a.storage.address[0] if a.storage.address else 0
    return base + a.offset // partition_elements(a)


def byte_range(a: Access) -> tuple[int, int]:
    """Return the view's first and last byte in a partition; a storage without an
    address starts at byte 0."""
    base = a.storage.address[1] if a.storage.address else 0
    size = dtypes.itemsize(a.dtype)
    first = a.offset % partition_elements(a)
    last = first + sum(stride * (count - 1) for stride, count in a.pattern[1:])
    return base + first * size, base + (last + 1) * size - 1


def free_size(a: Access) -> int:
    """Return the view's elements per partition."""
    return a.size // a.pattern[0][1]


def text(a: Access) -> str:
    """Return dtype, shape, memory and name for messages."""
    name = f" {a.storage.name!r}" if a.storage.name else ""
    return f"{a.dtype}{list(a.shape)}{name} in {a.storage.memory}"
