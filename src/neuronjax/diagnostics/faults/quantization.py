"""Bounds and roundings before a cast to 8 bits or fewer that leave little of what they
should hold, though float64 does the same: those of a scale that is not theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.diagnostics.faults.evidence import BOUNDS, OpEvidence, flattened
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.traits import ROUNDS, is_short
from neuronjax.diagnostics.op_records import CONSTANT
from neuronjax.execution.probes.signs import FEW
from neuronjax.ir.program import Op, Value
from neuronjax.ir.value_sources import ValueSources

#: What a bound moves, in L2, from which on it costs several roundings to 8 bits.
CLIPPED = 0.1
#: Share of elements that rounding makes zero, from which on little is left of them.
FLATTENED = 0.4
#: An epsilon is this small beside what it is added to.
EPSILON = 1e-3
#: A quotient that is so many times what dividend and divisor have it, is of few zeros.
BLOWN_UP = 10.0
_HANDS_ON = CONSTANT | {f"stablehlo.{n}" for n in ("multiply", "divide", "sqrt")}
_DIVIDE = "stablehlo.divide"


def quantizing(
    flow: Flow, graph: ValueSources, cast: OpTrace
) -> Iterator[tuple[OpTrace, OpEvidence]]:
    """What clips or flattens a value that an op casts, and when it does most."""
    op = cast.path.op
    if op.name != "stablehlo.convert" or not is_short(op.results[0]):
        return
    for trace in _before(flow, op.operands[0]):
        found = _clips(graph, trace) or _flattens(flow, graph, trace)
        if found is not None:
            yield trace, found


def _before(flow: Flow, value: Value) -> Iterator[OpTrace]:
    """The bounds and roundings that a value went through last."""

    def passes(value: Value) -> bool:
        trace = flow.trace(value)
        names = BOUNDS | ROUNDS | CONSTANT
        return trace is None or trace.path.op.name in names

    for inner in flow.behind(value, passes):
        trace = flow.trace(inner)
        if trace is not None and trace.path.op.name in BOUNDS | ROUNDS:
            yield trace


def _clips(graph: ValueSources, trace: OpTrace) -> OpEvidence | None:
    found = [
        (evidence.moved[v], n, evidence)
        for n, (v, evidence) in enumerate(trace.bounding.items())
        if not graph.is_constant(v, CONSTANT)
    ]
    if not found:
        return None
    share, _, evidence = min(found, key=lambda f: f[:2])
    return evidence if CLIPPED < share < 1 else None


def _flattens(flow: Flow, graph: ValueSources, trace: OpTrace) -> OpEvidence | None:
    """Little but zeros is left; or of what something is divided by, a few."""
    evidence = trace.emptiest
    if trace.path.op.name not in ROUNDS:
        return None
    share = flattened(evidence)
    few = FEW < share and _is_divisor(flow, graph, trace)
    return evidence if few or share > FLATTENED else None


def _is_divisor(flow: Flow, graph: ValueSources, trace: OpTrace) -> bool:
    """Whether something is divided by what came of a value, and owes its size to where
    that is nothing."""
    seen, left = {trace.path.op}, [trace.path.op]
    while left:
        result = left.pop().results[0]
        for reader in flow.readers(result) - seen:
            divides = reader.name == _DIVIDE and _is(flow, reader.operands[1], result)
            if divides and _is_blown_up(flow, reader):
                return True
            hands_on = reader.name in _HANDS_ON or _guards(flow, graph, reader)
            if hands_on and not divides:
                seen.add(reader)
                left.append(reader)
    return False


def _is(flow: Flow, operand: Value, value: Value) -> bool:
    """Whether an operand is a value, though in a call or a loop."""
    return value in flow.behind(operand, lambda v: v is not value)


def _is_blown_up(flow: Flow, quotient: Op) -> bool:
    trace = flow.trace(quotient.results[0])
    assert trace is not None
    dividend, divisor = (trace.worst.operands[v].norm for v in quotient.operands)
    return trace.worst.result.norm * divisor > BLOWN_UP * dividend > 0


def _guards(flow: Flow, graph: ValueSources, op: Op) -> bool:
    """Whether an op adds an epsilon."""
    if op.name != "stablehlo.add":
        return False
    trace = flow.trace(op.results[0])
    assert trace is not None
    norms = {
        graph.is_constant(v, CONSTANT): share.norm
        for v, share in trace.worst.operands.items()
    }
    return len(norms) == 2 and norms[True] < EPSILON * norms[False]
