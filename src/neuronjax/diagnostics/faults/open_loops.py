"""Codes of differences whose rounding errors a decoder adds up.

A codec that stores the differences of neighbours, and decodes by a running sum, must
take each difference to the decoder's own sum: then a code corrects the errors of the
codes before it. With differences of the exact numbers, the errors add up. No result may
be far off, because each error is ordinary for 8 bits.
"""

from __future__ import annotations

from neuronjax.diagnostics.faults.evidence import ADDS, is_short_float
from neuronjax.diagnostics.faults.flow import OWN, Flow
from neuronjax.diagnostics.faults.recorder import OpTrace, Recorder
from neuronjax.diagnostics.faults.scales import SCALES, same_numbers
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.ir.program import Op, Value

#: Errors of fewer codes hardly add up.
MANY = 64
_DECODES = MOVING | SCALES | {"stablehlo.convert", "stablehlo.concatenate"}


def adds_up_errors(flow: Flow, recorder: Recorder, cast: OpTrace) -> OpTrace | None:
    """Return the running sum of at least `MANY` differences, coded by the op `cast`,
    that has at least half of the cast's error at its end; None if `cast` rounds no
    differences to 8 bits, or the differences depend on the sum."""
    op = cast.path.op
    if op.name != "stablehlo.convert" or not is_short_float(op.results[0].type.dtype):
        return None
    if not _is_of_differences(flow, op.operands[0]):
        return None
    before = flow.ops_behind(op.operands[0])
    for reader in flow.ahead(op, lambda r: r.name in _DECODES):
        if reader not in before and _terms(flow, reader) >= MANY:
            if recorder.last(reader.results[0]).error >= OWN * cast.own:
                return flow.trace(reader.results[0])
    return None


def _is_of_differences(flow: Flow, value: Value) -> bool:
    """Return whether a scaled value is a difference."""
    made = filter(None, map(flow.trace, same_numbers(flow, value)))
    return any(t.path.op.name == "stablehlo.subtract" for t in made)


def _terms(flow: Flow, op: Op) -> int:
    """Return the number of terms of a running sum, 0 for another op."""
    trace = flow.trace(op.results[0])
    if op.name == "stablehlo.reduce_window":
        return max(op.attributes["window_dimensions"])
    is_loop = op.name in ADDS and any(op in flow.ops_behind(v) for v in op.operands)
    return trace.executions if trace is not None and is_loop else 0
