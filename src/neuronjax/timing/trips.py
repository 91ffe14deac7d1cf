"""Trip counts of loops that count from one constant to another.

`lax.scan`, and `fori_loop` with constant bounds, become such loops. Other trip counts
depend on values, which `timing` does not know: its caller gives these trip counts, or
the loop counts as one iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from neuronjax.ir.instruction import Block, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import Call, Compare, Loop, Memset, TensorTensor

_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}
_DEPTH = 8


def static_trips(
    loop: Loop, outside: Mapping[int, Instruction], functions: Mapping[str, Block]
) -> int | None:
    """Return the trip count of a loop; None if no constants determine it.

    `outside` has, by buffer number, the instructions that write the buffers of the
    surrounding blocks."""
    test = _condition(loop.condition, outside)
    if test is None:
        return None
    position, direction, limit = test
    start = _constant(loop.operands[position], outside)
    step = _increment(loop.body, position, outside, functions)
    if start is None or step is None:
        return None
    return _count(start, limit, step, direction)


def writers(block: Block) -> dict[int, Instruction]:
    """Return, by buffer number, the instructions of a block that write buffers; those
    of nested blocks are left out."""
    return {b.number: i for i in block.instructions for b in i.results}


def all_writers(program: InstructionProgram) -> dict[int, Instruction]:
    """Return, by buffer number, the instructions that write the buffers of a program,
    in all functions and nested blocks."""
    return {b.number: i for i in program.walk() for b in i.results}


def _constant(view: View, written: Mapping[int, Instruction]) -> int | None:
    i = written.get(view.buffer.number)
    if isinstance(i, Memset) and i.value.size == 1 and i.value.dtype.kind in "iu":
        return int(i.value.item())
    return None


def _condition(
    block: Block, outside: Mapping[int, Instruction]
) -> tuple[int, str, int] | None:
    """Return (position of the counter among the carries, comparison such as "LT",
    limit) if a loop's condition compares a counter with a constant limit; else None."""
    written = {**outside, **writers(block)}
    i = written.get(block.results[0].buffer.number)
    if not isinstance(i, Compare):
        return None
    numbers = [b.number for b in block.arguments]
    left, right = i.operands
    for counter, limit, direction in (
        (left, right, i.direction),
        (right, left, _FLIPPED[i.direction]),
    ):
        value = _constant(limit, written)
        if counter.buffer.number in numbers and value is not None:
            return numbers.index(counter.buffer.number), direction, value
    return None


def _increment(
    body: Block,
    position: int,
    outside: Mapping[int, Instruction],
    functions: Mapping[str, Block],
    depth: int = _DEPTH,
) -> int | None:
    """Return the constant that the body of a loop adds to the carry at `position`,
    negative if it subtracts; None if it does not add a constant."""
    written = {**outside, **writers(body)}
    counter = body.arguments[position].number
    result = body.results[position].buffer.number
    i = written.get(result)
    if isinstance(i, TensorTensor) and i.op in ("add", "subtract"):
        return _added(i, counter, written)
    if isinstance(i, Call) and depth and i.callee in functions:
        inner = functions[i.callee]
        at = next(n for n, b in enumerate(i.results) if b.number == result)
        sources = [v.buffer.number for v in i.operands]
        if counter not in sources:
            return None
        given = {
            b.number: written[v.buffer.number]
            for b, v in zip(inner.arguments, i.operands, strict=True)
            if v.buffer.number in written
        }
        own = inner.arguments[sources.index(counter)]
        reduced = Block((own,), inner.instructions, (inner.results[at],))
        return _increment(reduced, 0, given, functions, depth - 1)
    return None


def _added(
    i: TensorTensor, counter: int, written: Mapping[int, Instruction]
) -> int | None:
    left, right = i.operands
    if left.buffer.number == counter:
        value = _constant(right, written)
        return value if i.op == "add" or value is None else -value
    if right.buffer.number == counter and i.op == "add":
        return _constant(left, written)
    return None


def _count(start: int, limit: int, step: int, direction: str) -> int | None:
    distance = limit - start
    if direction in ("GT", "GE"):
        distance, step = -distance, -step
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction == "LE":
        distance, direction = distance + 1, "LT"
    if direction == "LT":
        if distance <= 0:
            return 0
        return ceil(distance / step) if step > 0 else None
    if direction == "NE" and step and distance % step == 0 and distance // step >= 0:
        return distance // step
    return None
