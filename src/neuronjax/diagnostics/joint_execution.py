"""The execution of an elementwise op in all lanes of a comparison by one kernel.

Separate lanes read a large array again for each lane and each distance, and these
reads take most of the time of a comparison. The results of the kernel have the bits of
separate lanes. The speed of memory limits the kernel: a second thread would not help.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.distances import Figures, completed, remember
from neuronjax.diagnostics.executors import Emulator
from neuronjax.diagnostics.faults.shares import settings_of
from neuronjax.diagnostics.lane_errors import LaneErrors
from neuronjax.diagnostics.op_errors import Errors, errors_in, steps_of
from neuronjax.diagnostics.parallel_runs import Fed, Lane, Side, Span
from neuronjax.diagnostics.reference64 import Reference64
from neuronjax.execution.arithmetic import computed
from neuronjax.ir.instruction import Instruction, SignedInstruction
from neuronjax.ir.instruction_set import Activation, TensorScalar, TensorTensor
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.host_kernels.figures import LANE_FIGURES, Distance, Lanes, Told

_FLOAT32 = np.dtype(np.float32)
_FUNCTIONS = frozenset("add subtract multiply divide sqrt".split())
_KINDS = TensorTensor, TensorScalar, Activation
_COLUMNS = [(pair, figure) for pair, of in LANE_FIGURES.items() for figure in of]
_SETTING = {**steps_of(_FLOAT32), **settings_of(_FLOAT32)}
_TOLD = tuple(_SETTING.get(name, 0.0) for name in Told)


def executed_together(
    bundle: LaneErrors, spans: Mapping[Side, Span], lanes: Collection[Lane], least: int
) -> Errors | None:
    """Execute an op in the lanes `run`, `reference` and `perturbed`; return the errors
    on the reference's operands. Return None if the kernel cannot do this, or if the
    result has fewer than `least` elements."""
    run, reference, moved = bundle.actual, bundle.reference, bundle.perturbed
    isolated, others = bundle.isolated, (bundle.isolated, bundle.rounded)
    executors = type(run.side.executor), type(reference.side.executor)
    if moved is None or isolated is None or executors != (Emulator, Reference64):
        return None
    if {*lanes} != {run, reference, moved, *others}:
        return None
    ours, theirs = (spans[lane.side].instructions for lane in (run, reference))
    function = _shared_function(ours, theirs)
    if function is None or math.prod(ours[0].results[0].type.shape) < least:
        return None
    [i], [j] = ours, theirs
    pairs = (run, i), (reference, j), (moved, j)
    operands = [*zip(*(x.held(of.operands) for x, of in pairs), strict=True)]
    for fed, (_, exact, _) in zip(isolated.held(i.operands), operands, strict=True):
        if not (isinstance(fed, Fed) and fed.array is exact and fed.dtype == _FLOAT32):
            return None
    made = _executed(function, operands)
    if made is None:
        return None
    *results, alone = made
    for (lane, of), array in zip(pairs, results, strict=True):
        lane.take([array], of.results)
    return alone


def _shared_function(
    ours: Sequence[Instruction], theirs: Sequence[Instruction]
) -> str | None:
    if len(ours) != 1 or len(theirs) != 1 or not choice.usable():
        return None
    names = {_function(i.signed) for i in (*ours, *theirs)}
    return names.pop() if len(names) == 1 else None


@functools.lru_cache(maxsize=4096)
def _function(signed: SignedInstruction) -> str | None:
    i = signed.instruction
    views = (*i.operands, *i.results)
    if not isinstance(i, _KINDS) or {v.type.dtype for v in views} != {_FLOAT32}:
        return None
    name = i.function if isinstance(i, Activation) else i.op
    return name if name in _FUNCTIONS and computed(i) else None


def _executed(
    function: str, operands: Sequence[Sequence[Any]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Errors] | None:
    """Return the results of the run, the reference and the perturbed reference, and the
    errors on the reference's operands. `operands` has, for each operand, its arrays in
    these three runs. Return None if sums of squares are not finite, or if every operand
    is one number that is repeated."""
    given = [[*map(np.asarray, x)] for x in operands]
    are_one = [not any(any(y.strides) for y in x) for x in given]
    if all(are_one):
        if any(x[1].ndim for x in given):
            return None
        are_one = [False] * len(given)
    whole = (x[1] for x, is_one in zip(given, are_one, strict=True) if not is_one)
    example = min(whole, key=lambda x: x.strides.count(0))
    # Read and write the elements in the order that `example` has in memory.
    order = [*range(example.ndim)]
    if not example.flags.c_contiguous:
        order.sort(key=lambda n: -example.strides[n])
    shape = [example.shape[n] for n in order]
    made = [np.empty(shape, kind) for kind in (np.float32, np.float64, np.float64)]
    flat = [
        [y.reshape(-1)[:1] if is_one else _flat(y, order) for y in x]
        for x, is_one in zip(given, are_one, strict=True)
    ]
    if len(flat) == 1:  # the kernel ignores the second operand
        flat, are_one = flat * 2, are_one * 2
    kinds = "".join("01"[is_one] for is_one in are_one)
    kernel = choice.on_arrays("lane_kernel", function, kinds, _TOLD)
    totals = _totals(kernel, [x.reshape(-1) for x in made], flat)
    if not math.isfinite(sum(totals[pair][Distance.ERROR2] for pair in Lanes)):
        return None
    back = np.argsort(order)
    run, reference, perturbed = (x.transpose(back) for x in made)
    remember(run, reference, _SETTING, totals[Lanes.RUN])
    remember(perturbed, reference, {}, totals[Lanes.MOVED])
    alone = errors_in(totals[Lanes.ALONE], run, reference)
    return run, reference, perturbed, alone


def _flat(x: np.ndarray, order: Sequence[int]) -> np.ndarray:
    return x.transpose(order).reshape(-1)  # a copy, if elements have another order


def _totals(
    kernel: Callable[..., None],
    made: Sequence[np.ndarray],
    operands: Sequence[Sequence[np.ndarray]],
) -> Mapping[Lanes, Figures]:
    total = (ctypes.c_double * len(_COLUMNS))()
    kernel(*made, *itertools.chain(*operands), total)
    found: dict[Lanes, dict] = {pair: {} for pair in Lanes}
    for (pair, figure), x in zip(_COLUMNS, total, strict=True):
        found[pair][figure] = x
    return {pair: completed(figures) for pair, figures in found.items()}
