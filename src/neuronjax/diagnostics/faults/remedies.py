"""Advice against a fault: a remedy that a trial showed to help, or general advice.

FP32 or BF16 is advised if the op was executed again in this format and the error became
ordinary; the advice says which error is left. If no trial is possible (for an op that
runs other ops, or a collective), the advice names no error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from neuronjax.diagnostics.comparison_tables import percent, short
from neuronjax.diagnostics.faults.better_forms import better_form
from neuronjax.diagnostics.faults.evidence import ADDS
from neuronjax.diagnostics.faults.judgement import excused, limit
from neuronjax.diagnostics.faults.naming import (
    IN_FP32,
    KINDS,
    WRONG_BEFORE,
    FaultName,
    short_name,
)
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.search import Suspect
from neuronjax.diagnostics.faults.traits import is_short
from neuronjax.diagnostics.faults.trials import Execution, distance, fitted, stored_as
from neuronjax.diagnostics.op_records import CONSTANT
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.execution.probes.signs import FEW
from neuronjax.ir.value_sources import ValueSources
from neuronjax.numerics.float_format import FORMATS, get_format

#: Advice if none of the scales that were tried fits the numbers.
UNSCALED = "use a scale for each block of numbers, or a format with more digits"
#: Kind of fault -> advice that is added to the advice to use a wider format.
_BESIDES: Mapping[str, str] = {
    "overflow": "scale before this op",
    "absorption": "round the sum stochastically, which keeps updates on average",
    "stagnation": "add in blocks",
}
_OF_RANGE = frozenset(("overflow", "underflow"))
#: Kinds of faults for which another formula is no remedy.
_OF_NUMBERS = frozenset(("integer", "saturation"))
_SCALABLE = frozenset(("overflow", "underflow", "saturation", "coarse"))
_BFLOAT16, _FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


def tried_op(suspect: Suspect, kind: str) -> OpTrace:
    """Return the op on which a remedy is tried: the op at fault, or the op at which its
    error shows, `suspect.amplifier`."""
    trace, shown = suspect.scaled or suspect.trace, suspect.amplifier
    if shown is None:
        return trace
    if suspect.bounding is not None:  # the op at fault bounds or scales numbers
        ours, theirs = (t.path.op.results[0].type.shape for t in (trace, shown))
        return trace if ours == theirs else shown
    return shown if kind in ("coarse", "integer") else trace


def _error(size: float) -> str:
    if not size:
        return "no error"
    return f"an error of {short(size)}" if math.isfinite(size) else "Inf or NaN"


@dataclass(frozen=True)
class Remedy:
    """The advice against one fault, which `str` returns.

    Attributes:
        suspect: the op at fault.
        shown: the op on which the remedy is tried, from `tried_op`.
        execution: an execution of `shown`; None if no trial is possible.
        unit: roundoff of the coarsest format on which the result of `shown` depends.
        step: size of a lost update relative to its state; 0 for other faults.
    """

    name: FaultName
    suspect: Suspect
    shown: OpTrace
    execution: Execution | None
    unit: float
    step: float
    graph: ValueSources

    def __str__(self) -> str:
        kind = self.name.kind
        given = self.name.advice or (self._scaled() if kind in _SCALABLE else "")
        if given or self.suspect.bounding is not None:
            return given or UNSCALED
        form = ""
        if kind not in _OF_NUMBERS:
            ops = {self.suspect.trace.path.op, self.shown.path.op}
            form = better_form(self.graph, ops, self.suspect.trace.path.scope, kind)
        known = form or IN_FP32.get(kind, KINDS[kind])
        is_broken = self.shown.shown.result.nonfinite_reference  # Inf in float64 too
        if not self._is_narrow() or is_broken or kind == "saturation":
            return known
        if self.execution is None:
            return form or KINDS[kind]
        is_own = self.shown is self.suspect.trace
        if is_own and self.shown.made_nonfinite and math.isfinite(self.shown.shown.own):
            return form or WRONG_BEFORE
        helps, text = self._wider(self.execution)
        if not helps:
            return f"{known}; {text}"
        other = form or _BESIDES.get(kind, "")
        return f"{text}; or {other}" if other else text

    def _is_narrow(self) -> bool:
        """Return whether FP32 has more digits (or, for an overflow or underflow, more
        range) than the formats of the op at fault."""
        if self.name.kind not in _OF_RANGE:
            return self.unit > unit_of(_FLOAT32)
        trace = self.suspect.trace
        names = [v.type.dtype.name for v in trace.path.op.results]
        if trace.cast is not None:
            names += [trace.cast.format, trace.cast.sums]
        bits = [get_format(n).exponent_bits for n in names if n in FORMATS]
        return min(bits, default=0) < get_format("float32").exponent_bits

    def _wider(self, execution: Execution) -> tuple[bool, str]:
        trace, kind = self.suspect.trace, self.name.kind
        values = (*trace.path.op.operands, *trace.path.op.results)
        made = execution.rounded(_FLOAT32)
        gone = float(((made == 0) & (execution.result != 0)).mean())
        breaks = self.suspect.amplifier and self.suspect.amplifier.made_nonfinite
        where, what, few = "FP32", "the result", 0.0 if breaks else FEW
        if trace.cast is not None and trace.cast.unit > unit_of(_BFLOAT16):
            error = execution.error(_BFLOAT16)
            helps = error <= excused(unit_of(_BFLOAT16))
            where, what, left = "BF16 by a Rule", "this matmul", _error(error)
        elif kind == "underflow" or gone > few:
            helps, where = gone <= few, "FP32 or BF16" if kind == "underflow" else where
            left = f"{percent(gone)} zeros" if gone else "no number that became zero"
        elif kind in ("absorption", "stagnation") and execution.op.name in ADDS:
            norms = [float(np.linalg.norm(x)) for x in execution.operands.values()]
            times = float(np.linalg.norm(execution.result)) / (min(norms) or math.inf)
            lost = times * execution.error(_FLOAT32)
            helps, what = lost < FEW, "the sum"
            left = f"{_error(lost)} of the smaller addend" if lost else "no error"
        elif self.step:
            lost = execution.error(_FLOAT32) / self.step
            helps, what, left = lost < FEW, "the state", f"{_error(lost)} of its update"
        else:
            error = max(execution.error(_FLOAT32), self._handed_on())
            seen = self.shown.shown.result
            helps, left = error <= limit(seen, unit_of(_FLOAT32)), _error(error)
            if self.shown is not self.suspect.trace:
                what = f"all ops up to {short_name(self.shown)}"
            elif trace.cast is not None:
                what = "its partial sums" if kind == "stagnation" else "this matmul"
            elif all(unit_of(v.type.dtype) <= unit_of(_FLOAT32) for v in values):
                what = "all ops before this op"
        if helps:
            return True, f"keep {what} in {where}, which leaves {left}"
        return False, f"{where} alone would still leave {left}"

    def _handed_on(self) -> float:
        """Return the error that `shown` would have if the op at fault computed in FP32;
        0 if `shown` is the op at fault."""
        made, shown = self.suspect.trace.worst.result, self.shown.worst.result
        grows = shown.error / made.error if made.error else 0.0
        is_other = self.shown is not self.suspect.trace and math.isfinite(grows)
        return unit_of(_FLOAT32) * grows if is_other else 0.0

    def _scaled(self) -> str:
        """Return advice on a scale with which numbers fit 8 bits; "" if none helps."""
        found = self._short()
        if found is None:
            return ""
        x, made, dtype = found
        whole, *rows = fitted(x, dtype)
        best = min(rows, key=lambda f: f.off, default=whole)
        best = whole if best.off > whole.off / 4 else best
        if best.off >= max(distance(made, x)) / 2:
            return ""
        left = _error(best.error)
        if best.lost > FEW:
            left = f"{percent(best.lost)} of the numbers off by more than 50 %"
        if best is whole:
            what = f"multiply the numbers by {short(best.factor)}, so that the largest"
            return f"{what} just fits {dtype.name}, which leaves {left}"
        (axis,) = set(range(x.ndim)) - set(best.axes)
        each = ("row", "column")[axis] if x.ndim == 2 else f"index of axis {axis}"
        return f"give every {each} a scale of its own, which leaves {left}"

    def _short(self) -> tuple[np.ndarray, np.ndarray, np.dtype] | None:
        """Return (numbers that the op at fault casts to 8 bits, cast numbers, dtype);
        None if there is no such cast."""
        execution, trace, suspect = self.execution, self.suspect.trace, self.suspect
        if execution is None:
            return None
        floats = [
            x
            for v, x in execution.operands.items()
            if is_float(v.type.dtype) and not self.graph.is_constant(v, CONSTANT)
        ]
        if trace.cast is not None and not trace.cast.is_scaled:
            dtype = np.dtype(trace.cast.format)
            x = max(floats, key=lambda x: np.abs(x).max(initial=0.0), default=None)
            if x is None or dtype.itemsize > 1:
                return None
            return x, stored_as(x, dtype), dtype
        end = suspect.amplifier if suspect.bounding and suspect.amplifier else trace
        value = end.path.op.results[0]
        alike = [x for x in floats if x.shape == execution.result.shape]
        if end.path.op.name != "stablehlo.convert" or not is_short(value) or not alike:
            return None
        dtype = np.dtype(value.type.dtype)
        # The smaller operands are bounds of a clamp.
        x = max(alike, key=lambda x: np.abs(x).max(initial=0.0))
        return x, stored_as(execution.result.astype(np.float64), dtype), dtype
