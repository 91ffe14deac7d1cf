"""`neuronxcc.nki.isa`: the instructions of `nki.isa` in a form that returns the result.

Signatures are those of release 2.26. Each function makes the tile to which the newer
function writes, and restricts the operands to the mask's box. `hints` lists the
accepted keywords beyond the signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from neuronjax.ir.alu_operators import BITVEC, op_name
from neuronjax.ir.nki_dtypes import itemsize
from neuronjax.ir.nki_instructions import SPECS
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
from neuronjax.nki.language import shared_constant
from neuronjax.nki.language.arithmetic import fp32_column
from neuronjax.nki.language.promotion import spread
from neuronjax.nki.legacy.hints import check_hints
from neuronjax.nki.legacy.isa_matmul import (
    nc_matmul as nc_matmul,
    nc_transpose as nc_transpose,
)
from neuronjax.nki.legacy.masks import Box, box_of
from neuronjax.nki.legacy.results import (
    Adapt,
    computed,
    issue,
    made,
    new_tile,
    promoted_dtype,
    whole_tile,
)
from neuronjax.nki.legacy.tiles import Tile, defined, part
from neuronjax.nki.refusing import refuse, unsupported
from neuronjax.nki.signatures import function_of
from neuronjax.nki.tensor import NkiTensor


def _older(
    name: str,
    meaning: str,
    positional: int = 0,
    *,
    instruction: str = "",
    dtype: Any = None,
    widest: Sequence[str] = (),
    columns: int = 0,
    returns: bool = True,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    adapt: Adapt | None = None,
) -> Callable[..., Any]:
    """Return the older function of an instruction, with the newer function's arguments.

    Args:
        name: the function's name.
        meaning: the function's documentation.
        positional: how many arguments need no keyword.
        instruction: the instruction's name if it is not the function's.
        dtype: of the result if the user gives none; by default the operand's.
        widest: two operands whose dtypes are promoted and of which the larger gives the
            shape.
        columns: columns of the result if its shape is not the operand's.
        returns: whether the result is a new tile, instead of an argument dst.
        defaults: defaults that differ; `...` for an argument that the older function
            lacks.
        adapt: changes the arguments for the newer function, where the older one accepts
            more.
    """
    instruction = instruction or name
    parameters = _parameters(instruction, positional, returns, defaults)
    operands = SPECS[instruction].operands
    read = next(o.name for o in operands if o.kind == "tensor" and o.role == "input")

    def call(given: dict[str, Any]) -> Tile | None:
        if not returns:
            return issue(instruction, given, box_of(given["mask"], given["dst"].sizes))
        like, kind = given[read], dtype
        if widest:
            x, y = (given[name] for name in widest)
            like = max(x, y, key=lambda t: prod(t.sizes))
            kind = given["dtype"] or promoted_dtype(x, y)
        sizes = (like.sizes[0], columns) if columns else None
        return made(instruction, given, like, kind, sizes, adapt)

    result = "Tile" if returns else "None"
    names = {"Any": Any, "Sequence": Sequence, "Tile": Tile}
    function = function_of(name, parameters, result, names, call)
    function.__module__, function.__doc__ = __name__, meaning
    return function


def _parameters(
    name: str, positional: int, returns: bool, defaults: Mapping[str, Any]
) -> list[inspect.Parameter]:
    """Return the newer function's parameters, on tiles, and `mask`, `dtype`, hints."""
    newer = inspect.signature(getattr(isa, name)).parameters.values()
    left_out = {"name", "dtype", *(["dst"] if returns else [])}
    left_out |= {name for name, default in defaults.items() if default is ...}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        p.replace(
            kind=p.POSITIONAL_OR_KEYWORD if n < positional else keyword,
            default=defaults.get(p.name, p.default),
            annotation=_older_type(p, defaults),
        )
        for n, p in enumerate(p for p in newer if p.name not in left_out)
    ]
    parameters += [
        inspect.Parameter(option, keyword, default=None, annotation="Any")
        for option in ("mask", "dtype")
    ]
    hints = inspect.Parameter("hints", inspect.Parameter.VAR_KEYWORD, annotation="Any")
    return [*parameters, hints]


def _older_type(p: inspect.Parameter, defaults: Mapping[str, Any]) -> str:
    needed = defaults.get(p.name) is p.empty
    text = p.annotation.removesuffix(" | None") if needed else p.annotation
    return text.replace("NkiTensor", "Tile")


def _spread(given: dict[str, Any]) -> None:
    shape = given["dst"].shape
    given |= {name: spread(given[name], shape) for name in ("data1", "data2")}


def _in_fp32(given: dict[str, Any]) -> None:
    """Copy vector operands, which have any dtype in the older style, to FP32."""
    for op, name in (("op0", "operand0"), ("op1", "operand1")):
        if isinstance(given[name], NkiTensor) and op_name(given[op]) not in BITVEC:
            given[name] = fp32_column(given[name])


def _from_float(given: dict[str, Any]) -> None:
    if not isinstance(given["initial"], NkiTensor):
        given["initial"] = float(given["initial"])


activation = _older("activation", "op(data * scale + bias).", 2)
activation_reduce = _older(
    "activation_reduce", "op(data * scale + bias), and its sums in reduce_res.", 2
)
scalar_tensor_tensor = _older(
    "scalar_tensor_tensor", "(data <op0> operand0) <op1> operand1, a tile."
)
tensor_copy = _older("tensor_copy", "A copy.", 1)
tensor_copy_dynamic_src = _older(
    "tensor_copy_dynamic_src",
    "A copy of src, which is indexed by an offset in SBUF.",
    1,
    instruction="tensor_copy",
)
tensor_copy_dynamic_dst = _older(
    "tensor_copy_dynamic_dst",
    "dst = src, where dst is indexed by an offset in SBUF.",
    instruction="tensor_copy",
    returns=False,
)
tensor_copy_predicated = _older(
    "tensor_copy_predicated", "dst = src where the predicate holds.", returns=False
)
select_reduce = _older(
    "select_reduce",
    "dst = on_true where the predicate holds, else on_false.",
    returns=False,
)
tensor_tensor = _older(
    "tensor_tensor",
    "data1 <op> data2; free dimensions of 1 repeat.",
    3,
    widest=("data1", "data2"),
    adapt=_spread,
)
tensor_scalar = _older(
    "tensor_scalar", "(data <op0> operand0) <op1> operand1.", 7, adapt=_in_fp32
)
tensor_scalar_cumulative = _older(
    "tensor_scalar_cumulative",
    "dst takes every value of a register: register = (src <op0> imm0) <op1> register.",
    returns=False,
)
tensor_tensor_scan = _older(
    "tensor_tensor_scan",
    "result[i] = (data0[i] <op0> result[i-1]) <op1> data1[i].",
    7,
    widest=("data0", "data1"),
    adapt=_from_float,
)
tensor_scalar_reduce = _older(
    "tensor_scalar_reduce",
    "data <op0> operand0, and its reduction in reduce_res.",
    defaults={
        "reduce_res": inspect.Parameter.empty,
        **dict.fromkeys(("reduce_cmd", "reduce_init", "reduce_res_negate"), ...),
    },
)
range_select = _older(
    "range_select",
    "on_true_tile where the index is within the bounds, else on_false_value.",
    defaults={"reduce_cmd": reduce_cmd.idle},
)
reciprocal = _older("reciprocal", "1 / data.", 1)
dropout = _older("dropout", "data with elements replaced by zeros.", 2)
max8 = _older("max8", "The eight largest values of every partition.", columns=8)
nc_find_index8 = _older(
    "nc_find_index8", "The first index of each of 8 values.", dtype="uint32", columns=8
)
nc_match_replace8 = _older("nc_match_replace8", "data with eight values replaced.")
bn_stats = _older(
    "bn_stats", "Means and variances of every partition, six numbers.", 1, columns=6
)
bn_aggr = _older("bn_aggr", "Mean and variance, from several statistics.", 1, columns=2)


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
    """Return the reduction over the last free axes."""
    given = [axis] if isinstance(axis, int | np.integer) else list(axis)
    rank = len(data.sizes)
    axes = sorted(int(a) % rank for a in given)
    box = box_of(mask, data.sizes)
    if data.box is not None and all(data.box.is_whole(d) for d in axes):
        box = defined(data, mask=box)
    source = data.of(box)
    order = [d for d in range(rank) if d not in axes] + axes
    out_box = None if box is None else box.without(axes, keep=keepdims)
    if out_box is not None and len(out_box.sizes) == 1:
        out_box = Box((*out_box.starts, 0), (*out_box.stops, 1), (*out_box.sizes, 1))
    sizes = [n for d, n in enumerate(data.sizes) if d not in axes]
    if keepdims:
        sizes = [1 if d in axes else n for d, n in enumerate(data.sizes)]
    if len(sizes) == 1:
        sizes.append(1)
    tile, dst = new_tile(sizes, dtype or data.dtype, out_box)
    if dst is not None:
        last = list(range(rank - len(axes), rank))
        isa.tensor_reduce(dst, op, source.permute(order), last, negate=negate)
    return tile


def tensor_partition_reduce(
    op: Any, data: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any
) -> Tile:
    """Return the reduction over the partitions."""
    source = data.of(box_of(mask, data.sizes))
    tile, dst = whole_tile((1, *source.shape[1:]), dtype or data.dtype)
    isa.tensor_partition_reduce(dst, op, source)
    return tile


def memset(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    *,
    mask: Any = None,
    engine: Any = engine.unknown,
    **hints: Any,
) -> Tile:
    """Return a tile filled with a number."""
    tile, dst = new_tile(shape, dtype, box_of(mask, tuple(shape)))
    if dst is not None:
        isa.memset(dst, value, engine)
    return tile


def iota(expr: Any, dtype: Any, *, mask: Any = None, **hints: Any) -> Tile:
    """Return the values of an affine expression of index arrays."""
    values = np.asarray(expr)
    view = strided(values.astype(np.int64))
    pattern = [
        (step, n) for step, n in zip(view.strides[1:], values.shape[1:], strict=True)
    ]
    tile, dst = whole_tile(values.shape, dtype)
    multiplier = view.strides[0] if values.shape[0] > 1 else 0
    isa.iota(dst, pattern, offset=view.offset, channel_multiplier=multiplier)
    return tile


def affine_select(
    pred: Any,
    on_true_tile: Tile,
    on_false_value: float,
    *,
    mask: Any = None,
    dtype: Any = None,
    **hints: Any,
) -> Tile:
    """Return on_true_tile where `pred` is true, else the number.

    The values of `pred` are known when the kernel is traced, so they become a constant.
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


def local_gather(
    src_buffer: Tile,
    index: Tile,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    *,
    mask: Any = None,
) -> Tile:
    """Return elements by index, for each group of 16 partitions."""
    count = prod(index.sizes[1:]) * 16
    valid = count if num_valid_indices is None else num_valid_indices
    each = (num_elem_per_idx,) if num_elem_per_idx > 1 else ()
    tile, dst = whole_tile((src_buffer.sizes[0], valid, *each), src_buffer.dtype)
    isa.local_gather(
        dst, src_buffer.of(), index.of(), num_elem_per_idx, num_valid_indices
    )
    return tile


def sequence_bounds(*, segment_ids: Tile, dtype: Any = None) -> Tile:
    """Return the first and last index of every element's segment."""
    source = segment_ids.of()
    tile, dst = whole_tile((1, 2, source.shape[1]), dtype or segment_ids.dtype)
    isa.sequence_bounds(dst, source)
    return tile


def nc_stream_shuffle(
    src: Tile, dst: Tile, shuffle_mask: Sequence[int], **hints: Any
) -> None:
    """Copy src to dst with its partitions reordered within each group of 32."""
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
    """Copy src to dst, or add src to dst with dst_rmw_op=np.add."""
    box = box_of(mask, dst.shape)
    target, source = dst.of(box), src.of(box)
    # neuronx-cc 2.0.260476 compiles no source that repeats one row, from HBM or from
    # SBUF: NCC_IBCG901 [KDA, workspaces/mamba/candidates.jsonl].
    if source.shape[0] > 1 and source.strides[0] == 0:
        refuse(
            "nisa.dma_copy",
            f"one row read for {source.shape[0]} partitions: the compiler of "
            "neuronxcc.nki refuses broadcast patterns (NCC_IBCG901)",
            "load the row once with nl.load, then use broadcast_to in SBUF",
        )
    if dst_rmw_op is None:
        isa.dma_copy(target, source, oob_mode=oob_mode, dge_mode=dge_mode)
    else:
        isa.dma_compute(target, [target, source], dst_rmw_op)


def dma_transpose(
    src: Tile,
    *,
    axes: Sequence[int] | None = None,
    mask: Any = None,
    dtype: Any = None,
    dge_mode: Any = dge_mode.unknown,
    **hints: Any,
) -> Tile:
    """Return the transpose, made by DMA."""
    source = src.of(box_of(mask, src.sizes))
    # neuronx-cc 2.0.260476 fails with NCC_ISFV902 for FP32 [128, 128] in SBUF [KDA,
    # workspaces/rmsnorm_matmul/candidates.jsonl]; no report concerns HBM.
    if source.storage.on_chip and itemsize(source.dtype) > 2:
        refuse(
            "nisa.dma_transpose",
            f"{source.dtype} in SBUF: the compiler of neuronxcc.nki fails on such a "
            "transpose (NCC_ISFV902)",
            "use nisa.nc_transpose, or a dtype of 2 bytes",
        )
    order = list(axes) if axes else list(range(source.ndim))[::-1]
    tile, dst = whole_tile([source.shape[d] for d in order], src.dtype)
    isa.dma_transpose(dst, source, axes, dge_mode=dge_mode)
    return tile if dtype is None else tile.astype(dtype)


def builtin_custom_op(*args: Any, **options: Any) -> NoReturn:
    """Refuse custom machine code for GpSimdE, which cannot be executed here."""
    unsupported(
        "nisa.builtin_custom_op",
        "a custom operator of GpSimdE",
        "use instructions of nki.isa instead",
    )


check_hints(globals())
