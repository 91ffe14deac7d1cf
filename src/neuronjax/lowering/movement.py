"""Rules of data movement (DMA copies, gathers and scatters) and of random bits.

No bit of a value changes, except where a scatter combines.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.ir.block_set import ScatterBlock
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import DmaCopy, LocalGather, LocalScatter, Rng
from neuronjax.ir.program import Op
from neuronjax.lowering.bodies import lowered_bodies, promoted, simple_combiner
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.elementwise import constant_result, integer_path
from neuronjax.lowering.registry import lowers


def _copy(op: Op, context: Context, kind: str, *parameters: tuple) -> Instruction:
    return context.whole(op, DmaCopy, "dma", kind=kind, parameters=parameters)


@lowers("stablehlo.reshape", "stablehlo.broadcast_in_dim")
def reshape_or_broadcast(op: Op, context: Context) -> Instructions:
    """Copy, unless the type stays the same."""
    if op.operands[0].type == op.results[0].type:
        context.alias(op.results[0], context.view(op.operands[0]))
    elif op.name == "stablehlo.reshape":
        yield _copy(op, context, "reshape")
    else:
        yield _copy(op, context, "broadcast", op.attributes["broadcast_dimensions"])


@lowers("stablehlo.broadcast")
def broadcast(op: Op, context: Context) -> Instructions:
    """Lower an older form of broadcast, with the new dimensions in front."""
    rank = len(op.results[0].type.shape)
    dimensions = range(rank - len(op.operands[0].type.shape), rank)
    yield _copy(op, context, "broadcast", tuple(dimensions))


#: Name of an op that becomes one copy of this kind -> attributes that the copy takes.
COPIES = {
    "transpose": ("permutation",),
    "slice": ("start_indices", "limit_indices", "strides"),
    "pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
    "reverse": ("dimensions",),
    "dynamic_slice": ("slice_sizes",),
    "dynamic_update_slice": (),
}


@lowers(*[f"stablehlo.{name}" for name in COPIES])
def copy(op: Op, context: Context) -> Instructions:
    kind = op.name.removeprefix("stablehlo.")
    yield _copy(op, context, kind, *[op.attributes[name] for name in COPIES[kind]])


@lowers("stablehlo.concatenate")
def concatenate(op: Op, context: Context) -> Instructions:
    yield _copy(op, context, "concatenate", (op.attributes["dimension"],))


@lowers("stablehlo.gather")
def gather(op: Op, context: Context) -> Instructions:
    a = op.attributes
    yield context.whole(
        op,
        LocalGather,
        "gpsimd",
        dimension_numbers=tuple(a["dimension_numbers"].items()),
        slice_sizes=a["slice_sizes"],
        indices_are_sorted=bool(a.get("indices_are_sorted", False)),
    )


@lowers("stablehlo.torch_index_select")
def torch_index_select(op: Op, context: Context) -> Instructions:
    """Gather whole slices; out-of-bounds indices are clamped."""
    operand, indices = (value.type for value in op.operands)
    dimension, batch = op.attributes["dim"], op.attributes["batch_dims"]
    rank, shared = len(operand.shape), tuple(range(batch))
    chosen = len(indices.shape) - batch
    after = range(dimension + chosen, rank - 1 + chosen)
    numbers = {
        "offset_dims": (*range(batch, dimension), *after),
        "collapsed_slice_dims": (dimension,),
        "operand_batching_dims": shared,
        "start_indices_batching_dims": shared,
        "start_index_map": (dimension,),
        "index_vector_dim": len(indices.shape),
    }
    ones = (*shared, dimension)
    sizes = tuple(1 if d in ones else n for d, n in enumerate(operand.shape))
    fields: dict[str, Any] = dict(dimension_numbers=tuple(numbers.items()))
    yield context.whole(op, LocalGather, "gpsimd", slice_sizes=sizes, **fields)


@lowers("stablehlo.get_dimension_size")
def get_dimension_size(op: Op, context: Context) -> Instructions:
    size = op.operands[0].type.shape[op.attributes["dimension"]]
    yield constant_result(context, context.results(op)[0], size)


@lowers("stablehlo.scatter")
def scatter(op: Op, context: Context) -> Instructions:
    (body,), a = op.regions, op.attributes
    numbers = tuple(a["scatter_dimension_numbers"].items())
    name = simple_combiner(body)
    dtype = op.results[0].type.dtype
    if name not in SCATTERS or (dtype == np.bool_ and name != "assign"):
        yield from _scatter_block(op, context, numbers)
        return
    yield context.whole(
        op,
        LocalScatter,
        "gpsimd",
        rounds=True,
        op=name,
        integer_path=integer_path(context, name, dtype),
        dimension_numbers=numbers,
        indices_are_sorted=bool(a.get("indices_are_sorted", False)),
        unique_indices=bool(a.get("unique_indices", False)),
    )


# The combiners for which XLA has a scatter.
SCATTERS = frozenset({"add", "multiply", "minimum", "maximum", "assign"})


def _scatter_block(op: Op, context: Context, numbers: tuple) -> Instructions:
    (body,), captured = lowered_bodies(op.regions, context)
    count, arguments = len(op.results), op.regions[0].arguments
    views = context.operands(op)
    inputs = promoted(context, views[:count], arguments[:count])
    updates = promoted(context, views[count + 1 :], arguments[count:])
    yield context.make(
        ScatterBlock,
        (*inputs, views[count], *updates, *captured),
        context.results(op),
        engine="gpsimd",
        ordinal=context.new_ordinal(),
        dimension_numbers=numbers,
        body=body,
        captures=len(captured),
    )


@lowers("stablehlo.rng_bit_generator")
def rng_bit_generator(op: Op, context: Context) -> Instructions:
    yield context.whole(op, Rng, "gpsimd", algorithm=op.attributes["rng_algorithm"])
