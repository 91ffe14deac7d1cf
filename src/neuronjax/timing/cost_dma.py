"""Transfers of programs, and their movement inside SBUF, on the DMA engines.

All engines of a core share a transfer, and a core has its share of HBM's bandwidth.
Descriptors are prebuilt. Movement that is only another way to look at bytes is free
(`FREE`).
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import DmaCopy, Im2col, LocalGather, LocalScatter
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_gpsimd import gpsimd
from neuronjax.timing.cost_rules import (
    FREE,
    Reading,
    columns,
    elementwise,
    nbytes,
    rule,
    stream,
)
from neuronjax.timing.cost_tensor import transpose_works
from neuronjax.timing.engines.dma import (
    DmaPace,
    DmaTask,
    dma_pace,
    engines,
    hbm_bytes_per_second,
)
from neuronjax.timing.engines.gpsimd import gather_cycles
from neuronjax.timing.engines.task import LaneTask, has
from neuronjax.timing.patches import copied_bytes, read_in_place, run_bytes
from neuronjax.timing.work import Core, Queue, Transfer, Way, Work

#: Movements that their consumers read through an access pattern.
ACCESS_PATTERNS = frozenset({"broadcast", "reshape", "slice"})


def _shared(core: Core, size: float, piece: float, **more: Any) -> DmaTask:
    """A transfer by all engines of a core."""
    return DmaTask(bytes=size / engines(core), piece=piece, **more)


def _pace(transfer: Transfer, core: Core) -> DmaPace:
    buffer = transfer.buffer
    item = 4 if buffer is None else buffer.type.dtype.itemsize
    task = _shared(
        core,
        transfer.bytes,
        transfer.row_bytes,
        item_bytes=item,
        transposes=transfer.transposes,
        on_chip=not transfer.is_read,
    )
    return dma_pace(core, task)


def dma_seconds(transfer: Transfer, core: Core) -> float:
    """How long a transfer occupies a core's DMA engines, `dma_latency_seconds`
    apart."""
    least = transfer.bytes / hbm_bytes_per_second(core)
    return max(_pace(transfer, core).seconds, least)


def dma_latency_seconds(transfer: Transfer, core: Core) -> float:
    """From a transfer's trigger to a consumer's start, beside `dma_seconds`.

    Descriptors, synchronisation, and the semaphore that the consumer waits for [DB];
    the tail of a tensor is that of its last tile, which is left out.
    """
    return _latency_seconds(_pace(transfer, core))


def _latency_seconds(pace: DmaPace) -> float:
    return pace.start_seconds + pace.semaphore_seconds


def _dma(
    core: Core, size: float, piece: float, opcode: str, *, transposes: bool = False
) -> Way:
    """Movement from SBUF to SBUF."""
    task = _shared(core, size, piece, transposes=transposes, on_chip=True)
    pace = dma_pace(core, task)
    work = Work(
        queue="dma",
        seconds=pace.seconds,
        latency_seconds=_latency_seconds(pace),
        opcode=opcode,
        sbuf_read_bytes=float(size),
        sbuf_write_bytes=float(size),
        dma_bytes=float(size),
    )
    return (work,)


def _copies(
    core: Core,
    i: Instruction,
    shape: tuple[int, ...],
    piece: float,
    *,
    is_dynamic: bool = False,
) -> tuple[Way, ...]:
    """`shape` elements copied within SBUF, by any engine or by DMA; not those next to
    each other."""
    result = i.results[0].type
    size = float(prod(shape) * result.dtype.itemsize)
    end = stream(result, columns(shape, core))._replace(
        contiguous=False, is_dynamic=is_dynamic
    )
    queues: list[Queue] = ["vector", "gpsimd"]
    if has(core, "scalar_engine_exact_copy"):
        queues.append("scalar")
    traffic = {"sbuf_read_bytes": size, "sbuf_write_bytes": size}
    ways = [_dma(core, size, piece, "DMA_DIRECT2D")]
    for queue in queues:
        task = LaneTask(name="tensor_copy", queue=queue, read=(end,), written=(end,))
        ways.append(elementwise(core, i, task, **traffic))
    return tuple(ways)


def _turned(i: DmaCopy) -> tuple[int, int, int] | None:
    """Batch, rows and columns of the matrices that a transpose turns; None: none.

    Where the last axis stays, rows move as wholes; where the leading ones that fill the
    partitions stay, elements move within their lanes: access patterns both.
    """
    shape = i.operands[0].type.shape
    order = [d for d in i.parameters[0] if shape[d] > 1]
    if order == sorted(order) or order[-1] == max(order):
        return None
    same = 0
    axes = sorted(order)
    while order[same] == axes[same]:
        same += 1
    batch = prod(shape[d] for d in order[:same])
    if batch >= 128:
        return None
    rows = prod(shape[d] for d in axes[same:-1])
    return batch, rows, shape[axes[-1]]


def _transposes(i: DmaCopy, core: Core) -> tuple[Way, ...]:
    matrices = _turned(i)
    if matrices is None:
        return FREE
    item = i.results[0].type.dtype.itemsize
    batch, rows, wide = matrices
    ways: list[Way] = [*transpose_works(core, batch, rows, wide, item)]
    if "dma_transpose" in core.spec.capabilities and item in (2, 4):
        piece = float(wide * item)
        size = nbytes(i.results)
        ways.append(_dma(core, size, piece, "DMA_TRANSPOSE", transposes=True))
    return tuple(ways)


def _run_bytes(shape: tuple[int, ...], within: tuple[int, ...], item: int) -> float:
    """Contiguous bytes of a block of `shape` in a row-major tensor of `within`."""
    run = item
    for size, whole in zip(reversed(shape), reversed(within), strict=True):
        run *= max(1, size)
        if size != whole:
            break
    return float(run)


@rule.register
def _(i: DmaCopy, core: Core, reading: Reading) -> tuple[Way, ...]:
    """An access pattern is free; other elements are copied, by engines or by DMA."""
    if i.kind in ACCESS_PATTERNS:
        return FREE
    if i.kind == "transpose":
        return _transposes(i, core)
    result = i.results[0].type
    item = result.dtype.itemsize
    if i.kind == "dynamic_update_slice":  # in place: only the update moves
        update = i.operands[1].type.shape
        run = _run_bytes(update, result.shape, item)
        return _copies(core, i, update, run, is_dynamic=True)
    if i.kind == "dynamic_slice":
        run = _run_bytes(result.shape, i.operands[0].type.shape, item)
        return _copies(core, i, result.shape, run, is_dynamic=True)
    last = result.shape[-1] if result.shape else 1
    return _copies(core, i, result.shape, float(last * item))


@rule.register
def _(i: Im2col, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Channels that fill a tile of the array's rows are read in place; an image of
    fewer is copied by DMA (`patches`)."""
    if read_in_place(i, core):
        return FREE
    return (_dma(core, copied_bytes(i), float(run_bytes(i)), "DMA_DIRECT2D"),)


@rule.register
def _(i: LocalGather, core: Core, reading: Reading) -> tuple[Way, ...]:
    """DMA with an address for every slice, or `local_gather` in SBUF."""
    source, result = i.operands[0].type, i.results[0].type
    item = result.dtype.itemsize
    run = _run_bytes(i.slice_sizes, source.shape, item)
    each = max(1, prod(i.slice_sizes))
    slices = prod(result.shape) // each
    cores = a.GPSIMD_PROCESSORS.value * core.lnc
    cycles = gather_cycles(ceil(slices / cores), each, item)
    return (
        _dma(core, nbytes(i.results), run, "DMA_GATHER"),
        gpsimd(core, i, cycles, "LOCAL_GATHER"),
    )


@rule.register
def _(i: LocalScatter, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Every window is written, or read, combined and written, where it belongs."""
    updates = i.operands[-1].type
    numbers = dict(i.dimension_numbers)
    window = numbers.get("update_window_dims", ())
    run = float(updates.dtype.itemsize)
    for d in reversed(range(len(updates.shape))):
        if d not in window:
            break
        run *= updates.shape[d]
    moved = prod(updates.shape) * updates.dtype.itemsize
    accesses = 1 if i.op == "assign" else 2
    lanes = core.spec.partitions * core.lnc
    cycles = prod(updates.shape) * (1 + accesses) / lanes
    return (
        _dma(core, moved * accesses, run, "DMA_SCATTER"),
        gpsimd(core, i, cycles, "LOCAL_SCATTER"),
    )
