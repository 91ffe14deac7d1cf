"""`KernelPrice`: what a kernel instruction asks of the machine; `prices`: the registry.

A rule registers by the name of the nki.isa function, `@prices("tensor_tensor")`, and
takes the instruction and one physical core; it knows shapes and dtypes only. Cycles
become seconds as in `cost_rules`: at least MINIMUM_INTERVAL, and the start of one
access that the instruction before does not hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.timing.cost_rules import engine_work
from neuronjax.timing.kernel_operands import KernelOperand, operand
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


# -- what engines' rules share ---------------------------------------------------------


def tensors(i: KernelInstruction) -> list[KernelOperand]:
    """Inputs in memory, states of engines and registers left out."""
    return [
        operand(a)
        for a in i.inputs
        if isinstance(a, Access) and a.storage.memory != "registers"
    ]


def outputs(i: KernelInstruction) -> list[KernelOperand]:
    """What is written to memory."""
    return [operand(a) for a in i.outputs if a.storage.memory != "registers"]


def per_partition(i: KernelInstruction) -> int:
    """N: elements per partition of the longest stream."""
    return max((o.free for o in (*outputs(i), *tensors(i))), default=1)


def streams(i: KernelInstruction) -> list[KernelOperand]:
    """Tensors that stream in: not those of one element per partition."""
    found = tensors(i)
    longest = max((o.free for o in found), default=1)
    return [o for o in found if longest == 1 or not o.is_scalar]


def on_engine(
    i: KernelInstruction,
    core: Core,
    cycles: float,
    opcode: str,
    *,
    mode: str = "",
    table: str = "",
) -> KernelPrice:
    """An instruction that takes so many cycles of VectorE, ScalarE or GpSimdE."""
    queue: Queue = i.engine  # type: ignore[assignment]
    read, written = tensors(i), outputs(i)
    work = engine_work(
        core,
        queue,
        cycles,
        1,
        opcode,
        performance_mode=mode,
        sbuf_read_bytes=_bytes(read, "sbuf"),
        sbuf_write_bytes=_bytes(written, "sbuf"),
        psum_read_bytes=_bytes(read, "psum"),
        psum_write_bytes=_bytes(written, "psum"),
        table=table,
    )
    return KernelPrice(
        queue=queue,
        source=work,
        seconds=work.seconds,
        latency_seconds=work.latency_seconds,
        ports=_ports(queue, core, (*read, *written)),
    )


def _bytes(operands: Iterable[KernelOperand], memory: str) -> float:
    return float(sum(o.bytes for o in operands if o.memory == memory))


# NeuronCore-v2: VectorE and GpSimdE not at once in SBUF, VectorE and ScalarE not at
# once in PSUM [A2]; later cores have ports enough [A3].
_SHARED = {"vector": ("psum", "sbuf"), "scalar": ("psum",), "gpsimd": ("sbuf",)}


def _ports(
    queue: Queue, core: Core, operands: Iterable[KernelOperand]
) -> tuple[str, ...]:
    if "parallel_sbuf_ports" in core.spec.capabilities:
        return ()
    used = {o.memory for o in operands}
    return tuple(m for m in _SHARED.get(queue, ()) if m in used)
