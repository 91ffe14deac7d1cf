"""Functions that make and move tiles, such as `full`, `matmul`, `transpose`, `rand`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.array_file import read_npy
from neuronjax.nki import layout, trace as tracing
from neuronjax.nki.documentation import describer
from neuronjax.nki.isa import (
    dma_copy,
    dma_transpose,
    dropout as isa_dropout,
    memset,
    nc_matmul,
    nc_n_gather,
    nc_transpose,
    rng,
    set_rng_seed,
    tensor_copy,
    tensor_scalar,
)
from neuronjax.nki.language.creation import ndarray
from neuronjax.nki.language.functions import copy
from neuronjax.nki.language.promotion import spread
from neuronjax.nki.memory import MemoryRegion
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor

_UINT32_SPAN = 2.0**-32

_described = describer(
    x="a tile",
    shape="the result's shape; on chip, partitions come first",
    dtype="of the result; by default that of x",
    buffer="the memory of the result",
    name="the result's name in messages and the profile",
)


@_described(fill_value="the number", dtype="of nki.language")
def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
) -> NkiTensor:
    """Return a new tensor filled with a number."""
    tile = ndarray(shape, dtype, buffer, name)
    memset(tile, fill_value)
    return tile


def ones(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Return a new tensor filled with ones."""
    return full(shape, 1, dtype, buffer, name)


def empty_like(
    x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = ""
) -> NkiTensor:
    """Return a new tensor with the shape of another and undefined contents."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def full_like(
    x: NkiTensor,
    fill_value: float,
    dtype: Any = None,
    buffer: Any = None,
    name: str = "",
) -> NkiTensor:
    """Return a new tensor with the shape of another, filled with a number."""
    return full(x.shape, fill_value, dtype or x.dtype, buffer or x.buffer, name)


def zeros_like(
    x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = ""
) -> NkiTensor:
    """Return a new tensor with the shape of another, filled with zeros."""
    return full_like(x, 0, dtype, buffer, name)


@_described(constant="a NumPy array, or the path of a .npy file")
def shared_constant(constant: Any) -> NkiTensor:
    """Return a tensor in shared HBM with data known when the kernel is traced."""
    if isinstance(constant, str | Path):
        constant = read_npy(Path(constant))
    data = np.ascontiguousarray(constant)
    dtype = dtypes.as_dtype(data.dtype)
    trace = tracing.current()
    bits = data.view(dtypes.info(dtype).carrier)
    storage = trace.allocate(data.shape, dtype, MemoryRegion.shared_hbm, initial=bits)
    return NkiTensor(storage.shape, dtype, storage)


@_described(
    n="rows and columns",
    dtype="of the elements",
    dst="the tile that receives the matrix; by default a new tile",
)
def shared_identity_matrix(
    n: int, dtype: Any = "uint8", dst: NkiTensor | None = None
) -> NkiTensor:
    """Return the identity matrix in SBUF, loaded from a constant."""
    name = dtypes.as_dtype(dtype)
    numeric = dtypes.info(name).numeric
    constant = shared_constant(np.eye(n, dtype=np.float32).astype(numeric))
    tile = ndarray((n, n), name) if dst is None else dst
    dma_copy(tile, constant)
    return tile


@_described(x="a tile of two dimensions")
def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a tile with partitions and free dimension exchanged.

    Tiles larger than 32 x 32 go through TensorE, so the result is in PSUM."""
    free = x.size // x.shape[0]
    small = x.shape[0] <= 32 and free <= 32
    region = MemoryRegion.sbuf if small else MemoryRegion.psum
    out = ndarray((free, x.shape[0]), x.dtype, region)
    nc_transpose(out, x)
    return _of_dtype(out, dtype)


@_described(
    x="a tile in SBUF, at most 128 x 128",
    y="a tile in SBUF, at most 128 x 512",
    transpose_x="whether the partitions of x are the contracted dimension; if not, "
    "TensorE transposes x first",
)
def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """Return x @ y in PSUM, in FP32."""
    if not transpose_x:
        x = copy(transpose(x))
    out = ndarray((x.shape[1], *y.shape[1:]), "float32", MemoryRegion.psum)
    nc_matmul(out, x, y)
    return out


@_described(src="a matrix in HBM", dtype="of the result; by default that of src")
def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a matrix of HBM as a transposed tile in SBUF."""
    tile = ndarray((src.shape[1], src.shape[0]), src.dtype)
    dma_transpose(tile, src)
    return _of_dtype(tile, dtype)


@_described(
    data="a tile in SBUF",
    indices="uint32, a tile in SBUF",
    axis="0; no other axis is supported",
    dtype="of the result; by default that of data",
)
def gather_flattened(
    data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None
) -> NkiTensor:
    """Return each partition's elements at `indices`, which number its free elements."""
    if axis:
        refuse(
            "nl.gather_flattened",
            f"axis {axis}",
            "use axis=0: an index counts through all free dimensions",
        )
    tile = ndarray(indices.shape, data.dtype)
    nc_n_gather(tile, data, indices)
    return _of_dtype(tile, dtype)


def expand_dims(x: NkiTensor, axis: int | Sequence[int]) -> NkiTensor:
    """Return a view with new dimensions of size 1."""
    for a in [axis] if isinstance(axis, int) else sorted(axis):
        x = x.expand_dim(a + x.ndim + 1 if a < 0 else a)
    return x


@_described(x="a tile in SBUF or PSUM", shape="the result's shape, of x's rank")
def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """Return a tile of a larger shape, in which dimensions of size 1 are repeated."""
    target = tuple(int(n) for n in shape)
    same = dtype is None or dtypes.as_dtype(dtype) == x.dtype
    if x.shape == target and same:
        return x
    if x.shape[0] == 1 < target[0] and x.ndim == len(target):
        x = over_partitions(x, target[0])
    out = ndarray(target, dtype or x.dtype)
    tensor_copy(out, spread(x, target))
    return out


def over_partitions(x: NkiTensor, count: int, **options: Any) -> NkiTensor:
    """Return a tile with the values of one partition in each of `count` partitions."""
    every = layout.Layout((count, *x.shape[1:]), (0, *x.strides[1:]), x.offset)
    out = ndarray(every.shape, x.dtype)
    dma_copy(out, x.with_layout(every), **options)
    return out


def _of_dtype(tile: NkiTensor, dtype: Any) -> NkiTensor:
    if dtype is None or dtypes.as_dtype(dtype) == tile.dtype:
        return tile
    return copy(tile, dtype)


@_described(seed="of shape (1, 1) and 32 bits, in SBUF or PSUM")
def random_seed(seed: NkiTensor) -> None:
    """Seed the generator of `rand`."""
    set_rng_seed(seed)


@_described(dtype="of nki.language")
def rand(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Return a new tensor filled with uniform numbers from 0 to 1."""
    bits = ndarray(shape, "uint32")
    rng(bits)
    out = ndarray(shape, dtype, buffer, name)
    tensor_scalar(out, bits, "multiply", _UINT32_SPAN)
    return out


@_described(rate="the probability of a zero: a number, or one per partition")
def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """Return a tile with some elements replaced by zeros."""
    tile = ndarray(x.shape, x.dtype)
    isa_dropout(tile, x, rate)
    return _of_dtype(tile, dtype)


@contextlib.contextmanager
def no_reorder() -> Iterator[None]:
    """Keep the instructions of the block in order, as neuronjax always does."""
    yield
