"""The registry of cost rules, and the layout of programs' tensors on lanes.

A rule for programs is registered by instruction class (`rule`). It returns alternative
ways to execute the instruction. Each `Way` is a sequence of `Work`, each of one engine.
A rule for kernels is registered by the name of the nki.isa function (`prices`). Rules
are in the files `cost_*.py` and need no values of tensors, only shapes, dtypes and
attributes of instructions; `engines` computes the times.

A *lane* is a partition of a physical core, with the part of an engine that processes
it. A program does not state which elements are in which lane. ASSUMPTION: the compiler
puts the fewest leading dimensions with a product of 128 or more on the partitions, and
the other dimensions are the columns of each partition. A tensor of fewer than 128
elements has one element per lane. With LNC 2 each physical core has half of the
columns. In a reduction, the dimensions before the reduced ones are on the partitions if
their product is 128 or more.
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
    """Return how many elements of a tensor of `shape` are in the lane (a partition of a
    physical core) that has the most."""
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
    """Return the number of instructions that process `per_lane` elements in each lane.
    One instruction processes at most `limit` elements of a lane, by default
    `ELEMENTS_OF_AN_INSTRUCTION`."""
    return max(1, ceil(per_lane / (limit or a.ELEMENTS_OF_AN_INSTRUCTION.value)))


#: The cost of an instruction that takes no time, since its consumers read its operand
#: through an access pattern: one `Way`, without `Work`.
FREE: tuple[Way, ...] = ((),)


@dataclass(frozen=True, slots=True)
class Reading:
    """The operands that an instruction reads in a special manner, as sets of indices.

    Attributes:
        scalars: operands that do not stream through the engine, because they have one
            element (an immediate) or one element per row (a vector over the
            partitions).
        in_psum: operands that the instruction reads in PSUM, not in SBUF.
        to_transpose: matmul operands whose contracted axis is not on the partitions, so
            that they are transposed first.
    """

    scalars: frozenset[int] = frozenset()
    in_psum: frozenset[int] = frozenset()
    to_transpose: frozenset[int] = frozenset()


PLAIN = Reading()


@functools.singledispatch
def rule(instruction: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    """Return the alternative ways to execute an instruction, in any order. Control flow
    and collectives have no rule."""
    raise InternalError(
        f"{instruction.name} has no cost rule",
        op=instruction.name,
        location=instruction.location.source,
    )


# -- kernels ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrice:
    """The times of a kernel instruction on an idle core if all operands are ready.

    Attributes:
        work: the work of the engine; for a transfer, the work of each DMA engine.
        moves: a transfer's reads and writes of HBM. If there are any, the timeline has
            events for `moves`, not for `work`.
        ring: the queue that issues a transfer; "" for other instructions.
        issue_seconds: how long the ring is occupied when it issues the transfer.
        start_seconds: seconds from the start of the issue to the transfer's first byte.
        dma_engines: (index of the first, number) of the DMA engines of a transfer.
        load_seconds: seconds to load a matmul's stationary operand, which are spent
            only if the array does not already hold this operand.
        seen_seconds: by how much loading the stationary operand delays the matmul even
            if the load happens during the previous matmul.
        rows, columns: the rows and the columns of TensorE's array that a matmul
            occupies, each as (index of the first, number) in units of 32.
        array_share: the fraction of `rows` that the stationary operand fills.
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
    """Return the stream that an engine reads or writes: `free` contiguous elements per
    lane, of `tensor`'s dtype, in SBUF or PSUM."""
    return LaneStream("psum" if in_psum else "sbuf", tensor.dtype, free)


def nbytes(views_or_buffers: Iterable[View | Buffer]) -> int:
    return sum(v.type.size_bytes for v in views_or_buffers)


def traffic_of(i: Instruction) -> dict[str, float]:
    """Return the bytes of the operands of `i` as the field `sbuf_read_bytes` of `Work`,
    and the bytes of the results of `i` as the field `sbuf_write_bytes`."""
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
    """Return the task of the engine `queue` that computes the result of `i` with the
    nki.isa function `name`.

    The streams have the elements per lane of the result or, if given, of `shape`.
    `operands` are the indices of the operands that are streamed; by default only the
    first operand that is not in `reading.scalars` (operand 0 if all are in it).
    `more` are further fields of the task."""
    result = (*i.results, *i.operands)[0].type  # if `i` has no result, operand 0
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
    """Return a `Way` of one `Work`: an engine runs all `tasks` on every tile of the
    tensors of `i`, `times` times. `more` are further fields of the `Work`."""
    fields = {**traffic_of(i), **more}
    tiles = tiles_of(tasks[0].elements)
    return (lane_work(core, *tasks, tiles=tiles, times=times, **fields),)
