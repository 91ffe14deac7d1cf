"""Who made the zeros of which an op makes Inf or NaN."""

from __future__ import annotations

from neuronjax.diagnostics.faults.evidence import ADDS, OpEvidence
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.traits import rounds_to
from neuronjax.ir.program import Op, Value

#: Ops that yield zero of a number that is none.
_VANISHING = frozenset(
    f"stablehlo.{name}" for name in ("exponential", "power", "convert", "logistic")
)


def flushed(flow: Flow, shown: OpTrace, evidence: OpEvidence) -> OpTrace | None:
    """Return who made the zeros, of what is none, of which an op makes Inf or NaN.

    It may be a difference, if it has fewer digits than what is divided by it; or who
    made an Inf of which an exponential made zeros.
    """
    seen: set[Op] = set()
    found, op = None, shown.path.op
    most = lambda t: (t.zeros, t.emptiest.result.nothing)  # noqa: E731
    while True:
        broken = [v for v, share in evidence.operands.items() if share.nonfinite]
        behind = broken if seen and broken else _empty(op, evidence)
        trace = flow.maker(behind[0], key=most) if behind else None
        if trace is None or trace.path.op in seen:
            return found
        if behind is broken and trace.made_nonfinite:
            return trace
        op, evidence = trace.path.op, trace.emptiest
        seen.add(op)
        shares = evidence.operands.values()  # an exponential of -Inf is zero
        before = max((x.nothing + x.nonfinite / x.elements for x in shares), default=0)
        cancels = op.name in ADDS and rounds_to(trace) > rounds_to(shown)
        gains = (op.name in _VANISHING or cancels) and evidence.result.nothing > before
        if trace.zeros or gains:
            found = trace


def _empty(op: Op, evidence: OpEvidence) -> list[Value]:
    """The operands with zeros, those in front that should have none; of a quotient the
    divisor, if it has."""
    if op.name == "stablehlo.exponential":
        return []  # of a zero it makes none
    shares = evidence.operands
    zeros = [v for v, share in shares.items() if share.nothing]
    if op.name == "stablehlo.divide" and op.operands[1] in zeros:
        return [op.operands[1]]
    return sorted(zeros, key=lambda v: -shares[v].zeros)
