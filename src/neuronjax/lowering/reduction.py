"""Rules of reductions, sliding windows, sorting and selection of the largest."""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.errors import UnimplementedError
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Pool,
    ReduceBlock,
    SelectAndScatter,
    Sort,
    TensorReduce,
    TopK,
    Window,
)
from neuronjax.ir.program import Op, Region, Value
from neuronjax.lowering.context import Context
from neuronjax.lowering.elementwise import engine_of, integer_path
from neuronjax.lowering.movement import combiner, simple_combiner
from neuronjax.lowering.registry import lower_region, lowers

Instructions = Iterator[Instruction]


@lowers("stablehlo.reduce")
def reduce(op: Op, context: Context) -> Instructions:
    axes = op.attributes["dimensions"]
    name = simple_combiner(op.regions[0])
    if name is not None and name != "assign":
        dtype = op.results[0].type.dtype
        path = integer_path(context, name, dtype)
        yield context.arithmetic(
            TensorReduce,
            context.operands(op),
            context.results(op),
            engine=engine_of(dtype, path=path),
            op=name,
            axes=axes,
            integer_path=path,
        )
        return
    body = lower_region(op.regions[0], context.child())
    yield context.make(
        ReduceBlock,
        context.operands(op),
        context.results(op),
        engine="gpsimd",
        axes=axes,
        body=body,
    )


def window_of(op: Op) -> Window:
    """The sliding window of a reduce_window or select_and_scatter."""
    a = op.attributes
    sizes = a["window_dimensions"]
    ones = (1,) * len(sizes)
    padding = a.get("padding")
    pairs = tuple(map(tuple, padding.tolist())) if padding is not None else ()
    return Window(
        sizes=sizes,
        strides=a.get("window_strides", ones),
        base_dilations=a.get("base_dilations", ones),
        window_dilations=a.get("window_dilations", ones),
        padding=pairs or ((0, 0),) * len(sizes),
    )


@lowers("stablehlo.reduce_window")
def reduce_window(op: Op, context: Context) -> Instructions:
    yield context.arithmetic(
        Pool,
        context.operands(op),
        context.results(op),
        engine=engine_of(op.results[0].type.dtype),
        op=combiner(op, op.regions[0]),
        window=window_of(op),
    )


SELECTIONS = {"GE": "maximum", "GT": "maximum", "LE": "minimum", "LT": "minimum"}


@lowers("stablehlo.select_and_scatter")
def select_and_scatter(op: Op, context: Context) -> Instructions:
    select, scatter = op.regions
    direction = _comparison(select)
    if direction not in SELECTIONS or simple_combiner(scatter) != "add":
        raise UnimplementedError(
            "only the gradient of max and min pooling is known",
            op=op.name,
            location=op.location.source,
            remedy="select with >= or <=, and scatter with add",
        )
    yield context.arithmetic(
        SelectAndScatter,
        context.operands(op),
        context.results(op),
        engine="vector",
        select=SELECTIONS[direction],
        window=window_of(op),
    )


def _comparison(region: Region) -> str:
    """The direction of a region that compares its arguments in order, or ""."""
    if len(region.ops) != 1 or region.ops[0].name != "stablehlo.compare":
        return ""
    (op,) = region.ops
    in_order = op.operands == region.arguments
    return op.attributes["comparison_direction"] if in_order else ""


@lowers("stablehlo.sort")
def sort(op: Op, context: Context) -> Instructions:
    keys, descending = sort_order(op)
    yield context.make(
        Sort,
        context.operands(op),
        context.results(op),
        engine="gpsimd",
        dimension=op.attributes["dimension"] % len(op.operands[0].type.shape),
        num_keys=keys,
        descending=descending,
    )


def sort_order(op: Op) -> tuple[int, bool]:
    """Number of leading keys and direction of a lexicographic comparator.

    JAX first makes -0 equal to 0 and NaNs equal to each other (constants, selects, EQ
    and NE), then compares the keys in turn: (a0 < b0) or (a0 == b0 and (a1 < b1 ...)).

    Raises:
        UnimplementedError: the comparator is something else.
    """
    region = op.regions[0]
    orders = [o for o in region.ops if _direction(o) in ("LT", "GT")]
    directions = {_direction(o) for o in orders}
    keys = len(orders)
    pairs = {_compared(o, region) for o in orders}
    in_order = pairs == {(2 * i, 2 * i + 1) for i in range(keys)}
    known = all(
        o.name in _COMPARATOR_OPS and _direction(o) not in ("LE", "GE")
        for o in region.ops
    )
    if len(directions) != 1 or not in_order or not known:
        raise _comparator_error(op)
    return keys, directions == {"GT"}


_COMPARATOR_OPS = {
    f"stablehlo.{name}" for name in ("compare", "constant", "select", "and", "or")
}


def _direction(op: Op) -> str:
    return op.attributes.get("comparison_direction", "")


def _compared(op: Op, region: Region) -> tuple[int, ...]:
    """Which arguments of the region the two sides of a comparison stem from."""
    producers = {result: o for o in region.ops for result in o.results}

    def origin(value: Value) -> int:
        if value in region.arguments:
            return region.arguments.index(value)
        producer = producers[value]
        if producer.name != "stablehlo.select":
            return -1
        return max(origin(v) for v in producer.operands[1:])

    return tuple(origin(value) for value in op.operands)


def _comparator_error(op: Op) -> UnimplementedError:
    return UnimplementedError(
        "the comparator is not a lexicographic < or > on leading operands",
        op=op.name,
        location=op.location.source,
        remedy="sort with jnp.sort, jnp.argsort or lax.sort(num_keys=...)",
    )


@lowers("chlo.top_k")
def top_k(op: Op, context: Context) -> Instructions:
    yield context.make(
        TopK,
        context.operands(op),
        context.results(op),
        engine="vector",
        k=op.attributes["k"],
    )
