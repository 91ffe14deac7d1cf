"""The op that made the zeros from which another op makes Inf or NaN."""

from __future__ import annotations

from neuronjax.diagnostics.faults.evidence import ADDS, OpEvidence, narrows
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.traits import rounds_to
from neuronjax.ir.program import Op, Value

LOG = "stablehlo.log"
#: Ops that may return zero for a number that is not zero.
_VANISHING = frozenset(
    f"stablehlo.{name}" for name in ("exponential", "power", "convert", "logistic")
)


def flushed(flow: Flow, shown: OpTrace, evidence: OpEvidence) -> OpTrace | None:
    """Return the op that made most of the zeros which cause the Inf or NaN of `shown`.

    A sum or difference counts only if its format is coarser than that of `shown`. If
    the zeros come from an Inf, as in exp(-Inf), the op that made the Inf is returned.
    """
    seen: set[Op] = set()
    found, most_gained, op = None, 0.0, shown.path.op
    most = lambda t: (t.zeros, t.emptiest.result.nothing)  # noqa: E731
    while True:
        shares = evidence.operands.items()
        # An operand that is a constant has no maker and is no cause.
        broken = [v for v, x in shares if x.nonfinite and flow.maker(v) is not None]
        behind = broken if seen and broken else _empty(op, evidence)
        trace = flow.maker(behind[0], key=most) if behind else None
        if trace is None or trace.path.op in seen:
            return found
        if behind is broken and trace.made_nonfinite:
            return trace
        op, evidence = trace.path.op, trace.emptiest
        seen.add(op)
        shares = evidence.operands.values()
        # Inf counts like zero, because it may become zero: exp(-Inf).
        before = max((x.nothing + x.nonfinite / x.elements for x in shares), default=0)
        cancels = op.name in ADDS and rounds_to(trace) > rounds_to(shown)
        may_gain = op.name in _VANISHING or cancels or trace.zeros
        gained = evidence.result.nothing - before
        if may_gain and gained > 0 and gained >= most_gained:
            found, most_gained = trace, gained
            # Only a factor or cast that rounds to 1 makes a logarithm zero.
            rounded = flow.maker(op.operands[0]) if op.name == LOG else None
            if rounded is not None and narrows(rounded.path.op):
                found = rounded


def _empty(op: Op, evidence: OpEvidence) -> list[Value]:
    """Return the operands with zeros, first the operand with most zeros that are not in
    the reference; for a quotient with zeros in the divisor, only the divisor."""
    if op.name == "stablehlo.exponential":
        return []  # exp(0) is not zero
    shares = evidence.operands
    zeros = [v for v, share in shares.items() if share.nothing]
    if op.name == "stablehlo.divide" and op.operands[1] in zeros:
        return [op.operands[1]]
    return sorted(zeros, key=lambda v: -shares[v].zeros)
