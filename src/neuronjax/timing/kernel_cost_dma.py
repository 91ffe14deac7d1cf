"""DMA in kernels: which of the 16 engines move what, and how long each of them takes.

An engine serves eight partitions, so that few partitions occupy few engines [DM]; it
moves its share at its practical rate and spends a moment on every contiguous piece of
HBM, or of a partition where that is cut finer. A kernel has HBM to itself: the engines
of a core move more than its share of HBM (400 GB/s measured on trn2 [KDA]). What a
transfer alone takes longer than one in a stream is the end of its last packets, during
which the next ones move. From the trigger to the first byte it takes a descriptor, then
HBM; after the last byte a semaphore.

Where descriptors are made by hardware (NeuronCore-v3 on) each transfer keeps one of two
generators for 600 ns [A3, DGE]: the one that SyncE commands for loads and the one that
ScalarE commands for the rest, unless the kernel says which (ASSUMPTION: the compiler
decides, and takes hardware wherever it can: no cast, no indices of the run). In the
older style they are prebuilt, as with the compiler's `--disable-dge`. What GpSimdE does
for descriptors made in software is not published and left out.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import NamedTuple

from neuronjax.ir.kernel import Access, KernelInstruction, Storage
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_dma import engines, streaming_bytes_per_second
from neuronjax.timing.kernel_constants import PARTITIONS_OF_A_DMA_ENGINE, PRINT_COPIES
from neuronjax.timing.kernel_cost_tensor import over_partitions
from neuronjax.timing.kernel_operands import first_partition, operand, run_bytes
from neuronjax.timing.kernel_price import KernelPrice, prices
from neuronjax.timing.work import Core, Transfer, Work


class _Move(NamedTuple):
    """A transfer of an instruction.

    Attributes:
        bytes: that pass an engine, all engines together.
        piece: contiguous bytes.
    """

    out: Access
    source: Access
    bytes: float
    piece: float
    share: float = 1.0


def _in_hbm(access: Access) -> bool:
    return not access.storage.on_chip


def _sources(i: KernelInstruction) -> list[Access]:
    return [x for x in i.inputs if isinstance(x, Access)]


def _piece(*sides: Access) -> float:
    """Contiguous bytes: whole partitions lie in one piece, however many rows."""
    pieces = []
    for side in sides:
        o = operand(side)
        run = run_bytes(side)
        if _in_hbm(side) or run < o.free * o.dtype.itemsize:
            pieces.append(run)
    return float(min(pieces)) if pieces else float(operand(sides[0]).bytes)


def _move(i: KernelInstruction, core: Core) -> _Move:
    out, sources = i.outputs[0], _sources(i)
    size = float(max(operand(out).bytes, sum(operand(s).bytes for s in sources)))
    piece = _piece(out, sources[0])
    if i.name == "dma_transpose":
        on_chip = not _in_hbm(sources[0])
        share = (a.DMA_TRANSPOSE_ON_CHIP if on_chip else a.DMA_TRANSPOSE_SHARE).value
        if "dma_transpose" in core.spec.capabilities:
            rows = max(run_bytes(s) for s in (out, sources[0]))
            return _Move(out, sources[0], size, float(rows), share)
        item = operand(out).dtype.itemsize
        return _Move(out, sources[0], size, float(item))
    return _Move(out, sources[0], size, piece)


def _engines(m: _Move, core: Core) -> tuple[int, int]:
    """The first engine and how many: those of the partitions on chip."""
    whole = engines(core)
    side = m.source if _in_hbm(m.out) else m.out
    if _in_hbm(side):
        return 0, whole
    each = int(PARTITIONS_OF_A_DMA_ENGINE.value)
    first = first_partition(side)
    last = first + operand(side).partitions - 1
    low, high = first // each, min(whole - 1, last // each)
    return min(low, high), max(1, high - low + 1)


def _engine_seconds(m: _Move, core: Core, count: int, rate: float) -> float:
    share = m.bytes / count
    side = m.source if _in_hbm(m.out) else m.out
    if not _in_hbm(side):  # the fullest engine has up to eight partitions
        rows = operand(side).partitions
        share = m.bytes / rows * min(rows, ceil(rows / count))
    rate *= m.share
    pieces = ceil(share / max(1.0, min(m.piece, share)))
    return share / rate + pieces * a.DMA_ELEMENT.value


def _mode(i: KernelInstruction, m: _Move, core: Core) -> str:
    """Who makes the descriptors."""
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
    """The queue that issues it; the generators are two, others are by direction."""
    if mode != "hwdge":
        return f"dma.{_direction(m)}"
    asked = i.attributes.get("dge_engine", "unknown")
    if asked in ("sync", "scalar"):
        return f"dge.{asked}"
    return "dge.sync" if _direction(m) == "load" else "dge.scalar"


@prices("dma_copy", "dma_transpose", "dma_compute", "sendrecv")
def transfer(i: KernelInstruction, core: Core) -> KernelPrice:
    if i.attributes.get("dge_engine") == "tensor":  # the older compiler's broadcast
        return over_partitions(i, core)
    m = _move(i, core)
    mode = _mode(i, m, core)
    issue = core.chip.hwdge_issue_seconds or 0.0
    start = issue
    if mode != "hwdge":
        issue, start = 0.0, core.chip.dma_start_seconds - a.DMA_SEMAPHORE.value
    if _in_hbm(m.source):
        start += a.HBM_LATENCY.value
    low, count = _engines(m, core)
    alone = core.chip.dma_engine_bytes_per_second
    spent = _engine_seconds(m, core, count, streaming_bytes_per_second(core))
    end = _engine_seconds(m, core, count, alone) - spent
    source, second = _sides(i, m, spent * count / engines(core))
    return KernelPrice(
        queue="dma",
        source=source,
        seconds=spent,
        latency_seconds=a.DMA_SEMAPHORE.value + end,
        ring=_ring(i, m, mode),
        issue_seconds=issue,
        start_seconds=start,
        dma_engines=(low, count),
        second=second,
    )


@prices("device_print")
def device_print(i: KernelInstruction, core: Core) -> KernelPrice:
    """What a store of the tensor takes; the host reads it later. ASSUMPTION."""
    (source,) = _sources(i)
    shape = source.shape
    strides = [prod(shape[n + 1 :]) for n in range(len(shape))]
    room = Storage(-1, "shared_hbm", shape, source.dtype)
    out = Access(room, source.dtype, 0, tuple(zip(strides, shape, strict=True)))
    stored = transfer(replace(i, name="dma_copy", outputs=(out,)), core)
    return replace(stored, seconds=stored.seconds * PRINT_COPIES.value)


def _sides(
    i: KernelInstruction, m: _Move, busy: float
) -> tuple[Work | Transfer, Transfer | None]:
    """What events show: reads and writes of HBM, or movement on chip."""
    turned = i.name == "dma_transpose"
    found = []
    for side, is_read in ((m.source, True), (m.out, False)):
        if _in_hbm(side):
            found.append(
                Transfer(
                    buffer=None,
                    bytes=operand(side).bytes,
                    row_bytes=int(m.piece),
                    reason="input" if is_read else "output",
                    is_read=is_read,
                    transposes=turned,
                )
            )
    if found:
        return found[0], (found[1] if len(found) > 1 else None)
    work = Work(
        queue="dma",
        seconds=busy,
        opcode="DMA_TRANSPOSE" if turned else "DMA_DIRECT2D",
        sbuf_read_bytes=float(operand(m.source).bytes),
        sbuf_write_bytes=float(operand(m.out).bytes),
        dma_bytes=m.bytes,
    )
    return work, None
