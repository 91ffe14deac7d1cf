"""Costs of kernels' instructions on VectorE, ScalarE, GpSimdE and the sequencers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_rules import KernelPrice, prices
from neuronjax.timing.engines.gpsimd import (
    gather_cycles,
    long_gather_cycles,
    topk_cycles,
)
from neuronjax.timing.engines.lanes import (
    PRICED,
    clock,
    engine_work,
    lane_work,
    latency_seconds,
)
from neuronjax.timing.engines.task import LaneStream, LaneTask
from neuronjax.timing.kernel_operands import operand
from neuronjax.timing.work import Core, Queue, Work


def _in_memory(accesses: Iterable[Any]) -> list[LaneStream]:
    return [
        operand(x)
        for x in accesses
        if isinstance(x, Access) and x.storage.memory != "registers"
    ]


def _traffic(i: KernelInstruction) -> dict[str, Any]:
    ends = {"read": _in_memory(i.inputs), "write": _in_memory(i.outputs)}
    return {
        f"{m}_{verb}_bytes": float(sum(s.bytes for s in found if s.memory == m))
        for verb, found in ends.items()
        for m in ("sbuf", "psum")
    }


@prices(*PRICED - {"nc_transpose"})
def on_lanes(i: KernelInstruction, core: Core) -> KernelPrice:
    """Price an instruction by the elements per lane that stream through its engine."""
    queue: Queue = i.engine  # type: ignore[assignment]
    read, written = _in_memory(i.inputs), tuple(_in_memory(i.outputs))
    longest = max((s.free for s in read), default=1)
    attributes = i.attributes
    named = [attributes[name] for name in ("op", "op0", "op1") if name in attributes]
    task = LaneTask(
        name=i.name,
        queue=queue,
        read=tuple(s for s in read if longest == 1 or s.free > 1),
        written=written,
        ops=tuple(map(str, named)),
        function=str(attributes.get("op", "")),
        is_zero=not any(i.parameters),
        folds=int(len(i.outputs) > 1),
    )
    return KernelPrice(work=lane_work(core, task, **_traffic(i)))


def _on_gpsimd(i: KernelInstruction, core: Core, cycles: float) -> KernelPrice:
    opcode = i.name.removeprefix("nc_").upper()
    return KernelPrice(
        work=engine_work(core, "gpsimd", cycles, 1, opcode=opcode, **_traffic(i))
    )


@prices("local_gather")
def local_gather(i: KernelInstruction, core: Core) -> KernelPrice:
    (out, *_), read = _in_memory(i.outputs), _in_memory(i.inputs)
    longest = max(s.free for s in (out, *read))
    indices = int(i.attributes.get("valid", longest))
    elements = int(i.attributes.get("elements", 1))
    cycles = gather_cycles(indices, elements, out.dtype.itemsize)
    return _on_gpsimd(i, core, cycles)


@prices("nc_n_gather")
def nc_n_gather(i: KernelInstruction, core: Core) -> KernelPrice:
    return _on_gpsimd(i, core, long_gather_cycles(_in_memory(i.outputs)[0].free))


@prices("topk")
def topk(i: KernelInstruction, core: Core) -> KernelPrice:
    longest = max(s.free for s in _in_memory((*i.inputs, *i.outputs)))
    n, k = int(i.attributes.get("n", longest)), _in_memory(i.outputs)[0].free
    return _on_gpsimd(i, core, topk_cycles(n, k))


@prices("register_move", "register_load", "register_store", "core_barrier")
def on_sequencer(i: KernelInstruction, core: Core) -> KernelPrice:
    """Price an instruction of a sequencer, such as the load of a register. If the
    instruction reads from HBM, the latency of HBM is added."""
    spent = a.REGISTER_CYCLES.value / clock(core, "sync")
    latency = latency_seconds(core, "sync")
    memories = {x.storage.memory for x in i.inputs if isinstance(x, Access)}
    if any(memory.endswith("hbm") for memory in memories):
        latency += a.HBM_LATENCY.value
    work = Work(
        queue="sync", seconds=spent, latency_seconds=latency, opcode=i.name.upper()
    )
    return KernelPrice(work=work)
