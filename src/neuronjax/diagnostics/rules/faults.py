"""Rules about numerical faults that are certain before a run, named as in `compare`.

The rules use only constants, bounds of integers and trip counts. They find a constant
that its format cannot hold, an epsilon that becomes zero, whole numbers in a float that
cannot hold them, and a sum in a loop that becomes too large for its addends. `compare`
and the statistics of a run find faults that depend on the data.
"""

from __future__ import annotations

import math

import numpy as np

from neuronjax.diagnostics.facts import is_integer, unknown
from neuronjax.diagnostics.faults import naming
from neuronjax.diagnostics.faults.guards import SMALLEST_EPSILON, rounded
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.op_contexts import OpContext
from neuronjax.diagnostics.rule import Answer, Verdict, read_rules
from neuronjax.ir.program import Op, TensorType, Value
from neuronjax.ir.value_sources import ValueSources
from neuronjax.numerics.float_format import FORMATS, FloatFormat, get_format

_ROUNDS = ("stablehlo.convert",)
_SPREADS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
_SHOWS = (*_SPREADS, "stablehlo.transpose", "stablehlo.slice")
_MAKE_WHOLE = ("stablehlo.convert", "stablehlo.iota")


def _scalar(context: OpContext, value: Value) -> float | None:
    """Return the number that every element of `value` equals, or None if unknown."""
    while True:
        known = context.fact(value).scalar
        if known is not None:
            return float(known)
        maker = context.graph.makers.get(value)
        if maker is None or maker.name not in _SPREADS:
            return None
        value = maker.operands[0]


def _format(type: TensorType) -> FloatFormat | None:
    name = type.dtype.name
    return get_format(name) if name in FORMATS else None


def _cast(context: OpContext) -> tuple[float, FloatFormat] | None:
    """Return (number, format) for a cast to a float format if all elements equal one
    number, finite and not zero; None for any other cast."""
    (value,), (result,) = context.op.operands, context.op.results
    x = None if is_integer(value.type.dtype) else _scalar(context, value)
    fmt = _format(result.type)
    return (x, fmt) if fmt is not None and x and math.isfinite(x) else None


def _overflows(context: OpContext) -> Answer:
    cast = _cast(context)
    if cast is None or math.isfinite(rounded(cast[0], cast[1].dtype)):
        return None
    x, fmt = cast
    return f"{x:.3g} in {fmt.name}, whose largest number is {fmt.max_finite:.3g}"


def _infinite_factor(context: OpContext) -> Answer:
    fmt = _format(context.op.results[0].type)
    scalars = [_scalar(context, v) for v in context.op.operands]
    if fmt is None or not any(x is not None and math.isinf(x) for x in scalars):
        return None
    return f"a constant beyond {fmt.max_finite:.3g}, the largest {fmt.name}, is Inf"


def _vanishes(context: OpContext) -> Answer:
    cast = _cast(context)
    if cast is None or abs(cast[0]) > cast[1].min_subnormal / 2:
        return None
    x, fmt = cast
    smallest = f"the smallest number is {fmt.min_subnormal:.3g}"
    return f"{x:.3g} becomes 0 in {fmt.name}: {smallest}"


_DIVIDES = frozenset(
    f"stablehlo.{name}" for name in ("sqrt", "rsqrt", "log", "divide", "power")
)


def _epsilon(context: OpContext) -> Answer:
    fmt = _format(context.op.results[0].type)
    guards = [x for v in context.op.operands if (x := _scalar(context, v)) is not None]
    if fmt is None or len(guards) != 1:
        return None
    (x,), readers = guards, _guarded(context, context.op.results[0])
    # A zero is intended if the format holds every usual epsilon, and before a root,
    # where optimizers add an epsilon that is zero by default.
    became_zero = fmt.min_normal > SMALLEST_EPSILON and readers - {"stablehlo.sqrt"}
    if x == 0 and became_zero:
        return (
            f"it is 0 in {fmt.name}, whose smallest number is {fmt.min_subnormal:.3g}"
        )
    if not readers or not 0 < x < fmt.min_normal:
        return None
    limit = f"the smallest normal number of {fmt.name}, {fmt.min_normal:.3g}"
    return f"{x:.3g} is below {limit}"


def _guarded(context: OpContext, value: Value) -> set[str]:
    """Return the names of ops for which `value` or its broadcast must not be zero."""
    guards: set[str] = set()
    for user in context.users.get(value, ()):
        if user.name in _SPREADS:
            guards |= _guarded(context, user.results[0])
        elif user.name in _DIVIDES:
            # A divisor, the base of a power, or the only operand must not be zero.
            of_two = user.name == "stablehlo.divide" and len(user.operands) > 1
            if user.operands[of_two] is value:
                guards.add(user.name)
    return guards


def _decay(context: OpContext) -> Answer:
    """Return text if `b` is rounded to 1 in `b * m + (1 - b) * g`; else None."""
    dtype = context.op.results[0].type.dtype
    factors = [f for v in context.op.operands if (f := _factor(context, v)) is not None]
    if len(factors) != 2 or max(factors) != 1 or not 0 < min(factors):
        return None
    rest, step = min(factors), unit_of(dtype)
    if rest > step / 2 * (1 + step):
        return None
    below = f"the next number below 1 is {1 - step:.6g}"
    return f"1 - {rest:.3g} is 1 in {dtype.name}; {below}"


def _factor(context: OpContext, value: Value) -> float | None:
    maker = context.graph.makers.get(value)
    if maker is None or maker.name != "stablehlo.multiply":
        return None
    for operand in maker.operands:
        factor = _scalar(context, operand)
        factor = _factor(context, operand) if factor is None else factor
        if factor is not None:
            return factor
    return None


def _whole(context: OpContext) -> Answer:
    dtype = context.op.results[0].type.dtype
    largest, is_known = _largest_whole(context, context.op, dtype)
    return _beyond(context, largest, dtype.name) if is_known else None


def _whole_in_matmul(context: OpContext) -> Answer:
    makers = (context.producer(v, *_SHOWS) for v in context.op.operands)
    whole = [m for m in makers if m is not None and m.name in _MAKE_WHOLE]
    cast = context.settings.casts.get(context.op) if whole else None
    if cast is None or cast.is_scaled or cast.unit <= unit_of("float32"):
        return None  # FP32 and integers are not rounded
    dtype = get_format(cast.format).dtype
    largest, is_known = max(_largest_whole(context, m, dtype) for m in whole)
    detail = _beyond(context, largest, cast.format)
    return detail and Verdict(detail, None if is_known else "info")


def _beyond(context: OpContext, largest: float, name: str) -> str:
    unit = unit_of(name)
    if not unit or context.in_generator or largest <= 1 / unit:
        return ""
    known = f"{name} holds all whole numbers only up to {1 / unit:.0f}"
    return f"numbers reach {largest:.0f}; {known}"


def _largest_whole(context: OpContext, op: Op, dtype: np.dtype) -> tuple[float, bool]:
    """Return (largest, is_known) for `op`, an iota or a cast of integers. `largest` is
    the largest magnitude of its numbers, or 0 if `dtype` holds them all; `is_known` is
    False if `largest` only follows from the range of the integers."""
    if op.name == "stablehlo.iota":
        return op.results[0].type.shape[op.attributes["iota_dimension"]] - 1, True
    (value,) = op.operands
    type, fact = value.type, context.fact(value)
    if not is_integer(type.dtype) or type.dtype.kind == "b":
        return 0, False
    if fact.value is not None:
        wide = fact.value.astype(np.float64)
        if np.array_equal(wide.astype(dtype).astype(np.float64), wide):
            return 0, False
    widest = unknown(type)
    is_known = fact.low > widest.low and fact.high < widest.high
    return max(abs(fact.low), abs(fact.high)), is_known


def _stagnates(context: OpContext) -> Answer:
    if context.loop is None:
        return None
    graph, body = context.graph, context.op.regions[1]
    for place, argument in enumerate(body.arguments):
        unit = unit_of(argument.type.dtype)
        if not unit or context.loop <= 1 / (2 * unit):
            continue
        total = _running_sum(graph, body.results[place], argument)
        if total is not None:
            name, full = argument.type.dtype.name, f"{1 / (2 * unit):.0f}"
            loss = f"after {full} equal addends, up to half of each further one is lost"
            return Verdict(f"{context.loop} additions in {name}; {loss}", at=total)
    return None


def _running_sum(graph: ValueSources, result: Value, carry: Value) -> Op | None:
    """Return the add that makes `result` from `carry` and an addend independent of
    `carry`; None if there is no such add."""
    result = graph.origin(result, _ROUNDS, carry)
    maker = graph.makers.get(result)
    if maker is None or maker.name != "stablehlo.add":
        return None
    origins = [graph.origin(v, _ROUNDS, carry) for v in maker.operands]
    if [o is carry for o in origins].count(True) != 1:
        return None
    (addend,) = [maker.operands[n] for n, o in enumerate(origins) if o is not carry]
    is_rounded = result.type.dtype == carry.type.dtype
    return maker if is_rounded and carry not in graph.behind([addend]) else None


RULES = read_rules(
    f"""
overflow-constant: warning in convert
a constant that its format cannot hold becomes Inf
> {naming.KINDS["overflow"]}
[IEEE 754; Micikevicius 2018]

overflow-factor: warning in multiply
a product with a constant that is Inf is Inf, or NaN where the other factor is 0
> jnp.where(mask, x, jnp.finfo(x.dtype).min) instead of a product with -1e9
[IEEE 754]

underflow-constant: warning in convert
a constant other than zero becomes zero
> {naming.KINDS["underflow"]}
[IEEE 754; Micikevicius 2018]

underflow-epsilon: warning in add
an epsilon before a division, a root or a logarithm is zero or subnormal
> {naming.LOST_GUARD}
[IEEE 754; Kingma and Ba 2015]

absorption-decay: warning in add
the decay of a moving average is rounded to 1
> {naming.KINDS["absorption"]}
[IEEE 754; Kingma and Ba 2015]

integer-in-float: warning in convert, iota
a float format does not hold all whole numbers that it is given
> {naming.WHOLE_IN_FP32}, which holds all up to 16777216
[IEEE 754]

integer-in-matmul: warning in dot_general, convolution
the policy casts whole numbers, before a matmul, to a float that does not hold them
> {naming.OUT_OF_MATMUL}
[IEEE 754]

stagnation-loop: warning in while
a sum that a loop carries becomes too large for its addends
> {naming.KINDS["stagnation"]}
[IEEE 754; Higham 1993]
""",
    {
        "overflow-constant": _overflows,
        "overflow-factor": _infinite_factor,
        "underflow-constant": _vanishes,
        "underflow-epsilon": _epsilon,
        "absorption-decay": _decay,
        "integer-in-float": _whole,
        "integer-in-matmul": _whole_in_matmul,
        "stagnation-loop": _stagnates,
    },
)
"""The rules about faults; each id begins with the name of the fault."""
