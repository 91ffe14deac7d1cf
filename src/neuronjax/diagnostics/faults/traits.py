"""Traits of single ops, found from their figures, with one function per question."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from neuronjax.diagnostics.faults.evidence import ADDS, ROUNDS, OpEvidence
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.judgement import COARSE
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import PART, OpTrace
from neuronjax.diagnostics.faults.shares import Share
from neuronjax.diagnostics.faults.state_steps import NEAR
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.execution.probes.signs import GONE, SINGULAR
from neuronjax.ir.program import Op, Value
from neuronjax.numerics.float_format import get_format

_SUMS = ADDS | {"stablehlo.reduce", "stablehlo.reduce_window"}
_PRODUCTS = frozenset(("stablehlo.multiply", "stablehlo.divide"))
#: Ops to which it makes no difference whether a tiny number is zero, except in a sum
#: with a constant, such as the epsilon before a division (`vanishes_on`).
_LEAVE_OUT = _SUMS | {f"stablehlo.{n}" for n in ("exponential", "compare", "select")}
_PERIODIC = frozenset(
    f"stablehlo.{name}" for name in ("cosine", "sine", "tan", "remainder")
)


def buries(trace: OpTrace, evidence: OpEvidence) -> float:
    """Return the rounding error of a sum relative to its smallest addend."""
    if trace.path.op.name not in _SUMS:
        return 0.0
    addends = [s.norm for s in evidence.operands.values() if s.norm]
    return evidence.own * evidence.result.norm / min(addends, default=math.inf)


def has_offset(trace: OpTrace, evidence: OpEvidence) -> bool:
    """Return whether the larger addend of a sum has one magnitude everywhere."""
    if trace.path.op.name not in ADDS or len(evidence.operands) != 2:
        return False
    larger = max(evidence.operands.values(), key=lambda s: s.norm)
    return larger.elements > 1 and larger.largest <= larger.norm * (1 + 2.0**-40)


def is_function(trace: OpTrace) -> bool:
    """Return whether an op is a function with a singular point."""
    return trace.path.op.name.rpartition(".")[2] in SINGULAR


def is_periodic(flow: Flow, trace: OpTrace) -> bool:
    """Return whether an op, such as a cosine, uses a number only modulo another."""
    name = trace.path.op.name
    if name != "stablehlo.subtract":
        return name in _PERIODIC or name == "stablehlo.floor"
    makers = (flow.maker(v) for v in trace.path.op.operands)
    return any(t is not None and t.path.op.name in ROUNDS for t in makers)


def is_too_large(trace: OpTrace, evidence: OpEvidence) -> bool:
    """Return whether a result overflows its format, though not at a singular point, or
    an operand overflows the cast of a policy."""
    if evidence.result.beyond and not is_function(trace):
        return True
    is_finite = not any(x.nonfinite for x in evidence.operands.values())
    return is_finite and largest_operand(evidence) > cast_limit(trace)


def cast_limit(trace: OpTrace) -> float:
    """Return the largest number that a policy's cast of operands holds; Inf without a
    cast, or with scales."""
    if trace.cast is None or trace.cast.is_scaled:
        return math.inf
    return get_format(trace.cast.format).max_finite


def largest_operand(evidence: OpEvidence) -> float:
    """Return the largest magnitude in the reference's operands."""
    return max((x.largest for x in evidence.operands.values()), default=0.0)


def flushes(trace: OpTrace) -> bool:
    """Return whether an op turns small numbers into zeros that matter to its error,
    unlike a softmax, whose zeros are negligible beside its large numbers."""
    error = min(trace.worst.result.error, 1.0)
    is_zero = trace.beneath > 0 and trace.zeros > 0
    return is_zero and trace.own >= PART * error


def rounds_to(trace: OpTrace) -> float:
    """Return the roundoff of an op's result, or that of a policy's cast of its operands
    if this is coarser, and has 8 bits or belongs to a matmul that only adds numbers."""
    cast = 0.0 if trace.cast is None else trace.cast.unit
    own = min(unit_of(v.type.dtype) for v in trace.path.op.results)
    counts = cast > COARSE or any(map(_is_of_ones, trace.worst.operands.values()))
    return max(own, cast if counts else 0.0)


def _is_of_ones(share: Share) -> bool:
    """Return whether all numbers are 0, 1 or -1, as in one-hot vectors."""
    return share.largest == 1 and math.isclose(share.norm**2, 1 - share.nothing)


def hands_on(evidence: OpEvidence) -> bool:
    """Return whether the Inf or NaN of a result comes from an operand."""
    operands = evidence.operands.values()
    return evidence.result.nonfinite > 0 and any(x.nonfinite for x in operands)


def is_short(value: Value) -> bool:
    """Return whether the elements of a value have 8 bits or fewer."""
    dtype = np.dtype(value.type.dtype)
    return dtype.itemsize == 1 and dtype.kind != "b"


def handed_on(trace: OpTrace) -> Iterator[Value]:
    """Yield the operands through which an op passes a state on: those about as large as
    its result, and factors near one."""
    factors = trace.path.op.name in _PRODUCTS
    size = trace.worst.result.norm
    for operand, share in trace.worst.operands.items():
        near_one = factors and 0.5 < share.norm < 2.0
        is_float = operand.type.dtype.kind not in "iub"
        if is_float and (near_one or share.norm > NEAR * size):
            yield operand


def vanishes(trace: OpTrace) -> bool:
    """Return whether all of a result underflows, in every execution."""
    is_array = trace.worst.result.elements > 1
    return is_array and trace.zeros > 0 and trace.vanished > GONE


def vanishes_on(flow: Flow, trace: OpTrace, results: Sequence[Value]) -> bool:
    """Return whether an underflow matters: zeros reach a result of the program, or an
    op that treats them unlike small numbers, as a sum or an exponential does not."""
    ends = {
        v for value in results for v in flow.behind(value, lambda v: not flow.trace(v))
    }

    def hands_on(reader: Op) -> bool:
        read = flow.trace(reader.results[0])
        return reader.name in MOVING or (read is not None and vanishes(read))

    def takes(reader: Op) -> bool:
        if hands_on(reader):
            return reader.results[0] in ends
        guards = reader.name in ADDS and any(map(flow.is_constant, reader.operands))
        return guards or reader.name not in _LEAVE_OUT

    op = trace.path.op
    return op.results[0] in ends or any(map(takes, flow.ahead(op, hands_on)))
