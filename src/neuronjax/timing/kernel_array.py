"""TensorE while a kernel runs: tiles of the array, loads, and its throttle."""

from __future__ import annotations

from math import inf

from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_rules import KernelPrice
from neuronjax.timing.engines.tensor import chained_transposes
from neuronjax.timing.engines.throttle import Throttle, is_throttled
from neuronjax.timing.work import Core

_QUARTERS = 4


class Array:
    """The array of one core; `is_tiled` says that some matmul of the kernel uses a
    part."""

    def __init__(self, core: Core, is_tiled: bool) -> None:
        self._is_tiled = is_tiled
        self._throttle = Throttle() if is_throttled(core) else None
        self._chained = chained_transposes(core)
        self._start, self._end = -inf, -inf
        self._input = 0.0
        self._tiles = [[0.0] * _QUARTERS for _ in range(_QUARTERS)]
        self._was_transpose = False

    @property
    def throttled_seconds(self) -> float:
        """What its throttle has cost."""
        return self._throttle.lost_seconds if self._throttle is not None else 0.0

    def multiply(
        self, p: KernelPrice, start: float, held: float | None
    ) -> tuple[float, float, float]:
        """One matmul or transpose, in the order of issue.

        `held` is since when the stationary operand is there; None if the array has it.
        What is returned is start, end, and when the next one may be issued."""
        if held is not None:
            start = max(start, max(held, self._start) + p.load_seconds)
        spent = p.work.seconds
        if p.is_transpose and self._was_transpose:
            spent /= self._chained
        if self._throttle is not None:
            spent = self._throttle.spent(start, spent, p.array_share)
        free = start + spent
        if self._is_tiled:
            start = free = self._tile(p, start, spent)
        self._was_transpose = p.is_transpose
        self._start, self._end = start, max(self._end, start + spent)
        return start, start + spent, free

    def _tile(self, p: KernelPrice, start: float, spent: float) -> float:
        """When its tiles are free, and the input of the array."""
        rows = range(p.rows[0], min(_QUARTERS, sum(p.rows)))
        columns = range(p.columns[0], min(_QUARTERS, sum(p.columns)))
        used = [(r, c) for r in rows for c in columns]
        start = max(start, self._input, *(self._tiles[r][c] for r, c in used))
        for r, c in used:
            self._tiles[r][c] = start + spent
        share = len(rows) * a.TILE_ROWS.value / a.PARALLEL_INPUT.value
        self._input = start + spent * share
        return start
