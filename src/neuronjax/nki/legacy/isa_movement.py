"""Selections and movement of `neuronxcc.nki.isa`, and what NKI no longer has.

The second half of `isa`, which says how its functions work.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np

from neuronjax.errors import UnsupportedError, user_line
from neuronjax.nki import isa
from neuronjax.nki.isa import dge_mode, engine, oob_mode, reduce_cmd
from neuronjax.nki.isa.constants import FP32_MIN
from neuronjax.nki.language import shared_constant
from neuronjax.nki.legacy.hints import check_hints
from neuronjax.nki.legacy.masks import Box, box_of
from neuronjax.nki.legacy.results import (
    as_op,
    computed,
    issue,
    made,
    new_tile,
    whole_tile,
)
from neuronjax.nki.legacy.tiles import Tile, part
from neuronjax.nki.tensor import NkiTensor


def affine_select(
    pred: Any,
    on_true_tile: Tile,
    on_false_value: float,
    *,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> Tile:
    """on_true_tile where the index expression holds, else the number.

    The expression is known here as an array, so its values come from a constant.
    """

    def write(dst: NkiTensor, box: Box | None) -> None:
        chosen = np.broadcast_to(np.asarray(pred, bool), on_true_tile.sizes)
        chosen = chosen[box.slices_of(chosen.shape)] if box else chosen
        flags, view = new_tile(chosen.shape, "uint8")
        assert view is not None
        isa.dma_copy(view, shared_constant(chosen.astype(np.uint8)))
        isa.memset(dst, on_false_value)
        isa.tensor_copy_predicated(dst, part(on_true_tile, box), flags.of())

    return computed(on_true_tile, dtype, mask, write)


def range_select(
    *,
    on_true_tile: Tile,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Tile,
    bound1: Tile,
    reduce_cmd: Any = reduce_cmd.idle,
    reduce_res: Tile | None = None,
    reduce_op: Any = "maximum",
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> Tile:
    """on_true_tile where the index is within the bounds, else the number."""
    return made("range_select", locals(), on_true_tile)


def select_reduce(
    *,
    dst: Tile,
    predicate: Tile,
    on_true: Tile,
    on_false: Any,
    reduce_res: Tile | None = None,
    reduce_cmd: Any = reduce_cmd.idle,
    reduce_op: Any = "maximum",
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> None:
    """dst = on_true where the predicate holds, else on_false."""
    issue("select_reduce", locals(), box_of(mask, dst.sizes))


def tensor_copy_predicated(
    *,
    src: Any,
    dst: Tile,
    predicate: Tile,
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> None:
    """dst = src where the predicate holds."""
    issue("tensor_copy_predicated", locals(), box_of(mask, dst.sizes))


def local_gather(
    src_buffer: Tile,
    index: Tile,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    *,
    mask: Any = None,
) -> Tile:
    """Elements by index, per group of 16 partitions."""
    count = prod(index.sizes[1:]) * 16
    valid = count if num_valid_indices is None else num_valid_indices
    each = (num_elem_per_idx,) if num_elem_per_idx > 1 else ()
    tile, dst = whole_tile((src_buffer.sizes[0], valid, *each), src_buffer.dtype)
    isa.local_gather(
        dst, src_buffer.of(), index.of(), num_elem_per_idx, num_valid_indices
    )
    return tile


def sequence_bounds(*, segment_ids: Tile, dtype: Any = None) -> Tile:
    """First and last index of every element's segment."""
    source = segment_ids.of()
    sizes = (1, 2, source.shape[1])
    tile, dst = whole_tile(sizes, dtype or segment_ids.dtype)
    isa.sequence_bounds(dst, source)
    return tile


def nc_stream_shuffle(
    src: Tile, dst: Tile, shuffle_mask: Sequence[int], **hints: Any
) -> None:
    """Partitions in another order within 32."""
    isa.nc_stream_shuffle(dst.of(), src.of(), shuffle_mask)


def dma_copy(
    *,
    dst: Tile,
    src: Tile,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: Any = oob_mode.error,
    dge_mode: Any = dge_mode.unknown,
) -> None:
    """dst = src, or dst += src with dst_rmw_op=np.add."""
    box = box_of(mask, dst.shape)
    target, source = dst.of(box), src.of(box)
    if dst_rmw_op is None:
        isa.dma_copy(target, source, oob_mode=oob_mode, dge_mode=dge_mode)
    else:
        isa.dma_compute(target, [target, source], as_op(dst_rmw_op))


def dma_transpose(
    src: Tile,
    *,
    axes: Sequence[int] | None = None,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> Tile:
    """The transpose, by DMA."""
    source = src.of(box_of(mask, src.sizes))
    order = list(axes) if axes else list(range(source.ndim))[::-1]
    tile, dst = whole_tile([source.shape[d] for d in order], src.dtype)
    isa.dma_transpose(dst, source, axes)
    return tile if dtype is None else tile.astype(dtype)


def tensor_copy_dynamic_src(
    src: Tile,
    *,
    mask: Any = None,
    dtype: Any = None,
    engine: Any = engine.unknown,
    **hints: Any,
) -> Tile:
    """A copy of src, which is indexed by an offset in SBUF."""
    return made("tensor_copy", locals(), src)


def tensor_copy_dynamic_dst(
    *,
    dst: Tile,
    src: Tile,
    mask: Any = None,
    dtype: Any = None,
    engine: Any = engine.unknown,
    **hints: Any,
) -> None:
    """dst = src, where dst is indexed by an offset in SBUF."""
    issue("tensor_copy", locals(), box_of(mask, dst.sizes))


def builtin_custom_op(*args: Any, **options: Any) -> NoReturn:
    """Machine code for GpSimdE, which nothing here executes."""
    raise UnsupportedError(
        "a custom operator of GpSimdE",
        op="nisa.builtin_custom_op",
        location=user_line(),
        remedy="express it by instructions of nki.isa",
    )


def refuse_mask(name: str) -> NoReturn:
    raise UnsupportedError(
        "mask=",
        op=f"nisa.{name}",
        location=user_line(),
        remedy="slice the operands",
    )


check_hints(globals())
