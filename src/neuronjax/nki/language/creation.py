"""Tensors: `ndarray`, `zeros`, `load`, `store`, and slices `ds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.indexing import DynamicSlice
from neuronjax.nki.isa import dma_copy, memset
from neuronjax.nki.language.grids import par_dim
from neuronjax.nki.memory import MemoryRegion
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """Return a new tensor with undefined contents.

    Args:
        shape: on chip, partitions first.
        dtype: of nki.language.
        buffer: nl.sbuf, nl.psum, nl.private_hbm or nl.shared_hbm.
        name: for messages and the profile.
        address: (partition, byte offset in the partition) to place it there.
    """
    marked = [n for n, size in enumerate(shape) if isinstance(size, par_dim)]
    if marked and marked != [0]:
        refuse(
            "nl.ndarray",
            f"par_dim in dimension {marked[-1]}",
            "put the partition dimension first; write block dimensions as a list of "
            "tiles",
        )
    storage = tracing.current().allocate(shape, dtype, buffer, name, address)
    return NkiTensor(storage.shape, storage.dtype, storage, name=name)


def zeros(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Return a new tensor filled with zeros."""
    tile = ndarray(shape, dtype, buffer, name)
    memset(tile, 0)
    return tile


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a tensor of HBM as a new tile in SBUF."""
    shape = src.shape if src.ndim > 1 else (1, *src.shape)
    tile = ndarray(shape, dtype or src.dtype)
    dma_copy(tile, src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy a tile to HBM."""
    dma_copy(dst, value)


def ds(start: Any, size: int) -> DynamicSlice:
    """Return the slice of `size` elements from `start`, which may be a register."""
    return DynamicSlice(start, size)
