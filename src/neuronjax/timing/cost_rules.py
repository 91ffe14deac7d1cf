"""The registry of cost rules, and the layout of programs' tensors on lanes.

Rules of programs are registered by instruction class (`rule`) and return ways
(`work.Way`); rules of kernels are registered by the name of the nki.isa function
(`prices`). Both are in one file per engine and use only shapes and dtypes; `engines`
computes the times.

A program states no layout. The compiler is assumed to choose this one: the fewest
leading dimensions that make 128 rows or more are on the partitions, and the other
dimensions are the columns; a tensor of fewer than 128 elements has one element per
lane. With LNC 2 each physical core has half of the columns. A reduction has its kept
dimensions on the partitions if they fill the partitions.
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
    """Return how many elements of a tensor of `shape` are in the fullest lane."""
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
    """Return how many instructions process `per_lane` elements of each lane, if each
    processes up to `limit`, by default `ELEMENTS_OF_AN_INSTRUCTION`."""
    return max(1, ceil(per_lane / (limit or a.ELEMENTS_OF_AN_INSTRUCTION.value)))


#: The ways of an instruction that is only an access pattern of its consumers.
FREE: tuple[Way, ...] = ((),)


@dataclass(frozen=True, slots=True)
class Reading:
    """How an instruction reads its operands; each field is a set of operand indices.

    Attributes:
        scalars: operands with one element (an immediate) or with one element per row (a
            vector over the partitions), which the engine does not stream.
        in_psum: operands that are still in PSUM.
        to_transpose: matmul operands whose contracted axis is not on the partitions.
    """

    scalars: frozenset[int] = frozenset()
    in_psum: frozenset[int] = frozenset()
    to_transpose: frozenset[int] = frozenset()


PLAIN = Reading()


@functools.singledispatch
def rule(instruction: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Return the ways to execute an instruction, in any order.

    Raises:
        InternalError: the instruction's class has no rule, as control flow and
            collectives.
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
        work: the work of the engine; for DMA, the work of each DMA engine.
        moves: reads and writes of HBM, which events show instead of `work`.
        ring: for DMA, the queue that issues the transfer; "" for engines.
        issue_seconds: how long issuing a transfer occupies the ring.
        start_seconds: seconds from the start of issuing a transfer to its first byte.
        dma_engines: (first, number) of the DMA engines that move the data.
        load_seconds: seconds to load a stationary operand that is not yet loaded.
        seen_seconds: how long a load during another matmul delays the array.
        rows, columns: the rows and the columns of TensorE's array that a matmul
            occupies, each as (first, number) in units of 32.
        array_share: the fraction of `rows` that the matmul uses.
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
"""Name of an nki.isa function -> its rule."""


def prices(*names: str) -> Callable[[KernelRule], KernelRule]:
    """Return a decorator that registers a rule for the nki.isa functions `names`."""

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
    """Return the task in which the nki.isa instruction `name` computes the result of
    `i`; `shape` replaces the shape of this result.

    `operands` are the indices of the operands that are streamed, by default the first
    operand that is not in `reading.scalars`, or operand 0 without such an operand."""
    result = (*i.results, *i.operands)[0].type  # of operand 0 if `i` has no result
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
    """Return a way of one work; `times` is how often each tile runs all `tasks`."""
    fields = {**traffic_of(i), **more}
    tiles = tiles_of(tasks[0].elements)
    return (lane_work(core, *tasks, tiles=tiles, times=times, **fields),)
