"""Until when the queues of a core are taken, as a schedule proceeds. Seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronjax.timing.work import Queue


@dataclass(slots=True)
class QueueState:
    """Until when each queue is taken.

    Attributes:
        free: of every queue that executes.
        table: what ScalarE has loaded.
        dma: until when the DMA engines have work, if they never wait.
        end: of everything so far.
    """

    free: dict[Queue, float] = field(default_factory=dict)
    dma: float = 0.0
    end: float = 0.0
    table: str = ""

    def copy(self) -> QueueState:
        return QueueState(dict(self.free), self.dma, self.end, self.table)

    def shift(self, seconds: float) -> None:
        """As if everything had happened later."""
        self.free = {queue: t + seconds for queue, t in self.free.items()}
        self.dma += seconds
        self.end += seconds
