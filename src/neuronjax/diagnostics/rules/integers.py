"""Rules about integers: the engines compute them in FP32, exact only up to 2^24.

What is certain (a constant beyond 2^24, a dot, a scatter) is an error or a warning;
where the values are not known before the program runs, it is an info. The arithmetic of
the random generators and of negative indices is left out.
"""

from __future__ import annotations

from neuronjax.diagnostics.facts import Fact, is_integer
from neuronjax.diagnostics.op_contexts import OpContext
from neuronjax.diagnostics.rule import YES, PortabilityRule, Verdict, ops
from neuronjax.diagnostics.rules.control import combiner_of
from neuronjax.ir.program import Op, TensorType

EXACT = 2**24  # FP32 holds every integer up to here
_FP32 = "in FP32, exact up to 2^24"


def _small(fact: Fact) -> bool:
    return fact.within(-EXACT, EXACT)


def _number(type: TensorType) -> bool:
    return is_integer(type.dtype) and type.dtype.kind != "b"


def _arithmetic(context: OpContext) -> Verdict | None:
    (result,) = context.op.results
    if not _number(result.type) or context.in_generator or _is_index_wrap(context):
        return None
    facts = [context.fact(v) for v in context.op.operands]
    if all(map(_small, [*facts, context.fact_of_result()])):
        return None
    large = [f for f in facts if f.value is not None and not _small(f)]
    if large:
        constant = max((large[0].low, large[0].high), key=abs)
        return Verdict(f"with the constant {constant:.0f}", "warning")
    return YES


def _is_index_wrap(context: OpContext) -> bool:
    """`i + size` where JAX wraps negative indices: read only by its select."""
    users = context.users.get(context.op.results[0], ())
    return bool(users) and all(
        user.name == "stablehlo.select"
        or str(user.attributes.get("callee", "")).startswith("_where")
        for user in users
    )


def _reduction(context: OpContext) -> Verdict | None:
    type = context.op.results[0].type
    combiner = combiner_of(context.op.regions[0])
    if not _number(type) or context.in_generator or len(context.op.results) > 1:
        return None
    if combiner not in ("add", "multiply"):
        return None
    source = context.op.operands[0]
    terms = _terms(context)
    fact = context.fact(source)
    if combiner == "add" and _small(Fact(fact.low * terms, fact.high * terms)):
        return None
    return Verdict(f"{combiner} of {terms} {type.dtype}")


def _terms(context: OpContext) -> int:
    shape = context.op.operands[0].type.shape
    axes = context.op.attributes.get("dimensions")
    sizes = [shape[a] for a in axes] if axes is not None else None
    terms = 1
    for size in sizes or context.op.attributes.get("window_dimensions", ()):
        terms *= size
    return terms


def _dot(context: OpContext) -> Verdict | None:
    types = [v.type for v in context.op.operands]
    return YES if all(map(_number, types)) else None


def _scatter(context: OpContext) -> Verdict | None:
    combiner = combiner_of(context.op.regions[0])
    dtype = context.op.results[0].type.dtype
    if combiner is None or not is_integer(dtype):
        return None
    return Verdict(f"'{combiner}' on {dtype}")


def _collective(context: OpContext) -> Verdict | None:
    type = context.op.results[0].type
    sums = combiner_of(context.op.regions[0]) in ("add", "multiply")
    return Verdict(str(type.dtype)) if sums and _number(type) else None


def _shift(context: OpContext) -> Verdict | None:
    dtype = context.op.results[0].type.dtype
    return None if dtype.itemsize == 4 else Verdict(f"of {dtype}")


_FIXED_DIVISION = (2, 30)


def _division(context: OpContext) -> Verdict | None:
    old = context.settings.sdk < _FIXED_DIVISION
    return YES if old and _number(context.op.results[0].type) else None


_INTEGRAL = (
    "floor",
    "ceil",
    "round_nearest_even",
    "round_nearest_afz",
    "sign",
)
_MOVES = tuple(
    f"stablehlo.{name}"
    for name in ("reshape", "transpose", "broadcast_in_dim", "slice", "abs", "negate")
)


def _float_to_int(context: OpContext) -> Verdict | None:
    (value,), (result,) = context.op.operands, context.op.results
    if is_integer(value.type.dtype) or not _number(result.type) or context.in_generator:
        return None
    constant = context.fact(value).value
    producer = context.producer(value, *_MOVES)
    if constant is not None or (producer is not None and _is_integral(producer)):
        return None
    return YES


def _is_integral(producer: Op) -> bool:
    """Whether an op makes whole numbers."""
    name = producer.name.removeprefix("stablehlo.")
    if name == "convert":
        return is_integer(producer.operands[0].type.dtype)
    return name in _INTEGRAL


RULES = (
    PortabilityRule(
        id="integer-fp32",
        severity="info",
        title=f"integer arithmetic, where it goes through VectorE, is {_FP32}",
        remedy="keep integers below 2^24, or check the values; "
        'integer_path="fp32" shows the effect',
        source="ISA: tensor_tensor; A2: arithmetic in FP32",
        ops=ops("add", "subtract", "multiply"),
        check=_arithmetic,
    ),
    PortabilityRule(
        id="integer-reduction",
        severity="warning",
        title=f"an integer reduction is {_FP32}",
        remedy="keep partial results below 2^24, or reduce halves of 16 bits apart",
        source="A2: VectorE reduces in FP32",
        ops=ops("reduce", "reduce_window"),
        check=_reduction,
    ),
    PortabilityRule(
        id="integer-dot",
        severity="error",
        title=f"an integer dot: refused, or computed {_FP32}",
        remedy="a dot of bfloat16 or float32, rounded to an integer afterwards",
        source="ERR/EVRF035, JK",
        ops=ops("dot_general", "dot", "convolution"),
        check=_dot,
    ),
    PortabilityRule(
        id="integer-scatter",
        severity="error",
        title=f"a scatter that combines integers: refused, or computed {_FP32}",
        remedy="scatter float32, or one-hot rows times a matrix",
        source="ERR/EVRF016, EVRF060",
        ops=ops("scatter"),
        check=_scatter,
    ),
    PortabilityRule(
        id="integer-collective",
        severity="warning",
        title=f"a collective that adds integers computes {_FP32}, and is refused under "
        "--implicit-integer-downcast=none",
        remedy="reduce float32",
        source="ERR/EVRF061, EVRF063",
        ops=ops("all_reduce", "reduce_scatter"),
        check=_collective,
    ),
    PortabilityRule(
        id="arithmetic-shift",
        severity="error",
        title="an arithmetic shift to the right",
        remedy="shift int32 and convert the result",
        source="ERR/EVRF022",
        ops=ops("shift_right_arithmetic"),
        check=_shift,
    ),
    PortabilityRule(
        id="integer-division",
        severity="warning",
        title="integer division is off by one for some operands before SDK 2.30",
        remedy="SDK 2.30 or later, or shifts and masks for powers of two",
        source="RN-CC 2.30.0",
        ops=ops("divide", "remainder"),
        check=_division,
    ),
    PortabilityRule(
        id="float-to-int",
        severity="warning",
        title="a float becomes an integer: XLA truncates, the engine rounds to nearest "
        "even",
        remedy="say which: jnp.trunc, floor or round before the cast; "
        'float_to_int="rne" shows the effect',
        source="RN-NKI 0.6.0; StableHLO convert",
        ops=ops("convert"),
        check=_float_to_int,
    ),
)
