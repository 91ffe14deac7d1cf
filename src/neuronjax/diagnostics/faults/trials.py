"""Trials of remedies on an op at fault, with the operands of the op in the reference.

A second walk (op by op), of the reference alone and only up to the last op at fault,
keeps the operands. The op is then executed again on these operands with the remedy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.executors import Position
from neuronjax.diagnostics.faults.shares import ratio
from neuronjax.diagnostics.op_walk import ParallelWalk
from neuronjax.diagnostics.parallel_runs import OpPath, Side
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.walk import Keys, Lanes, Spans, Views
from neuronjax.execution.probes.signs import FEW
from neuronjax.ir.program import Op, Value
from neuronjax.numerics.float_format import get_format

#: Op -> iterations of the loops around the wanted execution; None for the first one.
Wanted = Mapping[OpPath, tuple[int, ...] | None]


@dataclass(frozen=True, eq=False)
class Execution:
    """One execution of an op in float64. `result` is the first result of the op; `run`
    returns the first result for other operands."""

    op: Op
    operands: Mapping[Value, np.ndarray]
    result: np.ndarray
    run: Callable[[Mapping[Value, np.ndarray]], np.ndarray]

    def rounded(self, dtype: Any) -> np.ndarray:
        """Return the result if operands and result are rounded to a float format."""
        given = {v: _rounded(x, dtype) for v, x in self.operands.items()}
        return _rounded(self.run(given), dtype)

    def error(self, dtype: Any) -> float:
        """Return the relative L2 error of `rounded` or, if larger and above `FEW`, the
        share of numbers far off; Inf if a number is finite in one array only."""
        made = self.rounded(dtype)
        if (np.isfinite(made) != np.isfinite(self.result)).any():
            return math.inf
        error, lost = distance(*(x.astype(np.float64) for x in (made, self.result)))
        return max(error, lost) if lost > FEW else error


def _rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Return floats rounded to a format, with subnormals as zero as on the chip."""
    if not is_float(x.dtype):
        return x
    near = x.astype(dtype).astype(np.float64)
    least = get_format(np.dtype(dtype).name).min_normal
    return np.where(np.abs(near) < least, 0.0, near)


Executions = Mapping[OpPath, Execution]


def executions(side: Side, arguments: Sequence[Any], wanted: Wanted) -> Executions:
    """Return, by path, one execution of each op in `wanted` in the float64 run `side`.

    Ops that run other ops, and collectives, are left out.
    """
    keeper = _Keeper(side, wanted)
    with contextlib.suppress(_FoundError):
        keeper.run(arguments)
    return keeper.found


class _FoundError(Exception):
    """The signal that ends a walk, because all wanted executions are kept."""


class _Keeper(ParallelWalk):
    """A walk (an execution op by op) that keeps one execution of each wanted op."""

    def __init__(self, side: Side, wanted: Wanted) -> None:
        super().__init__(
            side,
            side,
            lambda *_: None,
            isolates=False,
            stage="trying remedies",
            is_again=True,
        )
        self._left = dict(wanted)
        self.found: dict[OpPath, Execution] = {}

    def leaf(
        self, path: OpPath, spans: Spans, views: Views, keys: Keys, lanes: Lanes
    ) -> None:
        super().leaf(path, spans, views, keys, lanes)
        iterations = self.position.iterations
        if path not in self._left or self._left[path] not in (None, iterations):
            return
        del self._left[path]
        side, arrays = self.reference, lanes[0].arrays
        instructions, key = spans[side].instructions, keys[side]
        at = {v: view.buffer.number for v, view in views[side].items()}
        read = {n for i in instructions for n in side.reads(i)}
        held = {n: x for n, x in arrays.items() if n in read}

        def run(operands: Mapping[Value, np.ndarray]) -> np.ndarray:
            own = held | {at[v]: x for v, x in operands.items()}
            for i in instructions:
                given = [own[view.buffer.number] for view in i.operands]
                made = side.executor.execute(i, given, key, Position())
                own |= {b.number: x for b, x in zip(i.results, made, strict=True)}
            return np.asarray(own[at[path.op.results[0]]])

        if not any(map(side.joins, instructions)):
            operands = {v: np.asarray(arrays[at[v]]) for v in path.op.operands}
            result = np.asarray(arrays[at[path.op.results[0]]])
            self.found[path] = Execution(path.op, operands, result, run)
        if not self._left:
            raise _FoundError


class Fitted(NamedTuple):
    """The effect of a scale on numbers that are stored in 8 bits or fewer.

    The scale moves the largest number to the largest number of the format.

    Attributes:
        off: the larger of `error` and `lost`.
        error: relative L2 error.
        lost: share of numbers that are off by more than half of their magnitude.
        factor: the scale, or the median of several scales.
        axes: the axes along which numbers have one scale; () if all numbers have one.
    """

    off: float
    error: float
    lost: float
    factor: float
    axes: tuple[int, ...]


def stored_as(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers rounded (and cut off, for integers) to a dtype, as float64."""
    if dtype.kind not in "iu":
        return x.astype(dtype).astype(np.float64)
    info = np.iinfo(dtype)
    return np.clip(np.rint(x), info.min, info.max)


def fitted(x: np.ndarray, dtype: np.dtype) -> list[Fitted]:
    """Return the effects of one scale for all numbers and, for each axis, of one scale
    for each index along the axis."""
    rows = (tuple(a for a in range(x.ndim) if a != n) for n in range(x.ndim))
    is_whole, amax = dtype.kind in "iu", np.abs(np.where(np.isfinite(x), x, 0.0))
    largest = np.iinfo(dtype).max if is_whole else get_format(dtype.name).max_finite
    found = []
    for axes in ((), *filter(None, rows)):
        most = amax.max(axis=axes or None, keepdims=True, initial=0.0)
        factor = largest / np.where(most == 0, 1.0, most)
        off = distance(stored_as(x * factor, dtype) / factor, x)
        found.append(Fitted(max(off), *off, float(np.median(factor)), axes))
    return found


def distance(made: np.ndarray, x: np.ndarray) -> tuple[float, float]:
    """Return the relative L2 error of `made` against `x`, and the share of numbers that
    are off by more than half of their magnitude."""
    return ratio(made, x), float((np.abs(made - x) > np.abs(x) / 2).mean())
