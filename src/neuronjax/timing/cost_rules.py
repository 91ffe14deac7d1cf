"""What cost rules share: their two registries, and how programs' tensors lie on lanes.

Rules of programs register by instruction class (functools.singledispatch, `rule`) and
say which ways are legal; rules of kernels register by the name of the nki.isa function
(`prices`). Both stand in one file per engine, know shapes and dtypes only, and describe
work; what an engine takes for it is in `engines`. Positions are those of operands.

Instructions have no layout; the compiler is taken to choose well. **The rule**: the
leading dimensions, as few of them as make 128 rows or more, lie on the partitions, the
others are the free size; a tensor that has no 128 such rows is spread over the lanes as
one long row. With LNC 2 the columns are shared by two physical cores. Reductions put
the kept dimensions on the partitions where those fill them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from neuronjax.errors import InternalError
from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.kernel import KernelInstruction
from neuronjax.ir.program import TensorType
from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.lanes import lane_work
from neuronjax.timing.engines.task import LaneStream, LaneTask
from neuronjax.timing.work import Core, Queue, Transfer, Way, Work


def columns(shape: tuple[int, ...], core: Core) -> int:
    """Elements of a tensor in the fullest lane."""
    partitions = core.spec.partitions
    rows = 1
    for size in shape:
        if rows >= partitions:
            break
        rows *= size
    elements = prod(shape)
    if rows == 0 or elements == 0:
        return 0
    return ceil(ceil(rows / partitions) * (elements // rows) / core.lnc)


def tiles_of(per_lane: int, limit: float | None = None) -> int:
    """Instructions that so many elements per lane are cut into."""
    return max(1, ceil(per_lane / (limit or a.ELEMENTS_OF_AN_INSTRUCTION.value)))


Positions = frozenset[int]
NONE: Positions = frozenset()

#: What costs nothing, for it is how a consumer looks at bytes that are there already.
FREE: tuple[Way, ...] = ((),)


@dataclass(frozen=True, slots=True)
class Reading:
    """How an instruction meets its operands.

    Attributes:
        scalars: operands of one element per row or in all (an immediate, a vector over
            the partitions): no second stream through the engine.
        in_psum: operands that are still in PSUM.
        to_transpose: operands of a matmul whose contracted axis is not on partitions.
    """

    scalars: Positions = NONE
    in_psum: Positions = NONE
    to_transpose: Positions = NONE


PLAIN = Reading()


@functools.singledispatch
def rule(instruction: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    """The legal ways to execute an instruction, in any order.

    Raises:
        InternalError: the class has no rule; control flow and collectives have none.
    """
    raise InternalError(
        f"no cost of {instruction.name}",
        op=instruction.name,
        location=instruction.location.source,
    )


# -- kernels ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrice:
    """A kernel instruction's time on an idle core whose operands are there.

    Attributes:
        work: of its engine; of DMA, what each of its engines does.
        moves: reads and writes of HBM, which events show in the place of `work`.
        ring: of DMA, the queue that it is issued in; "" for engines.
        issue_seconds: how long the ring issues a transfer, which others wait for.
        start_seconds: from a transfer's trigger to its first byte.
        dma_engines: first one, and how many.
        load_seconds: of the stationary operand, where it is not there already.
        seen_seconds: what of it holds up the array behind another matmul.
        rows, columns: of the tensor engine's array, first and count, in 32s.
        array_share: of the rows of its tile of the array, which work.
    """

    work: Work
    moves: tuple[Transfer, ...] = ()
    ring: str = ""
    issue_seconds: float = 0.0
    start_seconds: float = 0.0
    dma_engines: tuple[int, int] = (0, 0)
    load_seconds: float = 0.0
    seen_seconds: float = 0.0
    rows: tuple[int, int] = (0, 4)
    columns: tuple[int, int] = (0, 4)
    array_share: float = 1.0


KernelRule = Callable[[KernelInstruction, Core], KernelPrice]
KERNEL_RULES: dict[str, KernelRule] = {}
"""By the name of the instruction."""


def prices(*names: str) -> Callable[[KernelRule], KernelRule]:
    """Register a rule of kernels."""

    def register(rule: KernelRule) -> KernelRule:
        KERNEL_RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


# -- tensors of programs on lanes ------------------------------------------------------


def stream(tensor: TensorType, free: int, *, in_psum: bool = False) -> LaneStream:
    """So many elements per lane of a tensor's dtype, one after the other."""
    return LaneStream("psum" if in_psum else "sbuf", tensor.dtype, free)


def nbytes(views_or_buffers: Iterable[View | Buffer]) -> int:
    """The bytes of all views or buffers together."""
    return sum(v.type.size_bytes for v in views_or_buffers)


def traffic_of(i: Instruction) -> dict[str, float]:
    """Fields of a Work: what it reads and writes."""
    read, written = float(nbytes(i.operands)), float(nbytes(i.results))
    return {"sbuf_read_bytes": read, "sbuf_write_bytes": written}


def lane_task(
    core: Core,
    i: Instruction,
    queue: Queue,
    name: str,
    reading: Reading = PLAIN,
    *,
    shape: tuple[int, ...] | None = None,
    operands: Iterable[int] | None = None,
    **more: Any,
) -> LaneTask:
    """One instruction of nki.isa on every element of a result, or of a `shape`.

    What streams in are the `operands`; without them, the first that is a tensor."""
    result = (*i.results, *i.operands)[0].type  # what is only recorded has no result
    free = columns(result.shape if shape is None else shape, core)
    if operands is None:
        every = range(len(i.operands))
        operands = ([p for p in every if p not in reading.scalars] or [*every])[:1]
    read = tuple(
        stream(i.operands[p].type, free, in_psum=p in reading.in_psum) for p in operands
    )
    return LaneTask(
        name=name, queue=queue, read=read, written=(stream(result, free),), **more
    )


def elementwise(
    core: Core, i: Instruction, *tasks: LaneTask, times: float = 1, **more: Any
) -> Way:
    """Tasks of one engine on every tile of what `lane_task` made them of."""
    fields = {**traffic_of(i), **more}
    tiles = tiles_of(tasks[0].elements)
    return (lane_work(core, *tasks, tiles=tiles, times=times, **fields),)
