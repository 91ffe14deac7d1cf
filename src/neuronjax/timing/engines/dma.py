"""Times of DMA: transfers between HBM and SBUF, and movement inside SBUF.

Each engine moves its part of a transfer at its practical rate, and needs a fixed time
per contiguous piece. In a stream, a transfer takes less time than by itself, because
its last packets end while the next transfer moves. The latencies of descriptors, HBM
and semaphore do not occupy the engine.

If hardware generates the descriptors (NeuronCore-v3 on), each transfer occupies one of
two generators for 600 ns [A3, DGE]. The published fixed cost of a transfer includes
prebuilt descriptors [DB]. Descriptors from software take GpSimdE a microsecond per
transfer, plus a time per contiguous piece [KLN, its author].

The published curve of rates [DM] is for transfers of 256 bytes, and is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import has
from neuronjax.timing.work import Core


@dataclass(frozen=True, slots=True, kw_only=True)
class DmaTask:
    """A transfer, described for one of the DMA engines that share it.

    Attributes:
        bytes: bytes that the busiest engine moves.
        piece: contiguous bytes at the source or the destination, whichever are fewer.
        most_bytes_per_second: the rate at which HBM can read or write the bytes.
        item_bytes: bytes of an element, for transposes.
        transposes: whether rows and columns are swapped on the way.
        on_chip: whether the source is in SBUF.
        by_hardware: whether hardware generates the descriptors.
        packets: the number of pieces if GpSimdE generates the descriptors, else 0.
    """

    bytes: float
    piece: float
    most_bytes_per_second: float = inf
    item_bytes: int = 4
    transposes: bool = False
    on_chip: bool = False
    by_hardware: bool = False
    packets: float = 0


class DmaPace(NamedTuple):
    """The times of a transfer.

    Attributes:
        seconds: how long an engine is occupied, if other transfers follow.
        issue_seconds: how long issuing the transfer occupies the issuing queue.
        start_seconds: from the trigger to the first byte.
        semaphore_seconds: from the last byte to the start of a consumer.
        tail_seconds: the extra time if no other transfer follows.
    """

    seconds: float
    issue_seconds: float
    start_seconds: float
    semaphore_seconds: float
    tail_seconds: float


def dma_pace(core: Core, task: DmaTask) -> DmaPace:
    """Return the times of a transfer on one engine and on the queue that issues it."""
    streamed = moving_seconds(core, task, streaming_bytes_per_second(core))
    alone = moving_seconds(core, task, core.chip.dma_engine_bytes_per_second)
    issue, start = 0.0, core.chip.dma_start_seconds - a.DMA_SEMAPHORE.value
    if task.by_hardware:
        issue = start = core.chip.hwdge_issue_seconds or 0.0
        start += 0.0 if task.on_chip else a.HBM_LATENCY.value
    elif task.packets:
        issue = a.SOFTWARE_DMA.value + task.packets * core.chip.software_packet_seconds
    return DmaPace(streamed, issue, start, a.DMA_SEMAPHORE.value, alone - streamed)


def moving_seconds(core: Core, task: DmaTask, bytes_per_second: float) -> float:
    """Return the seconds in which one engine starts the pieces of `task` and moves the
    bytes, at `bytes_per_second` or the rate of HBM if this is lower.

    DMA transposes run at a fraction of the rate [A3]. On a chip without them, each
    element is a piece."""
    piece, size = task.piece, task.bytes
    if task.transposes and has(core, "dma_transpose"):
        share = a.DMA_TRANSPOSE_ON_CHIP if task.on_chip else a.DMA_TRANSPOSE_SHARE
        bytes_per_second *= share.value
    elif task.transposes:
        piece = min(piece, task.item_bytes)
    pieces = ceil(size / max(1.0, min(piece, size)))
    busy = size / bytes_per_second + pieces * a.DMA_ELEMENT.value
    return max(busy, size / task.most_bytes_per_second)


def engines(core: Core) -> int:
    return core.chip.dma_engines // core.chip.cores_per_chip * core.lnc


def hbm_bytes_per_second(core: Core) -> float:
    """Return a logical core's equal share of the chip's HBM bandwidth."""
    return core.chip.hbm_bytes_per_second / core.chip.cores_per_chip * core.lnc


def streaming_bytes_per_second(core: Core) -> float:
    """Return the rate of one engine in a stream of transfers."""
    chip = core.chip
    return chip.dma_streaming_bytes_per_second or chip.dma_engine_bytes_per_second
