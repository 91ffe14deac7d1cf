"""`neuronxcc.nki.isa`: the instructions of `nki.isa` that return their result.

Signatures are those of release 2.26; each function makes the tile that the newer one
writes to, and restricts both to the box of the mask. `hints` says which keywords
beyond these there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from neuronjax.ir.alu_operators import BITVEC
from neuronjax.nki import isa
from neuronjax.nki.indexing import strided
from neuronjax.nki.isa import (
    dge_mode as dge_mode,
    dma_engine as dma_engine,
    engine as engine,
    get_nc_version as get_nc_version,
    gpsimd_engine as gpsimd_engine,
    nc_version as nc_version,
    oob_mode as oob_mode,
    reduce_cmd as reduce_cmd,
    scalar_engine as scalar_engine,
    tensor_engine as tensor_engine,
    unknown_engine as unknown_engine,
    vector_engine as vector_engine,
)
from neuronjax.nki.language.arithmetic import fp32_column
from neuronjax.nki.language.promotion import spread
from neuronjax.nki.legacy.hints import check_hints
from neuronjax.nki.legacy.isa_matmul import (
    nc_matmul as nc_matmul,
    nc_transpose as nc_transpose,
)
from neuronjax.nki.legacy.isa_movement import (
    affine_select as affine_select,
    builtin_custom_op as builtin_custom_op,
    dma_copy as dma_copy,
    dma_transpose as dma_transpose,
    local_gather as local_gather,
    nc_stream_shuffle as nc_stream_shuffle,
    range_select as range_select,
    select_reduce as select_reduce,
    sequence_bounds as sequence_bounds,
    tensor_copy_dynamic_dst as tensor_copy_dynamic_dst,
    tensor_copy_dynamic_src as tensor_copy_dynamic_src,
    tensor_copy_predicated as tensor_copy_predicated,
)
from neuronjax.nki.legacy.masks import Box, box_of
from neuronjax.nki.legacy.results import (
    as_op,
    computed,
    made,
    new_tile,
    promoted_dtype,
    whole_tile,
)
from neuronjax.nki.legacy.tiles import Tile, defined, part
from neuronjax.nki.tensor import NkiTensor


def activation(
    op: Any,
    data: Tile,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Tile | None = None,
    reduce_cmd: Any = reduce_cmd.idle,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> Tile:
    """op(data * scale + bias)."""
    return made("activation", locals(), data)


def activation_reduce(
    op: Any,
    data: Tile,
    *,
    reduce_op: Any,
    reduce_res: Tile,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> Tile:
    """op(data * scale + bias), and its sums in reduce_res."""
    return made("activation_reduce", locals(), data)


def tensor_tensor(
    data1: Tile,
    data2: Tile,
    op: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engine.unknown,
    **hints: Any,
) -> Tile:
    """data1 <op> data2; free dimensions of 1 repeat."""
    like = data1 if prod(data1.sizes) >= prod(data2.sizes) else data2

    def write(dst: NkiTensor, box: Box | None) -> None:
        x, y = (spread(part(t, box), dst.shape) for t in (data1, data2))
        isa.tensor_tensor(dst, x, y, as_op(op), engine)

    return computed(like, dtype or promoted_dtype(data1, data2), mask, write)


def tensor_scalar(
    data: Tile,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engine.unknown,
    **hints: Any,
) -> Tile:
    """(data <op0> operand0) <op1> operand1."""

    def write(dst: NkiTensor, box: Box | None) -> None:
        first = (as_op(op0), _column(op0, part(operand0, box)), bool(reverse0))
        second = (as_op(op1), _column(op1, part(operand1, box)), bool(reverse1))
        isa.tensor_scalar(dst, part(data, box), *first, *second, engine)

    return computed(data, dtype, mask, write)


def _column(op: Any, operand: Any) -> Any:
    """A vector operand, which the older instruction takes in any dtype."""
    if not isinstance(operand, NkiTensor) or as_op(op) in BITVEC:
        return operand
    return fp32_column(operand)


def scalar_tensor_tensor(
    *,
    data: Tile,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Tile,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **hints: Any,
) -> Tile:
    """(data <op0> operand0) <op1> operand1, a tile."""
    return made("scalar_tensor_tensor", locals(), data)


def tensor_scalar_reduce(
    *,
    data: Tile,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Tile,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **hints: Any,
) -> Tile:
    """data <op0> operand0, and its reduction in reduce_res."""
    return made("tensor_scalar_reduce", locals(), data)


def tensor_reduce(
    op: Any,
    data: Tile,
    axis: int | Sequence[int],
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    **hints: Any,
) -> Tile:
    """The reduction over the last free axes."""
    given = [axis] if isinstance(axis, int | np.integer) else list(axis)
    rank = len(data.sizes)
    axes = sorted(int(a) % rank for a in given)
    box = box_of(mask, data.sizes)
    if data.box is not None and all(data.box.is_whole(d) for d in axes):
        box = defined(data, mask=box)
    source = data.of(box)
    order = [d for d in range(rank) if d not in axes] + axes
    if box is None:
        out_box = None
    else:
        out_box = box.without(axes, keep=keepdims)
        if len(out_box.sizes) == 1:
            out_box = box.without(axes[1:], keep=False)
            out_box = Box(
                (out_box.starts[0], 0), (out_box.stops[0], 1), (*out_box.sizes[:1], 1)
            )
    sizes = [n for d, n in enumerate(data.sizes) if d not in axes]
    if keepdims:
        sizes = [1 if d in axes else n for d, n in enumerate(data.sizes)]
    if len(sizes) == 1:
        sizes.append(1)
    tile, dst = new_tile(sizes, dtype or data.dtype, out_box)
    if dst is not None:
        last = list(range(rank - len(axes), rank))
        isa.tensor_reduce(dst, as_op(op), source.permute(order), last, negate=negate)
    return tile


def tensor_partition_reduce(
    op: Any, data: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any
) -> Tile:
    """The reduction over the partitions."""
    source = data.of(box_of(mask, data.sizes))
    tile, dst = whole_tile((1, *source.shape[1:]), dtype or data.dtype)
    isa.tensor_partition_reduce(dst, as_op(op), source)
    return tile


def tensor_copy(
    src: Tile,
    *,
    mask: Any = None,
    dtype: Any = None,
    engine: Any = engine.unknown,
    **hints: Any,
) -> Tile:
    """A copy."""
    return made("tensor_copy", locals(), src)


def reciprocal(
    data: Tile, *, dtype: Any = None, mask: Any = None, **hints: Any
) -> Tile:
    """1 / data."""
    return made("reciprocal", locals(), data)


def memset(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    *,
    mask: Any = None,
    engine: Any = engine.unknown,
    **hints: Any,
) -> Tile:
    """A tile of one number."""
    tile, dst = new_tile(shape, dtype, box_of(mask, tuple(shape)))
    if dst is not None:
        isa.memset(dst, value, engine)
    return tile


def iota(expr: Any, dtype: Any, *, mask: Any = None, **hints: Any) -> Tile:
    """The values of an affine expression of index arrays."""
    values = np.asarray(expr)
    view = strided(values.astype(np.int64))
    pattern = [
        (step, n) for step, n in zip(view.strides[1:], values.shape[1:], strict=True)
    ]
    tile, dst = whole_tile(values.shape, dtype)
    multiplier = view.strides[0] if values.shape[0] > 1 else 0
    isa.iota(dst, pattern, offset=view.offset, channel_multiplier=multiplier)
    return tile


def tensor_tensor_scan(
    data0: Tile,
    data1: Tile,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    **hints: Any,
) -> Tile:
    """result[i] = (data0[i] <op0> result[i-1]) <op1> data1[i]."""
    initial = initial if isinstance(initial, Tile) else float(initial)
    promoted = promoted_dtype(data0, data1)
    return made("tensor_tensor_scan", locals(), data0, promoted)


def max8(*, src: Tile, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """The eight largest values of every partition."""
    return made("max8", locals(), src, sizes=(src.sizes[0], 8))


def nc_find_index8(
    *, data: Tile, vals: Tile, mask: Any = None, dtype: Any = None, **hints: Any
) -> Tile:
    """Where eight values are first found."""
    sizes = (data.sizes[0], 8)
    return made("nc_find_index8", locals(), data, "uint32", sizes)


def nc_match_replace8(
    *,
    data: Tile,
    vals: Tile,
    imm: float,
    dst_idx: Tile | None = None,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> Tile:
    """data with eight values replaced."""
    return made("nc_match_replace8", locals(), data)


def bn_stats(data: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """Means and variances of every partition, six numbers."""
    return made("bn_stats", locals(), data, sizes=(data.sizes[0], 6))


def bn_aggr(data: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """The mean and variance of several statistics."""
    return made("bn_aggr", locals(), data, sizes=(data.sizes[0], 2))


def dropout(
    data: Tile, prob: Any, *, mask: Any = None, dtype: Any = None, **hints: Any
) -> Tile:
    """data with elements replaced by zeros."""
    return made("dropout", locals(), data)


check_hints(globals())
