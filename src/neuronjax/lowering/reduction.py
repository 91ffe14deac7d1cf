"""Rules of reductions and sliding windows, and of elementwise regions.

A region of one binary op has an instruction of its own; any other region runs as a
block (`bodies`). A window from the first element to each element is a running fold.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.ir import block_set
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Pool,
    SelectAndScatter,
    TensorReduce,
    TensorTensorScan,
    Window,
)
from neuronjax.ir.program import Op, Region
from neuronjax.lowering import bodies
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.elementwise import engine_of, integer_path, vector_tile
from neuronjax.lowering.registry import lowers


@lowers("stablehlo.reduce")
def reduce(op: Op, context: Context) -> Instructions:
    axes = op.attributes["dimensions"]
    name = _combiner(op)
    if name is None:
        yield from _with_body(op, context, block_set.ReduceBlock, axes=axes)
        return
    fields = dict(axes=axes, tile=vector_tile(context.policy))
    yield _simple(op, context, TensorReduce, op_name=name, **fields)


def _combiner(op: Op) -> str | None:
    """Return the name of the binary op that is a reduction's region, or None if it is
    more than one op or changes the dtype."""
    name = bodies.simple_combiner(op.regions[0])
    keeps = op.operands[0].type.dtype == op.results[0].type.dtype
    return name if keeps and name != "assign" else None


def _with_body(op: Op, context: Context, cls: type, **fields: Any) -> Instructions:
    (body,), captured = bodies.lowered_bodies(op.regions, context)
    operands = bodies.promoted(context, context.operands(op), op.regions[0].arguments)
    yield context.make(
        cls,
        (*operands, *captured),
        context.results(op),
        engine="gpsimd",
        ordinal=context.new_ordinal(),
        body=body,
        captures=len(captured),
        **fields,
    )


@lowers("stablehlo.map")
def map_(op: Op, context: Context) -> Instructions:
    yield from _with_body(op, context, block_set.MapBlock)


def _window(op: Op) -> Window:
    ones = (1,) * len(op.operands[0].type.shape)
    return Window.of(op.attributes, op.attributes.get("window_dimensions", ones))


@lowers("stablehlo.reduce_window")
def reduce_window(op: Op, context: Context) -> Instructions:
    window, name = _window(op), _combiner(op)
    axis, reverse = running_axis(op.operands[0].type.shape, window)
    if name is None and axis is None:
        yield from _with_body(op, context, block_set.PoolBlock, window=window)
    elif name is None:
        # Padding does not change the result: StableHLO requires a monoid.
        yield from _with_body(
            op, context, block_set.ScanBlock, axis=axis, reverse=reverse
        )
    elif axis is None or not _starts_from_identity(op, context, name):
        fields = dict(window=window, tile=vector_tile(context.policy))
        yield _simple(op, context, Pool, op_name=name, **fields)
    else:
        fields = dict(axis=axis, reverse=reverse)
        yield _simple(op, context, TensorTensorScan, op_name=name, **fields)


def _simple(
    op: Op, context: Context, cls: type, /, *, op_name: str, **fields: Any
) -> Instruction:
    dtype = op.results[0].type.dtype
    path = integer_path(context, op_name, dtype)
    fields |= {"op": op_name, "integer_path": path}
    return context.whole(op, cls, engine_of(dtype, path=path), rounds=True, **fields)


def running_axis(shape: tuple[int, ...], window: Window) -> tuple[int | None, bool]:
    """Return (axis, reverse) of a running fold, (None, False) for other windows. Each
    window holds its own element and all earlier ones along the axis, or all later ones
    if `reverse`."""
    long = [d for d, size in enumerate(window.sizes) if size > 1]
    if len(long) != 1:
        return None, False
    (axis,) = long
    n = shape[axis]
    for reverse, pair in ((False, (n - 1, 0)), (True, (0, n - 1))):
        padding = tuple(pair if d == axis else (0, 0) for d in range(len(shape)))
        ones = (1,) * len(shape)
        sizes = tuple(n if d == axis else 1 for d in range(len(shape)))
        if window == Window(sizes, ones, ones, ones, padding):
            return axis, reverse
    return None, False


def _starts_from_identity(op: Op, context: Context, name: str) -> bool:
    init = context.view(op.operands[1])
    for key, known in context.memo.items():
        if key[0] == "constant" and known[0] == init:
            return bool(known[1] == _identity(name, known[1].dtype))
    return False


def _identity(name: str, dtype: np.dtype) -> Any:
    if name not in ("maximum", "minimum", "and"):
        return int(name == "multiply")
    if dtype == np.bool_:
        return name != "maximum"
    if dtype.kind not in "iu":
        return -np.inf if name == "maximum" else np.inf
    ends = np.iinfo(dtype)
    bits = {"maximum": ends.min, "minimum": ends.max, "and": -1}[name]
    return np.array(bits).astype(dtype)


_COMPARISONS = ("GE", "GT", "LE", "LT")


@lowers("stablehlo.select_and_scatter")
def select_and_scatter(op: Op, context: Context) -> Instructions:
    window = _window(op)
    select, name = _comparison(op.regions[0]), bodies.simple_combiner(op.regions[1])
    if select in _COMPARISONS and name in ("add", "multiply", "minimum", "maximum"):
        fields = dict(select=select, window=window)
        yield _simple(op, context, SelectAndScatter, op_name=name, **fields)
        return
    (selects, scatters), captured = bodies.lowered_bodies(op.regions, context)
    arguments = (op.regions[0].arguments[0], *op.regions[1].arguments)
    operands = bodies.promoted(context, context.operands(op), arguments)
    yield context.make(
        block_set.SelectAndScatterBlock,
        (*operands, *captured),
        context.results(op),
        engine="gpsimd",
        ordinal=context.new_ordinal(),
        select=selects,
        scatter=scatters,
        window=window,
        captures=len(captured),
    )


def _comparison(region: Region) -> str:
    """Return the direction of a region that compares its arguments in order, or ""."""
    if len(region.ops) != 1 or region.ops[0].name != "stablehlo.compare":
        return ""
    (op,) = region.ops
    in_order = op.operands == region.arguments and op.results == region.results
    if not in_order or op.attributes.get("compare_type") == "TOTALORDER":
        return ""
    return op.attributes["comparison_direction"]
