"""Cost of a kernel inside a program: its own schedule, as one stretch of every queue.

What the kernel's instructions occupy of each queue is theirs; the whole takes as long
as the kernel alone. Its transfers are between HBM and its own tiles, so its operands
and results are in HBM (`sbuf_allocation`). A kernel without a grid runs on one physical
core.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, replace

from neuronjax.hardware import resolve_target
from neuronjax.ir.kernel_call import KernelFunction, NkiKernel
from neuronjax.timing.cost_rules import Reading, rule
from neuronjax.timing.kernel_schedule import schedule_kernel
from neuronjax.timing.kernel_timeline import kernel_timeline
from neuronjax.timing.work import Core, Event, Queue, Transfer, Way, Work

OPCODE = "NKI_KERNEL"


@rule.register
def _(i: NkiKernel, core: Core, reading: Reading) -> tuple[Way, ...]:
    return (_way(i.kernel, core.lnc),)


@functools.lru_cache(maxsize=256)
def _way(kernel: KernelFunction, lnc: int) -> Way:
    """One work per queue; together they take what the schedule says."""
    program = kernel.program
    own = lnc if program.grid else None
    schedule = schedule_kernel(program, resolve_target(program.target), lnc=own)
    sums: dict[Queue, _Sum] = defaultdict(_Sum)
    for event in kernel_timeline(schedule).events:
        sums[event.queue].add(event)
    works = [found.work(queue) for queue, found in sums.items()]
    if not works:
        return ()
    works.sort(key=lambda work: work.seconds)
    longest = works.pop()
    rest = schedule.total_seconds - longest.seconds
    rest -= sum(work.seconds / work.tiles for work in works)
    return (*works, replace(longest, latency_seconds=max(0.0, rest)))


@dataclass
class _Sum:
    """What a kernel's instructions ask of one queue."""

    seconds: float = 0.0
    count: int = 0
    flops: float = 0.0
    hardware_flops: float = 0.0
    transpose_flops: float = 0.0
    sbuf_read_bytes: float = 0.0
    sbuf_write_bytes: float = 0.0
    hbm_read_bytes: int = 0
    hbm_write_bytes: int = 0
    dma_bytes: float = 0.0

    def add(self, event: Event) -> None:
        """One more event."""
        source, times = event.source, event.count
        self.seconds += event.queue_seconds * times
        self.count += times
        if isinstance(source, Transfer):
            self._move(source, times, is_first=event.queue_seconds > 0)
            return
        self.flops += source.flops * times
        self.hardware_flops += source.hardware_flops * times
        self.transpose_flops += source.transpose_flops * times
        self.sbuf_read_bytes += source.sbuf_read_bytes * times
        self.sbuf_write_bytes += source.sbuf_write_bytes * times
        self.dma_bytes += source.dma_bytes * times

    def _move(self, transfer: Transfer, times: int, *, is_first: bool) -> None:
        """Of a copy within HBM the two sides are one movement."""
        if transfer.is_read:
            self.hbm_read_bytes += transfer.bytes * times
        else:
            self.hbm_write_bytes += transfer.bytes * times
        if is_first:
            self.dma_bytes += transfer.bytes * times

    def work(self, queue: Queue) -> Work:
        """All of it."""
        return Work(
            queue=queue,
            seconds=self.seconds,
            tiles=max(1, self.count),
            opcode=OPCODE,
            flops=self.flops,
            hardware_flops=self.hardware_flops,
            transpose_flops=self.transpose_flops,
            sbuf_read_bytes=self.sbuf_read_bytes,
            sbuf_write_bytes=self.sbuf_write_bytes,
            hbm_read_bytes=self.hbm_read_bytes,
            hbm_write_bytes=self.hbm_write_bytes,
            dma_bytes=self.dma_bytes,
        )
