"""Quantizers that lose more than necessary: bounds cut numbers off, or roundings turn
numbers into zeros. The float64 reference loses as much, so no result shows the loss.

A quantizer ends in a cast to 8 bits or fewer, or in one that rounds to integers of 16
bits; or it rounds to whole numbers, bounds these and scales them back. A quantizer is
at fault if its error is over twice the error with a scale that fits all numbers: a loss
of one bit. (If few numbers are much larger than the others, clipping the few may be
better than such a scale.) A quantizer is also at fault if many numbers or whole
channels become zero; or if a few become zero, and the program divides by the zeros or
multiplies several numbers by each zero. Fixed-point numbers (numbers that the program
multiplies by a constant, rounds, and divides by the constant, perhaps after adding some
of them) are at fault only if nearly all become zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from neuronjax.diagnostics.faults.evidence import (
    ADDS,
    CLIPS,
    ROUNDS,
    OpEvidence,
    is_short_float,
    largest_of,
    rounds,
)
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.scales import (
    NEARBY,
    SCALES,
    is_fixed_point,
    is_quantile,
)
from neuronjax.diagnostics.faults.shares import MOST_LOST
from neuronjax.diagnostics.faults.traits import is_short
from neuronjax.diagnostics.op_records import CONSTANT
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.execution.probes.signs import FEW
from neuronjax.ir.program import Op, Value
from neuronjax.ir.value_sources import ValueSources

#: An error this many times as large as necessary costs one bit.
A_BIT = 2.0
#: A clip before integers that changes a smaller share of the norm is no fault.
CUT_OFF = 0.1
#: Above this share of elements that are rounded to zero, a quantizer is at fault.
FLATTENED = 0.4
#: Numbers with a smaller share of the norm are negligible, unless nearly all numbers or
#: whole channels become zero: a quantizer may round an epsilon to zero.
NEGLIGIBLE = 1 / 8
NEARLY_ALL = 0.75
#: A quantizer that makes more than this share of channels mostly zero is at fault.
DEAD = 1 / 16
#: Zeros of a divisor b matter if norm(a / b) is this many times norm(a) / norm(b).
BLOWN_UP = 10.0
#: Root mean square error of rounding to whole numbers.
_OF_WHOLE = 1 / math.sqrt(12)
#: Root mean square error of rounding to floats, as a multiple of roundoff * norm, for
#: numbers spread evenly between two powers of two.
_OF_FLOATS = 1 / math.sqrt(7)
_LARGEST_CODE = 65535
#: A bound below this share of a float format's largest number belongs to no quantizer.
_NEAR_LARGEST = 0.5
_MEETS = CLIPS | ROUNDS
_SHOWS = frozenset(f"stablehlo.{n}" for n in ("convert", "reshape", "transpose"))
#: Ops by which a quantizer makes steps finer near zero (mu-law, logarithmic codes).
_COMPANDS = frozenset(f"stablehlo.{n}" for n in ("abs", "sign", "log", "sqrt"))
_COMPANDS |= {"stablehlo.log_plus_one", "stablehlo.cbrt"}
#: Ops that bound numbers, and the comparison that a bounding select reads.
_CHOICES = CLIPS | {"stablehlo.compare"}
_HANDS_ON = CONSTANT | SCALES | {"stablehlo.sqrt"}


class Bound(NamedTuple):
    """An op that bounds numbers, or a cast that saturates.

    Attributes:
        cut_off: the root mean square of what is cut off.
        largest: the largest magnitude before the bound.
        limit: the largest magnitude after the bound.
        trace, evidence: the op, and the execution that cuts off most.
    """

    cut_off: float
    largest: float
    limit: float
    trace: OpTrace
    evidence: OpEvidence


def quantizing(
    flow: Flow, graph: ValueSources, traces: Mapping[OpPath, OpTrace], last: OpTrace
) -> Iterator[tuple[OpTrace, OpEvidence]]:
    """Yield (op at fault, its worst execution) for the quantizer that ends with the op
    `last`; nothing if `last` ends no quantizer."""
    op, dtype = last.path.op, last.path.op.results[0].type.dtype
    is_code = dtype.kind in "iu" and dtype.itemsize == 2 and rounds(op)
    is_cast = op.name == "stablehlo.convert" and (is_short(op.results[0]) or is_code)
    if last.flattened > NEARLY_ALL and rounds(op) and is_fixed_point(flow, op):
        yield last, last.emptiest
        return
    if not is_cast and not (op.name in _MEETS and _is_scaled_back(flow, op)):
        return
    steps, scaled = [last], list[OpTrace]()
    for trace, passed in _before(flow, graph, op):
        # A quantizer to floats may bound numbers before it scales them. Before the
        # scaling of a quantizer to integers, a constant bound may be a relu6.
        if is_short_float(dtype) or not passed:
            steps.append(trace)
        elif passed & _COMPANDS or _is_range(flow, trace):
            scaled.append(trace)
    least = _NEAR_LARGEST * largest_of(dtype) if is_short_float(dtype) else 0.0
    # With a zero point, a bound at zero cuts numbers off; otherwise it is a ReLU.
    zero = any(_is_zero_point(flow, r) for r in _shown(flow, op))
    bounds = [b for t in steps if (b := _bound(flow, t, zero)) and b.limit >= least]
    ranges = [b for t in scaled if (b := _bound(flow, t))]
    roundings = [t for t in steps if rounds(t.path.op)]
    codes = [b.limit for b in bounds]
    if ranges and not bounds:
        codes = [t.worst.result.largest for t in roundings]
    limits = [*codes]
    for trace in steps:
        if trace.path.op.name in CLIPS:
            shares = trace.worst.operands.items()
            numbers = [(v, s) for v, s in shares if v.type.dtype.kind != "b"]
            limits += [s.largest for v, s in numbers if flow.is_constant(v)]
    ends_in_codes = roundings and any(1 <= n <= _LARGEST_CODE for n in limits)
    if not is_cast and not ends_in_codes:
        return
    bounds += ranges
    cuts_off = bounds and codes and _costs_a_bit(dtype, bounds, min(codes))
    # If the scale for all numbers costs two bits, a program may prefer a percentile.
    wide = max((b.largest / b.limit for b in bounds), default=0.0) > A_BIT**2
    if cuts_off and not (wide and any(is_quantile(flow, b.trace) for b in bounds)):
        first = min(bounds, key=lambda b: b.limit)
        yield first.trace, first.evidence
    for trace in roundings:
        if _is_dithered(flow, trace.path.op):
            continue
        few = trace.flattened > FEW and _matters(flow, graph, traces, trace)
        many = trace.flattened > FLATTENED and trace.flattened_norm > NEGLIGIBLE
        many |= trace.flattened > NEARLY_ALL or trace.dead_channels > DEAD
        if few or many:
            yield trace, trace.emptiest


def truncates_steps(flow: Flow, trace: OpTrace) -> bool:
    """Return whether an op truncates the steps (changes) of an integer state in a loop,
    more than `MOST_LOST` of them to zero, and the program keeps no remainders."""
    op = trace.path.op
    is_cast = op.name == "stablehlo.convert" and rounds(op)
    if not is_cast or trace.flattened <= MOST_LOST:
        return False
    readers, steps = [*_shown(flow, op)], flow.maker(op.operands[0])
    sums = [r for r in readers if r.name in ADDS]
    makers = (flow.maker(v) for r in sums for v in r.operands)
    if steps is not None and any(maker is steps for maker in makers):
        return False
    whole = (r for r in sums if r.results[0].type.dtype.kind in "iu")
    return any(r in flow.ops_behind(v) for r in whole for v in r.operands)


def _is_scaled_back(flow: Flow, op: Op) -> bool:
    through = ADDS | _SHOWS  # a zero point is subtracted, after a cast to float
    readers = [*flow.ahead(op, lambda r: r.name in through)]
    computing = [r for r in readers if r.name not in _SHOWS]
    names = {r.name for r in readers}
    is_index = any(r.results[0].type.dtype.kind in "iu" for r in computing)
    is_scaled = bool(names & SCALES) and names - through <= SCALES | _CHOICES | ROUNDS
    scaled = (r for r in readers if r.name in SCALES)
    # exp2(x) is exp(x log 2): whole numbers are exponents there, and not scaled back.
    is_exponent = any(
        n.name == "stablehlo.exponential" for r in scaled for n in _shown(flow, r)
    )
    return is_scaled and not is_index and not is_exponent


def _is_dithered(flow: Flow, op: Op) -> bool:
    """Return whether `op` rounds x + u with random u. JAX computes u from
    shifted random bits."""
    made = flow.maker(op.operands[0])
    if made is None or made.path.op.name not in ADDS:
        return False
    addends = filter(None, map(flow.maker, made.path.op.operands))
    steps = (t for addend in addends for t in (addend, *flow.near(addend, NEARBY)))
    return any(t.path.op.name == "stablehlo.shift_right_logical" for t in steps)


def _shown(flow: Flow, op: Op) -> Iterator[Op]:
    return flow.ahead(op, lambda reader: reader.name in _SHOWS)


def _is_zero_point(flow: Flow, reader: Op) -> bool:
    """Return whether `reader` adds a zero point: it is a sum whose result is scaled."""
    scales = (r.name in SCALES for r in _shown(flow, reader))
    return reader.name in ADDS and any(scales)


def _is_range(flow: Flow, trace: OpTrace) -> bool:
    """Return whether an op bounds numbers by a number that the program computes."""
    limits = (v for v in trace.path.op.operands if v not in trace.worst.cut_off)
    floats = (v for v in limits if v.type.dtype.kind not in "iub")
    return any(flow.maker(v) and not flow.is_constant(v) for v in floats)


def _before(
    flow: Flow, graph: ValueSources, op: Op
) -> Iterator[tuple[OpTrace, frozenset[str]]]:
    """Yield (op that bounds or rounds numbers, names of the ops between it and `op`
    that scale or compand) for the ops before `op`, back to other arithmetic."""
    left = [(v, frozenset[str]()) for v in _numbers(op)]
    seen = set(left)
    while left:
        value, passed = left.pop()
        trace, found = flow.trace(value), list[Value]()
        if trace is None:
            found = graph.sources.get(value, [])
        elif (name := trace.path.op.name) in _MEETS | _SHOWS | SCALES | _COMPANDS:
            if name in _MEETS:
                yield trace, passed
            passed |= {name} & (SCALES | _COMPANDS)
            found = _numbers(trace.path.op)
        left += [f for f in ((v, passed) for v in found) if f not in seen]
        seen.update(left)


def _numbers(op: Op) -> list[Value]:
    """Return the operands as large as the result; of a quotient, only the dividend."""
    size = math.prod(op.results[0].type.shape)
    operands = op.operands[:1] if op.name == "stablehlo.divide" else op.operands
    return [v for v in operands if math.prod(v.type.shape) == size]


def _bound(flow: Flow, trace: OpTrace, zero: bool = False) -> Bound | None:
    """Return the op of `trace` as a `Bound`; None if it cuts nothing off. If `zero`,
    numbers that become zero count as cut off too. Of two operands, the one that loses
    less counts as bounded."""
    found = [
        (math.hypot(*evidence.cut_off[v][: 1 + zero]), n, v, evidence)
        for n, (v, evidence) in enumerate(trace.bounding.items())
        if not flow.is_constant(v)
    ]
    if not found or not min(found)[0]:
        return None
    cut_off, _, value, evidence = min(found)
    # The reference does not round to 8 bits, and so does not saturate.
    limit = min(
        evidence.result.largest, largest_of(trace.path.op.results[0].type.dtype)
    )
    return Bound(cut_off, evidence.operands[value].largest, limit, trace, evidence)


def _costs_a_bit(dtype: Any, bounds: Sequence[Bound], codes: float) -> bool:
    """Return whether a quantizer that clips at `bounds` makes over twice the error that
    it would make with a fitting scale. `codes` is the largest rounded number."""
    parts = [b.cut_off / (b.evidence.result.norm or math.inf) for b in bounds]
    if not is_short_float(dtype):
        cut_off = math.hypot(*(b.cut_off * codes / b.limit for b in bounds))
        over = max(b.largest / b.limit for b in bounds)
        costs = math.hypot(cut_off, _OF_WHOLE) > A_BIT * _OF_WHOLE * over
        return costs and math.hypot(*parts) > CUT_OFF
    # Numbers may be scaled between bounds, so divide each cut_off by the result's norm.
    own = _OF_FLOATS * unit_of(dtype)
    return math.hypot(own, *parts) > A_BIT * own


def _matters(
    flow: Flow,
    graph: ValueSources,
    traces: Mapping[OpPath, OpTrace],
    codes: OpTrace,
) -> bool:
    """Return whether a few zeros in the result of `codes` matter: the program divides
    by numbers computed from the zeros, or multiplies several numbers by each zero."""

    def hands_on(_: Value, reader: Value) -> bool:
        maker = graph.makers.get(reader)
        if maker is None or maker.callee or maker.name in _HANDS_ON:
            return True
        guards = (flow.is_constant(v) for v in maker.operands)
        return maker.name == "stablehlo.add" and any(guards)

    reached = set(graph.ahead(codes.path.op.results, hands_on))
    few = codes.worst.result.elements

    def owes(trace: OpTrace) -> bool:
        op = trace.path.op
        if op.name == "stablehlo.divide":
            return op.operands[1] in reached and _is_blown_up(trace)
        if op.name != "stablehlo.multiply" or trace.worst.result.elements <= few:
            return False
        # A scale, which multiplies several zeros, does not count.
        others = [v for v in op.operands if v not in reached]
        if len(others) != 1 or flow.is_constant(others[0]):
            return False
        made = flow.maker(others[0])
        return made is None or made.worst.result.elements > few

    return any(map(owes, traces.values()))


def _is_blown_up(quotient: OpTrace) -> bool:
    dividend, divisor = (
        quotient.worst.operands[v].norm for v in quotient.path.op.operands
    )
    return quotient.worst.result.norm * divisor > BLOWN_UP * dividend > 0
