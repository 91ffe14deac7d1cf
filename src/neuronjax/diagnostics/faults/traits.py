"""Properties of an op that follow from the errors of its executions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np

from neuronjax.diagnostics.faults.evidence import ADDS, ROUNDS, OpEvidence
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.judgement import COARSE
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import PART, OpTrace
from neuronjax.diagnostics.faults.state_steps import NEAR
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.execution.probes.signs import GONE, SINGULAR
from neuronjax.ir.program import Op, Value
from neuronjax.numerics.float_format import get_format

#: The elements of an offset differ at most by this factor from their norm.
ALIKE = 1.001
_SUMS = ADDS | {"stablehlo.reduce", "stablehlo.reduce_window"}
_PRODUCTS = frozenset(("stablehlo.multiply", "stablehlo.divide"))
#: Ops whose result is about the same for a tiny number and for zero. (Sums with a
#: constant are an exception in `vanishes_on`: zero plus an epsilon may be a divisor.)
_LEAVE_OUT = _SUMS | {f"stablehlo.{n}" for n in ("exponential", "compare", "select")}
_PERIODIC = frozenset(
    f"stablehlo.{name}" for name in ("cosine", "sine", "tan", "remainder")
)


def buries(trace: OpTrace, evidence: OpEvidence) -> float:
    """Return a sum's rounding error divided by its least addend; 0 for other ops."""
    if trace.path.op.name not in _SUMS:
        return 0.0
    addends = [s.norm for s in evidence.operands.values() if s.norm]
    return evidence.own * evidence.result.norm / min(addends, default=math.inf)


def has_offset(trace: OpTrace, evidence: OpEvidence) -> bool:
    """Return whether all elements of the larger addend of a sum have about the same
    magnitude, so that a later difference with a constant can cancel this addend."""
    if trace.path.op.name not in ADDS or len(evidence.operands) != 2:
        return False
    larger = max(evidence.operands.values(), key=lambda s: s.norm)
    return larger.elements > 1 and larger.largest <= larger.norm * ALIKE


def is_function(trace: OpTrace) -> bool:
    """Return whether an op is a function with a singular point, such as a logarithm."""
    return trace.path.op.name.rpartition(".")[2] in SINGULAR


def is_periodic(flow: Flow, trace: OpTrace) -> bool:
    """Return whether an op belongs to a periodic function: cos(x), x - floor(x)."""
    name = trace.path.op.name
    if name != "stablehlo.subtract":
        return name in _PERIODIC or name == "stablehlo.floor"
    makers = (flow.maker(v) for v in trace.path.op.operands)
    return any(t is not None and t.path.op.name in ROUNDS for t in makers)


def is_too_large(trace: OpTrace, evidence: OpEvidence) -> bool:
    """Return whether a result overflows its format (except results of functions with a
    singular point), or an operand overflows the cast of a policy."""
    if evidence.result.beyond and not is_function(trace):
        return True
    is_finite = not any(x.nonfinite for x in evidence.operands.values())
    return is_finite and largest_operand(evidence) > cast_limit(trace)


def cast_limit(trace: OpTrace) -> float:
    """Return the largest number of the format to which a policy casts an op's operands;
    Inf if there is no such cast or the cast scales the operands."""
    if trace.cast is None or trace.cast.is_scaled:
        return math.inf
    return get_format(trace.cast.format).max_finite


def largest_operand(evidence: OpEvidence) -> float:
    """Return the largest magnitude among the operands in the reference."""
    return max((x.largest for x in evidence.operands.values()), default=0.0)


def flushes(trace: OpTrace) -> bool:
    """Return whether an op turns small numbers into zeros, and its rounding makes at
    least `PART` of the result's error. (Zeros of a softmax make a smaller share.)"""
    error = min(trace.worst.result.error, 1.0)
    is_zero = trace.beneath > 0 and trace.zeros > 0
    return is_zero and trace.own >= PART * error


def rounds_to(trace: OpTrace) -> float:
    """Return the roundoff of an op's result or, if larger, that of the 8-bit format to
    which a policy casts its operands."""
    cast = 0.0 if trace.cast is None else trace.cast.unit
    own = min(unit_of(v.type.dtype) for v in trace.path.op.results)
    return max(own, cast if cast > COARSE else 0.0)


def rounds_operands(trace: OpTrace) -> bool:
    """Return whether a policy casts an op's operands to a format with fewer digits."""
    own = unit_of(trace.path.op.results[0].type.dtype)
    return trace.cast is not None and trace.cast.unit > own


def hands_on(evidence: OpEvidence) -> bool:
    """Return whether the Inf or NaN of a result comes from an operand."""
    operands = evidence.operands.values()
    return evidence.result.nonfinite > 0 and any(x.nonfinite for x in operands)


def is_short(value: Value) -> bool:
    """Return whether the elements of a value have 8 bits or fewer."""
    dtype = np.dtype(value.type.dtype)
    return dtype.itemsize == 1 and dtype.kind != "b"


def handed_on(trace: OpTrace) -> Iterator[Value]:
    """Yield the operands of an op that may be earlier values of a state: floats more
    than `NEAR` times as large as the result and, in a product, floats near one."""
    factors = trace.path.op.name in _PRODUCTS
    size = trace.worst.result.norm
    for operand, share in trace.worst.operands.items():
        near_one = factors and 0.5 < share.norm < 2.0
        is_float = operand.type.dtype.kind not in "iub"
        if is_float and (near_one or share.norm > NEAR * size):
            yield operand


def vanishes(trace: OpTrace) -> bool:
    """Return whether a share above `GONE` of an array underflows in every execution."""
    is_array = trace.worst.result.elements > 1
    return is_array and trace.zeros > 0 and trace.vanished > GONE


def vanishes_on(flow: Flow, trace: OpTrace, ends: Collection[Value]) -> bool:
    """Return whether the zeros that an op makes by underflow reach a result (`ends`),
    or an op, such as a division, for which zero is not like a small number."""

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
