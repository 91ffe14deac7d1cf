"""The queues that issue a kernel's instructions, and TensorE's array.

TensorE, the sequencers and the CC-cores issue instructions in the kernel's order. All
other queues issue whichever of their next few instructions can start first, since the
compiler reorders instructions (see `REORDER_WINDOW`). The compiler of neuronxcc.nki
also reorders TensorE's instructions, except matmuls that add to the same sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from neuronjax.timing import assumptions as a
from neuronjax.timing.assumptions import LOOP_TURN
from neuronjax.timing.cost_rules import KernelPrice
from neuronjax.timing.engines.throttle import Throttle, is_throttled
from neuronjax.timing.kernel_unroll import Stream
from neuronjax.timing.work import Core, Queue

#: Queues that issue in the kernel's order; "tensor" does not if the kernel is written
#: with neuronxcc.nki.
_IN_ORDER = frozenset({"tensor", "sync", "cc"})
#: By ring, the engine that is occupied while the ring issues a transfer.
ISSUERS: Mapping[str, Queue] = {"dge.sync": "sync", "gpsimd": "gpsimd"}
#: Stands for "no entry" in place of an entry's number.
NOTHING = -1


class IssueQueue:
    """A queue that issues instructions.

    Attributes:
        kind: the name of an engine or of a DMA ring.
        entries: the queue's instructions, as indices into `Stream.entries`, in the
            order of the kernel.
        base: `entries[:base]` are issued, `entries[base]` is not.
        free: the time at which the queue can issue again.
        wake: the time at which the scheduler visits the queue next.
        last: the entry that the queue issued last.
        window: how many entries from `base` on can be issued next; 1 means in order.
    """

    __slots__ = ("base", "entries", "free", "kind", "last", "wake", "window")

    def __init__(self, kind: str, in_order: bool) -> None:
        self.kind = kind
        self.entries: list[int] = []
        self.base = 0
        self.free = 0.0
        self.wake = inf
        self.last = NOTHING
        self.window = 1 if in_order else int(a.REORDER_WINDOW.value)


class IssueQueues:
    """The queues of all cores. An entry is an index into `Stream.entries`.

    Attributes:
        queue_of: by entry, the index of its queue in `queues`.
        pause: by entry, the seconds of a device loop's comparison and branch before the
            entry, if the entry is its queue's first in an iteration or after the loop.
    """

    def __init__(
        self, stream: Stream, priced: Sequence[KernelPrice], cores: int, older: bool
    ) -> None:
        self.queues: list[IssueQueue] = []
        self.core_of: list[int] = []
        self.queue_of = [0] * len(priced)
        self.pause: dict[int, float] = {}
        in_order = _IN_ORDER - {"tensor"} if older else _IN_ORDER
        numbers: dict[tuple[int, str], int] = {}
        for n, (i, p) in enumerate(zip(stream.entries, priced, strict=True)):
            kind = p.ring or p.work.queue
            core = i.program % cores if kind != "cc" else 0
            number = numbers.get((core, kind))
            if number is None:
                number = numbers[core, kind] = len(self.queues)
                self.queues.append(IssueQueue(kind, kind in in_order))
                self.core_of.append(core)
            self.queue_of[n] = number
            self.queues[number].entries.append(n)
        for queue in self.queues:
            block = 0
            for n in queue.entries:
                if stream.blocks[n] != block:
                    block = stream.blocks[n]
                    self.pause[n] = LOOP_TURN.value


_QUARTERS = 4


class Array:
    """The state of TensorE's array on one core while a kernel runs: the times at which
    its tiles become free, and its throttle.

    `is_tiled` is true if some matmul of the kernel uses only a part of the array."""

    def __init__(self, core: Core, is_tiled: bool) -> None:
        self._is_tiled = is_tiled
        self._throttle = Throttle() if is_throttled(core) else None
        self._start, self._end = -inf, -inf
        self._input = 0.0
        self._tiles = [[0.0] * _QUARTERS for _ in range(_QUARTERS)]

    @property
    def throttled_seconds(self) -> float:
        return self._throttle.lost_seconds if self._throttle is not None else 0.0

    def multiply(
        self, p: KernelPrice, start: float, held: float | None
    ) -> tuple[float, float, float]:
        """Schedule a matmul or transpose, not before `start`; return its start, its end
        and the time of the next issue. Calls are in the order of issue.

        `held` is the time from which the stationary operand can be loaded; None if the
        operand is already loaded."""
        if held is not None:
            start = max(start, max(held, self._start) + p.load_seconds)
        spent = p.work.seconds
        if held is not None:
            spent += p.seen_seconds
        if self._throttle is not None:
            spent = self._throttle.spent(start, spent, p.array_share)
        free = start + spent
        if self._is_tiled:
            start = free = self._tile(p, start, spent)
        self._start, self._end = start, max(self._end, start + spent)
        return start, start + spent, free

    def _tile(self, p: KernelPrice, start: float, spent: float) -> float:
        """Return the first time from `start` on at which the tiles of a matmul and the
        array's input are free. Occupy the tiles for `spent` seconds, and the input for
        a part of `spent` in proportion to the matmul's rows."""
        rows = range(p.rows[0], min(_QUARTERS, sum(p.rows)))
        columns = range(p.columns[0], min(_QUARTERS, sum(p.columns)))
        used = [(r, c) for r in rows for c in columns]
        start = max(start, self._input, *(self._tiles[r][c] for r, c in used))
        for r, c in used:
            self._tiles[r][c] = start + spent
        share = len(rows) * a.TILE_ROWS.value / a.PARALLEL_INPUT.value
        self._input = start + spent * share
        return start
