"""The registry of cost rules, and the layout of programs' tensors on lanes.

Rules of programs register by instruction class (functools.singledispatch, `rule`) and
return ways (`work.Way`); rules of kernels register by the name of the nki.isa function
(`prices`). Both are in one file per engine, use shapes and dtypes only, and describe
work; `engines` computes its time.

Instructions have no layout; the compiler is assumed to choose well. **The rule**: the
fewest leading dimensions that make 128 rows or more are on the partitions, and the
other dimensions are the free size; a tensor of fewer rows is spread over the lanes as
one long row. With LNC 2 two physical cores share the columns. Reductions put the kept
dimensions on the partitions if these dimensions fill them.
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
    """Return how many elements of a tensor the fullest lane has."""
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
    """Return how many instructions of at most `limit` elements process `per_lane`
    elements of each lane."""
    return max(1, ceil(per_lane / (limit or a.ELEMENTS_OF_AN_INSTRUCTION.value)))


#: The ways of a free instruction, which is an access pattern of its consumers.
FREE: tuple[Way, ...] = ((),)


@dataclass(frozen=True, slots=True)
class Reading:
    """The ways in which operands are read; each field is a set of operand indices.

    Attributes:
        scalars: operands with one element in all or one per row (an immediate, or a
            vector over the partitions), which need no second stream through the engine.
        in_psum: operands that are still in PSUM.
        to_transpose: operands of a matmul whose contracted axis is not on partitions.
    """

    scalars: frozenset[int] = frozenset()
    in_psum: frozenset[int] = frozenset()
    to_transpose: frozenset[int] = frozenset()


PLAIN = Reading()


@functools.singledispatch
def rule(instruction: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Return the ways to execute an instruction, in any order.

    Raises:
        InternalError: the class has no rule; control flow and collectives have none.
    """
    raise InternalError(
        f"{instruction.name} has no cost rule",
        op=instruction.name,
        location=instruction.location.source,
    )


# -- kernels ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrice:
    """The time of a kernel instruction on an idle core if all operands are ready.

    Attributes:
        work: the work of its engine; for DMA, the work of each DMA engine.
        moves: reads and writes of HBM, which events show instead of `work`.
        ring: for DMA, the queue that issues the transfer; "" for engines.
        issue_seconds: how long issuing a transfer occupies the ring.
        start_seconds: from a transfer's trigger to its first byte.
        dma_engines: the first DMA engine that moves data, and the number of engines.
        load_seconds: seconds to load a stationary operand that is not yet loaded.
        seen_seconds: the part of `load_seconds` that delays the next matmul.
        rows, columns: (first, number) of the rows of a matmul's tile of TensorE's
            array, and of its columns, in units of 32.
        array_share: the fraction of the tile's rows that are in use.
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
"""Name of an instruction -> its rule."""


def prices(*names: str) -> Callable[[KernelRule], KernelRule]:
    """Return a decorator that registers a rule of kernels under instruction names."""

    def register(rule: KernelRule) -> KernelRule:
        KERNEL_RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


# -- tensors of programs on lanes ------------------------------------------------------


def stream(tensor: TensorType, free: int, *, in_psum: bool = False) -> LaneStream:
    """Return a stream of `free` contiguous elements per lane with `tensor`'s dtype."""
    return LaneStream("psum" if in_psum else "sbuf", tensor.dtype, free)


def nbytes(views_or_buffers: Iterable[View | Buffer]) -> int:
    return sum(v.type.size_bytes for v in views_or_buffers)


def traffic_of(i: Instruction) -> dict[str, float]:
    """Return the bytes of SBUF that `i` reads and writes, as fields of `Work`."""
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
    """Return the task of the nki.isa instruction `name` that computes the result of
    `i`, or, if `shape` is given, a tensor of that shape.

    `operands` are the indices of the operands that stream in, by default the first
    operand that is not a scalar."""
    result = (*i.results, *i.operands)[0].type  # some instructions have no result
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
    """Return a way in which an engine runs each of `tasks` `times` times per tile."""
    fields = {**traffic_of(i), **more}
    tiles = tiles_of(tasks[0].elements)
    return (lane_work(core, *tasks, tiles=tiles, times=times, **fields),)
