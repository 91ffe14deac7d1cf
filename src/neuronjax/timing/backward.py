"""The share of a program's work that is in its backward pass.

This share limits how long the communication of gradients can overlap computation. An
instruction is in the backward pass if its location has the phase "backward"
(`ir.phases`); rematerialised forward operations have this phase, too. The instructions
of a loop or a callee may have no phase: they are in the backward pass if the loop or
the call is. If several passes call a function, its work is divided in proportion to the
number of calls in each pass. Work is the sum of the busy seconds of all queues.
"""

from __future__ import annotations

from collections import Counter

from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.traversal import entries
from neuronjax.timing.timeline import Timeline


def backward_share(program: InstructionProgram, timeline: Timeline) -> float:
    """Return the share (0 to 1) of a program's busy seconds, summed over all queues,
    that is spent in the backward pass."""
    visits: Counter[int] = Counter()
    backward: Counter[int] = Counter()
    _visit(program, program.main, False, visits, backward)
    known, behind = 0.0, 0.0
    for total, members in zip(timeline.totals, timeline.fused, strict=True):
        found = [key for member in members if (key := _key(member)) in visits]
        if found:
            spent = sum(total.seconds.values())
            shares = (backward[key] / visits[key] for key in found)
            known += spent
            behind += spent * sum(shares) / len(found)
    return behind / known if known else 0.0


def _key(instruction: Instruction) -> int:
    """Return a key of an instruction. Copies of the instruction, which the inlining of
    a callee makes, have the same key."""
    return id(instruction.results)


def _visit(
    program: InstructionProgram,
    block: Block,
    is_backward: bool,
    visits: Counter[int],
    backward: Counter[int],
) -> None:
    """Count the occurrences of each instruction in `block` and in the blocks that
    `block` runs: all occurrences in `visits`, those in the backward pass in `backward`.

    The counters are by `_key`. If `is_backward`, all of `block` is in the backward
    pass."""
    for instruction in block.instructions:
        inside = is_backward or instruction.location.phase == "backward"
        visits[_key(instruction)] += 1
        backward[_key(instruction)] += inside
        for entry in entries(instruction, program.functions):
            _visit(program, entry.block, inside, visits, backward)
