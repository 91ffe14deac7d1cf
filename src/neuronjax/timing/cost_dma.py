"""Costs of transfers, and of movement inside SBUF, on the DMA engines.

In programs, all DMA engines of a core share a transfer, the cores of a chip share HBM's
bandwidth equally, and descriptors are prebuilt. Movement that an access pattern can
replace is free (`FREE`).

In kernels, each DMA engine serves eight partitions, so a transfer of few partitions
uses few DMA engines [DM]. A kernel has HBM to itself: the DMA engines of one core reach
more than an equal share of HBM's bandwidth (400 GB/s measured on trn2 [KDA]). If a
kernel does not say what generates the descriptors of a transfer, hardware generates
them: for loads on command of SyncE, for other transfers on command of ScalarE.
ASSUMPTION: the compiler chooses so, but prebuilds descriptors for casts and for chips
without this hardware, and lets GpSimdE generate them for transfers with indices of
rows. Kernels of neuronxcc.nki have prebuilt descriptors, as with the compiler's
`--disable-dge`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, inf, prod
from typing import Any, NamedTuple

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import DmaCopy, Im2col, LocalGather, LocalScatter
from neuronjax.ir.kernel import Access, KernelInstruction, Storage
from neuronjax.timing import assumptions as a, patches
from neuronjax.timing.cost_gpsimd import gpsimd
from neuronjax.timing.cost_rules import (
    FREE,
    KernelPrice,
    Reading,
    columns,
    elementwise,
    nbytes,
    prices,
    rule,
    stream,
)
from neuronjax.timing.cost_tensor import over_partitions, transpose_works
from neuronjax.timing.engines.dma import (
    DmaTask,
    dma_pace,
    engines,
    hbm_bytes_per_second,
)
from neuronjax.timing.engines.gpsimd import gather_cycles
from neuronjax.timing.engines.task import LaneTask, has
from neuronjax.timing.kernel_operands import (
    first_partition,
    operand,
    run_bytes,
    whole_pattern,
)
from neuronjax.timing.work import Core, Queue, Transfer, Way, Work

#: Kinds of `DmaCopy` that move nothing: readers use an access pattern of the source.
ACCESS_PATTERNS = frozenset({"broadcast", "reshape", "slice"})


def _shared(core: Core, size: float, piece: float, **more: Any) -> DmaTask:
    return DmaTask(bytes=size / engines(core), piece=piece, **more)


def dma_times(transfer: Transfer, core: Core) -> tuple[float, float]:
    """Return how long a transfer occupies the DMA engines, and its latency, in seconds.

    The latency is the time from the trigger to the first byte, plus the time from the
    last byte to the start of a consumer, which waits for a semaphore [DB]."""
    buffer = transfer.buffer
    task = _shared(
        core,
        transfer.bytes,
        transfer.row_bytes,
        item_bytes=4 if buffer is None else buffer.type.dtype.itemsize,
        transposes=transfer.transposes,
        on_chip=not transfer.is_read,
    )
    pace = dma_pace(core, task)
    least = transfer.bytes / hbm_bytes_per_second(core)
    return max(pace.seconds, least), pace.start_seconds + a.DMA_SEMAPHORE.value


def _dma(
    core: Core, size: float, piece: float, opcode: str, *, transposes: bool = False
) -> Way:
    task = _shared(core, size, piece, transposes=transposes, on_chip=True)
    pace = dma_pace(core, task)
    work = Work(
        queue="dma",
        seconds=pace.seconds,
        latency_seconds=pace.start_seconds + a.DMA_SEMAPHORE.value,
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
    """Return the ways to copy a tensor of `shape` inside SBUF, by VectorE, GpSimdE,
    ScalarE (if its copies are exact) or DMA. Only `piece` bytes at a time are
    contiguous."""
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
    """Return how many matrices `i` transposes, and the rows and the columns of each;
    None if an access pattern can replace the transposition.

    It can if the last axis stays last, so that whole rows move, or if the leading axes
    that fill the 128 partitions stay in place, so that elements stay in their lanes."""
    shape = i.operands[0].type.shape
    order = [d for d in i.parameters[0] if shape[d] > 1]
    if order == sorted(order) or order[-1] == max(order):
        return None
    axes = sorted(order)
    same = next(n for n, (a, b) in enumerate(zip(order, axes)) if a != b)
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
    """Return the bytes of each contiguous piece of a block of `shape` that lies in a
    tensor of the shape `within`; an element has `item` bytes."""
    run = item
    for size, whole in zip(reversed(shape), reversed(within), strict=True):
        run *= max(1, size)
        if size != whole:
            break
    return float(run)


@rule.register
def _(i: DmaCopy, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Price a movement of data: free if its readers can use an access pattern instead,
    otherwise a copy or a transposition."""
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
    """Price the patches of an image: free if matmuls read them out of the image
    (`patches`), otherwise a copy by DMA."""
    if patches.read_in_place(i, core):
        return FREE
    size, run = patches.copied_bytes(i), float(patches.run_bytes(i))
    return (_dma(core, size, run, "DMA_DIRECT2D"),)


@rule.register
def _(i: LocalGather, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Price a gather: by DMA with an address for each slice, or by `local_gather` of
    GpSimdE in SBUF."""
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
    """Price a scatter, by DMA or by GpSimdE: it writes the slices that it updates, and
    reads them first unless its `op` is "assign"."""
    updates = i.operands[-1].type
    window = dict(i.dimension_numbers).get("update_window_dims", ())
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


# -- kernels ---------------------------------------------------------------------------


class _Move(NamedTuple):
    """A kernel's transfer of `bytes`, in pieces of `piece` contiguous bytes each."""

    out: Access
    source: Access
    bytes: float
    piece: float

    @property
    def on_chip(self) -> Access:
        """Return the access whose partitions determine the DMA engines: the output if
        it is in SBUF or PSUM, otherwise the source, which may also be in HBM."""
        return self.source if _in_hbm(self.out) else self.out


def _in_hbm(access: Access) -> bool:
    return not access.storage.on_chip


def _sources(i: KernelInstruction) -> list[Access]:
    return [x for x in i.inputs if isinstance(x, Access)]


def _piece(*sides: Access) -> float:
    """Return the bytes of the smallest contiguous piece in `sides`, the accesses of a
    transfer. An access on chip that is contiguous in each partition does not count. If
    no access counts, return the bytes of the whole transfer."""
    pieces = []
    for side in sides:
        o = operand(side)
        run = run_bytes(side)
        if _in_hbm(side) or run < o.free * o.dtype.itemsize:
            pieces.append(run)
    return float(min(pieces)) if pieces else float(operand(sides[0]).bytes)


def _move(i: KernelInstruction) -> _Move:
    out, sources = i.outputs[0], _sources(i)
    size = float(max(operand(out).bytes, sum(operand(s).bytes for s in sources)))
    piece = _piece(out, sources[0])
    if i.name == "dma_transpose":
        piece = float(max(run_bytes(s) for s in (out, sources[0])))
    return _Move(out, sources[0], size, piece)


def _engines_of(m: _Move, core: Core) -> tuple[int, int]:
    whole, side = engines(core), m.on_chip
    if _in_hbm(side):
        return 0, whole
    each = int(a.PARTITIONS_OF_A_DMA_ENGINE.value)
    first = first_partition(side)
    last = first + operand(side).partitions - 1
    low, high = first // each, min(whole - 1, last // each)
    return min(low, high), max(1, high - low + 1)


def _fullest(m: _Move, count: int) -> float:
    """Return the bytes that the busiest of `count` DMA engines moves. To or from SBUF
    or PSUM, each engine moves whole partitions."""
    if _in_hbm(m.on_chip):
        return m.bytes / count
    rows = operand(m.on_chip).partitions
    return m.bytes / rows * min(rows, ceil(rows / count))


def _hbm_bytes_per_second(m: _Move, core: Core) -> float:
    """Return the rate of the HBM channels that hold the rows of a transfer; infinity if
    the rows are spread over all channels or are not in HBM."""
    channels, each = core.chip.hbm_channels, a.HBM_INTERLEAVE.value
    for side in (m.source, m.out):
        (stride, rows), *_ = side.pattern or ((0, 1),)
        apart = stride * operand(side).dtype.itemsize
        spread = rows == 1 or not apart or not _in_hbm(side)
        if channels and not spread and apart % (channels * each) == 0:
            share = min(1.0, ceil(run_bytes(side) / each) / channels)
            return core.chip.hbm_bytes_per_second * share
    return inf


def _mode(i: KernelInstruction, m: _Move, core: Core) -> str:
    asked = i.attributes.get("dge_mode", "unknown")
    if asked != "unknown":
        return str(asked)
    kinds = {s.dynamic.kind for s in (m.out, *_sources(i)) if s.dynamic is not None}
    if kinds & {"vector", "indirect"}:
        return "swdge"
    if "hwdge" not in core.spec.capabilities or m.out.dtype != m.source.dtype:
        return "none"
    return "hwdge"


def _direction(m: _Move) -> str:
    names = {(False, True): "load", (True, False): "store", (True, True): "hbm"}
    return names.get((_in_hbm(m.out), _in_hbm(m.source)), "sbuf")


def _ring(i: KernelInstruction, m: _Move, mode: str) -> str:
    if mode == "swdge":
        return "gpsimd"
    if mode != "hwdge":
        return f"dma.{_direction(m)}"
    asked = i.attributes.get("dge_engine", "unknown")
    if asked in ("sync", "scalar"):
        return f"dge.{asked}"
    return "dge.sync" if _direction(m) == "load" else "dge.scalar"


@prices("dma_copy", "dma_transpose", "dma_compute", "sendrecv")
def transfer(i: KernelInstruction, core: Core) -> KernelPrice:
    if i.attributes.get("dge_engine") == "tensor":  # a broadcast of neuronxcc.nki
        return over_partitions(i, core)
    m = _move(i)
    mode = _mode(i, m, core)
    low, count = _engines_of(m, core)
    task = DmaTask(
        bytes=_fullest(m, count),
        piece=m.piece,
        most_bytes_per_second=_hbm_bytes_per_second(m, core) / count,
        item_bytes=operand(m.out).dtype.itemsize,
        transposes=i.name == "dma_transpose",
        on_chip=not _in_hbm(m.source),
        by_hardware=mode == "hwdge",
        packets=m.bytes / m.piece if mode == "swdge" else 0,
    )
    pace = dma_pace(core, task)
    work = Work(
        queue="dma",
        seconds=pace.seconds,
        latency_seconds=a.DMA_SEMAPHORE.value + pace.tail_seconds,
        opcode="DMA_TRANSPOSE" if task.transposes else "DMA_DIRECT2D",
        sbuf_read_bytes=float(operand(m.source).bytes),
        sbuf_write_bytes=float(operand(m.out).bytes),
        dma_bytes=m.bytes,
    )
    return KernelPrice(
        work=work,
        moves=tuple(_moves(m, task.transposes)),
        ring=_ring(i, m, mode),
        issue_seconds=pace.issue_seconds,
        start_seconds=pace.start_seconds,
        dma_engines=(low, count),
    )


def _moves(m: _Move, transposes: bool) -> Iterator[Transfer]:
    for side, is_read in ((m.source, True), (m.out, False)):
        if _in_hbm(side):
            yield Transfer(
                buffer=None,
                bytes=operand(side).bytes,
                row_bytes=int(m.piece),
                reason="input" if is_read else "output",
                is_read=is_read,
                transposes=transposes,
            )


@prices("device_print")
def device_print(i: KernelInstruction, core: Core) -> KernelPrice:
    """Price a print as a store of the tensor to HBM, where the host reads it
    (ASSUMPTION)."""
    (source,) = _sources(i)
    room = Storage(-1, "shared_hbm", source.shape, source.dtype)
    out = Access(room, source.dtype, 0, whole_pattern(source.shape))
    return transfer(replace(i, name="dma_copy", outputs=(out,)), core)
