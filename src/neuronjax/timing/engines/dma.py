"""Times of DMA: transfers between HBM and SBUF, and movement inside SBUF.

Each DMA engine moves its part of a transfer at its practical rate, and takes a fixed
time to start each contiguous piece. A transfer that other transfers follow takes less
time than a transfer by itself, because its last packets arrive while the next transfer
moves. The latencies of descriptors, HBM and semaphore do not occupy the DMA engine.

If hardware generates the descriptors (from NeuronCore-v3 on), each transfer occupies
one of two generators for 600 ns [A3, DGE]. A transfer with prebuilt descriptors has the
published fixed cost [DB]. If software generates the descriptors, GpSimdE takes a
microsecond for each transfer, plus a time for each contiguous piece [KLN, its author].

The published curve of rates [DM] is not used, since it is for transfers of 256 bytes.
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
    """The part of a transfer that one DMA engine moves.

    Attributes:
        bytes: bytes that the busiest DMA engine moves.
        piece: bytes of each contiguous piece, at the source or at the destination,
            wherever pieces are smaller.
        most_bytes_per_second: the highest rate at which HBM can serve this DMA engine.
        item_bytes: bytes of an element; used only for transposes.
        transposes: whether the DMA engine swaps rows and columns.
        on_chip: whether the source is on chip (SBUF or PSUM), not in HBM.
        by_hardware: whether hardware generates the descriptors.
        packets: the number of pieces of the whole transfer if GpSimdE generates the
            descriptors, else 0.
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
        seconds: how long the transfer occupies a DMA engine, if other transfers follow.
        issue_seconds: how long the transfer occupies the queue that issues it.
        start_seconds: the time from the trigger of the transfer to its first byte.
        tail_seconds: by how much `seconds` is longer if no other transfer follows.
    """

    seconds: float
    issue_seconds: float
    start_seconds: float
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
    return DmaPace(streamed, issue, start, alone - streamed)


def moving_seconds(core: Core, task: DmaTask, bytes_per_second: float) -> float:
    """Return the seconds that a DMA engine takes to start the contiguous pieces of
    `task` and to move the bytes at `bytes_per_second`, or the seconds that HBM takes
    for these bytes, whichever are more.

    A transpose moves bytes at a fraction of `bytes_per_second` [A3]. If the chip's DMA
    cannot transpose, each element is moved as a piece of its own."""
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
    """Return the rate of one DMA engine if its transfers follow each other."""
    chip = core.chip
    return chip.dma_streaming_bytes_per_second or chip.dma_engine_bytes_per_second
