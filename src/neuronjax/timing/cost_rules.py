"""What cost rules share: `rule` itself, and how an instruction lies on the lanes.

Rules register by instruction class (functools.singledispatch), one file per engine, as
they do in `engines`; they know shapes and dtypes only. Positions are those of operands.

Instructions have no layout; the compiler is taken to choose well. **The rule**: the
leading dimensions, as few of them as make 128 rows or more, lie on the partitions, the
others are the free size; a tensor that has no 128 such rows is spread over the lanes as
one long row. With LNC 2 the columns are shared by two physical cores. Reductions put
the kept dimensions on the partitions where those fill them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from neuronjax.errors import InternalError
from neuronjax.ir.instruction import Instruction
from neuronjax.timing import assumptions as a
from neuronjax.timing.work import Core, Queue, Way, Work


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


def clock(core: Core, queue: Queue) -> int:
    """Cycles per second of an engine."""
    return getattr(core.chip.core, queue).clock_hz


def seconds(core: Core, queue: Queue, per_lane: float, tiles: int) -> float:
    """An engine's time for elementwise work.

    `per_lane` are the cycles of the data path for all tiles together; a tile is an
    instruction, which starts accesses and takes the least interval."""
    least, start = a.MINIMUM_INTERVAL.value, a.VISIBLE_STARTS.value
    if queue == "gpsimd":
        cycles = per_lane + tiles * a.GPSIMD_START.value
    else:
        start *= core.spec.access_start_cycles
        cycles = max(least * tiles, per_lane + start * tiles)
    return cycles / clock(core, queue)


def latency_seconds(core: Core, queue: Queue) -> float:
    """From the last element's end to its result being read by another instruction."""
    hidden = 2 - a.VISIBLE_STARTS.value  # of one read and one write
    cycles = a.STATIC_OVERHEAD.value + hidden * core.spec.access_start_cycles
    return cycles / clock(core, queue)


def engine_work(
    core: Core, queue: Queue, cycles: float, starts: int, opcode: str, **more: Any
) -> Work:
    """Work of so many cycles of an engine's data path, in `starts` instructions; it
    has as many tiles, unless `more` fields say otherwise."""
    fields: dict[str, Any] = {"tiles": starts, **more}
    return Work(
        queue=queue,
        seconds=seconds(core, queue, cycles, starts),
        latency_seconds=latency_seconds(core, queue),
        opcode=opcode,
        **fields,
    )


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
