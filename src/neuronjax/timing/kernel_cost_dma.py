"""DMA in kernels: which of the 16 engines move what, and who makes the descriptors.

An engine serves eight partitions, so that few partitions occupy few engines [DM]. A
kernel has HBM to itself: the engines of a core move more than its share of HBM (400
GB/s measured on trn2 [KDA]).

Of the generators of descriptors SyncE commands one for loads and ScalarE the other for
the rest, unless the kernel says which (ASSUMPTION: the compiler decides, and takes
hardware wherever it can: no cast, no indices of the run). In the older style they are
prebuilt, as with the compiler's `--disable-dge`.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import NamedTuple

from neuronjax.ir.kernel import Access, KernelInstruction, Storage
from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.dma import DmaTask, dma_pace, engines
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

    @property
    def on_chip(self) -> Access:
        """The side whose partitions decide which engines move it."""
        return self.source if _in_hbm(self.out) else self.out


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


def _move(i: KernelInstruction) -> _Move:
    out, sources = i.outputs[0], _sources(i)
    size = float(max(operand(out).bytes, sum(operand(s).bytes for s in sources)))
    piece = _piece(out, sources[0])
    if i.name == "dma_transpose":
        piece = float(max(run_bytes(s) for s in (out, sources[0])))
    return _Move(out, sources[0], size, piece)


def _engines(m: _Move, core: Core) -> tuple[int, int]:
    """The first engine and how many: those of the partitions on chip."""
    whole, side = engines(core), m.on_chip
    if _in_hbm(side):
        return 0, whole
    each = int(a.PARTITIONS_OF_A_DMA_ENGINE.value)
    first = first_partition(side)
    last = first + operand(side).partitions - 1
    low, high = first // each, min(whole - 1, last // each)
    return min(low, high), max(1, high - low + 1)


def _fullest(m: _Move, count: int) -> float:
    """Bytes of the fullest engine, which has up to eight partitions."""
    if _in_hbm(m.on_chip):
        return m.bytes / count
    rows = operand(m.on_chip).partitions
    return m.bytes / rows * min(rows, ceil(rows / count))


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
    m = _move(i)
    mode = _mode(i, m, core)
    low, count = _engines(m, core)
    task = DmaTask(
        bytes=_fullest(m, count),
        piece=m.piece,
        item_bytes=operand(m.out).dtype.itemsize,
        transposes=i.name == "dma_transpose",
        on_chip=not _in_hbm(m.source),
        by_hardware=mode == "hwdge",
    )
    pace = dma_pace(core, task)
    source, second = _sides(i, m, pace.seconds * count / engines(core))
    return KernelPrice(
        queue="dma",
        source=source,
        seconds=pace.seconds,
        latency_seconds=pace.semaphore_seconds + pace.tail_seconds,
        ring=_ring(i, m, mode),
        issue_seconds=pace.issue_seconds,
        start_seconds=pace.start_seconds,
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
    return replace(stored, seconds=stored.seconds * a.PRINT_COPIES.value)


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
