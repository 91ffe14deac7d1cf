"""Rules about integers: the engines compute them in FP32, exact only up to 2^24.

If a change is certain, as with a constant beyond 2^24, a dot or a scatter, the finding
is an error or a warning; if it depends on values known only at run time, an info.
Arithmetic of random generators, and of the wrap of negative indices, is not checked.
"""

from __future__ import annotations

import math

import numpy as np

from neuronjax.diagnostics.facts import Fact, evaluate, is_integer
from neuronjax.diagnostics.op_contexts import OpContext
from neuronjax.diagnostics.rule import Answer, Verdict, read_rules
from neuronjax.diagnostics.rules.control import combiner_of
from neuronjax.diagnostics.rules.dtypes import is_wide
from neuronjax.ir.program import Op, TensorType

EXACT = 2**24  # FP32 holds every integer up to this
_FP32 = "in FP32, exact up to 2^24"


def _small(fact: Fact) -> bool:
    return fact.within(-EXACT, EXACT)


def _number(type: TensorType) -> bool:
    return is_integer(type.dtype) and type.dtype.kind != "b"


def _arithmetic(context: OpContext) -> Answer:
    (result,) = context.op.results
    if not _number(result.type) or context.in_generator or _is_index_wrap(context):
        return None
    facts = [context.fact(v) for v in context.op.operands]
    if all(map(_small, [*facts, *evaluate(context.op, facts)])):
        return None
    large = [f for f in facts if f.value is not None and not _small(f)]
    if large:
        constant = max((large[0].low, large[0].high), key=abs)
        return Verdict(f"with the constant {constant:.0f}", "warning")
    return True


def _is_index_wrap(context: OpContext) -> bool:
    """Return whether only selects read an op, as when JAX wraps negative indices."""
    users = context.users.get(context.op.results[0], ())
    return bool(users) and all(
        user.name == "stablehlo.select"
        or str(user.attributes.get("callee", "")).startswith("_where")
        for user in users
    )


def _reduction(context: OpContext) -> Answer:
    type = context.op.results[0].type
    combiner = combiner_of(context.op.regions[0])
    if not _number(type) or context.in_generator or len(context.op.results) > 1:
        return None
    if combiner not in ("add", "multiply"):
        return None
    source, attributes = context.op.operands[0], context.op.attributes
    sizes = [source.type.shape[a] for a in attributes.get("dimensions", ())]
    terms = math.prod(sizes or attributes.get("window_dimensions", ()))
    fact = context.fact(source)
    if combiner == "add" and _small(Fact(fact.low * terms, fact.high * terms)):
        return None
    return f"{combiner} of {terms} {type.dtype}"


def _scatter(context: OpContext) -> Answer:
    combiner = combiner_of(context.op.regions[0])
    dtype = context.op.results[0].type.dtype
    return combiner is not None and is_integer(dtype) and f"'{combiner}' on {dtype}"


def _collective(context: OpContext) -> Answer:
    type = context.op.results[0].type
    sums = combiner_of(context.op.regions[0]) in ("add", "multiply")
    return sums and _number(type) and str(type.dtype)


_FIXED_DIVISION = (2, 30)


def _division(context: OpContext) -> Answer:
    op, type = context.op, context.op.results[0].type
    if context.settings.sdk < _FIXED_DIVISION:
        return _number(type)
    divisor = context.fact(op.operands[1]).value
    if divisor is None or not is_wide(type) or op.name != "stablehlo.divide":
        return None
    return bool((np.abs(np.frexp(divisor)[0]) != 0.5).any())


_INTEGRAL = ("floor", "ceil", "round_nearest_even", "round_nearest_afz", "sign")
_MOVES = tuple(
    f"stablehlo.{name}"
    for name in ("reshape", "transpose", "broadcast_in_dim", "slice", "abs", "negate")
)


def _float_to_int(context: OpContext) -> Answer:
    (value,), (result,) = context.op.operands, context.op.results
    if is_integer(value.type.dtype) or not _number(result.type) or context.in_generator:
        return None
    producer = context.producer(value, *_MOVES)
    is_whole = producer is not None and _is_integral(producer)
    return context.fact(value).value is None and not is_whole


def _is_integral(producer: Op) -> bool:
    name = producer.name.removeprefix("stablehlo.")
    if name == "convert":
        return is_integer(producer.operands[0].type.dtype)
    return name in _INTEGRAL


RULES = read_rules(
    f"""
integer-fp32: info in add, subtract, multiply
integer arithmetic, where it goes through VectorE, is {_FP32}
> keep integers below 2^24, or check the values; integer_path="fp32" shows the effect
[ISA: tensor_tensor; A2: arithmetic in FP32]

integer-reduction: warning in reduce, reduce_window
an integer reduction is {_FP32}
> keep partial results below 2^24, or reduce the high and low 16 bits separately
[A2: VectorE reduces in FP32]

integer-dot: error in dot_general, dot, convolution
an integer dot is refused, or computed {_FP32}
> a dot of bfloat16 or float32, rounded to an integer afterwards
[ERR/EVRF035, JK]

integer-scatter: error in scatter
a scatter that combines integers is refused, or computed {_FP32}
> scatter float32, or multiply one-hot rows by a matrix
[ERR/EVRF016, EVRF060]

integer-collective: warning in all_reduce, reduce_scatter
a collective that adds integers computes {_FP32}, and is refused under
--implicit-integer-downcast=none
> reduce float32
[ERR/EVRF061, EVRF063]

arithmetic-shift: error in shift_right_arithmetic
an arithmetic right shift of integers that do not have 32 bits
> shift int32 and convert the result
[ERR/EVRF022]

integer-division: warning in divide, remainder
integer division uses an FP32 reciprocal, so some results are off by one: before SDK
2.30 in every width, later for 64 bits divided by a constant (6284 // 6284 is 0)
> int32, and SDK 2.30 or later; integer_division="reciprocal" shows the effect
[RN-CC 2.30.0; KLN]

float-to-int: warning in convert
a float becomes an integer: XLA truncates, the engine rounds to nearest even
> jnp.trunc, floor or round before the cast; float_to_int="rne" shows the
effect
[RN-NKI 0.6.0; StableHLO convert]
""",
    {
        "integer-fp32": _arithmetic,
        "integer-reduction": _reduction,
        "integer-dot": lambda c: all(_number(v.type) for v in c.op.operands),
        "integer-scatter": _scatter,
        "integer-collective": _collective,
        "arithmetic-shift": lambda c: (
            (dtype := c.op.results[0].type.dtype).itemsize != 4 and str(dtype)
        ),
        "integer-division": _division,
        "float-to-int": _float_to_int,
    },
)
