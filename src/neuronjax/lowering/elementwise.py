"""Rules of elementwise ops: arithmetic, comparison, selection, casts, constants.

Float arithmetic is VectorE's, elementary functions are ScalarE's, integers and `power`
are GpSimdE's (hardware facts: nki.isa `tensor_tensor`, `activation`). All compute in
FP32 and round once, on write, to the dtype that the program declares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from neuronjax.errors import UnsupportedError
from neuronjax.ir.instruction import Engine, Instruction, View
from neuronjax.ir.instruction_set import (
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
from neuronjax.ir.program import Op
from neuronjax.lowering.context import Context
from neuronjax.lowering.registry import lowers

Instructions = Iterator[Instruction]

BINARY = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "remainder",
    "power",
    "atan2",
    "and",
    "or",
    "xor",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
)
# Sign and rounding ops that need no table: VectorE's.
SIMPLE_UNARY = (
    "abs",
    "negate",
    "sign",
    "floor",
    "ceil",
    "round_nearest_even",
    "round_nearest_afz",
    "not",
    "popcnt",
    "count_leading_zeros",
    "is_finite",
)
FUNCTIONS = (
    "exponential",
    "exponential_minus_one",
    "log",
    "log_plus_one",
    "logistic",
    "tanh",
    "sine",
    "cosine",
    "tan",
    "sqrt",
    "rsqrt",
    "cbrt",
)
CHLO_FUNCTIONS = (
    "erf",
    "erfc",
    "erf_inv",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cosh",
    "sinh",
    "tan",
    "lgamma",
    "digamma",
    "bessel_i1e",
)


def engine_of(dtype: np.dtype, *, path: str = "exact") -> Engine:
    """Floats go to VectorE, integers to GpSimdE's integer units or through FP32."""
    return "vector" if dtype.kind not in "iub" or path == "fp32" else "gpsimd"


def integer_path(context: Context, op: str, dtype: np.dtype) -> str:
    """How integers of an op are computed; "exact" for what is no arithmetic."""
    arithmetic = dtype.kind in "iu" and op in ("add", "subtract", "multiply")
    return context.policy.integer_path if arithmetic else "exact"


@lowers(*[f"stablehlo.{name}" for name in BINARY])
def binary(op: Op, context: Context) -> Instructions:
    name = op.name.removeprefix("stablehlo.")
    dtype = op.results[0].type.dtype
    path = integer_path(context, name, dtype)
    engine = "gpsimd" if name in ("power", "atan2") else engine_of(dtype, path=path)
    yield context.arithmetic(
        TensorTensor,
        context.operands(op),
        context.results(op),
        engine=engine,
        op=name,
        integer_path=path,
    )


@lowers("chlo.square")
def square(op: Op, context: Context) -> Instructions:
    (x,) = context.operands(op)
    engine = engine_of(x.type.dtype)
    yield context.arithmetic(
        TensorTensor, (x, x), context.results(op), engine=engine, op="multiply"
    )


@lowers("chlo.next_after")
def next_after(op: Op, context: Context) -> Instructions:
    yield context.make(
        TensorTensor,
        context.operands(op),
        context.results(op),
        engine="gpsimd",
        op="next_after",
    )


@lowers(*[f"stablehlo.{name}" for name in SIMPLE_UNARY])
def simple_unary(op: Op, context: Context) -> Instructions:
    name = op.name.removeprefix("stablehlo.")
    engine = engine_of(op.operands[0].type.dtype)
    yield context.arithmetic(
        TensorTensor,
        context.operands(op),
        context.results(op),
        engine=engine,
        op=name,
    )


@lowers(
    *[f"stablehlo.{name}" for name in FUNCTIONS],
    *[f"chlo.{name}" for name in CHLO_FUNCTIONS],
)
def function(op: Op, context: Context) -> Instructions:
    yield context.arithmetic(
        Activation,
        context.operands(op),
        context.results(op),
        engine="scalar",
        function=op.name.split(".")[1],
        transcendentals=context.policy.transcendentals,
    )


@lowers("stablehlo.compare")
def compare(op: Op, context: Context) -> Instructions:
    yield context.make(
        Compare,
        context.operands(op),
        context.results(op),
        engine=engine_of(op.operands[0].type.dtype),
        direction=op.attributes["comparison_direction"],
        total=op.attributes.get("compare_type") == "TOTALORDER",
    )


@lowers("stablehlo.select")
def select(op: Op, context: Context) -> Instructions:
    yield context.make(
        Select, context.operands(op), context.results(op), engine="vector"
    )


@lowers("stablehlo.clamp")
def clamp(op: Op, context: Context) -> Instructions:
    low, x, high = context.operands(op)
    engine = engine_of(x.type.dtype)
    raised = context.temporary(x.type.shape, x.type.dtype)
    yield context.make(TensorTensor, (low, x), (raised,), engine=engine, op="maximum")
    operands = (View(raised), high)
    results = context.results(op)
    yield context.make(TensorTensor, operands, results, engine=engine, op="minimum")


@lowers("stablehlo.convert")
def convert(op: Op, context: Context) -> Instructions:
    source, target = op.operands[0].type.dtype, op.results[0].type.dtype
    if source == target:
        context.alias(op.results[0], context.view(op.operands[0]))
        return
    policy = context.policy
    yield context.make(
        TensorCopy,
        context.operands(op),
        context.results(op),
        engine="vector",
        rounding=policy.rounding if narrows(source, target) else "rne",
        overflow=policy.overflow,
        float_to_int=policy.float_to_int,
    )


def narrows(source: np.dtype, target: np.dtype) -> bool:
    """Whether a cast to `target` rounds, so that stochastic rounding applies."""
    return (
        target.kind not in "iub"
        and target.itemsize < source.itemsize
        and source.kind not in "iub"
    )


@lowers("stablehlo.bitcast_convert")
def bitcast_convert(op: Op, context: Context) -> Instructions:
    yield context.make(
        BitcastCopy, context.operands(op), context.results(op), engine="vector"
    )


@lowers("stablehlo.reduce_precision")
def reduce_precision(op: Op, context: Context) -> Instructions:
    yield context.make(
        ReducePrecision,
        context.operands(op),
        context.results(op),
        engine="vector",
        exponent_bits=op.attributes["exponent_bits"],
        mantissa_bits=op.attributes["mantissa_bits"],
    )


@lowers("stablehlo.constant")
def constant(op: Op, context: Context) -> Instructions:
    """One memset for all equal constants of a block."""
    value = op.attributes["value"]
    key = ("constant", value.dtype.name, value.shape, value.tobytes())
    if key in context.memo:
        context.alias(op.results[0], context.memo[key])
        return
    (result,) = context.results(op)
    context.memo[key] = View(result)
    yield context.make(Memset, (), (result,), engine="gpsimd", value=value)


@lowers("stablehlo.iota")
def iota(op: Op, context: Context) -> Instructions:
    yield context.make(
        Iota,
        (),
        context.results(op),
        engine="gpsimd",
        dimension=op.attributes["iota_dimension"],
    )


@lowers("stablehlo.optimization_barrier")
def optimization_barrier(op: Op, context: Context) -> Instructions:
    for value, result in zip(op.operands, op.results, strict=True):
        context.alias(result, context.view(value))
        context.facts[result] = context.fact(value)
    return iter(())


@lowers("sdy.sharding_constraint", "sdy.mesh")
def sharding(op: Op, context: Context) -> Instructions:
    for value, result in zip(op.operands, op.results, strict=True):
        context.alias(result, context.view(value))
        context.facts[result] = context.fact(value)
    return iter(())


@lowers("stablehlo.real", "stablehlo.imag", "stablehlo.complex")
def complex_numbers(op: Op, context: Context) -> Any:
    raise UnsupportedError(
        "complex numbers are not emulated",
        op=op.name,
        location=op.location.source,
        remedy="use a pair of float32 arrays",
    )
