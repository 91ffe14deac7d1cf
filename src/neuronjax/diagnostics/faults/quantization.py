"""Find quantizers that lose more than they need to.

Their bounds cut numbers off, or their roundings turn numbers into zeros. The float64
reference does the same, so no result shows it.

A quantizer ends in a cast to 8 bits or fewer, or rounds to whole numbers, bounds them
and scales them back. How it makes its scales does not matter, since errors are measured
in units of the quantized numbers. It is at fault if its error is twice the error with a
scale that fits: it loses a bit. (The rounding error of whole numbers grows with the
largest, so it may be better to clip a few.) It is also at fault if most numbers become
zero, or if some do and the program divides by them or each is the scale of many others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from neuronjax.diagnostics.faults.evidence import (
    ADDS,
    CLIPS,
    ROUNDS,
    OpEvidence,
    is_short_float,
    rounds,
)
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.traits import is_short
from neuronjax.diagnostics.op_records import CONSTANT
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.execution.probes.signs import FEW
from neuronjax.ir.program import Op, TensorType, Value
from neuronjax.ir.value_sources import ValueSources
from neuronjax.numerics.float_format import get_format

#: An error this many times as large costs one bit.
A_BIT = 2.0
#: Above this share of elements that are rounded to zero, a quantizer is at fault.
FLATTENED = 0.4
#: Zeros of a divisor b matter if norm(a / b) is this many times norm(a) / norm(b).
BLOWN_UP = 10.0
#: Root mean square error of rounding to whole numbers; and of rounding to floats, as a
#: multiple of roundoff x norm, for numbers spread evenly between two powers of two.
_OF_WHOLE = 1 / math.sqrt(12)
_OF_FLOATS = 1 / math.sqrt(7)
#: The largest whole number of 8 bits.
_LARGEST_CODE = 255
#: A bound below this share of a float format's largest number does not fit its range.
_NEAR_LARGEST = 0.5
_MEETS = CLIPS | ROUNDS
_SHOWS = frozenset(f"stablehlo.{n}" for n in ("convert", "reshape", "transpose"))
_SCALES = frozenset(("stablehlo.multiply", "stablehlo.divide"))
#: Ops that bound numbers. The calls of a function that bounds read each other's values.
_CHOICES = CLIPS | {"stablehlo.compare"}
_HANDS_ON = CONSTANT | _SCALES | {"stablehlo.sqrt"}


class Bound(NamedTuple):
    """A bound, or a cast that saturates.

    Attributes:
        cut_off: the root mean square of what it cuts off.
        largest: the largest magnitude before it.
        limit: the largest magnitude after it.
        trace, evidence: the op, and its execution that cuts off most.
    """

    cut_off: float
    largest: float
    limit: float
    trace: OpTrace
    evidence: OpEvidence


def quantizing(
    flow: Flow, graph: ValueSources, traces: Mapping[OpPath, OpTrace], last: OpTrace
) -> Iterator[tuple[OpTrace, OpEvidence]]:
    """Yield (op, worst execution) for the ops at fault of a quantizer that may end with
    the op `last`."""
    op = last.path.op
    is_cast = op.name == "stablehlo.convert" and is_short(op.results[0])
    if not is_cast and not (op.name in _MEETS and _is_scaled_back(flow, op)):
        return
    steps = [last, *_before(graph, traces, last.path)]
    dtype, least = op.results[0].type.dtype, 0.0
    if is_short_float(dtype):
        least = _NEAR_LARGEST * get_format(dtype.name).max_finite
    bounds = [b for t in steps if (b := _bound(graph, t)) and b.limit >= least]
    roundings = [t for t in steps if rounds(t.path.op)]
    first = min(bounds, key=lambda b: b.limit, default=None)
    limits = [] if first is None else [first.limit]
    for trace in steps:
        if trace.path.op.name in CLIPS:
            shares = trace.worst.operands.items()
            numbers = [(v, s) for v, s in shares if v.type.dtype.kind != "b"]
            limits += [s.largest for v, s in numbers if graph.is_constant(v, CONSTANT)]
    ends_in_codes = roundings and any(1 <= n <= _LARGEST_CODE for n in limits)
    if not is_cast and not ends_in_codes:
        return
    if first is not None and _costs_a_bit(op.results[0].type, bounds):
        yield first.trace, first.evidence
    for trace in roundings:
        few = trace.flattened > FEW and _matters(graph, traces, trace)
        if few or trace.flattened > FLATTENED:
            yield trace, trace.emptiest


def _is_scaled_back(flow: Flow, op: Op) -> bool:
    """Return whether all ops that read a result scale or bound it, as is done with
    codes but not with counts and indices."""
    readers = flow.ahead(op, lambda r: r.name in ADDS)  # subtracts a zero point
    names = {reader.name for reader in readers} - ADDS
    return bool(names & _SCALES) and names <= _SCALES | _CHOICES


def _before(
    graph: ValueSources, traces: Mapping[OpPath, OpTrace], path: OpPath
) -> Iterator[OpTrace]:
    """Yield the bounds and roundings before an op, back to the last arithmetic.

    Calls are distinguished, for all clipped values of a program may share a function.
    """
    # Floats may be bounded before they are scaled, integers only after it.
    scales = _SCALES if is_short_float(path.op.results[0].type.dtype) else frozenset()
    left = [(path.calls, v) for v in _same_size(path.op)]
    seen = set(left)
    while left:
        calls, value = left.pop()
        maker = graph.makers.get(value)
        found: list[tuple[tuple[Op, ...], Value]] = []
        if maker is None and calls:
            outer = set(graph.sources.get(value, ())).intersection(calls[-1].operands)
            found = [(calls[:-1], v) for v in outer]
        elif maker is not None and maker.callee:
            found = [((*calls, maker), v) for v in graph.sources[value]]
        elif maker is not None and maker.name in _MEETS | _SHOWS | scales:
            trace = traces.get(OpPath(calls, maker))
            if trace is not None and maker.name in _MEETS:
                yield trace
            found = [(calls, v) for v in _same_size(maker)]
        left += [f for f in found if f not in seen]
        seen.update(found)


def _same_size(op: Op) -> list[Value]:
    """Return the operands as large as the result, without broadcast bounds."""
    size = math.prod(op.results[0].type.shape)
    return [v for v in op.operands if math.prod(v.type.shape) == size]


def _bound(graph: ValueSources, trace: OpTrace) -> Bound | None:
    """Return what an op cuts off as a bound, or None if nothing. The operand nearer to
    the result is the bounded one."""
    found = [
        (evidence.cut_off[v], n, v, evidence)
        for n, (v, evidence) in enumerate(trace.bounding.items())
        if not graph.is_constant(v, CONSTANT)
    ]
    if not found or not min(found)[0]:
        return None
    cut_off, _, value, evidence = min(found)
    dtype = trace.path.op.results[0].type.dtype
    # The reference does not round to 8 bits, and so does not saturate.
    ends = get_format(dtype.name).max_finite if is_short_float(dtype) else math.inf
    limit = min(evidence.result.largest, ends)
    return Bound(cut_off, evidence.operands[value].largest, limit, trace, evidence)


def _costs_a_bit(type: TensorType, bounds: Sequence[Bound]) -> bool:
    """Return whether bounds make the error of a quantizer that ends in `type` twice as
    large as it need be."""
    if not is_short_float(type.dtype):
        limit = min(bound.limit for bound in bounds)
        cut_off = math.hypot(*(bound.cut_off for bound in bounds))
        largest = max(bound.largest for bound in bounds)
        return math.hypot(cut_off, _OF_WHOLE) > A_BIT * _OF_WHOLE * largest / limit
    # A scale may lie between two bounds, so each is measured by its own numbers.
    parts = (b.cut_off / (b.evidence.result.norm or math.inf) for b in bounds)
    own = _OF_FLOATS * unit_of(type.dtype)
    return math.hypot(own, *parts) > A_BIT * own


def _matters(
    graph: ValueSources, traces: Mapping[OpPath, OpTrace], codes: OpTrace
) -> bool:
    """Return whether a few zeros among codes affect many numbers.

    A quotient by a number computed from zeros may be huge, and each code may be the
    scale of several numbers.
    """

    def hands_on(_: Value, reader: Value) -> bool:
        maker = graph.makers.get(reader)
        if maker is None or maker.callee or maker.name in _HANDS_ON:
            return True
        guards = (graph.is_constant(v, CONSTANT) for v in maker.operands)
        return maker.name == "stablehlo.add" and any(guards)

    reached = set(graph.ahead(codes.path.op.results, hands_on))
    few = codes.worst.result.elements

    def owes(trace: OpTrace) -> bool:
        op = trace.path.op
        if op.name == "stablehlo.divide":
            return op.operands[1] in reached and _is_blown_up(trace)
        if op.name != "stablehlo.multiply" or trace.worst.result.elements <= few:
            return False
        others = [v for v in op.operands if v not in reached]
        return [graph.is_constant(v, CONSTANT) for v in others] == [False]

    return any(map(owes, traces.values()))


def _is_blown_up(quotient: OpTrace) -> bool:
    dividend, divisor = (
        quotient.worst.operands[v].norm for v in quotient.path.op.operands
    )
    return quotient.worst.result.norm * divisor > BLOWN_UP * dividend > 0
