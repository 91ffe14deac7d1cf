"""Constants that rounding turns into another number: an epsilon into zero, which guards
nothing, or a factor into Inf or one.

JAX rounds constants before a program is captured, so the reference has the wrong number
too. Only the source line has the right number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.scales import SCALES
from neuronjax.diagnostics.faults.shares import Share
from neuronjax.diagnostics.faults.written import numbers_of
from neuronjax.execution.probes.signs import SINGULAR
from neuronjax.ir.program import Op
from neuronjax.numerics.float_format import FORMATS

_FACTORS = frozenset(f"stablehlo.{name}" for name in ("multiply", "power"))
_ARITHMETIC = _FACTORS | {f"stablehlo.{name}" for name in ("add", "subtract", "divide")}
#: Epsilons in programs are at least this large, or zero.
SMALLEST_EPSILON = 1e-30


class Misread(NamedTuple):
    """A constant of a source line, and its value after rounding to a dtype. The written
    number is None if the line has only a name for it."""

    written: float | None
    held: float
    dtype: str

    def __str__(self) -> str:
        held = "Inf" if math.isinf(self.held) else f"{self.held:g}"
        written = "a constant" if self.written is None else f"{self.written:g}"
        return f"{written} is {held} in {self.dtype}"


def misread(flow: Flow, trace: OpTrace, *, is_broken: bool) -> Misread | None:
    """Return the constant of the source line that rounding turned into Inf or, if it is
    a factor, into 0 or 1; None if there is none. Inf in a bound or mask counts only if
    `is_broken` says that a result with Inf or NaN depends on the op."""
    op = trace.path.op
    for value, share in trace.worst.operands.items():
        if value.type.dtype.kind in "iub" or not flow.is_constant(value):
            continue
        held = _held(op, share, is_broken)
        numbers = [] if held is None else [*numbers_of(trace.path.source)]
        if any(x.is_factor and x.value == held for x in numbers):
            continue  # the source has this number
        dtype = np.dtype(value.type.dtype)
        for written, _ in numbers:
            if written != held and rounded(written, dtype) == held:
                return Misread(written, held or 0.0, dtype.name)
        # Nobody scales by Inf on purpose.
        if held == math.inf and op.name in SCALES:
            return Misread(None, math.inf, dtype.name)
    return None


def _held(op: Op, share: Share, is_broken: bool) -> float | None:
    if share.elements and share.nonfinite - share.nan == share.elements:
        return math.inf if is_broken or op.name in _ARITHMETIC else None
    if share.largest == share.norm and op.name in _FACTORS:
        return share.norm if share.norm in (0.0, 1.0) else None
    return None


def rounded(x: float, dtype: np.dtype) -> float:
    """Return `x` rounded to a dtype; Inf if it overflows."""
    with np.errstate(over="ignore"):
        return float(np.float64(x).astype(dtype))


def lost_guard(flow: Flow, trace: OpTrace) -> tuple[OpTrace, str] | None:
    """Return the op that adds an epsilon to an operand of the op of `trace`, and text
    such as "1e-12 is 0 in float16", if the epsilon became zero; else None."""
    if trace.path.op.name.rpartition(".")[2] not in SINGULAR:
        return None
    for operand in trace.path.op.operands:
        guarded = flow.before_casts(operand)
        if guarded is None or guarded.path.op.name != "stablehlo.add":
            continue
        dtype = np.dtype(guarded.path.op.results[0].type.dtype)
        for value, share in guarded.worst.operands.items():
            if share.nothing == 1 and flow.is_constant(value):
                # JAX may have rounded the epsilon to 0: look for it in the source.
                numbers = (x for x, _ in numbers_of(guarded.path.source) if x)
                small = (x for x in numbers if not rounded(x, dtype))
                written = share.largest or next(small, 0.0)
                known = FORMATS.get(dtype.name)
                is_narrow = known is not None and known.min_normal > SMALLEST_EPSILON
                if written or is_narrow:  # otherwise the source may add 0
                    what = f"{written:.2g}" if written else "the epsilon"
                    return guarded, f"{what} is 0 in {dtype.name}"
    return None
