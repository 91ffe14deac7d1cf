"""Rules of elementwise ops: arithmetic, comparison, selection, casts, constants.

VectorE does float arithmetic, ScalarE elementary functions, GpSimdE integers and
`power` (nki.isa `tensor_tensor`, `activation`). All compute in FP32 and round once, on
write, to the dtype that the program declares. `engines.vector` says what integers do
where StableHLO leaves the result undefined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from neuronjax.ir.instruction import Buffer, Engine, Instruction, View, contents
from neuronjax.ir.instruction_set import (
    SOFTWARE_FUNCTIONS,
    Activation,
    BitcastCopy,
    Compare,
    Iota,
    Memset,
    ReducePrecision,
    Select,
    TensorCopy,
    TensorTensor,
)
from neuronjax.ir.program import Op, Value
from neuronjax.ir.vector_sums import VECTOR_TILE
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.moves import filled
from neuronjax.lowering.registry import lowers
from neuronjax.numerics.elementary import UNARY
from neuronjax.numerics.float_format import get_format
from neuronjax.policy import Policy

BINARY = (
    "add subtract multiply divide maximum minimum remainder power atan2 and or "
    "xor shift_left shift_right_logical shift_right_arithmetic"
).split()
CHLO_BINARY = ("zeta", "polygamma", "mulhi")
# Sign and rounding ops that need no table; VectorE does them.
SIMPLE_UNARY = (
    "abs negate sign floor ceil round_nearest_even round_nearest_afz not popcnt "
    "count_leading_zeros is_finite"
).split()
FUNCTIONS = (
    "exponential exponential_minus_one log log_plus_one logistic tanh sine cosine "
    "tan sqrt rsqrt cbrt"
).split()
_OF_KERNELS = {"exponential_base2", "reciprocal"}
#: The functions that CHLO has; both dialects have "tan".
CHLO_FUNCTIONS = sorted(UNARY.keys() - {*FUNCTIONS} - _OF_KERNELS | {"tan"})


def engine_of(dtype: np.dtype, *, path: str = "exact") -> Engine:
    """Return VectorE for floats and for integers computed in FP32, else GpSimdE."""
    through_fp32 = path in ("fp32", "reciprocal")
    return "vector" if dtype.kind not in "iub" or through_fp32 else "gpsimd"


def vector_tile(policy: Policy) -> int | None:
    """Return the number of elements of one fold of VectorE, None for all."""
    return None if policy.accumulation == "sequential" else VECTOR_TILE


def integer_path(context: Context, op: str, dtype: np.dtype) -> str:
    """Return how the integers of an op are computed, "exact" unless it is a sum, a
    difference or a product."""
    if dtype.kind not in "iu" or op not in ("add", "subtract", "multiply"):
        return "exact"
    path = context.integer_path
    if path != context.policy.integer_path and dtype.itemsize >= 4:
        if dtype.kind == "u":
            raise context.no_such_integers(dtype)
        context.warn_of_integers(f"computes integers of {dtype}")
    return path


@lowers(
    *[f"stablehlo.{name}" for name in BINARY + SIMPLE_UNARY],
    *[f"chlo.{name}" for name in CHLO_BINARY],
)
def arithmetic(op: Op, context: Context) -> Instructions:
    name = op.name.split(".")[1]
    dtype = op.operands[0].type.dtype
    path = integer_path(context, name, dtype)
    if name == "divide" and dtype.kind in "iu":
        path = _division(op, context)
    engine = "gpsimd" if name in SOFTWARE_FUNCTIONS else engine_of(dtype, path=path)
    attributes = dict(op=name, integer_path=path)
    yield context.whole(op, TensorTensor, engine, rounds=True, **attributes)


#: Ops whose result is constant if their operand is.
_KEEP = ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape")


def _division(op: Op, context: Context) -> str:
    """Return how a quotient of integers is computed; the vendor's compiler multiplies
    by the reciprocal of a constant."""
    path, divisor = context.policy.integer_division, op.operands[1]
    is_exact = path == "exact" or not context.shared.sources.is_constant(divisor, _KEEP)
    return "exact" if is_exact else path


@lowers("chlo.square")
def square(op: Op, context: Context) -> Instructions:
    (x,) = context.operands(op)
    path = integer_path(context, "multiply", x.type.dtype)
    engine = engine_of(x.type.dtype, path=path)
    fields: dict[str, Any] = dict(engine=engine, op="multiply", integer_path=path)
    yield context.arithmetic(TensorTensor, (x, x), context.results(op), **fields)


@lowers("chlo.next_after")
def next_after(op: Op, context: Context) -> Instructions:
    yield context.whole(op, TensorTensor, "gpsimd", op="next_after")


@lowers("chlo.is_inf", "chlo.is_pos_inf", "chlo.is_neg_inf")
def is_infinite(op: Op, context: Context) -> Instructions:
    """Compare with an infinity; the result is false in a format without one."""
    (x,) = context.operands(op)
    if op.name == "chlo.is_inf":
        shape, dtype = x.type.shape, x.type.dtype
        absolute: dict[str, Any] = dict(engine="vector", op="abs")
        x = context.computed(TensorTensor, (x,), shape, dtype, **absolute)
    sign = -1 if op.name == "chlo.is_neg_inf" else 1
    infinity = filled(context, x.type.shape, x.type.dtype, sign * np.inf)
    fields: dict[str, Any] = dict(engine="vector", direction="EQ")
    yield context.make(Compare, (x, infinity), context.results(op), **fields)


@lowers(
    *[f"stablehlo.{name}" for name in FUNCTIONS],
    *[f"chlo.{name}" for name in CHLO_FUNCTIONS],
)
def function(op: Op, context: Context) -> Instructions:
    attributes = dict(function=op.name.split(".")[1])
    attributes["transcendentals"] = context.policy.transcendentals
    yield context.whole(op, Activation, "scalar", rounds=True, **attributes)


@lowers("stablehlo.compare")
def compare(op: Op, context: Context) -> Instructions:
    direction = op.attributes["comparison_direction"]
    total = op.attributes.get("compare_type") == "TOTALORDER"
    engine = engine_of(op.operands[0].type.dtype)
    yield context.whole(op, Compare, engine, direction=direction, total=total)


@lowers("stablehlo.clamp")
def clamp(op: Op, context: Context) -> Instructions:
    low, x, high = context.operands(op)
    engine = engine_of(x.type.dtype)
    raised = context.temporary(x.type.shape, x.type.dtype)
    fields: dict[str, Any] = dict(engine=engine, **context.on_write(x.type.dtype.name))
    yield context.make(TensorTensor, (low, x), (raised,), op="maximum", **fields)
    operands, results = (View(raised), high), context.results(op)
    yield context.make(TensorTensor, operands, results, op="minimum", **fields)


@lowers("stablehlo.convert")
def convert(op: Op, context: Context) -> Instructions:
    source, target = op.operands[0].type.dtype, op.results[0].type.dtype
    if source == target:
        yield from pass_through(op, context)
        return
    folds = context.policy.round_trips == "folded"
    if folds and (first := _before_cast(op, context)):
        context.alias(op.results[0], context.view(first))
        return
    fields: dict[str, Any] = context.on_write(target.name)
    if holds(target, source):
        fields["rounding"] = "rne"  # needs no random numbers
    float_to_int = context.policy.float_to_int
    yield context.whole(op, TensorCopy, "vector", float_to_int=float_to_int, **fields)


def _before_cast(op: Op, context: Context) -> Value | None:
    """Return the float that an earlier cast narrowed, if this cast reverses it."""
    maker = context.shared.sources.makers.get(op.operands[0])
    if maker is None or maker.name != "stablehlo.convert":
        return None
    (first,), wide, narrow = maker.operands, *(v.type for v in op.results + op.operands)
    is_back = first.type == wide and narrow.dtype.itemsize < wide.dtype.itemsize
    floats = {wide.dtype.kind, narrow.dtype.kind}.isdisjoint("iub")
    return first if is_back and floats else None


def holds(target: np.dtype, source: np.dtype) -> bool:
    """Return whether a cast needs no rounding to a float: `target` has every number of
    `source`, or is no float."""
    if target.kind in "iub" or source == np.bool_:
        return True
    fmt = get_format(target)
    if source.kind in "iu":
        magnitude = 8 * source.itemsize - (source.kind == "i")
        return magnitude <= min(fmt.mantissa_bits + 1, fmt.max_exponent + 1)
    of = get_format(source)
    reach = (fmt.min_exponent - fmt.mantissa_bits, -fmt.max_exponent)
    wanted = (of.min_exponent - of.mantissa_bits, -of.max_exponent)
    return of.mantissa_bits <= fmt.mantissa_bits and reach <= wanted


#: Ops that are one instruction of VectorE -> its class, and the attributes it takes.
_PLAIN: Mapping[str, tuple[type[Instruction], tuple[str, ...]]] = {
    "stablehlo.bitcast_convert": (BitcastCopy, ()),
    "stablehlo.reduce_precision": (ReducePrecision, ("exponent_bits", "mantissa_bits")),
    "stablehlo.select": (Select, ()),
}


@lowers(*_PLAIN)
def plain(op: Op, context: Context) -> Instructions:
    cls, names = _PLAIN[op.name]
    yield context.whole(op, cls, "vector", **{n: op.attributes[n] for n in names})


@lowers("stablehlo.constant", "chlo.constant")
def constant(op: Op, context: Context) -> Instructions:
    """Write a constant, unless the block has written an equal one."""
    value = op.attributes["value"]
    key = ("constant", contents(value))
    if key in context.memo:
        view, _ = context.memo[key]
        context.alias(op.results[0], view)
        return
    (result,) = context.results(op)
    context.memo[key] = (View(result), value)
    yield context.make(Memset, (), (result,), engine="gpsimd", value=value)


@lowers("chlo.constant_like")
def constant_like(op: Op, context: Context) -> Instructions:
    yield constant_result(context, context.results(op)[0], op.attributes["value"])


def constant_result(context: Context, result: Buffer, value: Any) -> Instruction:
    """Return the instruction that fills a result with one value."""
    number = np.asarray(value).astype(result.type.dtype)
    whole = np.broadcast_to(number, result.type.shape)
    return context.make(Memset, (), (result,), engine="gpsimd", value=whole)


@lowers("stablehlo.iota")
def iota(op: Op, context: Context) -> Instructions:
    axis = op.attributes["iota_dimension"]
    fields = context.on_write(op.results[0].type.dtype.name)
    yield context.whole(op, Iota, "gpsimd", dimension=axis, **fields)


@lowers(
    "chlo.conj",  # for real numbers; complex ones are rewritten by now
    "sdy.mesh",
    "sdy.sharding_constraint",
    "stablehlo.optimization_barrier",
)
def pass_through(op: Op, context: Context) -> Instructions:
    """Use the operands as results, with their provenance; no instruction is made."""
    for value, result in zip(op.operands, op.results, strict=True):
        context.alias(result, context.view(value))
        context.facts[result] = context.fact(value)
    return iter(())


@lowers("stablehlo.real", "stablehlo.imag")
def part_of_a_real_number(op: Op, context: Context) -> Instructions:
    """Lower parts of real numbers; complex numbers are already rewritten."""
    (result,) = op.results
    if op.name == "stablehlo.real":
        context.alias(result, context.view(op.operands[0]))
        return
    yield constant_result(context, context.define(result), 0)
