"""TensorE's functions of `neuronxcc.nki.isa`; `isa` describes how they work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from neuronjax.nki import isa
from neuronjax.nki.isa import engine, vector_engine
from neuronjax.nki.isa.constants import matmul_perf_mode
from neuronjax.nki.language.arithmetic import copied
from neuronjax.nki.legacy.deferred import Product
from neuronjax.nki.legacy.hints import check_hints
from neuronjax.nki.legacy.masks import Box, box_of
from neuronjax.nki.legacy.results import new_tile, whole_tile
from neuronjax.nki.legacy.tiles import Tile
from neuronjax.nki.limits.engines import TRANSPOSES
from neuronjax.nki.refusing import unsupported
from neuronjax.nki.tensor import NkiTensor


def nc_matmul(
    stationary: Tile,
    moving: Tile,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Sequence[int] = (),
    tile_size: Sequence[int] = (),
    mask: Any = None,
    perf_mode: Any = None,
    **hints: Any,
) -> Tile:
    """Return stationary.T @ moving in PSUM; `psum += ...` adds it there.

    Args:
        stationary: [K, M]; [K, 2, M] in double-row mode. Copied first if in PSUM.
        moving: [K, N]; [K, 2, N] in double-row mode. Copied first if in PSUM.
        is_stationary_onezero: a hint that affects only time.
        is_moving_onezero: a hint that affects only time.
        is_transpose: pass the stationary operand's bits through the one-hot `moving`.
        tile_position: first row and column of the array that is used.
        tile_size: rows and columns of the array that are used.
        mask: one boolean, one per row of the contraction, or a mask over the moving
            operand. Rows and columns where it is False are excluded; if it is False
            everywhere, no instruction is emitted.
        perf_mode: None, or "double_row_gen3" for two FP8 products per cell.
        **hints: see `hints`.
    """
    flags = {
        "is_stationary_onezero": is_stationary_onezero,
        "is_moving_onezero": is_moving_onezero,
        "is_transpose": is_transpose,
        "tile_position": tuple(tile_position),
        "tile_size": tuple(tile_size),
        "perf_mode": _perf_mode(perf_mode),
    }
    if mask is None:
        return Product(_in_sbuf(stationary), _in_sbuf(moving), flags)
    chosen = np.asarray(mask, bool)
    if not chosen.any():
        return Product(stationary.of(), moving.of(), flags, skipped=True)
    x, y = _in_sbuf(stationary), _in_sbuf(moving)
    if chosen.all():
        return Product(x, y, flags)
    if chosen.ndim < 2:
        chosen = chosen.reshape(-1, 1)
    if any(n not in (1, size) for n, size in zip(chosen.shape, y.shape, strict=False)):
        unsupported("nisa.nc_matmul", "mask=", "slice the operands")
    box = box_of(chosen, y.shape)
    assert box is not None
    x, y = x.slice(0, box.starts[0], box.stops[0]), box.of(y)
    return Product(x, y, flags, columns=None if box.is_whole(1) else box)


def _in_sbuf(t: Tile) -> NkiTensor:
    view = t.of()
    return copied(view, view.dtype) if view.storage.memory == "psum" else view


def _perf_mode(mode: Any) -> matmul_perf_mode:
    name = str(getattr(mode, "value", mode))
    if name in ("None", "none"):
        return matmul_perf_mode.none
    if name in ("double_row", "double_row_gen3"):
        return matmul_perf_mode.double_row
    unsupported(
        "nisa.nc_matmul", f"perf_mode={mode!r}", 'use None or "double_row_gen3"'
    )


def nc_transpose(
    data: Tile,
    *,
    mask: Any = None,
    dtype: Any = None,
    engine: Any = engine.unknown,
    **hints: Any,
) -> Tile:
    """Return the transpose, by TensorE in PSUM or by VectorE in SBUF."""
    box = box_of(mask, data.sizes)
    if box is not None and box.empty:
        sizes = (prod(data.sizes[1:]), data.sizes[0])
        return new_tile(sizes, dtype or data.dtype, Box((0, 0), (0, 0), sizes))[0]
    source = data.of(box)
    free = prod(source.shape[1:])
    by_vector = engine == vector_engine
    sizes = (free, source.shape[0])
    tile, dst = whole_tile(sizes, data.dtype, "sbuf" if by_vector else "psum")
    if by_vector:
        _transposed_in_squares(dst, source)
    else:
        isa.nc_transpose(dst, source, engine)
    return tile if dtype is None else tile.astype(dtype)


def _transposed_in_squares(dst: NkiTensor, source: NkiTensor) -> None:
    """Transpose on VectorE, which takes [32, 32] at a time. The older compiler splits
    larger tiles: 256 transposes of [128, 128] take 3.1 us each on trn2 [KDA]."""
    side = TRANSPOSES["vector"]
    if source.ndim > 2 or max(source.shape) <= side:
        isa.nc_transpose(dst, source, vector_engine)
        return
    rows, columns = (range(0, size, side) for size in source.shape)
    for row, column in product(rows, columns):
        square = source[row : row + side, column : column + side]
        turned = dst[column : column + side, row : row + side]
        isa.nc_transpose(turned, square, vector_engine)


check_hints(globals())
