"""Epsilons that are nothing: a constant that should keep a function from its singular
point, and is zero in the format in which it is added."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable

import numpy as np

from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.execution.probes.signs import SINGULAR
from neuronjax.ir.program import Op, Value
from neuronjax.numerics.float_format import FORMATS, get_format

_SMALL_NUMBER = re.compile(r"\b\d+\.?\d*e-\d+")
#: Nobody writes a smaller one, but zero.
SMALLEST_EPSILON = 1e-30


def lost_guard(flow: Flow, trace: OpTrace, is_constant: Callable[[Value], bool]) -> str:
    """ "1e-12 is 0 in float16", of the constant that was added to what an op must not
    have zero; "" where none was lost."""
    if trace.path.op.name.rpartition(".")[2] not in SINGULAR:
        return ""
    for operand in trace.path.op.operands:
        guarded = _computed(flow, operand)
        if guarded is None or guarded.path.op.name != "stablehlo.add":
            continue
        dtype = np.dtype(guarded.path.op.results[0].type.dtype)
        for value, share in guarded.worst.operands.items():
            if share.nothing == 1 and is_constant(value):
                written = share.largest or _written(guarded.path.op, dtype)
                if written or _is_narrow(dtype):
                    what = f"{written:.2g}" if written else "the epsilon"
                    return f"{what} is 0 in {dtype.name}"
    return ""


def _is_narrow(dtype: np.dtype) -> bool:
    """Whether an epsilon can be zero that was not written as zero."""
    name = dtype.name
    return name in FORMATS and get_format(name).min_normal > SMALLEST_EPSILON


def _computed(flow: Flow, value: Value) -> OpTrace | None:
    """The op that computed a value, before its casts."""
    trace = flow.maker(value)
    while trace is not None and trace.path.op.name == "stablehlo.convert":
        trace = flow.maker(trace.path.op.operands[0])
    return trace


def _written(op: Op, dtype: np.dtype) -> float:
    """The number on an op's line that is zero in a format; JAX has rounded it before a
    program is captured. 0.0 where there is none."""
    path, _, line = op.location.source.rpartition(":")
    code = linecache.getline(path, int(line)) if line.isdigit() else ""
    numbers = map(float, _SMALL_NUMBER.findall(code))
    return next((x for x in numbers if x and not np.float64(x).astype(dtype)), 0.0)
