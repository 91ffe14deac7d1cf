"""Which queue takes which instructions of a kernel, and in what order it may.

TensorE, the sequencers and the CC-cores take instructions in the kernel's order; the
other queues take, of the next few, the one that can start first, for the compiler
orders them. That of the older style orders TensorE's too, but not what it adds to a sum
(gqa_full v1 of [KDA]: 21.3 ms, 21.1 so, 31.4 in order).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_rules import KernelPrice
from neuronjax.timing.kernel_unroll import Stream
from neuronjax.timing.planning_constants import LOOP_TURN

#: Queues that keep the kernel's order; of the older style TensorE's does not.
_IN_ORDER = frozenset({"tensor", "sync", "cc"})
_IN_ORDER_OLDER = _IN_ORDER - {"tensor"}
#: Where an entry would be named that nothing was before.
NOTHING = -1


class IssueQueue:
    """One queue: its entries, and how far it is.

    Attributes:
        kind: a ring of DMA, or an engine.
        entries: numbers of instructions, in the order of the kernel.
        base: how many of them, from the first on, are all issued.
        free: when it can issue again.
        wake: when it is looked at next.
        last: the entry that it issued last.
        window: of how many entries it takes the one that can start first.
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
    """The queues of all cores.

    Attributes:
        queues: all of them.
        core_of: of each, its core.
        queue_of: of each entry, the number of its queue.
        pause: seconds before the first entry of a queue in a turn of a device loop: it
            compares and branches.
    """

    def __init__(
        self, stream: Stream, priced: Sequence[KernelPrice], cores: int, older: bool
    ) -> None:
        self.queues: list[IssueQueue] = []
        self.core_of: list[int] = []
        self.queue_of = [0] * len(priced)
        self.pause: dict[int, float] = {}
        self._fill(stream, priced, cores, _IN_ORDER_OLDER if older else _IN_ORDER)
        for queue in self.queues:
            self._add_pauses(queue, stream.blocks)

    def _fill(
        self,
        stream: Stream,
        priced: Sequence[KernelPrice],
        cores: int,
        in_order: frozenset[str],
    ) -> None:
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

    def _add_pauses(self, queue: IssueQueue, blocks: Sequence[int]) -> None:
        block = 0
        for n in queue.entries:
            if blocks[n] != block:
                block = blocks[n]
                self.pause[n] = LOOP_TURN.value
