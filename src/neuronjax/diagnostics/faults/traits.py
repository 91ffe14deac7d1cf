"""What the numbers of single ops tell of them, one question a function."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from neuronjax.diagnostics.faults.evidence import OpEvidence
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.wrong_results import NEAR
from neuronjax.execution.probes.signs import SINGULAR
from neuronjax.ir.program import Value
from neuronjax.numerics.float_format import get_format

_SUMS = frozenset(
    f"stablehlo.{name}" for name in ("add", "subtract", "reduce", "reduce_window")
)
_PRODUCTS = frozenset(("stablehlo.multiply", "stablehlo.divide"))
ROUNDS = frozenset(
    f"stablehlo.{name}" for name in ("round_nearest_even", "round_nearest_afz", "floor")
)
#: Share of elements that rounding makes zero, from which on little is left of them.
FLATTENED = 0.4


def buries(trace: OpTrace, evidence: OpEvidence) -> float:
    """The rounding of a sum beside its smallest addend."""
    if trace.path.op.name not in _SUMS:
        return 0.0
    addends = [s.norm for s in evidence.operands.values() if s.norm]
    return evidence.own * evidence.result.norm / min(addends, default=math.inf)


def is_too_large(trace: OpTrace, evidence: OpEvidence) -> bool:
    """Whether a format cannot hold a result, which is not beside a singular point, or
    what a policy casts operands to cannot hold one of them."""
    if evidence.result.beyond and trace.path.op.name.rpartition(".")[2] not in SINGULAR:
        return True
    is_finite = not any(x.nonfinite for x in evidence.operands.values())
    return is_finite and largest_operand(evidence) > cast_limit(trace)


def cast_limit(trace: OpTrace) -> float:
    """The largest number that a policy's cast of operands holds; Inf without one, or
    with scales of blocks."""
    if trace.cast is None or trace.cast.has_blocks:
        return math.inf
    return get_format(np.dtype(trace.cast.dtype).name).max_finite


def largest_operand(evidence: OpEvidence) -> float:
    """The largest magnitude in the reference's operands."""
    return max((x.largest for x in evidence.operands.values()), default=0.0)


def narrows(trace: OpTrace) -> bool:
    """Whether a cast gives up digits."""
    op = trace.path.op
    if op.name != "stablehlo.convert":
        return False
    before, after = (unit_of(v.type.dtype) for v in (*op.operands, *op.results))
    return 0 < before < after


def only_renames(trace: OpTrace, evidence: OpEvidence) -> bool:
    """Whether an op makes numbers of choices or integers, without rounding them."""
    source = trace.path.op.operands[0].type.dtype if trace.path.op.operands else None
    is_whole = source is not None and source.kind in "iub"
    return trace.path.op.name == "stablehlo.convert" and is_whole and not evidence.own


def hands_on(evidence: OpEvidence) -> bool:
    """Whether an op has its Inf or NaN from an operand."""
    operands = evidence.operands.values()
    return evidence.result.nonfinite > 0 and any(x.nonfinite for x in operands)


def is_short(value: Value) -> bool:
    """Whether a value is of a number of 8 bits or fewer."""
    dtype = np.dtype(value.type.dtype)
    return dtype.itemsize == 1 and dtype.kind != "b"


def flattens(trace: OpTrace) -> bool:
    """Whether rounding to whole numbers leaves little but zeros."""
    if trace.path.op.name not in ROUNDS:
        return False
    before = max(x.nothing for x in trace.worst.operands.values())
    return trace.worst.result.nothing - before > FLATTENED


def handed_on(trace: OpTrace) -> Iterator[Value]:
    """The operands that an op hands on: those as large as its result, and factors near
    one."""
    factors = trace.path.op.name in _PRODUCTS
    size = trace.worst.result.norm
    for operand, share in trace.worst.operands.items():
        near_one = factors and 0.5 < share.norm < 2.0
        if near_one or share.norm > NEAR * size:
            yield operand
