"""Rules of data movement: DMA copies, gathers and scatters. No bit of a value changes,
except where a scatter combines."""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.errors import UnimplementedError
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import DmaCopy, LocalGather, LocalScatter
from neuronjax.ir.program import Op, Region
from neuronjax.lowering.context import Context
from neuronjax.lowering.elementwise import integer_path
from neuronjax.lowering.registry import lowers

Instructions = Iterator[Instruction]


def _copy(op: Op, context: Context, kind: str, *parameters: tuple) -> Instruction:
    return context.make(
        DmaCopy,
        context.operands(op),
        context.results(op),
        engine="dma",
        kind=kind,
        parameters=parameters,
    )


@lowers("stablehlo.reshape")
def reshape(op: Op, context: Context) -> Instructions:
    if op.operands[0].type == op.results[0].type:
        context.alias(op.results[0], context.view(op.operands[0]))
    else:
        yield _copy(op, context, "reshape")


@lowers("stablehlo.broadcast_in_dim")
def broadcast_in_dim(op: Op, context: Context) -> Instructions:
    if op.operands[0].type == op.results[0].type:
        context.alias(op.results[0], context.view(op.operands[0]))
    else:
        yield _copy(op, context, "broadcast", op.attributes["broadcast_dimensions"])


@lowers("stablehlo.transpose")
def transpose(op: Op, context: Context) -> Instructions:
    yield _copy(op, context, "transpose", op.attributes["permutation"])


@lowers("stablehlo.slice")
def slice_(op: Op, context: Context) -> Instructions:
    a = op.attributes
    bounds = (a["start_indices"], a["limit_indices"], a["strides"])
    yield _copy(op, context, "slice", *bounds)


@lowers("stablehlo.pad")
def pad(op: Op, context: Context) -> Instructions:
    a = op.attributes
    amounts = (a["edge_padding_low"], a["edge_padding_high"], a["interior_padding"])
    yield _copy(op, context, "pad", *amounts)


@lowers("stablehlo.concatenate")
def concatenate(op: Op, context: Context) -> Instructions:
    yield _copy(op, context, "concatenate", (op.attributes["dimension"],))


@lowers("stablehlo.reverse")
def reverse(op: Op, context: Context) -> Instructions:
    yield _copy(op, context, "reverse", op.attributes["dimensions"])


@lowers("stablehlo.dynamic_slice")
def dynamic_slice(op: Op, context: Context) -> Instructions:
    yield _copy(op, context, "dynamic_slice", op.attributes["slice_sizes"])


@lowers("stablehlo.dynamic_update_slice")
def dynamic_update_slice(op: Op, context: Context) -> Instructions:
    yield _copy(op, context, "dynamic_update_slice")


@lowers("stablehlo.gather")
def gather(op: Op, context: Context) -> Instructions:
    a = op.attributes
    yield context.make(
        LocalGather,
        context.operands(op),
        context.results(op),
        engine="gpsimd",
        dimension_numbers=tuple(a["dimension_numbers"].items()),
        slice_sizes=a["slice_sizes"],
        indices_are_sorted=bool(a.get("indices_are_sorted", False)),
    )


@lowers("stablehlo.scatter")
def scatter(op: Op, context: Context) -> Instructions:
    if len(op.results) != 1:
        raise UnimplementedError(
            f"scatter of {len(op.results)} tensors at once",
            op=op.name,
            location=op.location.source,
            remedy="scatter one tensor at a time",
        )
    a = op.attributes
    name = combiner(op, op.regions[0])
    yield context.arithmetic(
        LocalScatter,
        context.operands(op),
        context.results(op),
        engine="gpsimd",
        op=name,
        integer_path=integer_path(context, name, op.results[0].type.dtype),
        dimension_numbers=tuple(a["scatter_dimension_numbers"].items()),
        indices_are_sorted=bool(a.get("indices_are_sorted", False)),
        unique_indices=bool(a.get("unique_indices", False)),
    )


COMBINERS = ("add", "multiply", "minimum", "maximum", "and", "or", "xor")


def simple_combiner(region: Region) -> str | None:
    """The name of a region that applies one binary op to its two arguments."""
    arguments, results = region.arguments, region.results
    if not region.ops and results == arguments[1:]:
        return "assign"
    if len(region.ops) != 1 or len(arguments) != 2:
        return None
    (op,) = region.ops
    name = op.name.removeprefix("stablehlo.")
    plain = op.results == results and set(op.operands) == set(arguments)
    return name if plain and name in COMBINERS else None


def combiner(op: Op, region: Region) -> str:
    """As `simple_combiner`, raising UnimplementedError for any other region."""
    name = simple_combiner(region)
    if name is None:
        raise UnimplementedError(
            "the combining function is not one binary op on its two arguments",
            op=op.name,
            location=op.location.source,
            remedy=f"combine with one of: assign, {', '.join(COMBINERS)}",
        )
    return name
