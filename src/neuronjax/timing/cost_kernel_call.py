"""The cost of a kernel in a program: one `Work` per queue, from the kernel's schedule.

Each `Work` has the seconds for which the kernel occupies one queue. Together, as a
`Way`, they take as long as the kernel's schedule without `around_seconds` (the time
that belongs to no instruction), which the program adds once. A kernel reads its
operands from HBM and writes its results to HBM. A kernel without a grid runs on one
physical core.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from neuronjax.hardware import resolve_target
from neuronjax.ir.kernel_call import KernelFunction, NkiKernel
from neuronjax.timing.cost_rules import Reading, rule
from neuronjax.timing.kernel_schedule import schedule_kernel
from neuronjax.timing.kernel_timeline import kernel_timeline
from neuronjax.timing.work import Core, Event, Queue, Way, Work

OPCODE = "NKI_KERNEL"
_SUMS = (
    *("flops", "hardware_flops", "transpose_flops"),
    *("sbuf_read_bytes", "sbuf_write_bytes", "dma_bytes"),
)


@rule.register
def _(i: NkiKernel, core: Core, reading: Reading) -> tuple[Way, ...]:
    return (_way(i.kernel, core.lnc),)


@functools.lru_cache(maxsize=256)
def _way(kernel: KernelFunction, lnc: int) -> Way:
    program = kernel.program
    own = lnc if program.grid else None
    schedule = schedule_kernel(program, resolve_target(program.target), lnc=own)
    events: dict[Queue, list[Event]] = defaultdict(list)
    for event in kernel_timeline(schedule).events:
        events[event.queue].append(event)
    works = [_sum(queue, found) for queue, found in events.items()]
    if not works:
        return ()
    works.sort(key=lambda work: work.seconds)
    longest = works.pop()
    rest = schedule.total_seconds - schedule.around_seconds - longest.seconds
    rest -= sum(work.seconds / work.tiles for work in works)
    return (*works, replace(longest, latency_seconds=max(0.0, rest)))


def _sum(queue: Queue, events: Sequence[Event]) -> Work:
    """Return one `Work` for all `events`, which are a kernel's events on `queue`.

    A copy within HBM has two events, a read and a write, one of which takes no time on
    `queue`; `dma_bytes` counts only the other one, so that no byte counts twice."""
    total = dict.fromkeys(_SUMS, 0.0)
    for event in events:
        source, times = event.source, event.count
        if isinstance(source, Work):
            for name in _SUMS:
                total[name] += getattr(source, name) * times
        elif event.queue_seconds > 0:
            total["dma_bytes"] += source.bytes * times
    work = Work(
        queue=queue,
        seconds=sum(event.queue_seconds * event.count for event in events),
        tiles=max(1, sum(event.count for event in events)),
        opcode=OPCODE,
        hbm_read_bytes=sum(e.source.hbm_read_bytes * e.count for e in events),
        hbm_write_bytes=sum(e.source.hbm_write_bytes * e.count for e in events),
    )
    return replace(work, **total)
