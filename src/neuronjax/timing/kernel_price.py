"""`KernelPrice`: what a kernel instruction asks of the machine; `prices`: the registry.

A rule registers by the name of the nki.isa function, `@prices("dma_copy")`, and takes
the instruction and one physical core; it knows shapes and dtypes only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neuronjax.ir.kernel import KernelInstruction
from neuronjax.timing.work import Core, Queue, Transfer, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrice:
    """An instruction's time on an idle core whose operands are there.

    Attributes:
        queue: who works.
        ring: of DMA, the queue that it is issued in; "" for engines.
        source: what an event of it shows.
        seconds: how long an engine is occupied; of DMA, each of its engines.
        latency_seconds: from then on until another instruction can use the result.
        issue_seconds: how long the ring issues a transfer, which others wait for.
        start_seconds: from a transfer's trigger to its first byte.
        dma_engines: first one, and how many.
        load_seconds: of the stationary operand, where it is not there already.
        rows, columns: of the tensor engine's array, first and count, in 32s.
        array_share: of the rows of its tile of the array, which work.
        is_transpose: of the tensor engine.
        ports: on-chip memories that it shares with another engine: "psum", "sbuf".
        second: another transfer that goes along (HBM to HBM: the write).
    """

    queue: Queue
    source: Work | Transfer
    seconds: float
    latency_seconds: float
    ring: str = ""
    issue_seconds: float = 0.0
    start_seconds: float = 0.0
    dma_engines: tuple[int, int] = (0, 0)
    load_seconds: float = 0.0
    rows: tuple[int, int] = (0, 4)
    columns: tuple[int, int] = (0, 4)
    array_share: float = 1.0
    is_transpose: bool = False
    ports: tuple[str, ...] = ()
    second: Transfer | None = None


Rule = Callable[[KernelInstruction, Core], KernelPrice]
RULES: dict[str, Rule] = {}
"""By the name of the instruction."""


def prices(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register
