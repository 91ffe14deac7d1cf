"""Rules about dtypes that the chip lacks.

An op is reported if one of its results, but none of its operands, has such a dtype. The
arguments of the program are reported too. `hardware/chips.py` lists each chip's dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from neuronjax.diagnostics.facts import Fact
from neuronjax.diagnostics.op_contexts import OpContext, Settings
from neuronjax.diagnostics.rule import Answer, RuleText, read_entries, read_rules
from neuronjax.ir.program import TensorType


@dataclass(frozen=True, kw_only=True)
class DtypeRule(RuleText):
    """A rule about values of some dtypes, checked for every op.

    Attributes:
        limit: where the rule applies: "on chips with" or "on chips without" a
            capability, or "before" or "since" a version of the SDK; "" for everywhere.
    """

    dtypes: tuple[str, ...]
    limit: str
    ops: ClassVar[frozenset[str]] = frozenset()
    per_program: ClassVar[bool] = False

    def check(self, context: OpContext) -> Answer:
        """Return whether the rule applies to a result of an op and to no operand."""
        op, settings = context.op, context.settings
        return (
            op.name not in _HANDED_ON
            and any(self.judge(r.type, settings) for r in op.results)
            and not any(self.judge(v.type, settings) for v in op.operands)
        )

    def judge(self, type: TensorType, settings: Settings) -> bool:
        """Return whether the rule applies to a value of this type."""
        word, _, what = self.limit.rpartition(" ")
        if type.dtype.name not in self.dtypes:
            return False
        if word.startswith("on chips"):
            has = what in settings.target.core.capabilities
            return has == (word == "on chips with")
        is_older = word and settings.sdk < tuple(map(int, what.split(".")))
        return not word or is_older == (word == "before")


DTYPE_RULES = tuple(
    DtypeRule(**entry.fields, dtypes=entry.names, limit=entry.limit)
    for entry in read_entries(
        """
float64: error of float64
no NeuronCore has float64
> float32, and jax_enable_x64 off
[DT: data types of the NeuronCores]

complex: error of complex64 before 2.32
complex numbers are not supported
> a pair of float32 arrays
[ERR/EVRF004, JK]

complex: warning of complex64 since 2.32
the notes of SDK 2.32 list 30 ops for complex64, the page of error codes lists none
> a pair of float32 arrays
[RN-CC 2.32 against ERR/EVRF004, JK]

complex: error of complex128
complex128 is not supported
> a pair of float32 arrays
[ERR/EVRF004, JK]

fp8-fnuz: error of float8_e4m3fnuz, float8_e5m2fnuz, float8_e4m3b11fnuz
FP8 without negative zero (FNUZ) is not supported
> float8_e4m3 or float8_e5m2
[ERR/EVRF005, ESPP047]

fp8-e4m3fn: error of float8_e4m3fn on chips without float8_e4m3fn
float8_e4m3fn does not exist before Trainium3
> float8_e4m3 (largest value 240 instead of 448), or a trn3 target
[ERR/EVRF051]

fp8-e4m3fn: warning of float8_e4m3fn on chips with float8_e4m3fn
the chip has float8_e4m3fn, but JAX on Neuron does not list it as an FP8 type
> float8_e5m2, or float8_e4m3 (largest value 240)
[JK against ERR/EVRF051]

fp8-e4m3: error of float8_e4m3 on chips without float8_e4m3
float8_e4m3 does not exist after Trainium3
> float8_e4m3fn
[ERR/EVRF052]

fp8-e3m4: error of float8_e3m4
no interface of the SDK offers float8_e3m4
> float8_e4m3 or float8_e5m2
[ERR/ESPP047; A3, footnote on FP8_E3]

float4: error of float4_e2m1fn
float4_e2m1fn is no dtype of JAX programs on any chip
> microscaled operands: jax.nn.scaled_matmul on trn3
[ERR/ESPP004]

mx-scales: error of float8_e8m0fnu on chips without mx_matmul
scales of microscaled operands do not exist before Trainium3
> a trn3 target
[A4, MXG]

small-integer: error of int4, uint4, int2, uint2
integers narrower than 8 bits are not supported
> int8 or uint8; to save memory, store two 4-bit numbers in each byte
[ERR/ESPP047; SH: 8, 16 and 32 bits]
"""
    )
)

# The results of these ops come from ops inside them, which are checked instead.
_HANDED_ON = ("func.call", "stablehlo.composite", "stablehlo.case", "stablehlo.if")
_INT32 = (-(2**31), 2**31 - 1)
_UINT32 = (0, 2**32 - 1)


def _fits(dtype: np.dtype, fact: Fact) -> bool:
    return fact.within(*(_UINT32 if dtype == np.uint64 else _INT32))


def is_wide(type: TensorType) -> bool:
    """Return whether the elements of `type` are 64-bit integers."""
    return type.dtype in (np.int64, np.uint64)


def _int64(context: OpContext) -> Answer:
    """Return the 64-bit integer dtype of a result, if no operand has such a dtype and
    32 bits may not suffice; else None."""
    op = context.op
    wide = [r.type.dtype for r in op.results if is_wide(r.type)]
    if not wide or any(is_wide(v.type) for v in op.operands) or context.in_generator:
        return None
    if op.name in (*_HANDED_ON, "stablehlo.constant", "stablehlo.iota"):
        return None
    dtype = op.results[0].type.dtype
    fits = all(_fits(dtype, context.fact(v)) for v in op.operands[:1])
    return None if fits else str(wide[0])


def _int64_constant(context: OpContext) -> Answer:
    (result,) = context.op.results
    value = context.op.attributes["value"]
    if not is_wide(result.type) or context.in_generator or not value.size:
        return None
    fact = Fact(int(value.min()), int(value.max()))
    largest = max((fact.low, fact.high), key=abs)
    return None if _fits(result.type.dtype, fact) else f"{largest:.0f}"


def _fp8_overflow(context: OpContext) -> Answer:
    (value,), (result,) = context.op.operands, context.op.results
    moves = ("stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim")
    producer = context.producer(value, *moves)
    limited = ("stablehlo.clamp", "stablehlo.minimum", "func.call")
    clamped = producer is not None and producer.name in limited
    is_free = not clamped and context.fact(value).value is None
    return result.type.dtype.name == "float8_e4m3" and is_free


def _round_trip(context: OpContext) -> Answer:
    (value,), (result,) = context.op.operands, context.op.results
    maker = context.producer(value)
    if maker is None or maker.name != "stablehlo.convert":
        return None
    wide, narrow = result.type.dtype, value.type.dtype
    is_back = maker.operands[0].type == result.type and narrow.itemsize < wide.itemsize
    floats = {wide.kind, narrow.kind}.isdisjoint("iub")
    return is_back and floats and f"{wide} through {narrow}"


_TRUNCATED = "the high 32 bits are dropped"

RULES = read_rules(
    f"""
int64: warning
64-bit integers: {_TRUNCATED}
> int32 and jax_enable_x64 off; or, on trn2 and later, --native-int64=enabled, which
is 20 to 30 % slower
[CLI, DT: INT64 is treated as INT32]

int64-constant: error in constant
a constant that needs more than 32 bits: {_TRUNCATED}, or it is refused
> a constant that fits, or two 32-bit halves
[ERR/ESFH002; CLI]

fp8-overflow: info in convert
float8_e4m3 holds values up to 240; larger ones become NaN or Inf (documents differ)
> jnp.clip(x, -240, 240) before the cast
[CQ against ISA]

round-trip: warning in convert
a cast to a narrower float and back is folded away: the compiler rounds nothing
> round by arithmetic in FP32: with c = 65537 * x, c - (c - x) is x rounded to BF16;
round_trips="folded" shows the effect
[KLN]
""",
    {
        "int64": _int64,
        "int64-constant": _int64_constant,
        "fp8-overflow": _fp8_overflow,
        "round-trip": _round_trip,
    },
)


def arguments(settings: Settings) -> Iterator[tuple[DtypeRule, str, TensorType]]:
    """Yield (rule, name, type) for each argument to which a dtype rule applies."""
    names = settings.program.argument_names
    for index, value in enumerate(settings.program.entry.body.arguments):
        name = names[index] if index < len(names) else str(index)
        for rule in DTYPE_RULES:
            if rule.judge(value.type, settings):
                yield rule, name, value.type
