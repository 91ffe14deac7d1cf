"""A small timeline that is computed by hand: two matmuls and an activation.

Microseconds:

    dma     0 - 2    weights for the first matmul, 4,000 bytes
            2 - 3    a spill that is read again, 1,000 bytes
            18 - 20  the result, 500 bytes
    tensor  2 - 5    the first matmul, two tiles
            5 - 17   the second, in a loop of 4 trips of 3
    scalar  17 - 18  an activation of it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import Activation, DotDimensions, NcMatmul
from neuronjax.ir.program import Location, TensorType
from neuronjax.timing.fused import Fused
from neuronjax.timing.hbm import peak_of
from neuronjax.timing.memory_plan import BlockPlan, MemoryPlan
from neuronjax.timing.timeline import LoopSpan, Timeline
from neuronjax.timing.work import Event, Queue, Transfer, Work

MICRO = 1e-6


def scheduled(
    events: Sequence[Event],
    instructions: Sequence[Instruction] = (),
    loops: Sequence[LoopSpan] = (),
) -> Timeline:
    """A timeline of these events."""
    empty = BlockPlan(Fused(), [], {}, set())
    return Timeline(
        events=tuple(events),
        instructions=tuple(instructions),
        fused=tuple((instruction,) for instruction in instructions),
        total_seconds=max((event.end_seconds for event in events), default=0.0),
        loops=tuple(loops),
        notes=(),
        memory=MemoryPlan(empty, peak_of(empty, ()), ()),
    )


def _buffer(number: int, *shape: int) -> Buffer:
    return Buffer(number, TensorType(shape, np.dtype(np.float32)))


def _location(phase: str, module: str, line: int) -> Location:
    scope = {"forward": "jvp(mlp)", "backward": "transpose(jvp(mlp))"}[phase]
    where = {"module": module, "phase": phase}
    return Location(f"jit(step)/{scope}/dot", "train.py", line, **where)


X, W, H, Y = (_buffer(n, 10, 100) for n in range(4))
DIMENSIONS = DotDimensions((), (), (1,), (0,))
MATMULS = tuple(
    NcMatmul(
        operands=(View(X), View(W)),
        results=(H,),
        engine="tensor",
        dimensions=DIMENSIONS,
        location=_location(phase, "mlp", 3),
    )
    for phase in ("forward", "backward")
)
TANH = Activation(
    operands=(View(H),),
    results=(Y,),
    engine="scalar",
    function="tanh",
    location=_location("forward", "", 4),
)


def event(
    queue: Queue, start: float, end: float, source: Any, of: int = -1, count: int = 1
) -> Event:
    """An event between two times in microseconds."""
    name = source.opcode if isinstance(source, Work) else source.reason
    return Event(
        queue=queue,
        start_seconds=start * MICRO,
        end_seconds=end * MICRO,
        name=name,
        source=source,
        instruction=of,
        count=count,
        queue_seconds=(end - start) * MICRO,
    )


def matmul(flops: float, tiles: int) -> Work:
    return Work(
        queue="tensor",
        seconds=3 * MICRO,
        tiles=tiles,
        opcode="MATMUL",
        flops=flops,
        hardware_flops=1.5 * flops,
        transpose_flops=0.5 * flops,
        sbuf_read_bytes=64.0,
        psum_write_bytes=32.0,
    )


ACTIVATE = Work(
    queue="scalar",
    seconds=MICRO,
    opcode="ACTIVATE",
    psum_read_bytes=32.0,
    sbuf_write_bytes=16.0,
)


def transfer(reason: Any, size: int) -> Transfer:
    is_read = reason not in ("output", "spill_save")
    return Transfer(buffer=W, bytes=size, row_bytes=512, reason=reason, is_read=is_read)


LOOP = LoopSpan(
    start_seconds=5 * MICRO,
    end_seconds=17 * MICRO,
    trips=4,
    period_seconds=3 * MICRO,
    first_event=3,
    last_event=4,
    count=1,
    source="train.py:2",
)
EXAMPLE = scheduled(
    events=(
        event("dma", 0, 2, transfer("weight", 4000), of=0),
        event("dma", 2, 3, transfer("spill_reload", 1000), of=1),
        event("tensor", 2, 5, matmul(1000.0, tiles=2), of=0),
        event("tensor", 5, 8, matmul(500.0, tiles=1), of=1, count=4),
        event("scalar", 17, 18, ACTIVATE, of=2),
        event("dma", 18, 20, transfer("output", 500)),
    ),
    instructions=(*MATMULS, TANH),
    loops=(LOOP,),
)
