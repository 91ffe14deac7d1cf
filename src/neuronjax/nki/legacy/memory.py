"""Tensors of `neuronxcc.nki.language`: allocation, blocks, loads and stores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki import isa as new_isa, language as nl, trace as tracing
from neuronjax.nki.isa import oob_mode
from neuronjax.nki.language.grids import par_dim
from neuronjax.nki.legacy.blocks import BlockedTensor
from neuronjax.nki.legacy.compiler import address_of
from neuronjax.nki.legacy.hints import check_hints
from neuronjax.nki.legacy.masks import Box, box_of
from neuronjax.nki.legacy.results import dtype_name, new_tile
from neuronjax.nki.legacy.tiles import Tile
from neuronjax.nki.limits.engines import TRANSPOSES
from neuronjax.nki.memory import region_name


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    *,
    buffer: Any = None,
    name: str = "",
    **hints: Any,
) -> Tile:
    """Return a new tensor; dimensions before `par_dim` index blocks, each a tile."""
    return _memory(shape, dtype, buffer, name, None)


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: Any,
    *,
    buffer: Any = None,
    name: str = "",
    **hints: Any,
) -> Tile:
    """Return a new tensor filled with a number; blocks are filled at first use."""
    return _memory(shape, dtype, buffer, name, fill_value)


def _memory(
    shape: Sequence[int], dtype: Any, buffer: Any, name: str, value: float | None
) -> Tile:
    sizes = [int(s) for s in shape]
    marked = [n for n, s in enumerate(shape) if isinstance(s, par_dim)]
    region = "sbuf" if buffer is None else region_name(buffer)
    on_chip = region in ("sbuf", "psum")
    at = marked[0] if marked and on_chip else 0
    blocks, each = tuple(sizes[:at]), sizes[at:]
    if on_chip and len(each) == 1:
        each.append(1)
    kind = dtype_name(dtype)
    nbytes = prod(each[1:]) * dtypes.itemsize(kind)
    tiles = []
    for index in product(*map(range, blocks)):
        address = address_of(buffer, index, each[0], nbytes)
        tensor = nl.ndarray(each, kind, region, name, address)
        tracing.current().declared.add(tensor.storage)
        tiles.append(Tile(tensor))
    if not blocks:
        if value is not None:
            new_isa.memset(tiles[0].tensor, value)
        return tiles[0]
    fill = None if value is None else (lambda t: new_isa.memset(t.tensor, value))
    return BlockedTensor(tiles, np.arange(len(tiles)).reshape(blocks), fill)


def zeros(shape: Sequence[int], dtype: Any, **options: Any) -> Tile:
    """Return a new tensor filled with zeros."""
    return full(shape, 0, dtype, **options)


def ones(shape: Sequence[int], dtype: Any, **options: Any) -> Tile:
    """Return a new tensor filled with ones."""
    return full(shape, 1, dtype, **options)


def zeros_like(a: Tile, dtype: Any = None, *, buffer: Any = None, **hints: Any) -> Tile:
    """Return a new tensor with the shape of another, filled with zeros."""
    return zeros(a.shape, dtype or a.dtype, buffer=buffer or a.buffer)


def empty_like(a: Tile, dtype: Any = None, *, buffer: Any = None, **hints: Any) -> Tile:
    """Return a new tensor with the shape of another."""
    return ndarray(a.shape, dtype or a.dtype, buffer=buffer or a.buffer)


def load(
    src: Tile,
    *,
    mask: Any = None,
    dtype: Any = None,
    mode: Any = oob_mode.error,
    **hints: Any,
) -> Tile:
    """Return a tensor of HBM as a new tile; its first dimension becomes the partitions.

    Args:
        mask: which elements to load.
        dtype: the tile's data type.
        mode: an `oob_mode`, for rows selected by a tile.
        **hints: see `hints`.
    """
    sizes = src.shape if len(src.shape) > 1 else (*src.shape, 1)
    box = box_of(mask, src.shape)
    out_box = box
    if box is not None and len(src.shape) == 1:
        out_box = Box((*box.starts, 0), (*box.stops, 1), sizes)
    tile, dst = new_tile(sizes, dtype or src.dtype, out_box)
    if dst is not None:
        new_isa.dma_copy(dst, src.of(box), oob_mode=mode)
    return tile


def store(
    dst: Tile, value: Any, *, mask: Any = None, mode: Any = oob_mode.error, **hints: Any
) -> None:
    """Copy a tile or a number to HBM.

    Args:
        mask: which elements to store.
        mode: an `oob_mode`, for rows selected by a tile.
        **hints: see `hints`.
    """
    box = box_of(mask, dst.shape)
    if box is not None and box.empty:
        return
    if not isinstance(value, Tile):
        value = full(dst.shape, value, dst.dtype)
    if prod(value.sizes) < prod(dst.shape):
        value = value.broadcast_to(dst.shape)
    if box is None and mask is not None and len(value.sizes) == len(dst.shape):
        # dst may be a slice cut off at the end of its tensor.
        box = Box((0,) * len(dst.shape), dst.shape, dst.shape)
    source = value.of(box)
    if source.storage.memory == "psum":
        source = nl.copy(source, dst.dtype)
    new_isa.dma_copy(dst.of(box), source, oob_mode=mode)


def load_transpose2d(
    src: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any
) -> Tile:
    """Return a matrix of HBM as a transposed tile.

    The compiler transposes FP32 on TensorE: the counters of bmm v2 and its
    load_transpose2d are equal [KDA]."""
    source = src.of(box_of(mask, src.shape))
    exact = "exact_transpose" in tracing.current().core.capabilities
    if dtypes.itemsize(source.dtype) != 4 or not exact:
        return Tile(nl.load_transpose2d(source, dtype))
    rows, columns = source.shape
    tile = nl.ndarray((columns, rows), source.dtype)
    side = TRANSPOSES["tensor"]
    for row, column in product(range(0, rows, side), range(0, columns, side)):
        piece = nl.load(source[row : row + side, column : column + side])
        turned = nl.ndarray(piece.shape[::-1], source.dtype, nl.psum)
        new_isa.nc_transpose(turned, piece)
        new_isa.tensor_copy(tile[column : column + side, row : row + side], turned)
    return Tile(tile if dtype is None else nl.copy(tile, dtype))


def static_cast(input_data: Tile, dtype: Any) -> Tile:
    """Return a copy with another dtype."""
    return input_data.astype(dtype)


def atomic_rmw(dst: Tile, value: Tile, op: Any, *, mask: Any = None) -> None:
    """Assign dst <op> value to dst, in HBM."""
    box = box_of(mask, dst.shape)
    target = dst.of(box)
    new_isa.dma_compute(target, [target, value.of(box)], op)


check_hints(globals())
